/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs for the tests of lanes, on one real loop and the real pool. */
#include "lane_jobs.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/support/suite.h"

uv_loop_t loop;
static pthread_mutex_t trace_lock = PTHREAD_MUTEX_INITIALIZER;
char trace[4096];
char events[256];

static void note(char *text, size_t size, const char *word) {
        size_t n = strlen(text);

        snprintf(text + n, size - n, "%s%s", n ? " " : "", word);
}

void wait_sem(sem_t *sem) {
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

void on_stuck(void *arg, bool stuck) {
        note(events, sizeof(events), stuck ? "stuck" : "free");
        if (stuck)
                uv_stop(&loop); /* or UV_RUN_ONCE, which may begin with this timer, would wait for something else to happen, too */
        if (arg && stuck)
                lane_close(*(struct lane **)arg);
}

struct test_job job_named(const char *name, uid_t uid) {
        struct test_job t = {.job = {.uid = uid, .work = on_pool, .done = on_done, .result = -1}, .steps = 1};

        snprintf(t.name, sizeof(t.name), "%s", name);
        sem_init(&t.entered, 0, 0);
        sem_init(&t.gate, 0, 0);
        return t;
}

struct test_job job_gated(const char *name, uid_t uid) {
        struct test_job t = job_named(name, uid);

        t.gated = true;
        return t;
}

bool job_needless(struct job *job) {
        return container_of(job, struct test_job, job)->needless;
}

struct lane *lane_started(uint64_t stuck_ms) {
        struct lane *lane;

        ck_assert_int_eq(lane_new(&loop, "test", stuck_ms, on_stuck, NULL, &lane), 0);
        return lane;
}

struct lane *lane_held(struct test_job *gate) {
        struct lane *lane = lane_started(NEVER_MS);

        lane_submit(lane, &gate->job);
        wait_sem(&gate->entered);
        return lane;
}

void submit_all(struct lane *lane, struct test_job *jobs, size_t n) {
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

void run(void) {
        while (uv_run(&loop, UV_RUN_DEFAULT) > 0)
                ; /* stopped by a lane that told that it is stuck */
}

int lane_suite(const char *name, const TTest *const *tests, size_t n_tests) {
        Suite *suite = suite_create(name);
        TCase *tcase = tcase_create(name);

        tcase_set_timeout(tcase, 60);
        tcase_add_checked_fixture(tcase, setup, teardown);
        for (size_t i = 0; i < n_tests; i++)
                tcase_add_test(tcase, tests[i]);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
