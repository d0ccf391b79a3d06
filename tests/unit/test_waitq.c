/* SPDX-License-Identifier: Apache-2.0 */
/* Whose turn it is, at each moment of a head's wait. */
#include <check.h>

#include "daemon/waitq.h"
#include "tests/support/suite.h"

#define SECOND WAITQ_PATIENCE_USEC
#define START UINT64_C(5000000)

enum { ALICE = 1000, BOB = 1001 };

static struct waitq queue;
static struct waiter head, second, third;

static void setup(void) {
        waitq_init(&queue);
        waiter_init(&head);
        waiter_init(&second);
        waiter_init(&third);
}

static bool newcomer(uid_t uid, int64_t bytes, bool patient, uint64_t waited) {
        return waitq_may_try(&queue, NULL, uid, bytes, patient, START + waited);
}

START_TEST(an_empty_queue_binds_nobody) {
        ck_assert(waitq_may_try(&queue, NULL, ALICE, INT64_MAX, true, START));
        ck_assert_uint_eq(waitq_next_change(&queue, START), UINT64_MAX);
}
END_TEST

START_TEST(smaller_ones_pass_for_a_second) {
        waitq_join(&queue, &head, ALICE, 100, START);
        for (uint64_t waited = 0; waited < SECOND; waited += SECOND - 1) {
                ck_assert(newcomer(ALICE, 99, true, waited));
                ck_assert(newcomer(BOB, 99, true, waited));
                ck_assert(newcomer(ALICE, 99, false, waited));
                ck_assert(!newcomer(ALICE, 100, true, waited));
                ck_assert(!newcomer(BOB, 100, true, waited));
                ck_assert(!newcomer(ALICE, 100, false, waited));
                ck_assert(waitq_may_try(&queue, &head, ALICE, 100, true, START + waited));
        }
}
END_TEST

START_TEST(nobody_of_its_uid_passes_after_that) {
        waitq_join(&queue, &head, ALICE, 100, START);
        for (uint64_t turn = 1; turn < 10; turn++) {
                ck_assert(!newcomer(ALICE, 1, true, turn * SECOND));
                ck_assert(!newcomer(ALICE, 1, false, turn * SECOND));
                ck_assert(waitq_may_try(&queue, &head, ALICE, 100, true, START + turn * SECOND));
        }
}
END_TEST

START_TEST(others_pass_in_turn_with_its_claim) {
        waitq_join(&queue, &head, ALICE, 100, START);
        for (uint64_t turn = 1; turn < 10; turn++) {
                bool claim = turn % 2 == 1;

                ck_assert_int_eq(newcomer(BOB, 99, true, turn * SECOND), !claim);
                ck_assert_int_eq(newcomer(BOB, 99, true, (turn + 1) * SECOND - 1), !claim);
                ck_assert(!newcomer(BOB, 100, true, turn * SECOND));
        }
}
END_TEST

START_TEST(who_will_not_wait_is_bound_by_its_own_uid_only) {
        waitq_join(&queue, &head, ALICE, 100, START);
        for (uint64_t turn = 0; turn < 5; turn++)
                ck_assert(newcomer(BOB, 1000, false, turn * SECOND));
        ck_assert(!newcomer(ALICE, 1, false, SECOND));
        /* A waiter does not slip through as such a one. */
        waitq_join(&queue, &second, BOB, 10, START + 1);
        ck_assert(!waitq_may_try(&queue, &second, BOB, 10, false, START + SECOND));
}
END_TEST

START_TEST(waiters_behind_the_head_are_bound_like_newcomers) {
        waitq_join(&queue, &head, ALICE, 100, START);
        waitq_join(&queue, &second, BOB, 50, START + 1);
        waitq_join(&queue, &third, ALICE, 50, START + 2);
        ck_assert(waitq_may_try(&queue, &second, BOB, 50, true, START + 3));
        ck_assert(waitq_may_try(&queue, &third, ALICE, 50, true, START + 3));
        ck_assert(!waitq_may_try(&queue, &second, BOB, 50, true, START + SECOND));
        ck_assert(waitq_may_try(&queue, &second, BOB, 50, true, START + 2 * SECOND));
        ck_assert(!waitq_may_try(&queue, &third, ALICE, 50, true, START + 2 * SECOND));
        ck_assert(!waitq_may_try(&queue, &second, BOB, 50, true, START + 3 * SECOND));

        waiter_leave(&head);
        ck_assert(waitq_may_try(&queue, &second, BOB, 50, true, START + 3));
        ck_assert(!waitq_may_try(&queue, &third, ALICE, 50, true, START + 3));
        ck_assert(waitq_may_try(&queue, &third, ALICE, 49, true, START + 3));
}
END_TEST

