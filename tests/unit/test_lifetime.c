/* SPDX-License-Identifier: Apache-2.0 */
/* How long a buffer lives, and what is told of it. */
#include "ledger.h"
#include "tests/support/suite.h"

static struct world world;
static struct client *producer, *consumer;
static struct holder *parent, *child;

static void setup(void) {
        world_init(&world, NULL);
        producer = world_client(&world, ALICE);
        consumer = world_client(&world, BOB);
        parent = world_holder(&world, ALICE);
        child = world_holder(&world, BOB);
        world.registry.room = false;
}

/* Whoever a test did not end ends here. */
static void teardown(void) {
        if (parent)
                world_exit(&world, parent);
        if (child)
                world_exit(&world, child);
        if (producer)
                world_end(&world, producer);
        if (consumer)
                world_end(&world, consumer);
        world_deinit(&world);
}

static void end_session(struct client **client) {
        world_end(&world, *client);
        *client = NULL;
}

static void end_process(struct holder **holder) {
        world_exit(&world, *holder);
        *holder = NULL;
}

static struct buffer *allocate(const char *name, int64_t keep_ms) {
        struct buffer_spec spec = world_spec(&world, 10 * PAGE, name);

        spec.mode = 0666;
        spec.keep_ms = keep_ms;
        return world_allocate(&world, producer, parent, &spec);
}

static void expect_news(const char *expected) {
        ck_assert_str_eq(world_news(&world), expected);
}

static int64_t used_by(uid_t uid) {
        const struct account *account = account_find(&world.registry.accounts, uid);

        return account ? account->used_bytes : 0;
}

static void pass(uint64_t ms) {
        world.monotonic_usec += ms * 1000;
        world.now_usec += (int64_t)ms * 1000;
}

static uint64_t expire(void) {
        uint64_t next = registry_expire(&world.registry, world.now_usec, world.monotonic_usec);

        world_check(&world);
        return next;
}

START_TEST(a_release_frees) {
        struct buffer *buffer = allocate("a", 0);

        expect_news("created opened:l1");
        ck_assert_int_eq(buffer->phase, PHASE_LIVE);
        ck_assert_int_eq(world.device.used_bytes, 10 * PAGE);
        ck_assert_int_eq(used_by(ALICE), 10 * PAGE);
        ck_assert_int_eq(producer->bytes, 10 * PAGE);
        ck_assert_ptr_null(registry_find_lease(&world.registry, consumer, "l1"));
        ck_assert_ptr_eq(registry_find_lease(&world.registry, producer, "l1"), buffer->first);
        ck_assert(world.registry.room);
        world.registry.room = false;

        world_release(&world, buffer->first);
        expect_news("released:l1 unnamed");
        ck_assert(world.registry.room);
        ck_assert_int_eq(producer->bytes, 0);
        ck_assert_int_eq(producer->n_leases, 0);
        ck_assert_int_eq(buffer->phase, PHASE_DRAINING);
        ck_assert_int_eq(world.device.draining_bytes, 10 * PAGE);
        ck_assert_int_eq(used_by(ALICE), 10 * PAGE);
        ck_assert_ptr_null(registry_find_buffer(&world.registry, "b1", NULL));
        ck_assert_int_eq(world.registry.n_shown_buffers, 1);
        world.registry.room = false;

        ck_assert_int_eq(world_close_memory(&world), 1);
        expect_news("freed");
        ck_assert(world.registry.room);
        ck_assert_int_eq(world.device.used_bytes, 0);
        ck_assert_int_eq(used_by(ALICE), 0);
        ck_assert_int_eq(world.registry.n_shown_buffers, 0);
        ck_assert_int_eq(world.registry.n_descriptors, 2);
}
END_TEST

START_TEST(the_last_of_several_leases_frees) {
        struct buffer *buffer = allocate(NULL, 0);
        struct lease *first = buffer->first, *second = world_open(&world, consumer, child, buffer);
        struct lease *third = world_open(&world, consumer, child, buffer);

        expect_news("created opened:l1 opened:l2 opened:l3");
        world_release(&world, first);
        ck_assert_ptr_null(buffer->first);
        world_release(&world, third);
        ck_assert_int_eq(buffer->phase, PHASE_LIVE);
        ck_assert(list_empty(&world.registry.retiring));
        world_release(&world, second);
        ck_assert_int_eq(world_close_memory(&world), 1);
        expect_news("released:l1 released:l3 released:l2 freed");
}
END_TEST

