/* SPDX-License-Identifier: Apache-2.0 */
/* A lane: jobs of one device, one at a time, on the libuv thread pool. Round-robin between uids, in order within a uid.
 *
 * Everything but `work` runs on the loop thread. Completions are never synchronous. */
#ifndef DAEMON_LANE_H
#define DAEMON_LANE_H

#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

#include "list.h"

struct lane;

struct job {
        /* The owner's. */
        uid_t uid;
        int (*work)(struct job *job);  /* pool thread; may block. JOB_MORE: queue me again behind the other uids; else the result */
        bool (*needless)(struct job *job); /* loop; NULL: never. True: what work would do is done, `done` follows with 0 in its stead */
        void (*done)(struct job *job); /* loop; `result` is set; the job's memory is the owner's again */
        int result;
        /* The lane's. */
        struct lane *lane;   /* NULL when not queued or running */
        struct list by_lane; /* the first of a uid: among the uids' turns; the others: in `behind` of the first */
        struct list behind;  /* of the first of a uid: the others, in order */
        bool begun, cancelled;
};

#define JOB_MORE 1000000

/* Runs before a uv_loop's first pool use: sizes the pool for n lanes. */
void lane_size_pool(unsigned n_lanes);

/* stuck_ms: after this long in one `work` call `on_stuck(arg, true)` is called, and `on_stuck(arg, false)` when it returns,
 * before `done`. NULL: nobody wants to know. */
int lane_new(uv_loop_t *loop, const char *name, uint64_t stuck_ms, void (*on_stuck)(void *arg, bool stuck), void *arg,
             struct lane **ret);

/* Frees the lane once it is idle and its handles are closed; nothing may be submitted any more, queued jobs are dropped without
 * `done`. `on_stuck` is not called again; a running job's `done` is (-ECANCELED when it wanted another step). A lane with a
 * stuck job is leaked on purpose. */
void lane_close(struct lane *lane);

/* Cannot fail. Whether the job is needless is not asked here, but whenever another has ended, of the first of each uid. */
void lane_submit(struct lane *lane, struct job *job);

/* The same before all that wait, of whatever uid. */
void lane_submit_first(struct lane *lane, struct job *job);

/* Takes a job that has not begun out of the lane again: true. One that runs, or waits for its next step: false; `done` will
 * come, with -ECANCELED when it had wanted another step: what its steps made so far is then the owner's to undo. */
bool lane_withdraw(struct job *job);

bool lane_idle(const struct lane *lane); /* nothing queued or running */

#endif
