/* SPDX-License-Identifier: Apache-2.0 */
/* Thousands of random steps by several users, sessions and processes, with memory running out at every place it can, each step
 * compared with a plain model. The ledger is compiled into this file so that its allocations can be made to fail under any
 * sanitizer and valgrind; what must not allocate runs with none allowed. deadline: 300 s */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned fail_at; /* the allocation that fails, counted from 1; 0: none */
static bool fail_fired, forbidden;

static bool refuse(void) {
        if (forbidden)
                abort();
        if (fail_at == 0 || --fail_at > 0)
                return false;
        fail_fired = true;
        return true;
}

static void *test_malloc(size_t n) {
        return refuse() ? NULL : malloc(n);
}

static void *test_calloc(size_t n, size_t size) {
        return refuse() ? NULL : calloc(n, size);
}

static void *test_reallocarray(void *p, size_t n, size_t size) {
        return refuse() ? NULL : reallocarray(p, n, size);
}

#define malloc test_malloc
#define calloc test_calloc
#define reallocarray test_reallocarray
#include "daemon/audit.c"
#include "daemon/buffer.c"
#include "daemon/client.c"
#include "daemon/cursor.c"
#include "daemon/events.c"
#include "daemon/keeps.c"
#include "daemon/lease.c"
#include "daemon/map.c"
#include "daemon/policy.c"
#include "daemon/quota.c"
#include "daemon/rcstr.c"
#include "daemon/registry.c"
#include "daemon/reserve.c"
#undef malloc
#undef calloc
#undef reallocarray

#include "ledger_model.h"
#include "tests/support/suite.h"

enum { N_CLIENTS = 6, N_HOLDERS = 6, STEPS = 10000 };

static struct world world;
static struct model model;
static struct client *clients[N_CLIENTS];
static struct holder *holders[N_HOLDERS];
static unsigned seed;
static int64_t n_created, n_freed, n_opened, n_released, n_refused, n_out_of_memory;

static unsigned roll(unsigned n) {
        return (unsigned)rand_r(&seed) / 7 % n;
}

static uid_t uid_of(unsigned i) {
        return ALICE + i % 3;
}

static struct limits small_limits(void) {
        struct limits limits = world_limits();

        limits.leases_per_session = 8;
        limits.bytes_per_uid = 60 * PAGE;
        limits.bytes_per_session = 45 * PAGE;
        limits.keep_free_bytes = 10 * PAGE;
        limits.buffers = 24;
        limits.names_per_uid = 4;
        limits.events = 256;
        return limits;
}

/* Lets memory run out within what may fail; nothing else may allocate. */
static void arm(void) {
        forbidden = false;
        fail_fired = false;
        fail_at = roll(3) == 0 ? 1 + roll(8) : 0;
}

static void disarm(void) {
        fail_at = 0;
        forbidden = true;
}

/* A random entry of a kind, or NULL. */
static struct model_lease *pick_lease(enum model_phase phase, bool of_reserved_buffer) {
        struct model_lease *found = NULL;
        unsigned n = 0;

        for (size_t i = 0; i < model.n_leases; i++) {
                struct model_lease *lease = &model.leases[i];

                if (lease->phase == phase &&
                    model_find_buffer(&model, lease->buffer)->reserved == of_reserved_buffer && roll(++n) == 0)
                        found = lease;
        }
        return found;
}

static struct model_buffer *pick_buffer(bool reserved, bool retired) {
        struct model_buffer *found = NULL;
        unsigned n = 0;

        for (size_t i = 0; i < model.n_buffers; i++) {
                struct model_buffer *buffer = &model.buffers[i];

                if (buffer->reserved == reserved && buffer->retired == retired && roll(++n) == 0)
                        found = buffer;
        }
        return found;
}

static struct holder *holder_of(uid_t uid) {
        for (unsigned i = 0, start = roll(N_HOLDERS); i < N_HOLDERS; i++) {
                struct holder *holder = holders[(start + i) % N_HOLDERS];

                if (holder && holder->uid == uid)
                        return holder;
        }
        return NULL;
}

static struct client *pick_client(struct holder **ret_holder) {
        struct client *client = clients[roll(N_CLIENTS)];

        *ret_holder = client ? holder_of(client->peer.principal.uid) : NULL;
        return *ret_holder ? client : NULL;
}

