/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger's limits and their verdicts, its devices, and what can be found in it. */
#include <sys/resource.h>

#include "ledger.h"
#include "tests/support/suite.h"

static struct world world;
static struct client *client, *other;
static struct holder *holder;
static struct limits limits;

static void setup(void) {
        limits = world_limits();
        world_init(&world, &limits);
        client = world_client(&world, ALICE);
        other = world_client(&world, BOB);
        holder = world_holder(&world, ALICE);
}

static void teardown(void) {
        world_exit(&world, holder);
        world_end(&world, client);
        world_end(&world, other);
        world_deinit(&world);
}

static void set_limits(void) {
        struct policy policy = { .trust_release = true };

        ck_assert_int_eq(registry_reload(&world.registry, &limits, &policy), 0);
}

static void expect_quota(int r, const char *scope, int64_t limit, int64_t used, int64_t asked) {
        ck_assert_int_eq(r, VERDICT_QUOTA_EXCEEDED);
        ck_assert_int_eq(world.failure.verdict, VERDICT_QUOTA_EXCEEDED);
        ck_assert_str_eq(world.failure.subject, scope);
        ck_assert_int_eq(world.failure.limit, limit);
        ck_assert_int_eq(world.failure.used, used);
        ck_assert_int_eq(world.failure.asked, asked);
}

static int try_client(uid_t uid, bool admin) {
        struct peer peer = { .principal = { .uid = uid, .gid = uid }, .admin = admin };
        struct client *new_client;
        int r;

        r = registry_client_new(&world.registry, &peer, 1, &new_client, &world.failure);
        if (r == 0)
                world_end(&world, new_client);
        return r;
}

static int try_pages(int64_t n_pages, const char *name) {
        struct buffer_spec spec = world_spec(&world, n_pages * PAGE, name);

        world.queue = &world.device.waitq;
        world.never = false;
        return world_try(&world, client, holder, &spec);
}

static struct buffer *allocate(int64_t n_pages, const char *name) {
        struct buffer_spec spec = world_spec(&world, n_pages * PAGE, name);

        return world_allocate(&world, client, holder, &spec);
}

static void free_buffer(struct buffer *buffer) {
        world_release(&world, buffer->first);
        ck_assert_int_eq(world_close_memory(&world), 1);
}

START_TEST(sessions_are_limited_in_all) {
        limits.clients = 2;
        set_limits();
        expect_quota(try_client(CAROL, false), "clients", 2, 2, 1);
        ck_assert_int_eq(try_client(CAROL, true), 0);
        limits.clients = 3;
        set_limits();
        ck_assert_int_eq(try_client(CAROL, false), 0);
}
END_TEST

START_TEST(sessions_are_limited_per_uid) {
        limits.clients_per_uid = 1;
        set_limits();
        expect_quota(try_client(ALICE, false), "clients_per_uid", 1, 1, 1);
        ck_assert_int_eq(try_client(CAROL, false), 0);
        ck_assert_int_eq(try_client(ALICE, true), 0);
        world_end(&world, client);
        ck_assert_int_eq(try_client(ALICE, false), 0);
        client = world_client(&world, ALICE);
}
END_TEST

START_TEST(a_session_may_be_turned_away) {
        struct policy policy = { .restricted = true };
        struct peer peer = { .principal = { .uid = CAROL } };
        struct client *unused;

        ck_assert_int_eq(registry_reload(&world.registry, &limits, &policy), 0);
        ck_assert_int_eq(registry_client_new(&world.registry, &peer, 1, &unused, &world.failure),
                         VERDICT_ACCESS_DENIED);
        ck_assert_int_eq(world.registry.n_clients, 2);
}
END_TEST

START_TEST(a_session_is_found_by_its_id) {
        ck_assert_str_eq(client->id->text, "s1");
        ck_assert_ptr_eq(registry_find_client(&world.registry, "s1"), client);
        ck_assert_ptr_eq(registry_find_client(&world.registry, "s2"), other);
        ck_assert_ptr_null(registry_find_client(&world.registry, "s3"));
        ck_assert_ptr_null(registry_find_client(&world.registry, ""));
}
END_TEST

