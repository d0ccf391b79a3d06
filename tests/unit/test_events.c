/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of events: order, memory, and who may see which. */
#include "ledger.h"
#include "tests/support/suite.h"

static struct world world;
static struct client *producer;
static struct holder *parent;

static void setup(void) {
        struct limits limits = world_limits();

        limits.events = 8;
        world_init(&world, &limits);
        producer = world_client(&world, ALICE);
        parent = world_holder(&world, ALICE);
}

static void teardown(void) {
        world_exit(&world, parent);
        world_end(&world, producer);
        world_deinit(&world);
}

static struct events *events(void) {
        return &world.registry.events;
}

static void refuse(int n) {
        while (n-- > 0)
                registry_refused(&world.registry, NULL, ++world.now_usec);
}

static void expect_range(int64_t oldest, int64_t next) {
        ck_assert_int_eq(events_oldest(events()), oldest);
        ck_assert_int_eq(events()->next, next);
        ck_assert_ptr_null(events_get(events(), oldest - 1));
        ck_assert_ptr_null(events_get(events(), next));
        for (int64_t i = oldest; i < next; i++) {
                ck_assert_ptr_nonnull(events_get(events(), i));
                ck_assert_int_eq(events_get(events(), i)->sequence, i);
        }
}

START_TEST(sequences_have_no_gaps) {
        expect_range(1, 1);
        refuse(1);
        expect_range(1, 2);
        refuse(7);
        expect_range(1, 9);
        refuse(1);
        expect_range(2, 10);
        refuse(100);
        expect_range(102, 110);
        ck_assert_int_eq(events_get(events(), 109)->time_usec, world.now_usec);
        ck_assert_int_eq(events_get(events(), 102)->time_usec, world.now_usec - 7);
}
END_TEST

START_TEST(the_first_sequence_is_given) {
        struct events later;

        ck_assert_int_eq(events_init(&later, 2, 41), 0);
        ck_assert_int_eq(events_oldest(&later), 41);
        ck_assert_ptr_null(events_get(&later, 40));
        events_add(&later, "refused", NULL, NULL, 1);
        ck_assert_int_eq(events_get(&later, 41)->sequence, 41);
        ck_assert_int_eq(events_oldest(&later), 41);
        events_deinit(&later);
}
END_TEST

START_TEST(a_ring_without_room_counts_on) {
        ck_assert_int_eq(events_resize(events(), 0), 0);
        refuse(3);
        expect_range(4, 4);
        ck_assert_int_eq(events_resize(events(), 8), 0);
        refuse(1);
        expect_range(4, 5);
}
END_TEST

START_TEST(resizing_keeps_the_newest) {
        refuse(11);
        expect_range(4, 12);
        ck_assert_int_eq(events_resize(events(), 20), 0);
        expect_range(4, 12);
        refuse(13);
        expect_range(5, 25);
        ck_assert_int_eq(events_resize(events(), 3), 0);
        expect_range(22, 25);
        refuse(1);
        expect_range(23, 26);
}
END_TEST

START_TEST(an_event_tells_the_facts_as_they_were) {
        struct buffer_spec spec = world_spec(&world, 3 * PAGE, "weights");
        const struct event *event;
        struct buffer *buffer;

        spec.meta = "{\"dtype\":\"f16\"}";
        spec.label = "loader";
        spec.mode = 0640;
        buffer = world_allocate(&world, producer, parent, &spec);
        world_release(&world, buffer->first);
        world_close_memory(&world);
        ck_assert_int_eq(world.registry.n_buffers, 0);

        /* All of it is gone; the strings are kept. The ring moves meanwhile. */
        for (size_t capacity = 8; capacity < 33; capacity += 24) {
                ck_assert_int_eq(events_resize(events(), capacity), 0);
                event = events_get(events(), 2);
                ck_assert_str_eq(event->kind, "opened");
                ck_assert(event->has_buffer && event->has_lease);
                ck_assert_str_eq(event->buffer.id, "b1");
                ck_assert_str_eq(event->buffer.name, "weights");
                ck_assert_str_eq(event->buffer.meta, "{\"dtype\":\"f16\"}");
                ck_assert_str_eq(event->buffer.mode, "0640");
                ck_assert_ptr_eq(event->buffer.mode, event->mode_text);
                ck_assert_str_eq(event->buffer.device, "host");
                ck_assert_str_eq(event->buffer.handle, "memfd");
                ck_assert_int_eq(event->buffer.size, 3 * PAGE);
                ck_assert_int_eq(event->buffer.allocated, 3 * PAGE);
                ck_assert_int_eq(event->buffer.leases, 1);
                ck_assert_int_eq(event->buffer.charged_uid, ALICE);
                ck_assert_int_eq(event->buffer.created_usec, world.now_usec);
                ck_assert_str_eq(event->lease.id, "l1");
                ck_assert_str_eq(event->lease.buffer, "b1");
                ck_assert_str_eq(event->lease.name, "weights");
                ck_assert_str_eq(event->lease.session, "s1");
                ck_assert_str_eq(event->lease.label, "loader");
                ck_assert_str_eq(event->lease.command, "worker");
                ck_assert_ptr_null(event->lease.container);
                ck_assert_int_eq(event->lease.pid, parent->pid);
                ck_assert_int_eq(event->lease.access, ACCESS_RW);
        }
        ck_assert_str_eq(world_news(&world), "created opened:l1 released:l1 unnamed freed");
        ck_assert_int_eq(events_get(events(), 3)->buffer.leases, 0);
        ck_assert_str_eq(events_get(events(), 4)->buffer.name, "weights");
        ck_assert_ptr_null(events_get(events(), 5)->buffer.name);
        ck_assert_int_eq(events_get(events(), 5)->buffer.state, BUFFER_DRAINING);
        ck_assert(!events_get(events(), 1)->has_lease);

        /* And given back when they are forgotten. */
        ck_assert_uint_gt(world.device.uuid->refs, 1);
        refuse(40);
        ck_assert_uint_eq(producer->id->refs, 1);
        ck_assert_uint_eq(world.device.uuid->refs, 1);
}
END_TEST