static void step_client(void) {
        unsigned i = roll(N_CLIENTS);
        struct peer peer = { .principal = { .uid = uid_of(i), .gid = uid_of(i) } };
        int r;

        if (clients[i]) {
                if (roll(6) > 0)
                        return;
                model_end_client(&model, clients[i]->serial);
                registry_client_end(&world.registry, clients[i], 1, world.now_usec, world.monotonic_usec);
                clients[i] = NULL;
                return;
        }
        arm();
        r = registry_client_new(&world.registry, &peer, 1, &clients[i], &world.failure);
        disarm();
        must(r == (fail_fired ? -ENOMEM : 0));
}

static void step_holder(void) {
        unsigned i = roll(N_HOLDERS);

        if (!holders[i]) {
                forbidden = false;
                holders[i] = world_holder(&world, uid_of(i));
                forbidden = true;
                return;
        }
        if (roll(6) > 0)
                return;
        model_exit(&model, holders[i]);
        registry_holder_exited(&world.registry, holders[i], world.now_usec, world.monotonic_usec);
        holder_unref(holders[i]);
        holders[i] = NULL;
}

static void step_allocate(void) {
        struct buffer_spec spec = world_spec(&world, (1 + roll(roll(4) ? 12 : 80)) * PAGE, NULL);
        const char *scope = "";
        struct holder *holder;
        struct client *client = pick_client(&holder);
        struct buffer *buffer;
        struct lease *lease;
        char name[8];
        int r, expected;

        if (!client)
                return;
        snprintf(name, sizeof(name), "n%u", roll(6));
        spec.name = roll(2) ? name : NULL;
        spec.meta = roll(2) ? "{}" : NULL;
        spec.label = roll(2) ? "label" : NULL;
        spec.mode = 0666;
        spec.keep_ms = roll(3) ? 0 : 1 + roll(50);
        expected = model_judge(&model, &world, client, &spec, &scope);
        world.queue = NULL;
        arm();
        r = registry_allocate_reserve(&world.registry, client, holder, &spec, &buffer, &lease, &world.never,
                                      &world.queue, &world.failure);
        disarm();
        n_out_of_memory += fail_fired;
        if (fail_fired) {
                must(r == -ENOMEM);
                return;
        }
        must(r == expected);
        if (r == 0) {
                model_add_buffer(&model, buffer, lease);
                return;
        }
        n_refused++;
        must(r == VERDICT_NAME_TAKEN || strcmp(world.failure.subject, scope) == 0);
        must(world.never == !world.queue);
}

static void step_finish_allocate(void) {
        struct model_lease *first = pick_lease(MODEL_RESERVED, true);
        struct model_buffer *buffer;
        bool with_memory = roll(2);

        if (!first)
                return;
        buffer = model_find_buffer(&model, first->buffer);
        if (roll(4) > 0 && first->client && !first->holder->exited) {
                registry_allocate_commit(&world.registry, buffer->buffer, backing_new(&world), world.now_usec);
                model_commit_buffer(&model, buffer);
                return;
        }
        registry_allocate_cancel(&world.registry, buffer->buffer, with_memory ? backing_new(&world) : NULL);
        model_cancel_buffer(&model, buffer, with_memory);
}

static void step_open(void) {
        struct model_buffer *target = pick_buffer(false, false);
        struct holder *holder;
        struct client *client = pick_client(&holder);
        struct buffer *found;
        struct lease *lease;
        bool sealed, full;
        int r;

        if (!target || !client)
                return;
        found = registry_find_openable(&world.registry, &client->peer,
                                       target->name[0] ? NULL : target->buffer->id->text, target->name,
                                       SCHEMA_UNSET, ACCESS_RW, &sealed);
        must(found == (target->freed || target->sealed ? NULL : target->buffer));
        must(sealed == (target->sealed && !target->freed));
        if (!found)
                return;
        full = model_count_leases(&model, client) >= world.registry.limits.leases_per_session;
        arm();
        r = registry_open_reserve(&world.registry, client, holder, found, ACCESS_RW, "label", &lease,
                                  &world.failure);
        disarm();
        n_out_of_memory += fail_fired;
        must(r == (full ? VERDICT_QUOTA_EXCEEDED : fail_fired ? -ENOMEM : 0));
        if (r == 0)
                model_add_lease(&model, found, lease);
}

static void step_finish_open(void) {
        struct model_lease *lease = pick_lease(MODEL_RESERVED, false);

        if (!lease)
                return;
        if (roll(4) > 0 && lease->client && !lease->holder->exited) {
                registry_open_commit(&world.registry, lease->lease, world.now_usec);
                model_activate(lease);
                return;
        }
        registry_open_cancel(&world.registry, lease->lease, world.now_usec, world.monotonic_usec);
        model_remove_lease(&model, lease);
}

static void step_release(void) {
        struct model_lease *lease = pick_lease(MODEL_ACTIVE, false);

        if (!lease)
                return;
        registry_release(&world.registry, lease->lease, world.now_usec, world.monotonic_usec);
        model_release(&model, lease);
}

