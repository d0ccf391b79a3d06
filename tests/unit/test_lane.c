/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes on real loops and the real pool. Jobs block on gates that the test opens. */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/lane.h"
#include "tests/support/fds.h"
#include "tests/support/wait.h"

#define NEVER_MS 3600000

struct test_job {
        struct job job;
        char name[4];
        int steps; /* left */
        bool gated;
        sem_t entered, gate;
        int n_done;
        struct lane *submit_to, *close_in_done;
        struct test_job *submit;
};

static uv_loop_t loop;
static pthread_mutex_t trace_lock = PTHREAD_MUTEX_INITIALIZER;
static char trace[4096]; /* what ran, in order */
static char events[256]; /* what the loop was told */

static void note(char *text, size_t size, const char *word) {
        size_t n = strlen(text);

        snprintf(text + n, size - n, "%s%s", n ? " " : "", word);
}

static void wait_sem(sem_t *sem) {
        struct timespec until;

        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += 20;
        while (sem_clockwait(sem, CLOCK_MONOTONIC, &until) < 0)
                ck_assert_msg(errno == EINTR, "a job did not begin in time");
}

static int on_pool(struct job *job) {
        struct test_job *t = container_of(job, struct test_job, job);

        pthread_mutex_lock(&trace_lock);
        note(trace, sizeof(trace), t->name);
        pthread_mutex_unlock(&trace_lock);
        sem_post(&t->entered);
        if (t->gated)
                wait_sem(&t->gate);
        return --t->steps > 0 ? JOB_MORE : 7;
}

static void on_done(struct job *job) {
        struct test_job *t = container_of(job, struct test_job, job);

        t->n_done++;
        ck_assert_ptr_null(job->lane);
        note(events, sizeof(events), t->name);
        if (t->submit)
                lane_submit(t->submit_to, &t->submit->job);
        if (t->close_in_done)
                lane_close(t->close_in_done);
}

static void on_stuck(void *arg, bool stuck) {
        note(events, sizeof(events), stuck ? "stuck" : "free");
        if (arg && stuck)
                lane_close(*(struct lane **)arg);
}

static struct test_job job_named(const char *name, uid_t uid) {
        struct test_job t = {.job = {.uid = uid, .work = on_pool, .done = on_done, .result = -1}, .steps = 1};

        snprintf(t.name, sizeof(t.name), "%s", name);
        sem_init(&t.entered, 0, 0);
        sem_init(&t.gate, 0, 0);
        return t;
}

static struct test_job job_gated(const char *name, uid_t uid) {
        struct test_job t = job_named(name, uid);

        t.gated = true;
        return t;
}

static struct lane *lane_started(uint64_t stuck_ms) {
        struct lane *lane;

        ck_assert_int_eq(lane_new(&loop, "test", stuck_ms, on_stuck, NULL, &lane), 0);
        return lane;
}

/* A lane whose one thread is held by `gate`. */
static struct lane *lane_held(struct test_job *gate) {
        struct lane *lane = lane_started(NEVER_MS);

        lane_submit(lane, &gate->job);
        wait_sem(&gate->entered);
        return lane;
}

static void submit_all(struct lane *lane, struct test_job *jobs, size_t n) {
        for (size_t i = 0; i < n; i++)
                lane_submit(lane, &jobs[i].job);
}

static void setup(void) {
        trace[0] = events[0] = '\0';
        ck_assert_int_eq(uv_loop_init(&loop), 0);
}

/* Every handle of every lane must be gone by now. */
static void teardown(void) {
        ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
        ck_assert_int_eq(uv_loop_close(&loop), 0);
}

static void run(void) {
        uv_run(&loop, UV_RUN_DEFAULT);
}

START_TEST(runs_in_order_and_ends_later) {
        struct lane *lane = lane_started(NEVER_MS);
        struct test_job jobs[] = {job_named("a1", 1), job_named("a2", 1), job_named("a3", 1)};

        ck_assert(lane_idle(lane));
        submit_all(lane, jobs, 3);
        ck_assert(!lane_idle(lane));
        wait_sem(&jobs[0].entered);
        ck_assert_str_eq(events, "");
        ck_assert_ptr_eq(jobs[2].job.lane, lane);
        run();
        ck_assert_str_eq(trace, "a1 a2 a3");
        ck_assert_str_eq(events, "a1 a2 a3");
        ck_assert_int_eq(jobs[0].job.result, 7);
        ck_assert(lane_idle(lane));
        lane_close(lane);
} END_TEST