START_TEST(a_death_frees_in_every_session) {
        struct client *another = world_client(&world, ALICE);
        struct buffer *buffer = allocate(NULL, 0);

        world_open(&world, another, parent, buffer);
        end_process(&parent);
        ck_assert_int_eq(another->n_leases, 0);
        ck_assert_int_eq(producer->n_leases, 0);
        ck_assert_int_eq(producer->bytes, 0);
        ck_assert_int_eq(world_close_memory(&world), 1);
        expect_news("created opened:l1 opened:l2 released:l1 released:l2 freed");
        world_end(&world, another);
}
END_TEST

START_TEST(a_session_of_the_dead_frees) {
        allocate(NULL, 0);
        end_process(&parent);
        end_session(&producer);
        ck_assert_int_eq(world_close_memory(&world), 1);
        expect_news("created opened:l1 released:l1 freed");
}
END_TEST

START_TEST(a_session_that_ends_leaves_the_living_draining) {
        struct buffer *buffer = allocate("a", 0);
        struct lease_info info;

        end_session(&producer);
        expect_news("created opened:l1 draining:l1 unnamed draining");
        ck_assert_int_eq(buffer->phase, PHASE_DRAINING);
        ck_assert_ptr_null(registry_find_buffer(&world.registry, "b1", NULL));
        ck_assert_ptr_null(registry_find_buffer(&world.registry, NULL, "a"));
        ck_assert_int_eq(world_close_memory(&world), 1);
        ck_assert_int_eq(world.device.used_bytes, 10 * PAGE);
        ck_assert_int_eq(world.device.draining_bytes, 10 * PAGE);
        ck_assert_int_eq(world.registry.n_leases, 1);
        ck_assert_int_eq(world.registry.n_descriptors, 1);
        lease_describe(container_of(world.registry.leases.next, struct lease, by_registry), &info);
        ck_assert_int_eq(info.state, LEASE_DRAINING);
        ck_assert_str_eq(info.session, "s1");
        expect_news("");

        world.registry.room = false;
        end_process(&parent);
        expect_news("released:l1 freed");
        ck_assert(world.registry.room);
        ck_assert_int_eq(world.device.used_bytes, 0);
        ck_assert_int_eq(world.device.draining_bytes, 0);
}
END_TEST

START_TEST(an_owner_s_container_outlives_its_session) {
        struct policy policy = { .isolation = ISOLATION_CONTAINER, .trust_release = true };
        struct peer inside = { .principal = { .uid = ALICE, .gid = ALICE, .container = rcstr_new("pod") } };
        struct buffer_spec spec = world_spec(&world, PAGE, "a");
        struct limits limits = world_limits();
        struct client *client;
        struct buffer *buffer;
        bool sealed;

        ck_assert_int_eq(registry_reload(&world.registry, &limits, &policy), 0);
        ck_assert_int_eq(registry_client_new(&world.registry, &inside, 1, &client, &world.failure), 0);
        spec.keep_ms = 500;
        buffer = world_allocate(&world, client, parent, &spec);
        ck_assert_uint_eq(inside.principal.container->refs,
                          5); /* ours, the session's, the buffer's, two events' */
        world_end(&world, client);
        ck_assert_ptr_null(registry_find_openable(&world.registry, &producer->peer, NULL, "a", SCHEMA_UNSET,
                                                  ACCESS_RO, &sealed));
        ck_assert_ptr_eq(
                registry_find_openable(&world.registry, &inside, NULL, "a", SCHEMA_UNSET, ACCESS_RO, &sealed),
                buffer);
        end_process(&parent);
        ck_assert_int_eq(events_resize(&world.registry.events, 0), 0);
        registry_free(&world.registry, buffer, world.now_usec, world.monotonic_usec);
        ck_assert_int_eq(world_close_memory(&world), 1);
        ck_assert_uint_eq(inside.principal.container->refs, 1);
        rcstr_unref(inside.principal.container);
}
END_TEST