static bool sees(const struct policy *policy, uid_t uid, bool admin, bool overflow, int64_t sequence) {
        struct peer peer = { .principal = { .uid = uid, .gid = uid }, .admin = admin, .overflow = overflow };

        return event_visible(policy, &peer, events_get(events(), sequence));
}

START_TEST(one_sees_one_s_own_and_what_one_may_open) {
        struct client *consumer = world_client(&world, BOB);
        struct holder *child = world_holder(&world, BOB);
        struct buffer_spec spec = world_spec(&world, PAGE, NULL);
        struct policy policy = { 0 };
        struct buffer *buffer = world_allocate(&world, producer, parent, &spec);

        /* BOB holds a lease although the mode lets him see nothing. */
        world_open(&world, consumer, child, buffer);
        registry_set_degraded(&world.registry, &world.device, true, 1);
        registry_refused(&world.registry, NULL, 1);
        registry_refused(&world.registry, buffer, 1);
        ck_assert_str_eq(world_news(&world), "created opened:l1 opened:l2 degraded refused refused");

        static const struct {
                uid_t uid;
                bool admin, overflow;
                const char *seen; /* of each of the six */
        } cases[] = {
                { ALICE, false, false, "yyyyny" }, { BOB, false, false, "nnyynn" },
                { CAROL, false, false, "nnnynn" }, { CAROL, true, false, "yyyyyy" },
                { ALICE, false, true, "nnnynn" },  { 0, false, false, "nnnynn" },
        };
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
                for (int64_t k = 1; k <= 6; k++)
                        ck_assert_msg(sees(&policy, cases[i].uid, cases[i].admin, cases[i].overflow, k) ==
                                              (cases[i].seen[k - 1] == 'y'),
                                      "case %zu event %d", i, (int)k);
        world_exit(&world, child);
        world_end(&world, consumer);
}
END_TEST

START_TEST(modes_decide_who_else_sees) {
        struct buffer_spec spec = world_spec(&world, PAGE, NULL);
        struct policy policy = { 0 };

        spec.mode = 0604;
        world_allocate(&world, producer, parent, &spec);
        ck_assert(sees(&policy, BOB, false, false, 1));
        ck_assert(sees(&policy, BOB, false, false, 2));
}
END_TEST

START_TEST(degraded_is_told_once) {
        registry_set_degraded(&world.registry, &world.device, true, 1);
        registry_set_degraded(&world.registry, &world.device, true, 1);
        ck_assert(world.device.degraded);
        registry_set_degraded(&world.registry, &world.device, false, 1);
        ck_assert(!world.device.degraded);
        registry_set_degraded(&world.registry, &world.device, true, 1);
        ck_assert_str_eq(world_news(&world), "degraded degraded");
}
END_TEST

int main(void) {
        Suite *suite = suite_create("events");
        TCase *tcase = tcase_create("events");

        suite_add_tcase(suite, tcase);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, sequences_have_no_gaps);
        tcase_add_test(tcase, the_first_sequence_is_given);
        tcase_add_test(tcase, a_ring_without_room_counts_on);
        tcase_add_test(tcase, resizing_keeps_the_newest);
        tcase_add_test(tcase, an_event_tells_the_facts_as_they_were);
        tcase_add_test(tcase, one_sees_one_s_own_and_what_one_may_open);
        tcase_add_test(tcase, modes_decide_who_else_sees);
        tcase_add_test(tcase, degraded_is_told_once);
        return suite_run(suite);
}
