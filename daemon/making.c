/* SPDX-License-Identifier: Apache-2.0 */
/* From a wish for memory to a reservation, and back. Loop thread. Commits nothing. */
#include "making.h"

#include <errno.h>

#include "clock.h"
#include "proto/cleanup.h"

/* When the device has less than its books say, nobody tells when that changes: it is asked again so often. */
#define MEMORY_RETRY_USEC 50000

int making_find_device(struct request *request, const char *uuid, struct device **ret) {
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

int making_round(struct request *request, struct device *device, int64_t bytes, const char *handle, int64_t *ret) {
        const struct workplace *place = workplace_of(device);
        int64_t rounded = place->backend->round(place->backend_device, bytes, handle);

        if (rounded <= 0 || rounded > SCHEMA_INT_MAX)
                return fail_memory(&request->failure, rcstr_text(device->uuid),
                                   device_room_bytes(device, &request_registry(request)->limits), bytes);
        *ret = rounded;
        return 0;
}

/* Whether those who wait let this request be tried: 0, VERDICT_AGAIN with the queue, or the verdict for one who will not wait. */
static int making_take_turn(struct request *request, const struct buffer_spec *spec, bool patient) {
        struct registry *registry = request_registry(request);
        struct account *account = request->client->account;
        struct device *device = spec->device, *host = spec->channel ? spec->channel->host : device;
        struct waitq *queues[] = {&account->waitq, &device->waitq, &host->waitq};
        int64_t bytes = request->waiting_bytes;
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
                device = i == 1 ? device : host;
                return fail_memory(&request->failure, rcstr_text(device->uuid), device_room_bytes(device, &registry->limits), bytes);
        }
        return 0;
}

int making_reserve(struct request *request, const struct buffer_spec *spec) {
        struct waitq *queue = NULL;
        bool never = false, patient = request->wait_ms > 0;
        int r;

        request->waiting_bytes = spec->allocated + (spec->channel ? spec->channel->control_bytes : 0);
        r = making_take_turn(request, spec, patient);
        if (r != 0)
                return r;
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

void making_undo(struct request *request) {
        if (!request->buffer)
                return;
        fd_closep(&request->fresh_fd); /* never the last: the backing has its own */
        request->slots_made = false;
        if (!request->backing)
                workplace_forgo_close(request->place);
        registry_allocate_cancel(request_registry(request), request->buffer, take_ptr(request->backing));
        request->buffer = NULL;
        request->lease = NULL;
}

/* The device has not the memory that its books promise: someone else uses it, or bytes are still draining. */
static int making_out_of_memory(struct request *request) {
        struct buffer *buffer = request->buffer;
        struct device *device = request->short_of_host ? buffer->channel->charge.device : buffer->charge.device;
        int64_t asked = request->short_of_host ? buffer->channel->control_bytes : buffer->allocated;
        int64_t free_bytes = request->detail.free_bytes;

        making_undo(request);
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
static int making_failed(struct request *request, int error) {
        const struct device *device = &request->place->device;
        const char *handle = request->buffer->handle;

        making_undo(request);
        if (error == -EOPNOTSUPP)
                return fail_reason(&request->failure, VERDICT_HANDLE_UNSUPPORTED, handle, "%s", request->detail.text);
        if (error == -EIO && device->degraded)
                return fail_subject(&request->failure, VERDICT_DEVICE_DEGRADED, rcstr_text(device->uuid));
        return request_internal(request, "allocating memory", error);
}

int making_judge(struct request *request) {
        int result = request->job.result;

        workplace_look(request->place);
        if (result == -ENOMEM)
                return making_out_of_memory(request);
        if (result != 0)
                return making_failed(request, result);
        if (request->kept < 0) {
                making_undo(request);
                return request_internal(request, "storing a buffer for a restart", request->kept);
        }
        if (request->holder->exited) {
                making_undo(request);
                return fail_reason(&request->failure, VERDICT_ACCESS_DENIED, "",
                                   "the process that asked has exited meanwhile");
        }
        return 0;
}