START_TEST(memory_that_closes_after_the_drainer_s_exit) {
        struct backing *backing;
        struct buffer *buffer;

        allocate(NULL, 0);
        end_session(&producer);
        buffer = registry_take_retiring(&world.registry, &backing);
        ck_assert_ptr_nonnull(buffer);
        end_process(&parent);
        ck_assert_int_eq(world.registry.n_shown_buffers, 1);
        ck_assert_int_eq(world.device.used_bytes, 10 * PAGE);
        expect_news("created opened:l1 draining:l1 draining released:l1");
        free(backing);
        world.n_backings--;
        registry_retired(&world.registry, buffer, world.now_usec);
        expect_news("freed");
}
END_TEST

START_TEST(a_drainer_in_a_buffer_others_hold) {
        struct buffer *buffer = allocate("a", 0);
        struct lease *lease = world_open(&world, consumer, child, buffer);
        struct buffer_info info;

        end_session(&producer);
        expect_news("created opened:l1 opened:l2 draining:l1");
        ck_assert_int_eq(buffer->phase, PHASE_LIVE);
        ck_assert_ptr_eq(registry_find_buffer(&world.registry, NULL, "a"), buffer);
        buffer_describe(buffer, &info);
        ck_assert_int_eq(info.leases, 2);
        ck_assert_int_eq(info.state, BUFFER_LIVE);

        world_release(&world, lease);
        expect_news("released:l2 unnamed draining");
        ck_assert_int_eq(world_close_memory(&world), 1);
        end_process(&parent);
        expect_news("released:l1 freed");
}
END_TEST

START_TEST(release_is_not_believed_when_told_so) {
        struct policy policy = { .trust_release = false };
        struct buffer *buffer = allocate(NULL, 0);
        struct limits limits = world_limits();

        ck_assert_int_eq(registry_reload(&world.registry, &limits, &policy), 0);
        world_release(&world, buffer->first);
        ck_assert_ptr_null(registry_find_lease(&world.registry, producer, "l1"));
        ck_assert_int_eq(producer->bytes, 0);
        ck_assert_int_eq(producer->n_leases, 0);
        ck_assert_int_eq(world_close_memory(&world), 1);
        ck_assert_int_eq(used_by(ALICE), 10 * PAGE);
        expect_news("created opened:l1 draining:l1 draining");
        end_session(&producer);
        expect_news("");
        end_process(&parent);
        expect_news("released:l1 freed");
}
END_TEST

START_TEST(release_of_the_dead_is_believed) {
        struct policy policy = { .trust_release = false };
        struct limits limits = world_limits();
        struct buffer *buffer = allocate(NULL, 0);

        ck_assert_int_eq(registry_reload(&world.registry, &limits, &policy), 0);
        parent->exited = true; /* seen, but its leases not yet ended */
        registry_release(&world.registry, buffer->first, world.now_usec, world.monotonic_usec);
        ck_assert_int_eq(world_close_memory(&world), 1);
        expect_news("created opened:l1 released:l1 freed");
}
END_TEST

START_TEST(a_keep_begins_with_the_last_lease_s_end) {
        struct buffer *buffer = allocate("a", 500);

        pass(10000);
        ck_assert_uint_eq(expire(), UINT64_MAX);
        world_release(&world, buffer->first);
        expect_news("created opened:l1 released:l1 kept");
        ck_assert_int_eq(buffer->phase, PHASE_KEPT);
        ck_assert_ptr_eq(registry_find_buffer(&world.registry, NULL, "a"), buffer);
        ck_assert_int_eq(used_by(ALICE), 10 * PAGE);
        ck_assert_uint_eq(expire(), world.monotonic_usec + 500000);

        pass(499);
        expire();
        ck_assert_int_eq(buffer->phase, PHASE_KEPT);
        pass(1);
        world.registry.room = false;
        ck_assert_uint_eq(expire(), UINT64_MAX);
        expect_news("unnamed");
        ck_assert(world.registry.room);
        ck_assert_int_eq(world_close_memory(&world), 1);
        expect_news("freed");
}
END_TEST