START_TEST(leases_are_limited_per_session) {
        struct buffer *buffer;
        struct lease *lease;

        limits.leases_per_session = 2;
        set_limits();
        buffer = allocate(1, NULL);
        lease = world_open(&world, client, holder, buffer);
        expect_quota(try_pages(1, NULL), "leases_per_session", 2, 2, 1);
        ck_assert(world.never && !world.queue);
        expect_quota(registry_open_reserve(&world.registry, client, holder, buffer, ACCESS_RO, NULL, &lease,
                                           &world.failure),
                     "leases_per_session", 2, 2, 1);
        world_release(&world, lease);
        ck_assert_int_eq(try_pages(1, NULL), 0);
}
END_TEST

START_TEST(buffers_are_limited) {
        struct buffer_spec spec = world_spec(&world, PAGE, NULL);
        struct buffer *buffer;
        struct lease *lease;

        limits.buffers = 1;
        set_limits();
        buffer = allocate(1, NULL);
        expect_quota(try_pages(1, NULL), "buffers", 1, 1, 1);
        ck_assert(world.never && !world.queue);
        world_release(&world, buffer->first);
        expect_quota(try_pages(1, NULL), "buffers", 1, 1, 1);
        world_close_memory(&world);
        ck_assert_int_eq(registry_allocate_reserve(&world.registry, client, holder, &spec, &buffer, &lease,
                                                   &world.never, &world.queue, &world.failure),
                         0);
        expect_quota(try_pages(1, NULL), "buffers", 1, 1, 1);
        registry_allocate_cancel(&world.registry, buffer, NULL);
        ck_assert_int_eq(try_pages(1, NULL), 0);
}
END_TEST

START_TEST(names_are_limited_per_uid) {
        struct buffer *buffer;

        limits.names_per_uid = 1;
        set_limits();
        buffer = allocate(1, "a");
        expect_quota(try_pages(1, "b"), "names_per_uid", 1, 1, 1);
        ck_assert(world.never && !world.queue);
        ck_assert_int_eq(try_pages(1, NULL), 0);
        ck_assert_int_eq(world_try(&world, other, holder,
                                   &(struct buffer_spec){ .size = 1,
                                                          .allocated = PAGE,
                                                          .device = &world.device,
                                                          .handle = "memfd",
                                                          .name = "b" }),
                         0);
        registry_free(&world.registry, buffer, world.now_usec, world.monotonic_usec);
        ck_assert_int_eq(try_pages(1, "b"), 0);
}
END_TEST

START_TEST(descriptors_are_limited) {
        struct buffer *buffer;

        limits.descriptors = 64 + 2 + 3; /* the reserve, two sessions, three more */
        set_limits();
        buffer = allocate(1, NULL);
        ck_assert_int_eq(world.registry.n_descriptors, 4);
        expect_quota(try_pages(1, NULL), "descriptors", 69, 4 + 64, 2);
        ck_assert(world.never && !world.queue);

        /* Sessions and processes may use most of the reserve. */
        ck_assert_int_eq(registry_use_descriptors(&world.registry, 49, &world.failure), 0);
        expect_quota(registry_use_descriptors(&world.registry, 1, &world.failure), "descriptors", 69, 53 + 16, 1);
        expect_quota(try_client(CAROL, false), "descriptors", 69, 53 + 16, 1);
        ck_assert_int_eq(registry_use_descriptors(&world.registry, -49, NULL), 0);
        ck_assert_int_eq(try_client(CAROL, false), 0);

        free_buffer(buffer);
        ck_assert_int_eq(world.registry.n_descriptors, 2);
        ck_assert_int_eq(try_pages(1, NULL), 0);
}
END_TEST

START_TEST(no_limit_of_descriptors_is_the_kernel_s) {
        struct rlimit hard;

        ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &hard), 0);
        limits.descriptors = 0;
        set_limits();
        ck_assert_int_eq(world.registry.limits.descriptors, (int64_t)hard.rlim_max);
}
END_TEST

START_TEST(bytes_are_limited_per_uid) {
        struct buffer *buffer;

        limits.bytes_per_uid = 10 * PAGE;
        set_limits();
        buffer = allocate(8, NULL);
        expect_quota(try_pages(3, NULL), "bytes_per_uid", 10 * PAGE, 8 * PAGE, 3 * PAGE);
        ck_assert(!world.never);
        ck_assert_ptr_eq(world.queue, &client->account->waitq);
        expect_quota(try_pages(11, NULL), "bytes_per_uid", 10 * PAGE, 8 * PAGE, 11 * PAGE);
        ck_assert(world.never && !world.queue);
        ck_assert_int_eq(try_pages(2, NULL), 0);
        free_buffer(buffer);
        ck_assert_int_eq(try_pages(10, NULL), 0);
}
END_TEST

