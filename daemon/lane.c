/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes. The loop thread enters everywhere; a pool thread runs lane_work() alone, which touches `running`, its result and
 * `began_ns` and nothing else. Knows nothing of devices. */
#include "lane.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

struct lane {
        uv_work_t request;
        uv_timer_t timer;
        char *name; /* for the debugger */
        uint64_t stuck_ms;
        void (*on_stuck)(void *arg, bool stuck);
        void *arg;
        struct list turns;         /* job.by_lane: the first job of each uid that waits, next one first */
        struct job *running;       /* with the other jobs of its uid behind it */
        _Atomic uint64_t began_ns; /* when `running` reached a pool thread; 0: not yet, or it has left it */
        bool stuck, closing;
        bool ending;               /* within a job's end: the next one starts when `done` has returned */
};

void lane_size_pool(unsigned n_lanes) {
        char text[16];

        snprintf(text, sizeof(text), "%u", n_lanes + 2);
        (void)setenv("UV_THREADPOOL_SIZE", text, 1);
}

int lane_new(uv_loop_t *loop, const char *name, uint64_t stuck_ms, void (*on_stuck)(void *arg, bool stuck), void *arg,
             struct lane **ret) {
        _cleanup_free_ struct lane *lane = calloc(1, sizeof(*lane));
        _cleanup_free_ char *copy = strdup(name);
        int r;

        if (!lane || !copy)
                return -ENOMEM;
        r = uv_timer_init(loop, &lane->timer);
        if (r < 0)
                return r;
        lane->name = take_ptr(copy);
        lane->timer.data = lane;
        lane->request.data = lane;
        lane->stuck_ms = stuck_ms;
        lane->on_stuck = on_stuck;
        lane->arg = arg;
        list_init(&lane->turns);
        *ret = take_ptr(lane);
        return 0;
}

/* Parts a uid's first job from the others of its uid; the next of them becomes the first, queued before `place`. */
static void job_step_aside(struct job *job, struct list *place) {
        struct list *link = list_first(&job->behind);
        struct job *next;

        if (!link)
                return;
        next = container_of(link, struct job, by_lane);
        list_remove(link);
        if (!list_empty(&job->behind)) {
                list_append(&job->behind, &next->behind);
                list_remove(&job->behind);
        }
        list_append(place, &next->by_lane);
}

static struct job *lane_find_first(struct lane *lane, uid_t uid) {
        struct job *job;

        if (lane->running && lane->running->uid == uid)
                return lane->running;
        list_for_each(job, &lane->turns, by_lane)
                if (job->uid == uid)
                        return job;
        return NULL;
}

static void job_end(struct job *job, int result) {
        job_step_aside(job, &job->lane->turns);
        job->lane = NULL;
        job->result = result;
        job->done(job);
}

static void lane_work(uv_work_t *request) {
        struct lane *lane = request->data;
        struct job *job = lane->running;

        atomic_store_explicit(&lane->began_ns, uv_hrtime(), memory_order_relaxed);
        job->result = job->work(job);
        atomic_store_explicit(&lane->began_ns, 0, memory_order_relaxed); /* the loop may hear of it long after */
}

/* The loop's idea of now may be old when the timer is set, and the pool may be busy: what counts is `began_ns`. */
static void lane_on_timer(uv_timer_t *timer) {
        struct lane *lane = timer->data;
        uint64_t began_ns = atomic_load_explicit(&lane->began_ns, memory_order_relaxed);
        uint64_t now_ns = uv_hrtime();
        uint64_t elapsed_ms = began_ns > 0 && now_ns > began_ns ? (now_ns - began_ns) / 1000000 : 0;

        if (elapsed_ms < lane->stuck_ms) {
                uv_timer_start(timer, lane_on_timer, lane->stuck_ms - elapsed_ms, 0);
                return;
        }
        lane->stuck = true;
        if (lane->on_stuck)
                lane->on_stuck(lane->arg, true);
}

static void lane_on_closed(uv_handle_t *handle) {
        struct lane *lane = handle->data;

        free(lane->name);
        free(lane);
}