START_TEST(a_keep_runs_once_whoever_comes_and_goes) {
        struct buffer *buffer = allocate("a", 500);
        struct lease *lease;
        uint64_t end;

        world_release(&world, buffer->first);
        end = buffer->keep_until_usec;
        pass(200);
        lease = world_open(&world, consumer, child, buffer);
        ck_assert_int_eq(buffer->phase, PHASE_LIVE);
        world_release(&world, lease);
        ck_assert_int_eq(buffer->phase, PHASE_KEPT);
        ck_assert_uint_eq(buffer->keep_until_usec, end);
        expect_news("created opened:l1 released:l1 kept opened:l2 released:l2 kept");

        /* It ends while somebody holds: the next end of all leases is the last. */
        lease = world_open(&world, consumer, child, buffer);
        pass(400);
        ck_assert_uint_eq(expire(), UINT64_MAX);
        ck_assert_int_eq(buffer->phase, PHASE_LIVE);
        ck_assert_ptr_eq(registry_find_buffer(&world.registry, NULL, "a"), buffer);
        world_release(&world, lease);
        expect_news("opened:l3 released:l3 unnamed");
        ck_assert_int_eq(world_close_memory(&world), 1);
}
END_TEST

/* As a stop does. */
START_TEST(all_keeps_may_be_ended_ahead_of_time) {
        struct buffer *kept = allocate("a", 500), *held = allocate("b", 500);

        world_release(&world, kept->first);
        world_release(&world, held->first);
        world_open(&world, consumer, child, held);
        ck_assert_uint_eq(registry_expire(&world.registry, world.now_usec, UINT64_MAX), UINT64_MAX);
        world_check(&world);
        ck_assert_int_eq(world_close_memory(&world), 1);
        end_process(&child);
        ck_assert_int_eq(world_close_memory(&world), 1);
}
END_TEST

/* Whoever ends the last lease may be earlier than the timer. */
START_TEST(a_keep_that_is_over_does_not_wait_for_its_timer) {
        struct buffer *buffer = allocate("a", 500);
        struct lease *lease;

        world_release(&world, buffer->first);
        lease = world_open(&world, consumer, child, buffer);
        pass(500);
        world_release(&world, lease);
        ck_assert_int_eq(world_close_memory(&world), 1);
        ck_assert_uint_eq(expire(), UINT64_MAX);
}
END_TEST

START_TEST(a_kept_buffer_with_drainers) {
        struct buffer *buffer = allocate("a", 500);

        end_session(&producer);
        expect_news("created opened:l1 draining:l1 kept");
        ck_assert_int_eq(buffer->phase, PHASE_KEPT);
        ck_assert_int_eq(world.device.draining_bytes, 0);
        world_release(&world, world_open(&world, consumer, child, buffer));
        pass(500);
        expire();
        expect_news("opened:l2 released:l2 kept unnamed draining");
        ck_assert_int_eq(world_close_memory(&world), 1);
        end_process(&parent);
        expect_news("released:l1 freed");
}
END_TEST

START_TEST(keeps_end_in_order) {
        static const int64_t keeps[] = { 700, 100, 900, 300, 500, 300, 200, 800 };
        struct buffer *buffers[8];

        for (size_t i = 0; i < 8; i++) {
                buffers[i] = allocate(NULL, keeps[i]);
                world_release(&world, buffers[i]->first);
        }
        registry_free(&world.registry, buffers[4], world.now_usec, world.monotonic_usec);
        world_check(&world);
        ck_assert_int_eq(world_close_memory(&world), 1);
        for (int64_t ms = 50; ms < 950; ms += 100) {
                uint64_t next = UINT64_MAX;
                int n = 0;

                for (size_t i = 0; i < 8; i++) {
                        n += i != 4 && keeps[i] <= ms && keeps[i] > ms - 100;
                        if (i != 4 && keeps[i] > ms && buffers[i]->keep_until_usec < next)
                                next = buffers[i]->keep_until_usec;
                }
                pass(ms == 50 ? 50 : 100);
                ck_assert_uint_eq(expire(), next);
                ck_assert_int_eq(world_close_memory(&world), n);
        }
}
END_TEST