START_TEST(bytes_are_limited_per_session) {
        struct client *second = world_client(&world, ALICE);
        struct buffer_spec spec = world_spec(&world, 10 * PAGE, NULL);
        struct buffer *buffer;

        limits.bytes_per_session = 10 * PAGE;
        set_limits();
        buffer = allocate(8, NULL);
        expect_quota(try_pages(3, NULL), "bytes_per_session", 10 * PAGE, 8 * PAGE, 3 * PAGE);
        ck_assert(world.never && !world.queue);
        ck_assert_int_eq(world_try(&world, second, holder, &spec), 0);
        world_release(&world, buffer->first);
        ck_assert_int_eq(try_pages(10, NULL), 0);
        expect_quota(try_pages(11, NULL), "bytes_per_session", 10 * PAGE, 0, 11 * PAGE);
        world_end(&world, second);
}
END_TEST

START_TEST(a_device_is_limited) {
        struct buffer *buffer;

        limits.bytes_per_uid = limits.bytes_per_session = 100000 * PAGE;
        limits.keep_free_bytes = 100 * PAGE;
        set_limits();
        buffer = allocate(4000, NULL);
        ck_assert_int_eq(try_pages(901, NULL), VERDICT_OUT_OF_MEMORY);
        ck_assert_str_eq(world.failure.subject, "host");
        ck_assert_int_eq(world.failure.free_bytes, 900 * PAGE);
        ck_assert_int_eq(world.failure.asked, 901 * PAGE);
        ck_assert(!world.never);
        ck_assert_ptr_eq(world.queue, &world.device.waitq);
        ck_assert_int_eq(try_pages(4901, NULL), VERDICT_OUT_OF_MEMORY);
        ck_assert(world.never && !world.queue);
        ck_assert_int_eq(try_pages(900, NULL), 0);

        /* Released is not closed. */
        world_release(&world, buffer->first);
        ck_assert_int_eq(try_pages(901, NULL), VERDICT_OUT_OF_MEMORY);
        world_close_memory(&world);
        ck_assert_int_eq(try_pages(4900, NULL), 0);
}
END_TEST

START_TEST(names_come_before_numbers) {
        struct policy policy = {
                .trust_release = true,
                .reserved = calloc(1, sizeof(struct reserved_name)),
                .n_reserved = 1,
        };

        policy.reserved[0] = (struct reserved_name){ .prefix = strdup("root/"), .uid = 0 };
        allocate(1, "taken");
        limits.buffers = 1;
        limits.bytes_per_uid = PAGE;
        ck_assert_int_eq(registry_reload(&world.registry, &limits, &policy), 0);
        ck_assert_int_eq(try_pages(9, "root/x"), VERDICT_ACCESS_DENIED);
        ck_assert(world.never && !world.queue);
        ck_assert_int_eq(try_pages(9, "taken"), VERDICT_NAME_TAKEN);
        ck_assert(world.never && !world.queue);
        expect_quota(try_pages(9, "free"), "buffers", 1, 1, 1);
        limits.buffers = 2;
        limits.bytes_per_session = PAGE;
        set_limits();
        expect_quota(try_pages(9, NULL), "bytes_per_session", PAGE, PAGE, 9 * PAGE);
}
END_TEST

START_TEST(the_unmapped_own_nothing) {
        struct peer peer = { .principal = { .uid = 65534 }, .admin = true, .overflow = true };
        struct buffer_spec spec = world_spec(&world, PAGE, NULL);
        struct client *admin;

        ck_assert_int_eq(registry_client_new(&world.registry, &peer, 0, &admin, &world.failure), 0);
        ck_assert_int_eq(world_try(&world, admin, holder, &spec), VERDICT_ACCESS_DENIED);
        registry_client_end(&world.registry, admin, 0, 1, 1);
}
END_TEST

START_TEST(waits_are_limited) {
        struct client *second = world_client(&world, ALICE);

        limits.waits_per_session = 2;
        limits.waits_per_uid = 3;
        set_limits();
        ck_assert_int_eq(registry_wait_begin(&world.registry, client, &world.failure), 0);
        ck_assert_int_eq(registry_wait_begin(&world.registry, client, &world.failure), 0);
        expect_quota(registry_wait_begin(&world.registry, client, &world.failure), "waits_per_session", 2, 2, 1);
        ck_assert_int_eq(registry_wait_begin(&world.registry, second, &world.failure), 0);
        expect_quota(registry_wait_begin(&world.registry, second, &world.failure), "waits_per_uid", 3, 3, 1);
        ck_assert_int_eq(registry_wait_begin(&world.registry, other, &world.failure), 0);
        world_check(&world);
        registry_wait_end(&world.registry, client);
        ck_assert_int_eq(registry_wait_begin(&world.registry, second, &world.failure), 0);
        world_check(&world);
        /* A session takes its waits with it. */
        world_end(&world, second);
        ck_assert_int_eq(client->account->waits, 1);
        registry_wait_end(&world.registry, client);
        registry_wait_end(&world.registry, other);
        world_check(&world);
}
END_TEST

