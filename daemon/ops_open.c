/* SPDX-License-Identifier: Apache-2.0 */
/* Open: a lease on a buffer that exists, or that is waited for by name. The descriptor of a writable lease is there already; for a
 * read-only one the backend makes it. Loop thread but for op_open_work(). */
#include "clock.h"
#include "grant.h"
#include "ops.h"

#include <errno.h>
#include <string.h>

#include "proto/cleanup.h"

static enum access open_access(const struct request *request) {
        const char *access = request->params.open.access;

        return access && strcmp(access, "ro") == 0 ? ACCESS_RO : ACCESS_RW;
}

/* Exactly one of id and name; the failing field is named. */
static int open_check(struct request *request) {
        const struct open_params *params = &request->params.open;

        if (!params->buffer == !params->name)
                return fail_parameter(&request->failure, params->buffer ? "name" : "buffer");
        if (params->buffer && params->owner != SCHEMA_UNSET)
                return fail_parameter(&request->failure, "owner");
        if (params->buffer && grant_patient(request, params->wait_ms))
                return fail_parameter(&request->failure, "wait_ms");
        return grant_check_duration(request, "wait_ms", request_registry(request)->limits.wait_ms, params->wait_ms);
}

static int open_check_read_only(struct request *request, const struct buffer *buffer) {
        const struct policy *policy = &request_registry(request)->policy;

        if (open_access(request) == ACCESS_RW)
                return 0;
        if (buffer->backing->ipc)
                return fail_reason(&request->failure, VERDICT_HANDLE_UNSUPPORTED, buffer->handle,
                                   "whoever opens a classic CUDA IPC handle may write; open it \"rw\", or allocate with handle "
                                   "\"cuda-fd\"");
        if (buffer->ro_enforced || !policy->refuse_unenforced_read_only)
                return 0;
        return fail_reason(&request->failure, VERDICT_HANDLE_UNSUPPORTED, buffer->handle,
                           "read-only access cannot be enforced for this handle and UnenforcedReadOnly=refuse is set; open it "
                           "\"rw\"");
}

const char *op_open_about(const struct request *request) {
        return request->params.open.name ? request->params.open.name : request->params.open.buffer;
}

int op_open_begin(struct request *request) {
        const struct open_params *params = &request->params.open;
        struct registry *registry = request_registry(request);
        struct buffer *buffer;
        bool sealed = false;
        int r;

        r = open_check(request);
        if (r != 0)
                return r;
        buffer = registry_find_openable(registry, request_peer(request), params->buffer, params->name, params->owner,
                                        open_access(request), &sealed);
        if (!buffer && sealed)
                return fail_plain(&request->failure, VERDICT_ALREADY_SEALED);
        if (!buffer && params->name && grant_patient(request, params->wait_ms))
                return VERDICT_AGAIN;
        if (!buffer)
                return fail_plain(&request->failure, VERDICT_NO_SUCH_BUFFER);
        if (buffer->charge.device->degraded && !backing_prepared(buffer->backing, open_access(request)))
                return fail_subject(&request->failure, VERDICT_DEVICE_DEGRADED, rcstr_text(buffer->charge.device->uuid));

        r = open_check_read_only(request, buffer);
        if (r == 0)
                r = registry_open_reserve(registry, request->client, request->holder, buffer, open_access(request),
                                          params->label, &request->lease, &request->failure);
        if (r != 0)
                return r;
        request->buffer = buffer;
        request->backing = buffer->backing; /* borrowed: the reserved lease pins it */
        request->place = workplace_of(buffer->charge.device);
        request->no_work = backing_prepared(buffer->backing, open_access(request));
        return 0;
}

int op_open_work(struct request *request) {
        return request->place->backend->open(request->backing, open_access(request), &request->fresh_fd, &request->detail);
}

void op_open_abandon(struct request *request) {
        if (!request->lease)
                return;
        fd_closep(&request->fresh_fd); /* never the last: the buffer is pinned */
        registry_open_cancel(request_registry(request), request->lease, clock_real_usec(), clock_monotonic_usec());
        request->lease = NULL;
        request->buffer = NULL;
}

int op_open_finish(struct request *request) {
        int r = request->job.result;

        if (r == -EBUSY)
                r = fail_reason(&request->failure, VERDICT_HANDLE_UNSUPPORTED, request->buffer->handle, "%s", request->detail.text);
        else if (r != 0)
                r = request_internal(request, "making a handle", r);
        else if (request->kept < 0)
                r = request_internal(request, "storing a lease for a restart", request->kept);
        else if (request->holder->exited)
                r = fail_reason(&request->failure, VERDICT_ACCESS_DENIED, "",
                                "the process that asked has exited meanwhile");
        else if (request->buffer->sealed && open_access(request) == ACCESS_RW)
                r = fail_plain(&request->failure, VERDICT_ALREADY_SEALED);
        if (r != 0) {
                op_open_abandon(request);
                return r;
        }
        registry_open_commit(request_registry(request), request->lease, clock_real_usec());
        grant_fill(request, request->lease);
        return 0;
}
