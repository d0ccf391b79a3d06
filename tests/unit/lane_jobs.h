/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs for the tests of lanes: they block on gates that the test opens, and note when they run and end. */
#ifndef UNIT_LANE_JOBS_H
#define UNIT_LANE_JOBS_H

#include <check.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

#include "daemon/lane.h"

#define NEVER_MS 3600000

struct test_job {
        struct job job;
        char name[4];
        int steps; /* left */
        bool gated;
        sem_t entered, gate;
        bool needless; /* what job_needless() says */
        int n_done;
        struct lane *submit_to, *close_in_done;
        struct test_job *submit;
};

extern uv_loop_t loop;
extern char trace[4096]; /* what ran, in order */
extern char events[256]; /* what the loop was told, in order */

/* Fails the test when nobody posts in time. */
void wait_sem(sem_t *sem);

struct test_job job_named(const char *name, uid_t uid);
struct test_job job_gated(const char *name, uid_t uid);

/* For job.needless. */
bool job_needless(struct job *job);

/* Notes "stuck" and "free"; closes the lane that arg points to, if any. */
void on_stuck(void *arg, bool stuck);

struct lane *lane_started(uint64_t stuck_ms);

/* A lane whose one thread is held by `gate`. */
struct lane *lane_held(struct test_job *gate);

void submit_all(struct lane *lane, struct test_job *jobs, size_t n);

/* Runs the loop until nothing is left to do. */
void run(void);

/* Runs one suite, each test with a loop of its own that must have no handle left. */
int lane_suite(const char *name, const TTest *const *tests, size_t n_tests);

#endif