START_TEST(free_takes_name_and_keep_away) {
        struct buffer *buffer = allocate("a", 500), *again;
        struct lease *lease = world_open(&world, consumer, child, buffer);
        struct peer *peer = &consumer->peer;
        bool sealed;

        world.registry.room = false;
        registry_free(&world.registry, buffer, world.now_usec, world.monotonic_usec);
        world_check(&world);
        expect_news("created opened:l1 opened:l2 unnamed");
        ck_assert(world.registry.room);
        ck_assert_int_eq(buffer->phase, PHASE_LIVE);
        ck_assert_ptr_null(
                registry_find_openable(&world.registry, peer, "b1", NULL, SCHEMA_UNSET, ACCESS_RO, &sealed));
        ck_assert_ptr_null(
                registry_find_openable(&world.registry, peer, NULL, "a", SCHEMA_UNSET, ACCESS_RO, &sealed));
        ck_assert_ptr_eq(registry_find_buffer(&world.registry, "b1", NULL), buffer);
        ck_assert_ptr_nonnull(registry_find_lease(&world.registry, consumer, "l2"));

        /* The name is free at once. */
        again = allocate("a", 0);
        ck_assert_ptr_eq(registry_find_buffer(&world.registry, NULL, "a"), again);
        world_release(&world, buffer->first);
        world_release(&world, lease);
        ck_assert_int_eq(world_close_memory(&world), 1);
        expect_news("created opened:l3 released:l1 released:l2 freed");
        ck_assert_ptr_eq(registry_find_buffer(&world.registry, NULL, "a"), again);
}
END_TEST

START_TEST(free_ends_a_running_keep) {
        struct buffer *buffer = allocate("a", 500);

        world_release(&world, buffer->first);
        registry_free(&world.registry, buffer, world.now_usec, world.monotonic_usec);
        world_check(&world);
        expect_news("created opened:l1 released:l1 kept unnamed");
        ck_assert_int_eq(world_close_memory(&world), 1);
        ck_assert_uint_eq(expire(), UINT64_MAX);
}
END_TEST

START_TEST(free_during_a_keep_while_others_hold) {
        struct buffer *buffer = allocate(NULL, 500);
        struct lease *lease;

        world_release(&world, buffer->first);
        lease = world_open(&world, consumer, child, buffer);
        registry_free(&world.registry, buffer, world.now_usec, world.monotonic_usec);
        world_check(&world);
        ck_assert_uint_eq(expire(), UINT64_MAX);
        world_release(&world, lease);
        ck_assert_int_eq(world_close_memory(&world), 1);
        expect_news("created opened:l1 released:l1 kept opened:l2 released:l2 freed");
}
END_TEST

START_TEST(a_pin_keeps_the_memory) {
        struct buffer *buffer = allocate("a", 0);

        buffer_pin(buffer);
        buffer_pin(buffer);
        world_release(&world, buffer->first);
        ck_assert_int_eq(buffer->phase, PHASE_LIVE);
        ck_assert_ptr_eq(registry_find_buffer(&world.registry, NULL, "a"), buffer);
        registry_unpin(&world.registry, buffer, world.now_usec, world.monotonic_usec);
        world_check(&world);
        ck_assert_int_eq(world_close_memory(&world), 0);
        registry_unpin(&world.registry, buffer, world.now_usec, world.monotonic_usec);
        world_check(&world);
        ck_assert_int_eq(world_close_memory(&world), 1);
}
END_TEST

START_TEST(a_reserved_open_is_a_pin) {
        struct buffer *buffer = allocate(NULL, 0);
        struct lease *lease;

        ck_assert_int_eq(registry_open_reserve(&world.registry, consumer, child, buffer, ACCESS_RW, NULL, &lease,
                                               &world.failure),
                         0);
        world_release(&world, buffer->first);
        ck_assert_int_eq(world_close_memory(&world), 0);
        ck_assert_ptr_null(registry_find_lease(&world.registry, consumer, "l2"));
        ck_assert_int_eq(world.registry.n_leases, 0);
        ck_assert_int_eq(consumer->n_leases, 1);
        world.registry.room = false;
        registry_open_cancel(&world.registry, lease, world.now_usec, world.monotonic_usec);
        world_check(&world);
        ck_assert(world.registry.room);
        ck_assert_int_eq(consumer->n_leases, 0);
        ck_assert_int_eq(world_close_memory(&world), 1);
        expect_news("created opened:l1 released:l1 freed");
}
END_TEST

