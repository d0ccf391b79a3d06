/* SPDX-License-Identifier: Apache-2.0 */
/* A device's spare: memory made ahead on the lane, so that the next Allocate of its kind and size waits for no driver. It is nobody's
 * until an Allocate takes it, has never been lent, and reads zero as any new memory does. One per device, where the backend says that
 * making takes long.
 *
 *     none → making → ready → (taken) none
 *                       └──→ dropping → none
 *
 * It is dropped when nobody asked for its size for a while, when another is asked for at a pace instead, and at once when anything else
 * needs what it holds. Loop thread. */
#ifndef DAEMON_SPARE_H
#define DAEMON_SPARE_H

#include "backend.h"
#include "lane.h"
#include "pace.h"

struct workplace;

enum spare_state { SPARE_NONE, SPARE_MAKING, SPARE_READY, SPARE_DROPPING };

struct spare {
        enum spare_state state;
        struct pace pace;
        const char *handle;   /* static; of the spare there is, as all that follows */
        int64_t bytes;        /* counted in device.spare_bytes until it is taken or closed */
        uint64_t asked_usec;  /* monotonic: when such a buffer was last asked for */
        struct backing *backing; /* while it is ready; before and after, its job's */
        struct backend_detail detail;
        struct job job;
};

/* An Allocate of that kind and size has succeeded. */
void spare_note(struct workplace *place, const char *handle, int64_t bytes, uint64_t now_usec);

/* The spare if it is ready and of that kind and size: the caller's from now on, who has reserved its bytes. NULL: none. */
struct backing *spare_take(struct workplace *place, const char *handle, int64_t bytes);

/* Somebody met a lack of memory: what there is of a spare goes. True: a job that is submitted now finds its memory given back. */
bool spare_give_way(struct workplace *place);

/* Begins what is due: to make one, or to drop it. When to look again although nothing happens: monotonic, UINT64_MAX when never. */
uint64_t spare_review(struct workplace *place, bool stopping, uint64_t now_usec);

/* Whether the books say what is there. For tests. */
bool spare_check(const struct workplace *place);

#endif
