/* SPDX-License-Identifier: Apache-2.0 */
/* Allocate: a new buffer and its first lease. begin charges for it, work makes the memory, finish commits. Loop thread but for
 * op_allocate_work(). */
#include "clock.h"
#include "grant.h"
#include "ops.h"

#include <errno.h>
#include <string.h>

#include "proto/cleanup.h"

/* When the device has less than its books say, nobody tells when that changes: it is asked again so often. */
#define MEMORY_RETRY_USEC 50000

static int allocate_find_device(struct request *request, struct device **ret) {
        const char *uuid = request->params.allocate.device;
        struct registry *registry = request_registry(request);
        struct device *device = uuid ? registry_find_device(registry, uuid) : registry_default_device(registry);

        if (!device && !uuid)
                return fail_parameter(&request->failure, "device"); /* several GPUs and no host memory: none goes without saying */
        if (!device)
                return fail_subject(&request->failure, VERDICT_NO_SUCH_DEVICE, uuid);
        if (device->degraded)
                return fail_subject(&request->failure, VERDICT_DEVICE_DEGRADED, rcstr_text(device->uuid));
        *ret = device;
        return 0;
}

/* The handle kind wanted, as the device's own static string; "auto" is the device's first. */
static int allocate_find_handle(struct request *request, const struct device *device, const char **ret) {
        const char *kind = request->params.allocate.handle;

        if (!kind || strcmp(kind, "auto") == 0) {
                *ret = device->handles[0];
                return 0;
        }
        for (size_t i = 0; i < device->n_handles; i++)
                if (strcmp(kind, device->handles[i]) == 0) {
                        *ret = device->handles[i];
                        return 0;
                }
        return fail_reason(&request->failure, VERDICT_HANDLE_UNSUPPORTED, kind,
                           "device %s offers no such handle; ask for \"auto\" or one of the handles GetStatus lists for it",
                           rcstr_text(device->uuid));
}

/* Whether those who wait let this request be tried: 0, VERDICT_AGAIN with the queue, or the verdict for one who will not wait. */
static int allocate_take_turn(struct request *request, struct device *device, int64_t bytes, bool patient) {
        struct registry *registry = request_registry(request);
        struct account *account = request->client->account;
        struct waitq *queues[] = {&account->waitq, &device->waitq};
        uint64_t now = clock_monotonic_usec();

        for (size_t i = 0; i < ELEMENTSOF(queues); i++) {
                const struct waiter *self = request->waiter.queue == queues[i] ? &request->waiter : NULL;

                if (waitq_may_try(queues[i], self, account->uid, bytes, patient, now))
                        continue;
                request->queue = queues[i];
                if (patient)
                        return VERDICT_AGAIN;
                if (i == 0)
                        return fail_quota(&request->failure, "bytes_per_uid", registry->limits.bytes_per_uid,
                                          account->used_bytes + account->reserved_bytes, bytes);
                return fail_memory(&request->failure, rcstr_text(device->uuid),
                                   device_room_bytes(device, &registry->limits), bytes);
        }
        return 0;
}

static int allocate_reserve(struct request *request, const struct buffer_spec *spec, bool patient) {
        struct waitq *queue = NULL;
        bool never = false;
        int r;

        r = workplace_prepare_close(workplace_of(spec->device));
        if (r < 0)
                return r;
        r = registry_allocate_reserve(request_registry(request), request->client, request->holder, spec, &request->buffer,
                                      &request->lease, &never, &queue, &request->failure);
        if (r == 0) {
                request->place = workplace_of(spec->device);
                return 0;
        }
        workplace_forgo_close(workplace_of(spec->device));
        if (r > 0 && patient && !never && queue) {
                request->queue = queue;
                return VERDICT_AGAIN;
        }
        return r;
}

const char *op_allocate_about(const struct request *request) {
        return request->params.allocate.name;
}

