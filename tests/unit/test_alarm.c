/* SPDX-License-Identifier: Apache-2.0 */
/* Timers of the loop's: never early, whatever the loop was busy with when they were set; rung once, or cancelled. */
#include <check.h>
#include <stdbool.h>

#include "daemon/alarm.h"
#include "daemon/clock.h"
#include "tests/support/suite.h"

#define BUSY_USEC 30000
#define WAIT_MS 20

static uv_loop_t loop;
static struct alarm *alarm_set;
static uint64_t set_usec, rung_usec;

static void ring(void *arg) {
        ck_assert_ptr_eq(arg, &loop);
        ck_assert_ptr_null(alarm_set);
        rung_usec = clock_monotonic_usec();
}

static void set_alarm(void) {
        set_usec = clock_monotonic_usec();
        ck_assert_int_eq(alarm_new(&loop, WAIT_MS, ring, &loop, &alarm_set), 0);
}

/* The work of a turn, of which the loop's clock knows nothing. */
static void be_busy(void) {
        uint64_t began = clock_monotonic_usec();

        while (clock_monotonic_usec() - began < BUSY_USEC)
                ;
}

static void busy_turn(uv_idle_t *idle) {
        be_busy();
        set_alarm();
        uv_close((uv_handle_t *)idle, NULL);
}

static void setup(void) {
        ck_assert_int_eq(uv_loop_init(&loop), 0);
        rung_usec = 0;
}

static void teardown(void) {
        ck_assert_int_eq(uv_loop_close(&loop), 0);
}

static void wait_awake(uv_idle_t *idle) {
        if (!alarm_set)
                uv_close((uv_handle_t *)idle, NULL);
}

/* Not even by the part of a millisecond, when something else wakes the loop then. */
START_TEST(never_early) {
        uv_idle_t idle;

        set_alarm();
        uv_idle_init(&loop, &idle);
        uv_idle_start(&idle, wait_awake);
        ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
        ck_assert_uint_ge(rung_usec - set_usec, WAIT_MS * 1000);
} END_TEST

START_TEST(never_early_after_a_long_turn) {
        uv_idle_t idle;

        uv_idle_init(&loop, &idle);
        uv_idle_start(&idle, busy_turn);
        ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
        ck_assert_uint_ge(rung_usec - set_usec, WAIT_MS * 1000);
} END_TEST

START_TEST(cancelled) {
        set_alarm();
        alarm_cancel(&alarm_set);
        ck_assert_ptr_null(alarm_set);
        alarm_cancel(&alarm_set);
        ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
        ck_assert_uint_eq(rung_usec, 0);
} END_TEST

int main(void) {
        Suite *suite = suite_create("alarm");
        TCase *tests = tcase_create("alarm");

        tcase_add_checked_fixture(tests, setup, teardown);
        tcase_add_loop_test(tests, never_early, 0, 20);
        tcase_add_test(tests, never_early_after_a_long_turn);
        tcase_add_test(tests, cancelled);
        suite_add_tcase(suite, tests);
        return suite_run(suite);
}