START_TEST(a_reload_leaves_what_exists) {
        struct buffer *buffer = allocate(8, NULL);

        limits.bytes_per_uid = PAGE;
        limits.events = 2;
        limits.buffers = 0;
        world.registry.room = false;
        set_limits();
        world_check(&world);
        ck_assert(world.registry.room);
        ck_assert_uint_eq(world.registry.events.capacity, 2);
        ck_assert_ptr_eq(registry_find_buffer(&world.registry, "b1", NULL), buffer);
        free_buffer(buffer);
}
END_TEST

START_TEST(devices_are_found) {
        struct device gpus[2] = { { .uuid = rcstr_new("GPU-1"), .kind = DEVICE_CUDA },
                                  { .uuid = rcstr_new("GPU-2"), .kind = DEVICE_CUDA } };
        struct registry *registry = &world.registry;

        ck_assert_ptr_eq(registry_default_device(registry), &world.device);
        ck_assert_ptr_null(registry_find_device(registry, "GPU-1"));
        registry_add_device(registry, &gpus[0]);
        ck_assert_ptr_eq(registry_default_device(registry), &gpus[0]);
        registry_add_device(registry, &gpus[1]);
        ck_assert_ptr_eq(registry_default_device(registry), &world.device);
        ck_assert_ptr_eq(registry_find_device(registry, "GPU-2"), &gpus[1]);
        ck_assert_ptr_eq(registry_find_device(registry, "host"), &world.device);
        ck_assert(list_empty(&gpus[0].waitq.waiters));
        for (int i = 0; i < 2; i++) {
                list_remove(&gpus[i].by_registry);
                rcstr_unref(gpus[i].uuid);
        }
}
END_TEST

static struct buffer *openable(const struct client *who, const char *id, const char *name, int64_t owner,
                               enum access access, bool *ret_sealed) {
        return registry_find_openable(&world.registry, &who->peer, id, name, owner, access, ret_sealed);
}

START_TEST(only_what_one_may_open_is_found) {
        struct buffer_spec spec = world_spec(&world, PAGE, "a");
        struct buffer *buffer;
        bool sealed = true;

        spec.mode = 0604;
        buffer = world_allocate(&world, client, holder, &spec);
        ck_assert_ptr_eq(openable(client, "b1", NULL, SCHEMA_UNSET, ACCESS_RW, &sealed), buffer);
        ck_assert(!sealed);
        ck_assert_ptr_eq(openable(client, NULL, "a", ALICE, ACCESS_RW, &sealed), buffer);
        ck_assert_ptr_null(openable(client, NULL, "a", BOB, ACCESS_RW, &sealed));
        ck_assert_ptr_null(openable(client, NULL, "b", SCHEMA_UNSET, ACCESS_RW, &sealed));
        ck_assert_ptr_eq(openable(other, NULL, "a", SCHEMA_UNSET, ACCESS_RO, &sealed), buffer);
        ck_assert_ptr_null(openable(other, NULL, "a", SCHEMA_UNSET, ACCESS_RW, &sealed));
        ck_assert(!sealed);

        registry_seal(&world.registry, buffer, 1);
        ck_assert_ptr_null(openable(client, "b1", NULL, SCHEMA_UNSET, ACCESS_RW, &sealed));
        ck_assert(sealed);
        ck_assert_ptr_eq(openable(client, "b1", NULL, SCHEMA_UNSET, ACCESS_RO, &sealed), buffer);
        ck_assert(!sealed);
        /* Who could not write anyway learns nothing of the seal. */
        ck_assert_ptr_null(openable(other, NULL, "a", SCHEMA_UNSET, ACCESS_RW, &sealed));
        ck_assert(!sealed);
}
END_TEST