START_TEST(age_is_the_order) {
        waitq_join(&queue, &head, ALICE, 1, START + 2);
        waitq_join(&queue, &second, ALICE, 2, START + 1);
        waitq_join(&queue, &third, ALICE, 3, START + 1);
        ck_assert_ptr_eq(queue.waiters.next, &second.by_queue);
        ck_assert_ptr_eq(second.by_queue.next, &third.by_queue);
        ck_assert_ptr_eq(third.by_queue.next, &head.by_queue);

        /* Tried in vain and back again, at its old place. */
        waiter_leave(&second);
        ck_assert_ptr_null(second.queue);
        waiter_leave(&second);
        waitq_join(&queue, &second, ALICE, 2, START);
        ck_assert_ptr_eq(queue.waiters.next, &second.by_queue);
        waitq_join(&queue, &second, ALICE, 2, START + 9);
        ck_assert_ptr_eq(queue.waiters.prev, &second.by_queue);
        ck_assert_ptr_eq(second.queue, &queue);
}
END_TEST

START_TEST(joining_another_queue_leaves_the_first) {
        struct waitq other;

        waitq_init(&other);
        waitq_join(&queue, &head, ALICE, 1, START);
        waitq_join(&other, &head, ALICE, 1, START);
        ck_assert(list_empty(&queue.waiters));
        ck_assert_ptr_eq(other.waiters.next, &head.by_queue);
        waiter_leave(&head);
        ck_assert(list_empty(&other.waiters));
}
END_TEST

/* Between two moments that next_change names, no answer changes; at each, one does. */
START_TEST(next_change_names_every_change) {
        uint64_t now = START;
        bool before, after;

        waitq_join(&queue, &head, ALICE, 100, START);
        waitq_join(&queue, &second, BOB, 50, START + 1);
        for (int i = 1; i < 8; i++) {
                uint64_t next = waitq_next_change(&queue, now);

                ck_assert_uint_eq(next, START + (uint64_t)i * SECOND);
                before = waitq_may_try(&queue, &second, BOB, 50, true, now);
                ck_assert_int_eq(waitq_may_try(&queue, &second, BOB, 50, true, next - 1), before);
                after = waitq_may_try(&queue, &second, BOB, 50, true, next);
                ck_assert_int_ne(after, before);
                now = next;
        }
}
END_TEST

START_TEST(among_one_uid_nothing_changes_after_the_first_second) {
        waitq_join(&queue, &head, ALICE, 100, START);
        waitq_join(&queue, &second, ALICE, 50, START + 1);
        ck_assert_uint_eq(waitq_next_change(&queue, START), START + SECOND);
        ck_assert_uint_eq(waitq_next_change(&queue, START + SECOND - 1), START + SECOND);
        ck_assert_uint_eq(waitq_next_change(&queue, START + SECOND), UINT64_MAX);
}
END_TEST

/* The clock that was read before the head joined. */
START_TEST(a_head_from_the_future_has_not_waited) {
        waitq_join(&queue, &head, ALICE, 100, START);
        ck_assert(waitq_may_try(&queue, NULL, ALICE, 99, true, START - 1));
        ck_assert_uint_eq(waitq_next_change(&queue, START - 1), START + SECOND);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("waitq");
        TCase *tcase = tcase_create("waitq");

        suite_add_tcase(suite, tcase);
        tcase_add_checked_fixture(tcase, setup, NULL);
        tcase_add_test(tcase, an_empty_queue_binds_nobody);
        tcase_add_test(tcase, smaller_ones_pass_for_a_second);
        tcase_add_test(tcase, nobody_of_its_uid_passes_after_that);
        tcase_add_test(tcase, others_pass_in_turn_with_its_claim);
        tcase_add_test(tcase, who_will_not_wait_is_bound_by_its_own_uid_only);
        tcase_add_test(tcase, waiters_behind_the_head_are_bound_like_newcomers);
        tcase_add_test(tcase, age_is_the_order);
        tcase_add_test(tcase, joining_another_queue_leaves_the_first);
        tcase_add_test(tcase, next_change_names_every_change);
        tcase_add_test(tcase, among_one_uid_nothing_changes_after_the_first_second);
        tcase_add_test(tcase, a_head_from_the_future_has_not_waited);
        return suite_run(suite);
}
