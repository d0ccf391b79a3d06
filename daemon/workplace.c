/* SPDX-License-Identifier: Apache-2.0 */
/* Binds a device's books to its backend and lanes. Loop thread; only closer_work() and check_work() run on the pool. Decides nothing. */
#include "workplace.h"

#include <errno.h>
#include <stdlib.h>

#include "annex.h"
#include "clock.h"
#include "log.h"
#include "proto/cleanup.h"

#define STUCK_MS 5000
#define CHECK_MS 500 /* doubled from check to check */
#define CHECK_MAX_MS 30000

static const char no_answer[] = "a call to it does not return";

struct closer {
        struct list by_place;
        struct job job;
        struct workplace *place;
        struct buffer *buffer;
        struct backing *backing;
        struct errand errand;
        bool closed, passed; /* here; in the store */
};

static void workplace_judge(struct workplace *place, const char *illness) {
        bool degraded = place->stuck[0] || place->stuck[1] || place->sick;

        if (degraded == place->device.degraded)
                return;
        log_line(degraded ? LOG_ERR : LOG_NOTICE, MESSAGE_DEGRADED,
                 &(struct log_field){"DEVICE", rcstr_text(place->device.uuid)}, 1,
                 "%s%s", degraded ? "device degraded: " : "device answers again", degraded ? illness : "");
        registry_set_degraded(place->registry, &place->device, degraded, clock_real_usec());
}

static void workplace_on_stuck(void *arg, bool stuck) {
        struct workplace *place = arg;

        place->stuck[0] = stuck;
        workplace_judge(place, no_answer);
}

static void workplace_on_closing_stuck(void *arg, bool stuck) {
        struct workplace *place = arg;

        place->stuck[1] = stuck;
        workplace_judge(place, no_answer);
}

void workplace_set_capacity(struct workplace *place, int64_t bytes) {
        place->device.capacity_bytes = bytes > 0 ? bytes : place->info.capacity_bytes;
}

int workplace_init(struct workplace *place, uv_loop_t *loop, struct registry *registry, const struct backend *backend,
                   struct backend_device *backend_device, int64_t capacity_bytes) {
        struct device *device = &place->device;
        int r;

        *place = (struct workplace){.backend = backend, .backend_device = backend_device, .registry = registry, .loop = loop};
        list_init(&place->closers);
        backend->info(backend_device, &place->info);
        device->uuid = rcstr_new(place->info.uuid);
        device->name = rcstr_new(place->info.name);
        if (!device->uuid || !device->name)
                return -ENOMEM;
        device->kind = place->info.kind;
        device->total_bytes = place->info.total_bytes;
        workplace_set_capacity(place, capacity_bytes);
        device->zeroed = place->info.zeroed;
        device->handles = place->info.handles;
        device->n_handles = place->info.n_handles;
        device->workplace = place;
        waitq_init(&device->waitq);

        r = lane_new(loop, place->info.uuid, STUCK_MS, workplace_on_stuck, place, &place->lane);
        if (r < 0)
                return r;
        r = lane_new(loop, place->info.uuid, STUCK_MS, workplace_on_closing_stuck, place, &place->closing_lane);
        if (r < 0)
                return r;
        registry_add_device(registry, device);
        return 0;
}

void workplace_deinit(struct workplace *place) {
        struct closer *closer;

        alarm_cancel(&place->check_alarm);
        list_for_each(closer, &place->closers, by_place)
                free(closer);
        list_init(&place->closers);
        if (place->lane)
                lane_close(place->lane);
        if (place->closing_lane)
                lane_close(place->closing_lane);
        place->lane = place->closing_lane = NULL;
        rcstr_unref(place->device.uuid);
        rcstr_unref(place->device.name);
        place->device.uuid = place->device.name = NULL;
}

int workplace_prepare_close(struct workplace *place) {
        struct closer *closer = calloc(1, sizeof(*closer));

        if (!closer)
                return -ENOMEM;
        closer->place = place;
        list_append(&place->closers, &closer->by_place);
        return 0;
}

static struct closer *workplace_take_closer(struct workplace *place) {
        struct list *link = list_first(&place->closers);

        list_remove(link);
        return container_of(link, struct closer, by_place);
}

void workplace_forgo_close(struct workplace *place) {
        free(workplace_take_closer(place));
}

static int closer_work(struct job *job) {
        struct closer *closer = container_of(job, struct closer, job);

        backing_close(closer->place->backend, take_ptr(closer->backing));
        return 0;
}

static void closer_end(struct closer *closer) {
        if (!closer->closed || !closer->passed)
                return;
        registry_retired(closer->place->registry, closer->buffer, clock_real_usec());
        free(closer);
}

static void closer_done(struct job *job) {
        struct closer *closer = container_of(job, struct closer, job);

        workplace_look(closer->place);
        closer->closed = true;
        closer_end(closer);
}

static void closer_passed(struct errand *errand) {
        struct closer *closer = container_of(errand, struct closer, errand);

        closer->passed = true;
        closer_end(closer);
}

static void closer_removed(struct errand *errand) {
        struct closer *closer = container_of(errand, struct closer, errand);

        lane_submit(closer->place->closing_lane, &closer->job);
}

void workplace_close(struct workplace *place, struct buffer *buffer, struct backing *backing_take) {
        struct closer *closer = workplace_take_closer(place);

        closer->buffer = buffer;
        closer->backing = backing_take;
        closer->job.uid = buffer->owner.uid;
        closer->job.work = closer_work;
        closer->job.done = closer_done;
        closer->closed = false;
        closer->passed = !place->store || buffer->slot == SLOT_NONE;
        if (closer->passed) {
                lane_submit(place->closing_lane, &closer->job);
                return;
        }
        closer->errand = (struct errand){.what = ERRAND_REMOVE, .n = 1, .parcels = {buffer->parcel},
                                         .done = closer_removed, .passed = closer_passed};
        if (buffer->channel && buffer->channel->fences_slot != SLOT_NONE)
                closer->errand.parcels[closer->errand.n++] = buffer->channel->fences_parcel;
        if (buffer->channel && buffer->channel->control_slot != SLOT_NONE)
                closer->errand.parcels[closer->errand.n++] = buffer->channel->control_parcel;
        store_send(place->store, &closer->errand);
}

static int check_work(struct job *job) {
        struct workplace *place = container_of(job, struct workplace, check);

        return place->backend->check(place->backend_device, &place->check_detail);
}

static void workplace_check(void *arg) {
        struct workplace *place = arg;

        lane_submit(place->lane, &place->check);
}

static void check_done(struct job *job) {
        struct workplace *place = container_of(job, struct workplace, check);

        if (!place->lane)
                return; /* the lane is closing */
        if (place->check.result != 0 &&
            alarm_new(place->loop, place->check_ms, workplace_check, place, &place->check_alarm) == 0) {
                place->check_ms = place->check_ms * 2 < CHECK_MAX_MS ? place->check_ms * 2 : CHECK_MAX_MS;
                return;
        }
        place->sick = false; /* also when no alarm could be set: the next call will tell */
        workplace_judge(place, no_answer);
}

void workplace_look(struct workplace *place) {
        struct backend_detail why;

        if (place->sick || !place->backend->sick || !place->backend->sick(place->backend_device, &why))
                return;
        place->sick = true;
        place->check_ms = CHECK_MS;
        place->check.uid = (uid_t)-1;
        place->check.work = check_work;
        place->check.done = check_done;
        workplace_judge(place, why.text);
        workplace_check(place);
}

bool workplace_idle(const struct workplace *place) {
        return lane_idle(place->lane) && lane_idle(place->closing_lane);
}
