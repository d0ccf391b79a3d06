/* SPDX-License-Identifier: Apache-2.0 */
/* Who pays for a buffer: its owner, and when nothing binds the owner to it any more, its oldest holder. */
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

static int64_t used_by(uid_t uid) {
        const struct account *account = account_find(&world.registry.accounts, uid);

        return account ? account->used_bytes : 0;
}

static void pass(uint64_t ms) {
        world.monotonic_usec += ms * 1000;
        world.now_usec += (int64_t)ms * 1000;
}

static void expire(void) {
        registry_expire(&world.registry, world.now_usec, world.monotonic_usec);
        world_check(&world);
}

START_TEST(the_owner_pays_while_it_holds_a_lease) {
        struct buffer *buffer = allocate(NULL, 0);
        struct lease *lease = world_open(&world, consumer, child, buffer), *owners;
        struct buffer_info info;

        ck_assert_int_eq(used_by(ALICE), 10 * PAGE);
        world.registry.room = false;
        world_release(&world, buffer->first);
        ck_assert(world.registry.room);
        ck_assert_int_eq(used_by(ALICE), 0);
        ck_assert_int_eq(used_by(BOB), 10 * PAGE);
        buffer_describe(buffer, &info);
        ck_assert_int_eq(info.charged_uid, BOB);
        ck_assert_int_eq(info.owner_uid, ALICE);

        /* The owner comes back. */
        owners = world_open(&world, producer, parent, buffer);
        ck_assert_int_eq(used_by(ALICE), 10 * PAGE);
        world_release(&world, owners);
        ck_assert_int_eq(used_by(BOB), 10 * PAGE);

        world_release(&world, lease);
        ck_assert_int_eq(used_by(BOB), 10 * PAGE);
        ck_assert_int_eq(world_close_memory(&world), 1);
        ck_assert_int_eq(used_by(BOB), 0);
}
END_TEST

START_TEST(the_owner_pays_while_it_drains) {
        struct buffer *buffer = allocate(NULL, 0);

        world_open(&world, consumer, child, buffer);
        end_session(&producer);
        ck_assert_int_eq(used_by(ALICE), 10 * PAGE);
        end_process(&parent);
        ck_assert_int_eq(used_by(BOB), 10 * PAGE);
        end_session(&consumer);
        ck_assert_int_eq(world_close_memory(&world), 1);
        ck_assert_int_eq(used_by(BOB), 10 * PAGE);
}
END_TEST

START_TEST(the_owner_pays_while_it_holds_a_name) {
        struct buffer *buffer = allocate("a", 0);

        world_open(&world, consumer, child, buffer);
        world_release(&world, buffer->first);
        ck_assert_int_eq(used_by(ALICE), 10 * PAGE);
        world.registry.room = false;
        registry_free(&world.registry, buffer, world.now_usec, world.monotonic_usec);
        ck_assert_int_eq(used_by(ALICE), 0);
        ck_assert_int_eq(used_by(BOB), 10 * PAGE);
        ck_assert(world.registry.room);
}
END_TEST

START_TEST(the_owner_pays_while_its_keep_runs) {
        struct buffer *buffer = allocate(NULL, 500);
        struct lease *lease = world_open(&world, consumer, child, buffer);

        /* It has not begun while the consumer holds. */
        world_release(&world, buffer->first);
        ck_assert_int_eq(used_by(BOB), 10 * PAGE);
        world_release(&world, lease);
        ck_assert_int_eq(buffer->phase, PHASE_KEPT);
        ck_assert_int_eq(used_by(ALICE), 10 * PAGE);

        lease = world_open(&world, consumer, child, buffer);
        ck_assert_int_eq(used_by(ALICE), 10 * PAGE);
        pass(500);
        world.registry.room = false;
        expire();
        ck_assert_int_eq(used_by(ALICE), 0);
        ck_assert_int_eq(used_by(BOB), 10 * PAGE);
        ck_assert(world.registry.room);
        world_release(&world, lease);
}
END_TEST

START_TEST(the_oldest_holder_pays_even_over_its_limit) {
        struct client *third = world_client(&world, CAROL);
        struct holder *holder = world_holder(&world, CAROL);
        struct limits limits = world_limits();
        struct policy policy = { .trust_release = true };
        struct buffer_spec spec = world_spec(&world, 8 * PAGE, NULL);
        struct buffer *buffer = allocate(NULL, 0);
        struct lease *lease;

        limits.bytes_per_uid = 10 * PAGE;
        ck_assert_int_eq(registry_reload(&world.registry, &limits, &policy), 0);
        world_allocate(&world, consumer, child, &spec);
        lease = world_open(&world, consumer, child, buffer);
        world_open(&world, third, holder, buffer);
        world_release(&world, buffer->first);
        ck_assert_int_eq(used_by(BOB), 18 * PAGE);
        ck_assert_int_eq(used_by(CAROL), 0);
        world_release(&world, lease);
        ck_assert_int_eq(used_by(BOB), 8 * PAGE);
        ck_assert_int_eq(used_by(CAROL), 10 * PAGE);
        world_exit(&world, holder);
        world_end(&world, third);
}
END_TEST

START_TEST(a_sessions_bytes_hang_on_its_own_first_lease) {
        struct buffer *buffer = allocate(NULL, 0);

        world_open(&world, consumer, child, buffer);
        world_open(&world, producer, parent, buffer);
        ck_assert_int_eq(producer->bytes, 10 * PAGE);
        ck_assert_int_eq(consumer->bytes, 0);
        world_release(&world, buffer->first);
        ck_assert_int_eq(producer->bytes, 0);
        ck_assert_int_eq(producer->n_leases, 1);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("payer");
        TCase *tcase = tcase_create("payer");

        suite_add_tcase(suite, tcase);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, the_owner_pays_while_it_holds_a_lease);
        tcase_add_test(tcase, the_owner_pays_while_it_drains);
        tcase_add_test(tcase, the_owner_pays_while_it_holds_a_name);
        tcase_add_test(tcase, the_owner_pays_while_its_keep_runs);
        tcase_add_test(tcase, the_oldest_holder_pays_even_over_its_limit);
        tcase_add_test(tcase, a_sessions_bytes_hang_on_its_own_first_lease);
        return suite_run(suite);
}
