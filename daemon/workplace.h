/* SPDX-License-Identifier: Apache-2.0 */
/* A device at work: its books, its backend and its two lanes, one for allocating and one for closing, so that a long close
 * holds up nobody. Loop thread only. */
#ifndef DAEMON_WORKPLACE_H
#define DAEMON_WORKPLACE_H

#include <uv.h>

#include "alarm.h"
#include "backend.h"
#include "lane.h"
#include "registry.h"
#include "spare.h"
#include "store.h"

struct closer; /* memory set aside for closing one buffer */

struct workplace {
        struct device device;
        const struct backend *backend;
        struct backend_device *backend_device;
        struct backend_device_info info;
        struct lane *lane, *closing_lane;
        struct registry *registry;
        struct store *store; /* NULL: nothing of it is in a store */
        uv_loop_t *loop;
        struct list closers; /* set aside: one for each buffer that has memory or is getting it */
        struct spare spare;
        bool stuck[2];  /* by lane: a call does not return */
        bool sick;      /* by the backend's word; checked again and again */
        struct job check;
        struct backend_detail check_detail;
        struct alarm *check_alarm;
        uint64_t check_ms; /* until the next check */
};

/* Fills an embedded workplace and adds its device to the registry. The backend device stays the backend's. */
int workplace_init(struct workplace *place, uv_loop_t *loop, struct registry *registry, const struct backend *backend,
                   struct backend_device *device, int64_t capacity_bytes);
void workplace_deinit(struct workplace *place);

/* What may be brokered of it; 0: the backend's own figure. */
void workplace_set_capacity(struct workplace *place, int64_t bytes);

static inline struct workplace *workplace_of(const struct device *device) {
        return device->workplace;
}

/* Sets aside what closing a buffer later needs, so that closing cannot fail. 0 or -ENOMEM. */
int workplace_prepare_close(struct workplace *place);
void workplace_forgo_close(struct workplace *place);

/* Takes a retiring buffer's descriptor out of the store if it is there, and closes its memory on the closing lane. registry_retired()
 * follows from the loop, once the manager has let go of its copy too. */
void workplace_close(struct workplace *place, struct buffer *buffer, struct backing *backing_take);

/* After a job: sees whether the backend calls the device sick, and then to its being checked until it is well. */
void workplace_look(struct workplace *place);

bool workplace_idle(const struct workplace *place);

#endif
