/* SPDX-License-Identifier: Apache-2.0 */
/* The office's furniture: a backend behind a gate, callers instead of sessions. The test's thread is the loop's; only what the
 * gate holds runs on the pool. */
#include "office.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/log.h"
#include "daemon/restore.h"
#include "proto/cleanup.h"
#include "tests/support/json.h"

int office_patience_sec(void) {
        const char *slower = getenv("GPUIPC_TEST_SLOWER");

        return 10 * (slower ? atoi(slower) : 1);
}

/* ---- the gate ---------------------------------------------------------------------------------------------- */

static struct gate *the_gate; /* a backend has no place for it; set while no lane runs */

static int gate_pass(struct gate *gate) {
        int fail;

        pthread_mutex_lock(&gate->lock);
        gate->entered++;
        pthread_cond_broadcast(&gate->changed);
        while (!gate->open && gate->permits == 0)
                pthread_cond_wait(&gate->changed, &gate->lock);
        if (!gate->open)
                gate->permits--;
        fail = gate->fail;
        pthread_mutex_unlock(&gate->lock);
        return -fail;
}

static int gate_leave(struct gate *gate, int result) {
        pthread_mutex_lock(&gate->lock);
        gate->left++;
        pthread_cond_broadcast(&gate->changed);
        pthread_mutex_unlock(&gate->lock);
        return result;
}

void gate_open(struct gate *gate) {
        pthread_mutex_lock(&gate->lock);
        gate->open = true;
        pthread_cond_broadcast(&gate->changed);
        pthread_mutex_unlock(&gate->lock);
}

void gate_shut(struct gate *gate) {
        pthread_mutex_lock(&gate->lock);
        gate->open = false;
        pthread_mutex_unlock(&gate->lock);
}

void gate_fail(struct gate *gate, int error) {
        pthread_mutex_lock(&gate->lock);
        gate->fail = error;
        pthread_mutex_unlock(&gate->lock);
}

int gate_n_entered(struct gate *gate) {
        int n;

        pthread_mutex_lock(&gate->lock);
        n = gate->entered;
        pthread_mutex_unlock(&gate->lock);
        return n;
}

void gate_permit(struct gate *gate) {
        pthread_mutex_lock(&gate->lock);
        gate->permits++;
        pthread_cond_broadcast(&gate->changed);
        pthread_mutex_unlock(&gate->lock);
}

static void gate_wait(struct gate *gate, const int *figure, int n) {
        struct timespec until;

        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += office_patience_sec();
        pthread_mutex_lock(&gate->lock);
        while (*figure < n && pthread_cond_timedwait(&gate->changed, &gate->lock, &until) == 0)
                ;
        ck_assert_int_ge(*figure, n);
        pthread_mutex_unlock(&gate->lock);
}

void gate_wait_entered(struct gate *gate, int n) {
        gate_wait(gate, &gate->entered, n);
}

void gate_wait_left(struct gate *gate, int n) {
        gate_wait(gate, &gate->left, n);
}

/* ---- host memory behind it --------------------------------------------------------------------------------- */

static int gated_allocate(struct backend_device *device, int64_t size, int64_t allocated, const char *handle,
                          struct backing **backing, struct backend_detail *detail) {
        int r = gate_pass(the_gate);

        if (r == 0)
                r = backend_host.allocate(device, size, allocated, handle, backing, detail);
        else if (*backing)
                backend_host.close(*backing);
        if (r < 0)
                *backing = NULL;
        return gate_leave(the_gate, r);
}

static int gated_open(struct backing *backing, enum access access, int *ret_fd, struct backend_detail *detail) {
        int r = gate_pass(the_gate);

        return gate_leave(the_gate, r == 0 ? backend_host.open(backing, access, ret_fd, detail) : r);
}

static int gated_seal(struct backing *backing, struct backend_detail *detail) {
        int r = gate_pass(the_gate);

        return gate_leave(the_gate, r == 0 ? backend_host.seal(backing, detail) : r);
}

static struct backend gated;