START_TEST(a_pin_holds_a_keep_s_end_up) {
        struct buffer *buffer = allocate(NULL, 500);

        world_release(&world, buffer->first);
        buffer_pin(buffer);
        ck_assert_int_eq(buffer->phase, PHASE_LIVE);
        world_check(&world);
        pass(500);
        ck_assert_uint_eq(expire(), UINT64_MAX);
        ck_assert_int_eq(world_close_memory(&world), 0);
        registry_unpin(&world.registry, buffer, world.now_usec, world.monotonic_usec);
        ck_assert_int_eq(world_close_memory(&world), 1);
}
END_TEST

START_TEST(a_keep_does_not_begin_while_pinned) {
        struct buffer *buffer = allocate(NULL, 500);

        buffer_pin(buffer);
        world_release(&world, buffer->first);
        pass(10000);
        registry_unpin(&world.registry, buffer, world.now_usec, world.monotonic_usec);
        ck_assert_int_eq(buffer->phase, PHASE_KEPT);
        ck_assert_uint_eq(expire(), world.monotonic_usec + 500000);
}
END_TEST

START_TEST(a_cancelled_allocation_is_as_if_it_never_was) {
        struct buffer_spec spec = world_spec(&world, 10 * PAGE, "a");
        struct buffer *buffer;
        struct lease *lease;

        ck_assert_int_eq(registry_allocate_reserve(&world.registry, producer, parent, &spec, &buffer, &lease,
                                                   &world.never, &world.queue, &world.failure),
                         0);
        world_check(&world);
        ck_assert_int_eq(world.device.reserved_bytes, 10 * PAGE);
        ck_assert_int_eq(producer->bytes, 10 * PAGE);
        ck_assert_int_eq(world.registry.n_shown_buffers, 0);
        ck_assert_int_eq(world.registry.n_buffers, 1);
        ck_assert_ptr_null(registry_find_buffer(&world.registry, NULL, "a"));
        ck_assert_ptr_null(registry_find_buffer(&world.registry, "b1", NULL));
        ck_assert_int_eq(world_try(&world, consumer, child, &spec), VERDICT_NAME_TAKEN);
        ck_assert_str_eq(world.failure.subject, "a");
        ck_assert(world.never);

        world.registry.room = false;
        registry_allocate_cancel(&world.registry, buffer, NULL);
        world_check(&world);
        ck_assert(world.registry.room);
        ck_assert_int_eq(world.device.reserved_bytes, 0);
        ck_assert_int_eq(world_try(&world, consumer, child, &spec), 0);
        expect_news("");
}
END_TEST

START_TEST(cancelled_with_memory_stays_reserved_until_closed) {
        struct buffer_spec spec = world_spec(&world, 10 * PAGE, "a");
        struct buffer *buffer;
        struct lease *lease;

        ck_assert_int_eq(registry_allocate_reserve(&world.registry, producer, parent, &spec, &buffer, &lease,
                                                   &world.never, &world.queue, &world.failure),
                         0);
        registry_allocate_cancel(&world.registry, buffer, backing_new(&world));
        world_check(&world);
        ck_assert_int_eq(producer->n_leases, 0);
        ck_assert_int_eq(producer->bytes, 0);
        ck_assert_int_eq(world.device.reserved_bytes, 10 * PAGE);
        ck_assert_int_eq(world.registry.n_descriptors, 4);
        ck_assert_int_eq(world_try(&world, consumer, child, &spec), 0);
        world.registry.room = false;
        ck_assert_int_eq(world_close_memory(&world), 1);
        ck_assert(world.registry.room);
        ck_assert_int_eq(world.device.reserved_bytes, 0);
        ck_assert_int_eq(world.registry.n_descriptors, 2);
        expect_news("");
}
END_TEST

/* A session may end while the pool still works for it. */
START_TEST(a_session_ends_with_reservations) {
        struct buffer_spec spec = world_spec(&world, 10 * PAGE, "a");
        struct buffer *held = allocate(NULL, 0), *buffer;
        struct lease *first, *opened;

        ck_assert_int_eq(registry_allocate_reserve(&world.registry, consumer, child, &spec, &buffer, &first,
                                                   &world.never, &world.queue, &world.failure),
                         0);
        ck_assert_int_eq(registry_open_reserve(&world.registry, consumer, child, held, ACCESS_RO, NULL, &opened,
                                               &world.failure),
                         0);
        end_session(&consumer);
        ck_assert_int_eq(world.device.reserved_bytes, 10 * PAGE);
        world_exit(&world, holder_ref(child));
        registry_open_cancel(&world.registry, opened, world.now_usec, world.monotonic_usec);
        world_check(&world);
        registry_allocate_cancel(&world.registry, buffer, backing_new(&world));
        world_check(&world);
        ck_assert_int_eq(world_close_memory(&world), 1);
        ck_assert_int_eq(world.device.reserved_bytes, 0);
        expect_news("created opened:l1");
}
END_TEST

