/* SPDX-License-Identifier: Apache-2.0 */
/* Making, handing over and dropping a device's spare. Loop thread; only the two works run on the pool, both on the lane that allocates,
 * so that whoever comes behind a spare that is dropped finds its memory. Decides nothing of when: see pace.h. */
#include "spare.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "annex.h"
#include "fault.h"
#include "log.h"
#include "proto/cleanup.h"
#include "workplace.h"

static struct workplace *spare_place(struct job *job) {
        return container_of(job, struct workplace, spare.job);
}

static bool spare_is_of(const struct spare *spare, const char *handle, int64_t bytes) {
        return spare->bytes == bytes && spare->handle && strcmp(spare->handle, handle) == 0;
}

static void spare_forget(struct workplace *place) {
        place->spare.state = SPARE_NONE;
        place->spare.handle = NULL;
        place->spare.bytes = 0;
        registry_spare_end(place->registry, &place->device);
}

static struct job *spare_job(struct workplace *place, enum spare_state state, int (*work)(struct job *job),
                             void (*done)(struct job *job)) {
        struct job *job = &place->spare.job;

        place->spare.state = state;
        job->uid = (uid_t)-1;
        job->work = work;
        job->done = done;
        return job;
}

/* ---- dropping ---------------------------------------------------------------------------------------------- */

static int spare_drop_work(struct job *job) {
        struct workplace *place = spare_place(job);

        fault_point("Spare", "drop");
        backing_close(place->backend, take_ptr(place->spare.backing));
        return 0;
}

static void spare_dropped(struct job *job) {
        struct workplace *place = spare_place(job);

        spare_forget(place);
        place->registry->room = true;
        if (place->lane)
                workplace_look(place);
}

/* Before whoever waits: places in a lane change when others leave it, and nobody is to come to his turn before the memory is back. */
static void spare_drop(struct workplace *place) {
        lane_submit_first(place->lane, spare_job(place, SPARE_DROPPING, spare_drop_work, spare_dropped));
}

/* ---- making ------------------------------------------------------------------------------------------------ */

static int spare_work(struct job *job) {
        struct workplace *place = spare_place(job);
        struct spare *spare = &place->spare;
        int r;

        fault_point("Spare", "make");
        r = place->backend->allocate(place->backend_device, spare->bytes, spare->bytes, spare->handle, &spare->backing, &spare->detail);
        fault_point("Spare", "made");
        return r;
}

/* A failure concerns nobody but the device: whoever asks next hears for himself. */
static void spare_done(struct job *job) {
        struct workplace *place = spare_place(job);
        struct spare *spare = &place->spare;
        bool made = job->result == 0;

        if (place->lane)
                workplace_look(place);
        if (made && place->lane) {
                spare->state = SPARE_READY;
                return;
        }
        if (!made)
                log_line(LOG_DEBUG, NULL, &(struct log_field){"DEVICE", place->info.uuid}, 1,
                         "no buffer of %" PRId64 " bytes made ahead: %s%s%s", spare->bytes, strerrordesc_np(-job->result),
                         spare->detail.text[0] ? ": " : "", spare->detail.text);
        if (spare->backing)
                backing_close(place->backend, take_ptr(spare->backing)); /* the place is closing: no lane is left to do it */
        pace_forget(&spare->pace);
        spare_forget(place);
}

static void spare_make(struct workplace *place, const struct pace_size *size) {
        struct spare *spare = &place->spare;

        spare->handle = size->handle;
        spare->bytes = size->bytes;
        spare->asked_usec = size->last_usec;
        spare->detail = (struct backend_detail){0};
        registry_spare_begin(place->registry, &place->device, size->bytes);
        lane_submit(place->lane, spare_job(place, SPARE_MAKING, spare_work, spare_done));
}

/* ---- when -------------------------------------------------------------------------------------------------- */

static struct pace_room spare_room(const struct workplace *place, int64_t bytes, bool stopping) {
        const struct registry *registry = place->registry;
        const struct limits *limits = &registry->limits;
        const struct device *device = &place->device;
        int64_t beside = place->spare.state == SPARE_NONE ? bytes : 0; /* it is not there yet, and takes of what is measured */
        int64_t books = device_room_bytes(device, limits) - bytes;
        int64_t measured = place->backend->free_bytes(place->backend_device);

        if (measured != SCHEMA_UNSET)
                measured -= limits->keep_free_bytes + beside;
        return (struct pace_room){
                .bytes = bytes,
                .max_bytes = limits->spare_bytes,
                .free_bytes = measured != SCHEMA_UNSET && measured < books ? measured : books,
                .descriptors_left = registry_spare_descriptors(registry) - (beside > 0 ? BACKING_DESCRIPTORS : 0),
                .stored_left = place->store ? limits->stored_descriptors - registry->n_stored : INT64_MAX,
                .waiting = !list_empty(&device->waitq.waiters),
                .degraded = device->degraded,
                .stopping = stopping,
        };
}

static void spare_consider(struct workplace *place, bool stopping, uint64_t now_usec) {
        const struct pace_size *size = pace_find(&place->spare.pace, now_usec);
        struct pace_room room;

        if (!size || !lane_idle(place->lane))
                return;
        room = spare_room(place, size->bytes, stopping);
        if (pace_may_make(&room))
                spare_make(place, size);
}

uint64_t spare_review(struct workplace *place, bool stopping, uint64_t now_usec) {
        struct spare *spare = &place->spare;
        struct pace_room room;

        if (spare->state == SPARE_NONE)
                spare_consider(place, stopping, now_usec);
        if (spare->state != SPARE_READY)
                return UINT64_MAX; /* the end of its job has the loop look again */
        room = spare_room(place, spare->bytes, stopping);
        if (now_usec - spare->asked_usec < PACE_USEC && pace_may_keep(&room) && !pace_has_moved(&spare->pace, spare->asked_usec))
                return spare->asked_usec + PACE_USEC;
        spare_drop(place);
        return UINT64_MAX;
}

void spare_note(struct workplace *place, const char *handle, int64_t bytes, uint64_t now_usec) {
        struct spare *spare = &place->spare;

        if (!place->backend->ahead || strcmp(place->backend->ahead, handle) != 0)
                return;
        pace_note(&spare->pace, handle, bytes, now_usec);
        if (spare_is_of(spare, handle, bytes))
                spare->asked_usec = now_usec;
}

struct backing *spare_take(struct workplace *place, const char *handle, int64_t bytes) {
        struct spare *spare = &place->spare;

        if (spare->state != SPARE_READY || !spare_is_of(spare, handle, bytes))
                return NULL;
        spare_forget(place);
        fault_point("Spare", "taken");
        return take_ptr(spare->backing);
}

bool spare_give_way(struct workplace *place) {
        pace_forget(&place->spare.pace);
        if (place->spare.state == SPARE_READY)
                spare_drop(place);
        return place->spare.state == SPARE_DROPPING;
}

bool spare_check(const struct workplace *place) {
        const struct spare *spare = &place->spare;
        bool there = spare->state != SPARE_NONE, at_work = spare->state == SPARE_MAKING || spare->state == SPARE_DROPPING;

        return place->device.spare_bytes == spare->bytes && (spare->bytes > 0) == there &&
               (at_work || !spare->backing == (spare->state == SPARE_NONE));
}