static void step_rule(void) {
        struct model_buffer *buffer = pick_buffer(false, false);

        if (!buffer)
                return;
        if (roll(3) > 0) {
                registry_free(&world.registry, buffer->buffer, world.now_usec, world.monotonic_usec);
                model_free(&model, buffer);
        } else if (!buffer->sealed) {
                registry_seal(&world.registry, buffer->buffer, world.now_usec);
                buffer->sealed = true;
        }
}

static void step_pin(void) {
        struct model_buffer *buffer = pick_buffer(false, false);

        if (!buffer)
                return;
        if (buffer->n_pins < 2 && roll(2)) {
                buffer_pin(buffer->buffer);
                buffer->n_pins++;
        } else if (buffer->n_pins > 0) {
                buffer->n_pins--;
                registry_unpin(&world.registry, buffer->buffer, world.now_usec, world.monotonic_usec);
        }
}

static void step_close(void) {
        struct model_buffer *mine = NULL;
        struct backing *backing;
        struct buffer *buffer;

        if (roll(2)) {
                buffer = registry_take_retiring(&world.registry, &backing);
                if (!buffer)
                        return;
                backing_free(backing);
                mine = model_find_buffer(&model, buffer->serial);
                must(mine->retired && mine->open && !mine->handed_out);
                mine->handed_out = true;
                return;
        }
        for (size_t i = 0; i < model.n_buffers && !mine; i++)
                mine = model.buffers[i].handed_out && model.buffers[i].open ? &model.buffers[i] : NULL;
        if (!mine)
                return;
        registry_retired(&world.registry, mine->buffer, world.now_usec);
        mine->open = false;
}

static void step_time(void) {
        uint64_t next = UINT64_MAX, ms = roll(30);

        world.monotonic_usec += ms * 1000;
        world.now_usec += (int64_t)ms * 1000;
        model.now = world.monotonic_usec;
        for (size_t i = 0; i < model.n_buffers; i++) {
                const struct model_buffer *buffer = &model.buffers[i];

                if (!buffer->retired && !buffer->freed && buffer->keep_until > model.now &&
                    buffer->keep_until < next)
                        next = buffer->keep_until;
        }
        must(registry_expire(&world.registry, world.now_usec, world.monotonic_usec) == next);
}

static void step_reload(void) {
        struct limits limits = small_limits();
        struct policy policy = { .trust_release = roll(3) > 0 };
        bool trust = policy.trust_release;
        int r;

        policy.reserved = calloc(1, sizeof(struct reserved_name));
        policy.reserved[0].prefix = strdup("reserved/");
        policy.n_reserved = 1;
        limits.events = 200 + roll(3) * 50;
        arm();
        r = registry_reload(&world.registry, &limits, &policy);
        disarm();
        must(r == (fail_fired ? -ENOMEM : 0));
        if (r == 0)
                model.trust_release = trust;
        policy_deinit(&policy); /* still ours when it was not taken */
}

/* One reads the lists a step at a time while all this goes on: in order, nothing twice. */
static void step_cursor(struct cursor *cursor, uint64_t *last) {
        struct lease *lease = cursor_lease(cursor);

        if (!lease) {
                cursor_deinit(cursor);
                cursor_init_leases(cursor, &world.registry);
                *last = 0;
                return;
        }
        must(lease->serial > *last);
        must(lease->phase != LEASE_PHASE_RESERVED);
        *last = lease->serial;
        cursor_step(cursor);
}

static void count_events(void) {
        const struct events *events = &world.registry.events;

        while (world.seen + 1 < events->next) {
                const char *kind = events_get(events, ++world.seen)->kind;

                n_created += strcmp(kind, "created") == 0;
                n_freed += strcmp(kind, "freed") == 0;
                n_opened += strcmp(kind, "opened") == 0;
                n_released += strcmp(kind, "released") == 0;
        }
        must(world.registry.n_shown_buffers == n_created - n_freed);
        must(world.registry.n_leases == n_opened - n_released);
}