/* ---- the shelf --------------------------------------------------------------------------------------------- */

static struct shelf *the_shelf;

static void shelf_do(struct shelf *shelf, const char *text, const int *fds, unsigned n) {
        const char *name = strstr(text, "FDNAME=");
        size_t kept = 0;

        if (strncmp(text, "BARRIER=1", 9) == 0) {
                ck_assert_uint_eq(n, 1);
                shelf->n_barriers++;
                return;
        }
        ck_assert_ptr_nonnull(name);
        name += 7;
        if (strncmp(text, "FDSTORE=1\nFDPOLL=0\n", 19) == 0) {
                ck_assert_uint_eq(n, 1);
                ck_assert_int_ge(fcntl(fds[0], F_GETFD), 0);
                ck_assert_uint_lt(shelf->n, ELEMENTSOF(shelf->names));
                snprintf(shelf->names[shelf->n++], STORE_NAME_SIZE, "%s", name);
                return;
        }
        for (size_t i = 0; i < shelf->n; i++)
                if (strcmp(shelf->names[i], name) != 0)
                        memmove(shelf->names[kept++], shelf->names[i], STORE_NAME_SIZE);
        shelf->n = kept;
}

/* On the store's lane. */
static int shelf_send(const char *text, const int *fds, unsigned n) {
        struct shelf *shelf = the_shelf;
        int r = gate_pass(&shelf->gate);

        if (r == 0)
                shelf_do(shelf, text, fds, n);
        return gate_leave(&shelf->gate, r < 0 ? r : 1);
}

/* ---- the office -------------------------------------------------------------------------------------------- */

static void office_kick(void *session) {
        (void)session;
}

void office_init(struct office *office, int64_t capacity_bytes) {
        struct limits limits = {
                .clients = 64, .clients_per_uid = 64, .leases_per_session = 16, .leases_per_uid = 1024, .bytes_per_uid = SCHEMA_INT_MAX,
                .bytes_per_session = SCHEMA_INT_MAX, .host_bytes = capacity_bytes, .buffers = 64, .names_per_uid = 16,
                .waits_per_session = 4, .waits_per_uid = 16, .wait_ms = 3600000, .keep_ms = 3600000, .message_bytes = 65536,
                .events = 64, .unread_bytes = 131072, .unread_ms = 1000, .descriptors = 4096,
        };
        struct policy policy = {.trust_release = true};
        struct backend_device **devices;

        log_set_level(LOG_ERR);
        memset(office, 0, sizeof(*office));
        pthread_mutex_init(&office->gate.lock, NULL);
        pthread_cond_init(&office->gate.changed, NULL);
        the_gate = &office->gate;
        gated = backend_host;
        gated.allocate = gated_allocate;
        gated.open = gated_open;
        gated.seal = gated_seal;
        ck_assert_int_eq(uv_loop_init(&office->loop), 0);
        list_init(&office->house.waiting);
        list_init(&office->house.watching);
        list_init(&office->house.woken);
        list_init(&office->hall.sessions);
        list_init(&office->hall.ready);
        list_init(&office->hall.late);
        office->null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        ck_assert_int_ge(office->null_fd, 0);
        office->house.loop = &office->loop;
        office->house.kick = office_kick;
        office->house.backend_name = "host";
        office->house.limits_json = strdup("{}");
        office->house.pump_usec = UINT64_MAX;
        office->hall.house = &office->house;
        ck_assert_int_eq(registry_init(&office->house.registry, &limits, &policy), 0);
        office->house.news_seen = office->house.registry.events.next;
        ck_assert_int_eq(gated.probe(&gated, &devices), 1);
        ck_assert_int_eq(workplace_init(&office->place, &office->loop, &office->house.registry, &gated, devices[0],
                                        capacity_bytes), 0);
        office->house.places = &office->place;
        office->house.n_places = 1;
}

void office_make_ahead(struct office *office, int64_t max_bytes) {
        gated.ahead = "memfd";
        office->house.registry.limits.spare_bytes = max_bytes;
}

