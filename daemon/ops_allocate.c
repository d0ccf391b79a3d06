/* SPDX-License-Identifier: Apache-2.0 */
/* Allocate: a new buffer and its first lease. begin charges for it, work makes the memory where none was made ahead, finish commits.
 * Loop thread but for op_allocate_work(). */
#include "clock.h"
#include "grant.h"
#include "making.h"
#include "ops.h"

#include <string.h>

#include "proto/cleanup.h"

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

const char *op_allocate_about(const struct request *request) {
        return request->params.allocate.name;
}

int op_allocate_begin(struct request *request) {
        const struct allocate_params *params = &request->params.allocate;
        const struct limits *limits = &request_registry(request)->limits;
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

        (void)grant_patient(request, params->wait_ms);
        r = grant_check_duration(request, "wait_ms", limits->wait_ms, params->wait_ms);
        if (r == 0)
                r = grant_check_duration(request, "keep_ms", limits->keep_ms, params->keep_ms);
        if (r == 0)
                r = making_find_device(request, params->device, &spec.device);
        if (r == 0)
                r = allocate_find_handle(request, spec.device, &spec.handle);
        if (r != 0)
                return r;

        place = workplace_of(spec.device);
        spec.stored = place->store && strcmp(spec.handle, "cuda-ipc") != 0; /* that one ends with the daemon's process */
        spec.ro_enforced = place->info.ro_enforced;
        r = making_round(request, spec.device, spec.size, spec.handle, &spec.allocated);
        if (r == 0)
                r = making_reserve(request, &spec);
        if (r == 0)
                request->no_work = op_allocate_ready(request);
        return r;
}

/* Memory made ahead serves as any new memory does. */
bool op_allocate_ready(struct request *request) {
        request->backing = spare_take(request->place, request->buffer->handle, request->buffer->allocated);
        return request->backing;
}

int op_allocate_work(struct request *request) {
        const struct workplace *place = request->place;

        return place->backend->allocate(place->backend_device, request->buffer->size, request->buffer->allocated,
                                        request->buffer->handle, &request->backing, &request->detail);
}

bool op_allocate_again(struct request *request) {
        return spare_give_way(request->place);
}

int op_allocate_finish(struct request *request) {
        int r = making_judge(request);

        if (r != 0)
                return r;
        registry_allocate_commit(request_registry(request), request->buffer, take_ptr(request->backing), clock_real_usec());
        spare_note(request->place, request->buffer->handle, request->buffer->allocated, clock_monotonic_usec());
        grant_fill(request, request->lease);
        return 0;
}

void op_allocate_abandon(struct request *request) {
        if (request->place)
                workplace_look(request->place);
        making_undo(request);
}