static void end_everything(void) {
        struct model_lease *lease;

        while ((lease = pick_lease(MODEL_RESERVED, true)) || (lease = pick_lease(MODEL_RESERVED, false))) {
                struct model_buffer *buffer = model_find_buffer(&model, lease->buffer);

                if (buffer->reserved) {
                        registry_allocate_cancel(&world.registry, buffer->buffer, NULL);
                        model_cancel_buffer(&model, buffer, false);
                } else {
                        registry_open_cancel(&world.registry, lease->lease, world.now_usec, world.monotonic_usec);
                        model_remove_lease(&model, lease);
                }
                model_settle(&model);
        }
        for (size_t i = 0; i < model.n_buffers; i++)
                for (; model.buffers[i].n_pins > 0; model.buffers[i].n_pins--)
                        registry_unpin(&world.registry, model.buffers[i].buffer, world.now_usec,
                                       world.monotonic_usec);
        for (size_t i = 0; i < model.n_buffers; i++)
                if (model.buffers[i].handed_out && model.buffers[i].open)
                        registry_retired(&world.registry, model.buffers[i].buffer, world.now_usec);
        for (unsigned i = 0; i < N_CLIENTS; i++)
                if (clients[i])
                        world_end(&world, clients[i]);
        for (unsigned i = 0; i < N_HOLDERS; i++)
                if (holders[i])
                        world_exit(&world, holders[i]);
}

START_TEST(random_steps) {
        static void (*const steps[])(void) = {
                step_client,          step_holder,  step_allocate, step_allocate,    step_finish_allocate,
                step_finish_allocate, step_open,    step_open,     step_finish_open, step_finish_open,
                step_release,         step_release, step_rule,     step_pin,         step_close,
                step_close,           step_time,    step_reload,
        };
        struct limits limits = small_limits();
        struct cursor cursor = { 0 };
        uint64_t last = 0;

        seed = (unsigned)_i * 7919 + 1;
        world_init(&world, &limits);
        world.device.capacity_bytes = 130 * PAGE;
        model.now = world.monotonic_usec;
        model.trust_release = true;
        forbidden = true;
        cursor_init_leases(&cursor, &world.registry);
        for (int step = 0; step < STEPS; step++) {
                steps[roll(sizeof(steps) / sizeof(steps[0]))]();
                model_settle(&model);
                model_compare(&model, &world);
                count_events();
                step_cursor(&cursor, &last);
        }
        cursor_deinit(&cursor);
        /* The walk went where it should. */
        ck_assert_int_gt(n_freed, 150);
        ck_assert_int_gt(n_released, 250);
        ck_assert_int_gt(n_refused, 100);
        ck_assert_int_gt(n_out_of_memory, 100);
        end_everything();
        world_deinit(&world);
}
END_TEST

/* Whether the n-th allocation of a reservation was reached, and failed. Nothing may be left of the attempt. */
static bool fails_at(unsigned n) {
        struct buffer_spec spec;
        struct client *client;
        struct holder *holder;
        struct buffer *buffer;
        struct lease *lease;
        int r;

        world_init(&world, NULL);
        client = world_client(&world, ALICE);
        holder = world_holder(&world, ALICE);
        spec = world_spec(&world, PAGE, "name");
        spec.meta = "{}";
        spec.label = "label";
        spec.keep_ms = 1;
        fail_at = n;
        fail_fired = false;
        r = registry_allocate_reserve(&world.registry, client, holder, &spec, &buffer, &lease, &world.never,
                                      &world.queue, &world.failure);
        ck_assert_int_eq(r, fail_fired ? -ENOMEM : 0);
        world_check(&world);
        ck_assert_int_eq(world.registry.n_buffers, r == 0);
        ck_assert_int_eq(world.device.reserved_bytes, r == 0 ? PAGE : 0);
        ck_assert_int_eq(client->n_leases, r == 0);
        ck_assert_int_eq(client->account->names, r == 0);
        ck_assert_uint_eq(holder->refs, r == 0 ? 2 : 1);
        fail_at = 0;
        if (r == 0)
                registry_allocate_cancel(&world.registry, buffer, NULL);
        world_exit(&world, holder);
        world_end(&world, client);
        world_deinit(&world);
        return fail_fired;
}

/* Four tables, two structs, five strings. */
START_TEST(every_allocation_fails_once) {
        unsigned n = 1;

        while (fails_at(n))
                n++;
        ck_assert_uint_eq(n, 4 + 2 + 5 + 1);
}
END_TEST

START_TEST(a_ledger_that_cannot_begin) {
        struct limits limits = world_limits();
        struct policy policy = { .trust_release = true };
        struct registry registry;

        fail_at = 1;
        ck_assert_int_eq(registry_init(&registry, &limits, &policy), -ENOMEM);
        ck_assert(policy.trust_release);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("ledger_model");
        TCase *tcase = tcase_create("ledger_model");

        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 60);
        tcase_add_loop_test(tcase, random_steps, 0, 10);
        tcase_add_test(tcase, every_allocation_fails_once);
        tcase_add_test(tcase, a_ledger_that_cannot_begin);
        return suite_run(suite);
}