void office_stock(struct office *office) {
        pthread_mutex_init(&office->shelf.gate.lock, NULL);
        pthread_cond_init(&office->shelf.gate.changed, NULL);
        office->shelf.gate.open = true;
        the_shelf = &office->shelf;
        office->house.registry.limits.stored_descriptors = office->house.registry.limits.stored_per_uid = 32;
        ck_assert_int_eq(state_new(&state_layout, 1, &office->state), 0);
        ck_assert_int_eq(store_new(&office->loop, shelf_send, NULL, NULL, &office->store), 0);
        registry_restore_numbers(&office->house.registry, office->state);
        registry_restored(&office->house.registry, 0, 0);
        office->house.store = office->place.store = office->store;
}

static void office_unstock(struct office *office) {
        if (!office->state)
                return;
        ck_assert_uint_eq(office->shelf.n, 0);
        ck_assert_int_eq(office->house.registry.n_stored, 1);
        ck_assert(list_empty(&office->house.registry.leaving));
        store_stop(office->store);
}

bool office_turn(struct office *office) {
        uint64_t next_usec;
        bool more;

        uv_run(&office->loop, UV_RUN_NOWAIT);
        more = hall_settle(&office->hall, &next_usec);
        ck_assert(registry_check(&office->house.registry));
        ck_assert(spare_check(&office->place));
        return more || !workplace_idle(&office->place) || (office->store && !store_settled(office->store));
}

void office_settle(struct office *office) {
        turn_until(office, !office_turn(office));
}

static void close_handle(uv_handle_t *handle, void *arg) {
        (void)arg;
        if (!uv_is_closing(handle))
                uv_close(handle, NULL);
}

static void assert_nothing_left(const struct office *office) {
        const struct registry *registry = &office->house.registry;
        const struct device *device = &office->place.device;

        ck_assert_int_eq(registry->n_clients, 0);
        ck_assert_int_eq(registry->n_buffers, 0);
        ck_assert_int_eq(registry->n_shown_buffers, 0);
        ck_assert_int_eq(registry->n_leases, 0);
        ck_assert(list_empty(&registry->leases));
        ck_assert(list_empty(&registry->retiring));
        ck_assert(list_empty(&registry->cursors));
        ck_assert_int_eq(registry->n_descriptors, 0);
        ck_assert_int_eq(device->used_bytes, 0);
        ck_assert_int_eq(device->reserved_bytes, 0);
        ck_assert_int_eq(device->draining_bytes, 0);
        ck_assert_int_eq(device->spare_bytes, 0);
        ck_assert_int_eq(registry->n_spares, 0);
        ck_assert(list_empty(&device->waitq.waiters));
        ck_assert(list_empty(&office->place.closers));
        ck_assert(list_empty(&office->house.waiting));
        ck_assert(list_empty(&office->house.watching));
        ck_assert_int_eq(office->n_people, 0);
}

void office_deinit(struct office *office) {
        gate_open(&office->gate);
        office->house.stopping = true; /* what was made ahead goes */
        office_settle(office);
        ck_assert_int_eq(office->gate.entered, office->gate.left);
        assert_nothing_left(office);
        office_unstock(office);
        registry_deinit(&office->house.registry);
        close(office->null_fd);
        workplace_deinit(&office->place);
        store_free(office->store);
        uv_run(&office->loop, UV_RUN_NOWAIT);
        uv_walk(&office->loop, close_handle, NULL);
        uv_run(&office->loop, UV_RUN_DEFAULT);
        ck_assert_int_eq(uv_loop_close(&office->loop), 0);
        bytes_deinit(&office->house.scratch);
        free(office->house.limits_json);
        state_free(office->state);
        pthread_cond_destroy(&office->gate.changed);
        pthread_mutex_destroy(&office->gate.lock);
}

/* ---- callers ----------------------------------------------------------------------------------------------- */

struct person {
        struct holder holder;
        struct office *office;
};

static void person_destroy(struct holder *holder) {
        struct person *person = container_of(holder, struct person, holder);

        person->office->n_people--;
        free(person);
}