START_TEST(uids_take_turns) {
        struct test_job gate = job_gated("g", 1);
        struct test_job jobs[] = {job_named("a1", 1), job_named("a2", 1), job_named("a3", 1),
                                  job_named("b1", 2), job_named("b2", 2), job_named("c1", 3)};
        struct lane *lane = lane_held(&gate);

        submit_all(lane, jobs, 6);
        sem_post(&gate.gate);
        run();
        ck_assert_str_eq(trace, "g b1 c1 a1 b2 a2 a3");
        lane_close(lane);
} END_TEST

START_TEST(steps_let_others_pass) {
        struct test_job big = job_gated("A", 1);
        struct test_job jobs[] = {job_named("a2", 1), job_named("b1", 2), job_named("b2", 2), job_named("b3", 2)};
        struct lane *lane;

        big.steps = 3;
        lane = lane_held(&big);
        submit_all(lane, jobs, 4);
        for (int i = 0; i < 3; i++)
                sem_post(&big.gate);
        run();
        ck_assert_str_eq(trace, "A b1 A b2 A b3 a2");
        ck_assert_str_eq(events, "b1 b2 A b3 a2");
        ck_assert_int_eq(big.job.result, 7);
        lane_close(lane);
} END_TEST

START_TEST(a_step_alone_follows_at_once) {
        struct lane *lane = lane_started(NEVER_MS);
        struct test_job big = job_named("A", 1);

        big.steps = 4;
        lane_submit(lane, &big.job);
        run();
        ck_assert_str_eq(trace, "A A A A");
        ck_assert_int_eq(big.n_done, 1);
        lane_close(lane);
} END_TEST

START_TEST(withdrawn_jobs_do_not_run) {
        struct test_job gate = job_gated("g", 9);
        struct test_job jobs[] = {job_named("a1", 1), job_named("a2", 1), job_named("a3", 1),
                                  job_named("b1", 2), job_named("b2", 2), job_named("c1", 3)};
        struct lane *lane = lane_held(&gate);

        submit_all(lane, jobs, 6);
        ck_assert(!lane_withdraw(&gate.job));
        ck_assert(lane_withdraw(&jobs[0].job)); /* a2 takes its place, before b1 */
        ck_assert(lane_withdraw(&jobs[4].job)); /* behind b1 */
        ck_assert(lane_withdraw(&jobs[5].job)); /* alone */
        ck_assert(!lane_withdraw(&jobs[5].job));
        ck_assert_ptr_null(jobs[0].job.lane);
        lane_submit(lane, &jobs[0].job);
        sem_post(&gate.gate);
        run();
        ck_assert_str_eq(trace, "g a2 b1 a3 a1");
        ck_assert_str_eq(events, "g a2 b1 a3 a1");
        ck_assert_int_eq(gate.job.result, 7);
        ck_assert(!lane_withdraw(&gate.job));
        lane_close(lane);
} END_TEST

START_TEST(withdrawn_behind_the_running_job) {
        struct test_job gate = job_gated("g", 1);
        struct test_job jobs[] = {job_named("a1", 1), job_named("a2", 1)};
        struct lane *lane = lane_held(&gate);

        submit_all(lane, jobs, 2);
        ck_assert(lane_withdraw(&jobs[0].job));
        sem_post(&gate.gate);
        run();
        ck_assert_str_eq(trace, "g a2");
        lane_close(lane);
} END_TEST

START_TEST(withdrawn_in_a_step_goes_no_further) {
        struct test_job big = job_gated("A", 1), other = job_named("a2", 1);
        struct lane *lane;

        big.steps = 3;
        lane = lane_held(&big);
        lane_submit(lane, &other.job);
        ck_assert(!lane_withdraw(&big.job));
        sem_post(&big.gate);
        run();
        ck_assert_str_eq(trace, "A a2");
        ck_assert_int_eq(big.job.result, -ECANCELED);
        ck_assert_int_eq(big.n_done, 1);
        lane_close(lane);
} END_TEST

START_TEST(withdrawn_between_steps_goes_no_further) {
        struct test_job big = job_gated("A", 1), other = job_gated("b1", 2);
        struct lane *lane;

        big.steps = 3;
        lane = lane_held(&big);
        lane_submit(lane, &other.job);
        sem_post(&big.gate);
        uv_run(&loop, UV_RUN_ONCE);
        wait_sem(&other.entered);
        ck_assert(!lane_withdraw(&big.job));
        ck_assert_int_eq(big.n_done, 0);
        sem_post(&other.gate);
        run();
        ck_assert_str_eq(trace, "A b1");
        ck_assert_int_eq(big.job.result, -ECANCELED);
        ck_assert_int_eq(big.n_done, 1);
        lane_close(lane);
} END_TEST