START_TEST(leases_are_seen_by_their_holders_and_who_sees_the_buffer) {
        struct holder *guest = world_holder(&world, BOB);
        struct policy policy = { 0 };
        struct buffer *buffer = allocate(1, NULL);
        struct lease *lease = world_open(&world, other, guest, buffer);
        struct peer carol = { .principal = { .uid = CAROL, .gid = CAROL } };

        ck_assert(lease_visible(&policy, &other->peer, lease));
        ck_assert(lease_visible(&policy, &client->peer, lease));
        ck_assert(!lease_visible(&policy, &other->peer, buffer->first));
        ck_assert(!lease_visible(&policy, &carol, lease));
        carol.admin = true;
        ck_assert(lease_visible(&policy, &carol, lease));
        world_exit(&world, guest);
}
END_TEST

START_TEST(cursors_bear_changes) {
        struct buffer_spec spec = world_spec(&world, PAGE, NULL);
        struct cursor leases, buffers, end;
        struct buffer *b[4], *reserved;
        struct lease *lease;

        for (int i = 0; i < 3; i++)
                b[i] = allocate(1, NULL);
        cursor_init_leases(&leases, &world.registry);
        cursor_init_buffers(&buffers, &world.registry);
        cursor_init_buffers(&end, &world.registry);
        ck_assert_ptr_eq(cursor_lease(&leases), b[0]->first);
        cursor_step(&leases);
        cursor_step(&buffers);
        for (int i = 0; i < 5; i++)
                cursor_step(&end);
        ck_assert_ptr_null(cursor_buffer(&end));

        /* What comes next vanishes. */
        free_buffer(b[1]);
        ck_assert_ptr_eq(cursor_lease(&leases), b[2]->first);
        ck_assert_ptr_eq(cursor_buffer(&buffers), b[2]);
        free_buffer(b[2]);
        ck_assert_ptr_null(cursor_lease(&leases));
        ck_assert_ptr_null(cursor_buffer(&buffers));

        /* A reserved one is passed over, and shown once it is committed. */
        ck_assert_int_eq(registry_allocate_reserve(&world.registry, client, holder, &spec, &reserved, &lease,
                                                   &world.never, &world.queue, &world.failure),
                         0);
        cursor_deinit(&leases);
        cursor_init_leases(&leases, &world.registry);
        cursor_deinit(&buffers);
        cursor_init_buffers(&buffers, &world.registry);
        cursor_step(&leases);
        cursor_step(&buffers);
        ck_assert_ptr_null(cursor_lease(&leases));
        ck_assert_ptr_null(cursor_buffer(&buffers));
        b[3] = allocate(1, NULL);
        ck_assert_ptr_eq(cursor_lease(&leases), b[3]->first);
        ck_assert_ptr_eq(cursor_buffer(&buffers), b[3]);
        registry_allocate_commit(&world.registry, reserved, backing_new(&world), 1);
        ck_assert_ptr_eq(cursor_lease(&leases), lease);
        ck_assert_ptr_eq(cursor_buffer(&buffers), reserved);
        cursor_step(&buffers);
        ck_assert_ptr_eq(cursor_buffer(&buffers), b[3]);

        cursor_deinit(&leases);
        cursor_deinit(&leases);
        cursor_deinit(&buffers);
        cursor_deinit(&end);
        ck_assert(list_empty(&world.registry.cursors));
        leases = (struct cursor){ 0 };
        cursor_deinit(&leases);
}
END_TEST

/* Stepping while reserved entries lie between: none is shown, none is shown twice. */
START_TEST(cursors_pass_reserved_entries) {
        struct buffer_spec spec = world_spec(&world, PAGE, NULL);
        struct buffer *first = allocate(1, NULL), *reserved[2], *last;
        struct cursor cursor;
        struct lease *lease;

        for (int i = 0; i < 2; i++)
                ck_assert_int_eq(registry_allocate_reserve(&world.registry, client, holder, &spec, &reserved[i],
                                                           &lease, &world.never, &world.queue, &world.failure),
                                 0);
        last = allocate(1, NULL);
        cursor_init_leases(&cursor, &world.registry);
        ck_assert_ptr_eq(cursor_lease(&cursor), first->first);
        cursor_step(&cursor);
        ck_assert_ptr_eq(cursor_lease(&cursor), last->first);
        cursor_step(&cursor);
        ck_assert_ptr_null(cursor_lease(&cursor));
        cursor_deinit(&cursor);
        for (int i = 0; i < 2; i++)
                registry_allocate_cancel(&world.registry, reserved[i], NULL);
}
END_TEST