/* Nobody can make draining leases without end by coming back again and again. */
START_TEST(drainers_count_as_leases_of_their_user) {
        struct limits limits = world_limits();
        struct policy policy = { .trust_release = true };
        struct buffer *buffer = allocate(NULL, 0);
        struct client *again;
        struct lease *lease;

        limits.leases_per_session = 3;
        ck_assert_int_eq(registry_reload(&world.registry, &limits, &policy), 0);
        world_open(&world, consumer, child, buffer);
        world_open(&world, consumer, child, buffer);
        end_session(&consumer);
        again = world_client(&world, BOB);
        world_open(&world, again, child, buffer);
        ck_assert_int_eq(registry_open_reserve(&world.registry, again, child, buffer, ACCESS_RO, NULL, &lease,
                                               &world.failure),
                         VERDICT_QUOTA_EXCEEDED);
        ck_assert_str_eq(world.failure.subject, "leases_per_session");
        ck_assert_int_eq(world.failure.used, 3);
        ck_assert_int_eq(again->account->draining, 2);
        end_process(&child);
        child = world_holder(&world, BOB);
        world_open(&world, again, child, buffer);
        world_end(&world, again);
}
END_TEST

START_TEST(a_seal_is_told) {
        struct buffer *buffer = allocate(NULL, 0);

        registry_seal(&world.registry, buffer, world.now_usec);
        world_check(&world);
        ck_assert(buffer->sealed);
        expect_news("created opened:l1 sealed");
}
END_TEST

int main(void) {
        Suite *suite = suite_create("lifetime");
        TCase *tcase = tcase_create("lifetime");

        suite_add_tcase(suite, tcase);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, a_release_frees);
        tcase_add_test(tcase, the_last_of_several_leases_frees);
        tcase_add_test(tcase, a_death_frees_in_every_session);
        tcase_add_test(tcase, a_session_of_the_dead_frees);
        tcase_add_test(tcase, a_session_that_ends_leaves_the_living_draining);
        tcase_add_test(tcase, an_owner_s_container_outlives_its_session);
        tcase_add_test(tcase, memory_that_closes_after_the_drainer_s_exit);
        tcase_add_test(tcase, a_drainer_in_a_buffer_others_hold);
        tcase_add_test(tcase, release_is_not_believed_when_told_so);
        tcase_add_test(tcase, release_of_the_dead_is_believed);
        tcase_add_test(tcase, a_keep_begins_with_the_last_lease_s_end);
        tcase_add_test(tcase, a_keep_runs_once_whoever_comes_and_goes);
        tcase_add_test(tcase, all_keeps_may_be_ended_ahead_of_time);
        tcase_add_test(tcase, a_keep_that_is_over_does_not_wait_for_its_timer);
        tcase_add_test(tcase, a_kept_buffer_with_drainers);
        tcase_add_test(tcase, keeps_end_in_order);
        tcase_add_test(tcase, free_takes_name_and_keep_away);
        tcase_add_test(tcase, free_ends_a_running_keep);
        tcase_add_test(tcase, free_during_a_keep_while_others_hold);
        tcase_add_test(tcase, a_pin_keeps_the_memory);
        tcase_add_test(tcase, a_reserved_open_is_a_pin);
        tcase_add_test(tcase, a_pin_holds_a_keep_s_end_up);
        tcase_add_test(tcase, a_keep_does_not_begin_while_pinned);
        tcase_add_test(tcase, a_cancelled_allocation_is_as_if_it_never_was);
        tcase_add_test(tcase, cancelled_with_memory_stays_reserved_until_closed);
        tcase_add_test(tcase, a_session_ends_with_reservations);
        tcase_add_test(tcase, drainers_count_as_leases_of_their_user);
        tcase_add_test(tcase, a_seal_is_told);
        return suite_run(suite);
}