static void lane_after_work(uv_work_t *request, int status);

/* Starts the next job, or ends a closing lane. Not called while a job runs. */
static void lane_proceed(struct lane *lane) {
        struct list *link;

        while ((link = list_first(&lane->turns))) {
                struct job *job = container_of(link, struct job, by_lane);

                list_remove(link);
                if (job->cancelled) {
                        job_end(job, -ECANCELED);
                        continue;
                }
                job->begun = true;
                lane->running = job;
                atomic_store_explicit(&lane->began_ns, 0, memory_order_relaxed);
                uv_timer_start(&lane->timer, lane_on_timer, lane->stuck_ms, 0);
                int r = uv_queue_work(lane->timer.loop, &lane->request, lane_work, lane_after_work);
                assert(r == 0);
                (void)r;
                return;
        }
        if (lane->closing)
                uv_close((uv_handle_t *)&lane->timer, lane_on_closed);
}

static struct job *lane_find_needless(struct lane *lane) {
        struct job *job;

        list_for_each(job, &lane->turns, by_lane)
                if (job->needless && !job->begun && job->needless(job))
                        return job;
        return NULL;
}

/* What just ended may have done another's work. The search begins anew each time, since `done` may add and take out. */
static void lane_end_needless(struct lane *lane) {
        struct job *job;

        while (!lane->closing && (job = lane_find_needless(lane))) {
                struct list *place = job->by_lane.next;

                list_remove(&job->by_lane);
                job_step_aside(job, place);
                job_end(job, 0);
        }
}

static void lane_after_work(uv_work_t *request, int status) {
        struct lane *lane = request->data;
        struct job *job = lane->running;
        bool more = job->result == JOB_MORE;

        (void)status;
        lane->running = NULL;
        lane->ending = true;
        uv_timer_stop(&lane->timer);
        if (lane->stuck && lane->on_stuck && !lane->closing)
                lane->on_stuck(lane->arg, false);
        lane->stuck = false;
        if (more && !job->cancelled && !lane->closing)
                list_append(&lane->turns, &job->by_lane);
        else
                job_end(job, more ? -ECANCELED : job->result);
        lane_end_needless(lane);
        lane_proceed(lane);
        lane->ending = false;
}

static void lane_take_in(struct lane *lane, struct job *job) {
        assert(!lane->closing);
        list_init(&job->by_lane);
        list_init(&job->behind);
        job->lane = lane;
        job->begun = job->cancelled = false;
}

static void lane_begin(struct lane *lane) {
        if (!lane->running && !lane->ending)
                lane_proceed(lane);
}

void lane_submit(struct lane *lane, struct job *job) {
        struct job *first = lane_find_first(lane, job->uid);

        lane_take_in(lane, job);
        list_append(first ? &first->behind : &lane->turns, &job->by_lane);
        lane_begin(lane);
}

void lane_submit_first(struct lane *lane, struct job *job) {
        lane_take_in(lane, job);
        list_prepend(&lane->turns, &job->by_lane);
        lane_begin(lane);
}

bool lane_withdraw(struct job *job) {
        struct list *place = job->by_lane.next;

        if (!job->lane)
                return false;
        if (job->begun) {
                job->cancelled = true;
                return false;
        }
        list_remove(&job->by_lane);
        job_step_aside(job, place);
        job->lane = NULL;
        return true;
}

static void lane_drop(struct list *jobs) {
        struct list *link;

        while ((link = list_first(jobs))) {
                struct job *job = container_of(link, struct job, by_lane);

                list_remove(link);
                job->lane = NULL;
                lane_drop(&job->behind);
        }
}

void lane_close(struct lane *lane) {
        lane->closing = true;
        lane_drop(&lane->turns);
        if (lane->running)
                lane_drop(&lane->running->behind);
        else if (!lane->ending)
                lane_proceed(lane);
}

bool lane_idle(const struct lane *lane) {
        return !lane->running && list_empty(&lane->turns);
}
