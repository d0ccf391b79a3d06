/* SPDX-License-Identifier: Apache-2.0 */
/* Finds what is to be opened and reserves a lease on it. The descriptor of a writable lease is there already; for a read-only one the
 * backend makes it. Loop thread but for opening_work(). */
#include "opening.h"

#include <errno.h>

#include "clock.h"
#include "grant.h"
#include "proto/cleanup.h"

/* Exactly one of id and name; the failing field is named. */
static int opening_check(struct request *request, const struct opening *opening) {
        if (!opening->id == !opening->name)
                return fail_parameter(&request->failure, opening->id ? "name" : opening->id_field);
        if (opening->id && opening->owner != SCHEMA_UNSET)
                return fail_parameter(&request->failure, "owner");
        if (opening->id && grant_patient(request, opening->wait_ms))
                return fail_parameter(&request->failure, "wait_ms");
        return grant_check_duration(request, "wait_ms", request_registry(request)->limits.wait_ms, opening->wait_ms);
}

int opening_check_read_only(struct request *request, const char *handle, bool enforced, const char *otherwise) {
        if (enforced || !request_registry(request)->policy.refuse_unenforced_read_only)
                return 0;
        return fail_reason(&request->failure, VERDICT_HANDLE_UNSUPPORTED, handle,
                           "read-only access cannot be enforced for this handle and UnenforcedReadOnly=refuse is set; %s", otherwise);
}

static int opening_check_access(struct request *request, const struct buffer *buffer, const struct opening *opening) {
        if (opening->access == ACCESS_RW)
                return 0;
        if (buffer->backing->ipc)
                return fail_reason(&request->failure, VERDICT_HANDLE_UNSUPPORTED, buffer->handle,
                                   "whoever opens a classic CUDA IPC handle may write; open it \"rw\", or allocate with handle "
                                   "\"cuda-fd\"");
        return opening_check_read_only(request, buffer->handle, buffer->ro_enforced,
                                       opening->channel ? "consume on host memory" : "open it \"rw\"");
}

/* A buffer where a channel is wanted is none: who waits for the name goes on waiting. The other way round it is told. */
static int opening_find(struct request *request, const struct opening *opening, struct buffer **ret) {
        bool sealed = false;
        struct buffer *buffer = registry_find_openable(request_registry(request), request_peer(request), opening->id, opening->name,
                                                       opening->owner, opening->access, &sealed);

        if (buffer && !opening->channel && buffer->channel)
                return fail_reason(&request->failure, VERDICT_ACCESS_DENIED, "",
                                   "it is a channel, whose memory goes to those who take part in it: use ChannelAttach "
                                   "(gpuipc_channel_attach)");
        if (buffer && opening->channel && !buffer->channel)
                buffer = NULL;
        if (!buffer && sealed)
                return fail_plain(&request->failure, VERDICT_ALREADY_SEALED);
        if (!buffer && opening->name && grant_patient(request, opening->wait_ms))
                return VERDICT_AGAIN;
        if (!buffer)
                return fail_plain(&request->failure, VERDICT_NO_SUCH_BUFFER);
        *ret = buffer;
        return 0;
}

int opening_begin(struct request *request, const struct opening *opening) {
        struct registry *registry = request_registry(request);
        enum access access = opening->access;
        struct buffer *buffer = NULL;
        int r;

        request->access = access;
        r = opening_check(request, opening);
        if (r == 0)
                r = opening_find(request, opening, &buffer);
        if (r != 0)
                return r;
        if (buffer->charge.device->degraded && !backing_prepared(buffer->backing, access))
                return fail_subject(&request->failure, VERDICT_DEVICE_DEGRADED, rcstr_text(buffer->charge.device->uuid));
        r = opening_check_access(request, buffer, opening);
        if (r == 0)
                r = registry_open_reserve(registry, request->client, request->holder, buffer, access, opening->label, &request->lease,
                                          &request->failure);
        if (r != 0)
                return r;
        request->buffer = buffer;
        request->backing = buffer->backing; /* borrowed: the reserved lease pins it */
        request->place = workplace_of(buffer->charge.device);
        request->no_work = backing_prepared(buffer->backing, access);
        return 0;
}

int opening_work(struct request *request) {
        return request->place->backend->open(request->backing, request->access, &request->fresh_fd, &request->detail);
}

void opening_undo(struct request *request) {
        if (!request->lease)
                return;
        fd_closep(&request->fresh_fd); /* never the last: the buffer is pinned */
        registry_open_cancel(request_registry(request), request->lease, clock_real_usec(), clock_monotonic_usec());
        request->lease = NULL;
        request->buffer = NULL;
}

int opening_judge(struct request *request) {
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
        else if (request->buffer->sealed && request->access == ACCESS_RW)
                r = fail_plain(&request->failure, VERDICT_ALREADY_SEALED);
        if (r != 0)
                opening_undo(request);
        return r;
}