START_TEST(done_may_submit) {
        struct test_job first = job_named("a1", 1), second = job_named("b1", 2), third = job_named("a2", 1);
        struct lane *lane = lane_started(NEVER_MS);

        first.submit = &second;
        second.submit = &third;
        first.submit_to = second.submit_to = lane;
        lane_submit(lane, &first.job);
        run();
        ck_assert_str_eq(events, "a1 b1 a2");
        lane_close(lane);
} END_TEST

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
        ck_assert_str_eq(events, "stuck free g b");
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
        ck_assert_ptr_null(strstr(events, "stuck"));
        lane_close(lane);
        lane_close(lanes[0]);
        lane_close(lanes[1]);
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

/* ---- many at once ----------------------------------------------------------------------------------------- */

enum { CROWD = 2000, CROWD_LANES = 3, CROWD_UIDS = 5 };

struct crowd_job {
        struct job job;
        unsigned lane, place; /* its place among its uid's jobs of that lane */
        int steps, n_done;
};

static _Atomic int at_work[CROWD_LANES];
static unsigned n_ended[CROWD_LANES][CROWD_UIDS];

static int crowd_work(struct job *job) {
        struct crowd_job *c = container_of(job, struct crowd_job, job);
        int others = atomic_fetch_add(&at_work[c->lane], 1);

        atomic_fetch_sub(&at_work[c->lane], 1);
        if (others != 0)
                return -EBUSY;
        return --c->steps > 0 ? JOB_MORE : 0;
}

static void crowd_done(struct job *job) {
        struct crowd_job *c = container_of(job, struct crowd_job, job);

        c->n_done++;
        ck_assert_uint_eq(n_ended[c->lane][job->uid]++, c->place);
}

START_TEST(a_crowd_keeps_its_order) {
        struct crowd_job *jobs = calloc(CROWD, sizeof(*jobs));
        unsigned n_submitted[CROWD_LANES][CROWD_UIDS] = {0}, random = 12345;
        struct lane *lanes[CROWD_LANES];

        lane_size_pool(CROWD_LANES);
        for (int i = 0; i < CROWD_LANES; i++)
                lanes[i] = lane_started(NEVER_MS);
        for (int i = 0; i < CROWD; i++) {
                random = random * 1103515245 + 12345;
                jobs[i].lane = (random >> 16) % CROWD_LANES;
                jobs[i].steps = 1 + (int)(random >> 20) % 3;
                jobs[i].job = (struct job){.uid = (random >> 24) % CROWD_UIDS, .work = crowd_work, .done = crowd_done};
                jobs[i].place = n_submitted[jobs[i].lane][jobs[i].job.uid]++;
                lane_submit(lanes[jobs[i].lane], &jobs[i].job);
                if (i % 7 == 0)
                        uv_run(&loop, UV_RUN_NOWAIT);
        }
        run();
        for (int i = 0; i < CROWD; i++) {
                ck_assert_int_eq(jobs[i].n_done, 1);
                ck_assert_int_eq(jobs[i].job.result, 0);
        }
        for (int i = 0; i < CROWD_LANES; i++)
                lane_close(lanes[i]);
        free(jobs);
} END_TEST

int main(void) {
        Suite *suite = suite_create("lane");
        TCase *tcase = tcase_create("lane");

        tcase_set_timeout(tcase, 60);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, runs_in_order_and_ends_later);
        tcase_add_test(tcase, uids_take_turns);
        tcase_add_test(tcase, steps_let_others_pass);
        tcase_add_test(tcase, a_step_alone_follows_at_once);
        tcase_add_test(tcase, withdrawn_jobs_do_not_run);
        tcase_add_test(tcase, withdrawn_behind_the_running_job);
        tcase_add_test(tcase, withdrawn_in_a_step_goes_no_further);
        tcase_add_test(tcase, withdrawn_between_steps_goes_no_further);
        tcase_add_test(tcase, done_may_submit);
        tcase_add_test(tcase, stuck_is_told_and_taken_back);
        tcase_add_test(tcase, waiting_for_the_pool_is_not_stuck);
        tcase_add_test(tcase, the_pool_holds_every_lane_and_two_more);
        tcase_add_test(tcase, closing_drops_what_waits);
        tcase_add_test(tcase, closing_ends_a_job_of_many_steps);
        tcase_add_test(tcase, closing_within_done);
        tcase_add_test(tcase, closing_a_stuck_lane_says_no_more);
        tcase_add_test(tcase, loops_leave_no_descriptor);
        tcase_add_test(tcase, a_crowd_keeps_its_order);
        suite_add_tcase(suite, tcase);

        SRunner *runner = srunner_create(suite);
        srunner_run_all(runner, CK_ENV);
        int n_failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
