/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes on a real loop and the real pool: jobs that hang, the pool's size, and closing. */
#include <errno.h>
#include <string.h>

#include "daemon/clock.h"
#include "lane_jobs.h"
#include "tests/support/fds.h"

START_TEST(stuck_is_told_and_taken_back) {
        struct test_job gate = job_gated("g", 1), next = job_named("b", 2);
        struct lane *lane = lane_started(20);

        lane_submit(lane, &gate.job);
        lane_submit(lane, &next.job);
        while (!*events)
                uv_run(&loop, UV_RUN_ONCE);
        ck_assert_str_eq(events, "stuck");
        sem_post(&gate.gate);
        run();
        ck_assert_int_eq(strncmp(events, "stuck free g ", 13), 0);
        ck_assert_int_eq(events[strlen(events) - 1], 'b'); /* and maybe stuck itself before, if nobody ran it for so long */
        lane_close(lane);
} END_TEST

static void on_clock(uv_timer_t *timer) {
        uv_close((uv_handle_t *)timer, NULL);
}

START_TEST(waiting_for_the_pool_is_not_stuck) {
        struct test_job gates[] = {job_gated("g1", 1), job_gated("g2", 1)}, late = job_named("l", 1);
        struct lane *lanes[2], *lane = lane_started(10);
        uv_timer_t clock;

        lane_size_pool(0);
        for (int i = 0; i < 2; i++)
                lanes[i] = lane_held(&gates[i]);
        lane_submit(lane, &late.job);
        uv_timer_init(&loop, &clock);
        uv_timer_start(&clock, on_clock, 60, 0);
        while (!uv_is_closing((uv_handle_t *)&clock))
                uv_run(&loop, UV_RUN_ONCE);
        ck_assert_str_eq(events, "");
        sem_post(&gates[0].gate);
        sem_post(&gates[1].gate);
        run();
        ck_assert_int_eq(late.n_done, 1);
        lane_close(lane);
        lane_close(lanes[0]);
        lane_close(lanes[1]);
} END_TEST

/* The pool has two threads, of which one is held: when the other begins what comes next, what came before is over. */
START_TEST(what_ended_while_the_loop_stood_still_is_not_stuck) {
        struct test_job gate = job_gated("g", 1), quick = job_named("a", 1), next = job_named("b", 1);
        struct lane *held, *other = lane_started(NEVER_MS), *lane = lane_started(20);
        uint64_t until_usec;

        lane_size_pool(0);
        held = lane_held(&gate);
        lane_submit(lane, &quick.job);
        lane_submit(other, &next.job);
        wait_sem(&next.entered);
        until_usec = clock_monotonic_usec() + 40000;
        while (clock_monotonic_usec() < until_usec)
                ;
        sem_post(&gate.gate);
        run();
        ck_assert_ptr_null(strstr(events, "stuck"));
        lane_close(lane);
        lane_close(other);
        lane_close(held);
} END_TEST

START_TEST(the_pool_holds_every_lane_and_two_more) {
        struct test_job gates[8];
        struct lane *lanes[8];

        lane_size_pool(6);
        for (int i = 0; i < 8; i++) {
                gates[i] = job_gated("g", 1);
                lanes[i] = lane_held(&gates[i]); /* fails when it does not begin */
        }
        for (int i = 0; i < 8; i++)
                sem_post(&gates[i].gate);
        run();
        for (int i = 0; i < 8; i++)
                lane_close(lanes[i]);
} END_TEST

START_TEST(closing_drops_what_waits) {
        struct test_job gate = job_gated("g", 1);
        struct test_job jobs[] = {job_named("a1", 1), job_named("b1", 2), job_named("b2", 2)};
        struct lane *lane = lane_held(&gate);

        submit_all(lane, jobs, 3);
        lane_close(lane);
        for (int i = 0; i < 3; i++)
                ck_assert_ptr_null(jobs[i].job.lane);
        sem_post(&gate.gate);
        run();
        ck_assert_str_eq(trace, "g");
        ck_assert_str_eq(events, "g");
        ck_assert_int_eq(gate.job.result, 7);
} END_TEST

START_TEST(closing_ends_a_job_of_many_steps) {
        struct test_job big = job_gated("A", 1);
        struct lane *lane;

        big.steps = 3;
        lane = lane_held(&big);
        lane_close(lane);
        sem_post(&big.gate);
        run();
        ck_assert_str_eq(trace, "A");
        ck_assert_int_eq(big.job.result, -ECANCELED);
} END_TEST

START_TEST(closing_within_done) {
        struct test_job first = job_named("a1", 1), second = job_named("a2", 1);
        struct lane *lane = lane_started(NEVER_MS);

        first.close_in_done = lane;
        lane_submit(lane, &first.job);
        lane_submit(lane, &second.job);
        run();
        ck_assert_str_eq(events, "a1");
} END_TEST

START_TEST(closing_a_stuck_lane_says_no_more) {
        struct test_job gate = job_gated("g", 1);
        struct lane *lane;

        ck_assert_int_eq(lane_new(&loop, "test", 20, on_stuck, &lane, &lane), 0);
        lane_submit(lane, &gate.job);
        while (!*events)
                uv_run(&loop, UV_RUN_ONCE);
        sem_post(&gate.gate);
        run();
        ck_assert_str_eq(events, "stuck g");
} END_TEST

START_TEST(loops_leave_no_descriptor) {
        check_fd_count_begin();
        for (int i = 0; i < 3; i++) {
                struct lane *lane;
                struct test_job t = job_named("a", 1);
                uv_loop_t own;

                ck_assert_int_eq(uv_loop_init(&own), 0);
                ck_assert_int_eq(lane_new(&own, "test", NEVER_MS, on_stuck, NULL, &lane), 0);
                lane_submit(lane, &t.job);
                uv_run(&own, UV_RUN_DEFAULT);
                lane_close(lane);
                uv_run(&own, UV_RUN_DEFAULT);
                ck_assert_int_eq(uv_loop_close(&own), 0);
        }
        check_fd_count_end();
} END_TEST

int main(void) {
        const TTest *const tests[] = {
                stuck_is_told_and_taken_back,
                waiting_for_the_pool_is_not_stuck,
                what_ended_while_the_loop_stood_still_is_not_stuck,
                the_pool_holds_every_lane_and_two_more,
                closing_drops_what_waits,
                closing_ends_a_job_of_many_steps,
                closing_within_done,
                closing_a_stuck_lane_says_no_more,
                loops_leave_no_descriptor,
        };

        return lane_suite("lane_end", tests, sizeof(tests) / sizeof(tests[0]));
}
