/* SPDX-License-Identifier: Apache-2.0 */
/* When memory is made ahead: what a pace is, and each thing that speaks against a spare. */
#include <check.h>

#include "daemon/pace.h"
#include "tests/support/suite.h"

#define SECOND UINT64_C(1000000)
#define START (UINT64_C(1000) * SECOND)
#define MIB (INT64_C(1) << 20)

static const char fd[] = "cuda-fd", other[] = "cuda-ipc";

START_TEST(two_within_a_second_are_a_pace) {
        struct pace pace = {0};

        ck_assert_ptr_null(pace_find(&pace, START));
        pace_note(&pace, fd, MIB, START);
        ck_assert_ptr_null(pace_find(&pace, START));
        pace_note(&pace, fd, MIB, START + SECOND - 1);
        ck_assert_ptr_nonnull(pace_find(&pace, START + SECOND - 1));
        ck_assert_int_eq(pace_find(&pace, START + SECOND - 1)->bytes, MIB);
        ck_assert_str_eq(pace_find(&pace, START + SECOND - 1)->handle, fd);
        ck_assert_uint_eq(pace_find(&pace, START + SECOND - 1)->last_usec, START + SECOND - 1);
        ck_assert_ptr_null(pace_find(&pace, START + SECOND)); /* the first is a second ago */
        pace_note(&pace, fd, MIB, START + SECOND + 5);
        ck_assert_ptr_nonnull(pace_find(&pace, START + 2 * SECOND - 2)); /* counted from the last but one */
        ck_assert_ptr_null(pace_find(&pace, START + 2 * SECOND - 1));
} END_TEST

START_TEST(sizes_and_kinds_are_told_apart) {
        struct pace pace = {0};

        pace_note(&pace, fd, MIB, START);
        pace_note(&pace, fd, 2 * MIB, START + 1);
        pace_note(&pace, other, MIB, START + 2);
        ck_assert_ptr_null(pace_find(&pace, START + 2));
        pace_note(&pace, fd, 2 * MIB, START + 3);
        ck_assert_int_eq(pace_find(&pace, START + 3)->bytes, 2 * MIB);
        pace_note(&pace, other, MIB, START + 4); /* of those at a pace the last counts */
        ck_assert_str_eq(pace_find(&pace, START + 4)->handle, other);
        pace_note(&pace, fd, 3 * MIB, START + 5); /* which is at none */
        ck_assert_str_eq(pace_find(&pace, START + 5)->handle, other);
} END_TEST

START_TEST(what_was_asked_for_longest_ago_is_forgotten_first) {
        struct pace pace = {0};

        for (int i = 1; i <= PACE_SIZES; i++)
                pace_note(&pace, fd, i * MIB, START + (uint64_t)i);
        pace_note(&pace, fd, MIB, START + 10); /* the first of them comes forward */
        ck_assert_int_eq(pace_find(&pace, START + 10)->bytes, MIB);
        pace_forget(&pace);
        ck_assert_ptr_null(pace_find(&pace, START + 10));

        for (int i = 1; i <= PACE_SIZES + 1; i++)
                pace_note(&pace, fd, i * MIB, START + (uint64_t)i);
        pace_note(&pace, fd, MIB, START + 10);
        ck_assert_ptr_null(pace_find(&pace, START + 10));
        pace_note(&pace, fd, 3 * MIB, START + 11);
        ck_assert_int_eq(pace_find(&pace, START + 11)->bytes, 3 * MIB);
} END_TEST

static const struct pace_room ample = {.bytes = MIB, .max_bytes = MIB, .free_bytes = 8 * MIB, .descriptors_left = 1, .stored_left = 1};

START_TEST(others_in_turn_are_no_move) {
        struct pace pace = {0};

        pace_note(&pace, "cuda-fd", 100, 1000);
        pace_note(&pace, "cuda-fd", 100, 2000);
        pace_note(&pace, "cuda-fd", 200, 3000);
        ck_assert(!pace_has_moved(&pace, 2000));
        pace_note(&pace, "cuda-fd", 100, 4000);
        pace_note(&pace, "cuda-fd", 200, 5000);
        ck_assert(!pace_has_moved(&pace, 4000));
        pace_note(&pace, "cuda-fd", 200, 6000);
        ck_assert(pace_has_moved(&pace, 4000));
        ck_assert(!pace_has_moved(&pace, 6000));
} END_TEST

START_TEST(enough_is_enough) {
        ck_assert(pace_may_make(&ample));
        ck_assert(pace_may_keep(&ample));
} END_TEST

/* Each thing alone is reason enough; what only concerns the making lets one that is there stay. */
START_TEST(anything_speaks_against_it) {
        struct pace_room rooms[] = {ample, ample, ample, ample, ample, ample, ample, ample, ample, ample};

        rooms[0].max_bytes = MIB - 1;
        rooms[1].max_bytes = 0;
        rooms[2].free_bytes = 8 * MIB - 1;
        rooms[3].free_bytes = -100 * MIB;
        rooms[4].waiting = true;
        rooms[5].degraded = true;
        rooms[6].stopping = true;
        rooms[7].descriptors_left = -1;
        rooms[8].descriptors_left = 0;
        rooms[9].stored_left = 0;
        for (size_t i = 0; i < sizeof(rooms) / sizeof(rooms[0]); i++) {
                ck_assert_msg(!pace_may_make(&rooms[i]), "made against reason %zu", i);
                ck_assert_msg(pace_may_keep(&rooms[i]) == (i >= 8), "reason %zu for keeping", i);
        }
} END_TEST

int main(void) {
        Suite *suite = suite_create("pace");
        TCase *tests = tcase_create("pace");

        tcase_add_test(tests, two_within_a_second_are_a_pace);
        tcase_add_test(tests, sizes_and_kinds_are_told_apart);
        tcase_add_test(tests, what_was_asked_for_longest_ago_is_forgotten_first);
        tcase_add_test(tests, others_in_turn_are_no_move);
        tcase_add_test(tests, enough_is_enough);
        tcase_add_test(tests, anything_speaks_against_it);
        suite_add_tcase(suite, tests);
        return suite_run(suite);
}