static bool sink_send(void *session, const struct bytes *message, const struct lending *lending) {
        struct buffer *pinned = lending ? lending->pinned : NULL;
        struct caller *caller = session;

        if (caller->n_refused > 0) {
                caller->n_refused--;
                return false;
        }
        caller->n_fds = lending ? lending->n_fds : 0;
        ck_assert(!pinned == (caller->n_fds == 0) || lending->n_holders == caller->n_fds);
        free(caller->reply);
        caller->reply = malloc(message->n + 1);
        ck_assert_ptr_nonnull(caller->reply);
        memcpy(caller->reply, message->data, message->n); /* it has no NUL of its own */
        caller->reply[message->n] = '\0';
        caller->n_replies++;
        if (pinned) {
                ck_assert_uint_lt(caller->n_lent, ELEMENTSOF(caller->lent));
                caller->lent[caller->n_lent++] = pinned;
        }
        if (lending && lending->fresh)
                close(lending->fds[0]);
        return true;
}

static void sink_done(void *session) {
        ((struct caller *)session)->request = NULL;
}

static void sink_drop(void *session, const char *why) {
        ((struct caller *)session)->dropped = why;
}

static const struct sink caller_sink = {sink_send, sink_done, sink_drop};

void caller_init(struct caller *caller, struct office *office, uid_t uid) {
        struct peer peer = {.principal = {.uid = uid, .gid = uid}};
        struct person *person = calloc(1, sizeof(*person));
        struct failure failure;

        ck_assert_ptr_nonnull(person);
        *caller = (struct caller){.office = office, .holder = &person->holder};
        person->office = office;
        person->holder = (struct holder){.pid = (pid_t)uid, .uid = uid, .gid = uid, .refs = 1, .destroy = person_destroy,
                                         .pidfd = office->null_fd};
        list_init(&person->holder.leases);
        list_init(&person->holder.members);
        office->n_people++;
        ck_assert_int_eq(registry_client_new(&office->house.registry, &peer, 0, &caller->client, &failure), 0);
        caller->client->session = caller;
}

void caller_call(struct caller *caller, const char *call) {
        ck_assert_ptr_null(caller->request);
        dispatch_call(&caller->office->house, caller->client, caller->holder, &caller_sink, caller, call, strlen(call),
                      &caller->request);
        ck_assert(registry_check(&caller->office->house.registry));
}

void caller_exit(struct caller *caller) {
        holder_ref(caller->holder);
        registry_holder_exited(&caller->office->house.registry, caller->holder, clock_real_usec(), clock_monotonic_usec());
        dispatch_holder_exited(&caller->office->house, caller->holder);
        holder_unref(caller->holder);
        ck_assert(registry_check(&caller->office->house.registry));
}

void caller_written(struct caller *caller) {
        while (caller->n_lent > 0)
                registry_unpin(&caller->office->house.registry, caller->lent[--caller->n_lent], clock_real_usec(),
                               clock_monotonic_usec());
}

void caller_leave(struct caller *caller) {
        if (!caller->client)
                return;
        if (caller->request)
                dispatch_abandon(caller->request);
        caller->request = NULL;
        caller_written(caller);
        registry_client_end(&caller->office->house.registry, caller->client, 0, clock_real_usec(), clock_monotonic_usec());
        caller->client = NULL;
        ck_assert(registry_check(&caller->office->house.registry));
}

void caller_deinit(struct caller *caller) {
        caller_leave(caller);
        if (!caller->holder->exited)
                caller_exit(caller);
        holder_unref(caller->holder);
        free(caller->reply);
        *caller = (struct caller){0};
}

char *caller_reply_text(const struct caller *caller, const char *path) {
        char full[64];
        char *text;

        ck_assert_ptr_nonnull(caller->reply);
        snprintf(full, sizeof(full), "parameters.%s", path);
        text = json_get(caller->reply, full);
        ck_assert_msg(text, "no %s in %s", full, caller->reply);
        return text;
}