/* What a stop leaves behind goes with the ledger. */
START_TEST(an_end_drops_what_is_left) {
        struct buffer_spec spec = world_spec(&world, PAGE, "kept");
        struct world small;
        struct holder *living;
        struct client *session;
        struct cursor cursor;
        struct backing *backing;
        struct buffer *buffer;

        world_init(&small, NULL);
        session = world_client(&small, ALICE);
        living = world_holder(&small, ALICE);
        spec.device = &small.device;
        world_allocate(&small, session, living, &spec);
        cursor_init_leases(&cursor, &small.registry);
        world_end(&small, session);
        buffer = registry_take_retiring(&small.registry, &backing);
        ck_assert_ptr_nonnull(buffer);
        free(backing);
        registry_deinit(&small.registry);
        ck_assert_ptr_null(cursor.list);
        ck_assert(list_empty(&living->leases));
        ck_assert_int_eq(small.device.used_bytes, 0);
        holder_unref(living);
        ck_assert_int_eq(small.n_holders, 0);
        rcstr_unref(small.device.uuid);
        rcstr_unref(small.device.name);
}
END_TEST

/* registry_check() itself: it sees each sum that is wrong. */
START_TEST(the_check_sees_what_is_wrong) {
        struct buffer *buffer = allocate(4, "a");
        struct registry *registry = &world.registry;
        int64_t *sums[] = {
                &registry->n_clients,
                &registry->n_buffers,
                &registry->n_leases,
                &registry->n_shown_buffers,
                &registry->n_spares,
                &client->n_leases,
                &client->bytes,
                &client->n_waits,
                &client->account->clients,
                &client->account->names,
                &client->account->waits,
                &client->account->used_bytes,
                &client->account->reserved_bytes,
                &world.device.used_bytes,
                &world.device.draining_bytes,
                &world.device.reserved_bytes,
                &world.device.spare_bytes,
                &buffer->n_active,
                &buffer->n_draining,
                &buffer->n_owners,
                &client->account->draining,
                &buffer->allocated,
        };
        struct lease *lease = buffer->first;

        world_check(&world);
        for (size_t i = 0; i < sizeof(sums) / sizeof(sums[0]); i++) {
                ++*sums[i];
                ck_assert_msg(!registry_check(registry), "sum %zu", i);
                --*sums[i];
                ck_assert(registry_check(registry));
        }
        buffer->first = NULL;
        ck_assert(!registry_check(registry));
        buffer->first = lease;
        buffer->freed = true;
        ck_assert(!registry_check(registry));
        buffer->freed = false;
        buffer->phase = PHASE_KEPT;
        ck_assert(!registry_check(registry));
        buffer->phase = PHASE_LIVE;
        lease->phase = LEASE_PHASE_DRAINING;
        ck_assert(!registry_check(registry));
        lease->phase = LEASE_PHASE_ACTIVE;
        holder->exited = true;
        ck_assert(!registry_check(registry));
        holder->exited = false;
        world_check(&world);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("registry");
        TCase *tcase = tcase_create("registry");

        suite_add_tcase(suite, tcase);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, sessions_are_limited_in_all);
        tcase_add_test(tcase, sessions_are_limited_per_uid);
        tcase_add_test(tcase, a_session_may_be_turned_away);
        tcase_add_test(tcase, a_session_is_found_by_its_id);
        tcase_add_test(tcase, leases_are_limited_per_session);
        tcase_add_test(tcase, buffers_are_limited);
        tcase_add_test(tcase, names_are_limited_per_uid);
        tcase_add_test(tcase, descriptors_are_limited);
        tcase_add_test(tcase, no_limit_of_descriptors_is_the_kernel_s);
        tcase_add_test(tcase, bytes_are_limited_per_uid);
        tcase_add_test(tcase, bytes_are_limited_per_session);
        tcase_add_test(tcase, a_device_is_limited);
        tcase_add_test(tcase, names_come_before_numbers);
        tcase_add_test(tcase, the_unmapped_own_nothing);
        tcase_add_test(tcase, waits_are_limited);
        tcase_add_test(tcase, a_reload_leaves_what_exists);
        tcase_add_test(tcase, devices_are_found);
        tcase_add_test(tcase, only_what_one_may_open_is_found);
        tcase_add_test(tcase, leases_are_seen_by_their_holders_and_who_sees_the_buffer);
        tcase_add_test(tcase, cursors_bear_changes);
        tcase_add_test(tcase, cursors_pass_reserved_entries);
        tcase_add_test(tcase, an_end_drops_what_is_left);
        tcase_add_test(tcase, the_check_sees_what_is_wrong);
        return suite_run(suite);
}