int op_allocate_begin(struct request *request) {
        const struct allocate_params *params = &request->params.allocate;
        const struct limits *limits = &request_registry(request)->limits;
        bool patient = grant_patient(request, params->wait_ms);
        struct buffer_spec spec = {
                .size = params->size,
                .name = params->name,
                .meta = params->meta,
                .label = params->label,
                .mode = policy_mode(params->mode ? params->mode : "0600"),
                .keep_ms = params->keep_ms == SCHEMA_UNSET ? 0 : params->keep_ms,
                .n_descriptors = BACKING_DESCRIPTORS,
        };
        struct workplace *place;
        int r;

        r = grant_check_duration(request, "wait_ms", limits->wait_ms, params->wait_ms);
        if (r == 0)
                r = grant_check_duration(request, "keep_ms", limits->keep_ms, params->keep_ms);
        if (r == 0)
                r = allocate_find_device(request, &spec.device);
        if (r == 0)
                r = allocate_find_handle(request, spec.device, &spec.handle);
        if (r != 0)
                return r;

        place = workplace_of(spec.device);
        spec.stored = place->store && strcmp(spec.handle, "cuda-ipc") != 0; /* that one ends with the daemon's process */
        spec.ro_enforced = place->info.ro_enforced;
        spec.allocated = place->backend->round(place->backend_device, spec.size, spec.handle);
        if (spec.allocated <= 0 || spec.allocated > SCHEMA_INT_MAX)
                return fail_memory(&request->failure, rcstr_text(spec.device->uuid),
                                   device_room_bytes(spec.device, limits), spec.size);
        request->waiting_bytes = spec.allocated;
        r = allocate_take_turn(request, spec.device, spec.allocated, patient);
        if (r != 0)
                return r;
        return allocate_reserve(request, &spec, patient);
}

int op_allocate_work(struct request *request) {
        const struct workplace *place = request->place;

        return place->backend->allocate(place->backend_device, request->buffer->size, request->buffer->allocated,
                                        request->buffer->handle, &request->backing, &request->detail);
}

static void allocate_undo(struct request *request) {
        if (!request->buffer)
                return;
        if (!request->backing)
                workplace_forgo_close(request->place);
        registry_allocate_cancel(request_registry(request), request->buffer, take_ptr(request->backing));
        request->buffer = NULL;
        request->lease = NULL;
}

/* The device has not the memory that its books promise: someone else uses it, or bytes are still draining. */
static int allocate_out_of_memory(struct request *request) {
        struct device *device = &request->place->device;
        int64_t asked = request->buffer->allocated, free_bytes = request->detail.free_bytes;

        allocate_undo(request);
        if (request->wait_ms > 0) {
                request->queue = &device->waitq;
                request->not_before_usec = clock_monotonic_usec() + MEMORY_RETRY_USEC;
                return VERDICT_AGAIN;
        }
        if (free_bytes == SCHEMA_UNSET || free_bytes < 0)
                free_bytes = 0;
        return fail_memory(&request->failure, rcstr_text(device->uuid), free_bytes, asked);
}

/* What the backend's error means to the one who asked. */
static int allocate_failed(struct request *request, int error) {
        const struct device *device = &request->place->device;
        const char *handle = request->buffer->handle;

        allocate_undo(request);
        if (error == -EOPNOTSUPP)
                return fail_reason(&request->failure, VERDICT_HANDLE_UNSUPPORTED, handle, "%s", request->detail.text);
        if (error == -EIO && device->degraded)
                return fail_subject(&request->failure, VERDICT_DEVICE_DEGRADED, rcstr_text(device->uuid));
        return request_internal(request, "allocating memory", error);
}

int op_allocate_finish(struct request *request) {
        int result = request->job.result;

        workplace_look(request->place);
        if (result == -ENOMEM)
                return allocate_out_of_memory(request);
        if (result != 0)
                return allocate_failed(request, result);
        if (request->kept < 0) {
                allocate_undo(request);
                return request_internal(request, "storing a buffer for a restart", request->kept);
        }
        if (request->holder->exited) {
                allocate_undo(request);
                return fail_reason(&request->failure, VERDICT_ACCESS_DENIED, "",
                                   "the process that asked has exited meanwhile");
        }
        registry_allocate_commit(request_registry(request), request->buffer, take_ptr(request->backing), clock_real_usec());
        grant_fill(request, request->lease);
        return 0;
}

void op_allocate_abandon(struct request *request) {
        if (request->place)
                workplace_look(request->place);
        allocate_undo(request);
}
