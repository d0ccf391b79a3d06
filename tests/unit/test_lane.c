/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes on a real loop and the real pool: who runs when, and who is taken out again. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "lane_jobs.h"

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
        struct test_job big = job_gated("A", 1), others[] = {job_named("a2", 1), job_named("b1", 2)};
        struct lane *lane;

        big.steps = 3;
        lane = lane_held(&big);
        submit_all(lane, others, 2);
        ck_assert(!lane_withdraw(&big.job));
        sem_post(&big.gate);
        run();
        ck_assert_str_eq(events, "A b1 a2");
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

START_TEST(needless_jobs_end_without_work) {
        struct test_job gate = job_gated("g", 9);
        struct test_job jobs[] = {job_named("a1", 1), job_named("a2", 1), job_named("b1", 2), job_named("c1", 3), job_named("d1", 4)};
        struct lane *lane = lane_held(&gate);

        submit_all(lane, jobs, 5);
        for (int i = 0; i < 5; i++)
                jobs[i].job.needless = job_needless;
        jobs[0].needless = jobs[3].needless = true;
        ck_assert_str_eq(events, ""); /* not asked before something has ended */
        sem_post(&gate.gate);
        run();
        ck_assert_str_eq(trace, "g a2 b1 d1"); /* a2 took the place of a1 */
        ck_assert_str_eq(events, "g a1 c1 a2 b1 d1");
        ck_assert_int_eq(jobs[0].job.result, 0);
        ck_assert_int_eq(jobs[3].job.result, 0);
        ck_assert_int_eq(jobs[4].job.result, 7);
        ck_assert(lane_idle(lane));
        lane_close(lane);
} END_TEST

START_TEST(a_job_that_has_begun_is_not_needless) {
        struct test_job big = job_gated("A", 1), other = job_named("b1", 2), alone = job_named("c1", 3);
        struct lane *lane;

        big.steps = 3;
        big.job.needless = alone.job.needless = job_needless;
        lane = lane_held(&big);
        big.needless = alone.needless = true;
        lane_submit(lane, &other.job);
        for (int i = 0; i < 3; i++)
                sem_post(&big.gate);
        run();
        ck_assert_str_eq(trace, "A b1 A A");
        ck_assert_int_eq(big.job.result, 7);
        lane_submit(lane, &alone.job); /* nobody ends before it: completions are never synchronous */
        ck_assert_int_eq(alone.n_done, 0);
        run();
        ck_assert_int_eq(alone.job.result, 7);
        lane_close(lane);
} END_TEST

START_TEST(needless_ends_may_submit_and_withdraw) {
        struct test_job gate = job_gated("g", 9);
        struct test_job jobs[] = {job_named("a1", 1), job_named("b1", 2), job_named("c1", 3)}, late = job_named("d1", 4);
        struct lane *lane = lane_held(&gate);

        submit_all(lane, jobs, 3);
        for (int i = 0; i < 3; i++)
                jobs[i].job.needless = job_needless;
        jobs[0].needless = late.needless = true;
        late.job.needless = job_needless;
        jobs[0].submit_to = lane;
        jobs[0].submit = &late;
        sem_post(&gate.gate);
        ck_assert(lane_withdraw(&jobs[1].job));
        run();
        ck_assert_str_eq(trace, "g c1");
        ck_assert_str_eq(events, "g a1 d1 c1");
        lane_close(lane);
} END_TEST

/* It precedes all uids, its own as well, and whoever steps into a place that another left. */
START_TEST(first_of_all_that_wait) {
        struct test_job gate = job_gated("g", 9), first = job_named("f", 2), alone = job_named("n", 9);
        struct test_job jobs[] = {job_named("a1", 1), job_named("a2", 1), job_named("b1", 2), job_named("b2", 2)};
        struct lane *lane = lane_held(&gate);

        submit_all(lane, jobs, 4);
        lane_submit_first(lane, &first.job);
        ck_assert(lane_withdraw(&jobs[0].job));
        ck_assert_int_eq(first.n_done, 0);
        sem_post(&gate.gate);
        run();
        ck_assert_str_eq(trace, "g f a2 b1 b2");
        ck_assert_str_eq(events, "g f a2 b1 b2");
        lane_submit_first(lane, &alone.job);
        ck_assert(!lane_idle(lane));
        run();
        ck_assert_int_eq(alone.job.result, 7);
        lane_close(lane);
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
        const TTest *const tests[] = {
                runs_in_order_and_ends_later,
                uids_take_turns,
                steps_let_others_pass,
                a_step_alone_follows_at_once,
                withdrawn_jobs_do_not_run,
                withdrawn_behind_the_running_job,
                withdrawn_in_a_step_goes_no_further,
                withdrawn_between_steps_goes_no_further,
                done_may_submit,
                needless_jobs_end_without_work,
                a_job_that_has_begun_is_not_needless,
                needless_ends_may_submit_and_withdraw,
                first_of_all_that_wait,
                a_crowd_keeps_its_order,
        };

        return lane_suite("lane", tests, sizeof(tests) / sizeof(tests[0]));
}
