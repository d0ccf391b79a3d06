/* SPDX-License-Identifier: Apache-2.0 */
/* What is done to a lease or a buffer one already has: Release, Seal, Free. Loop thread but for op_seal_work(). */
#include "clock.h"
#include "ops.h"

const char *op_release_about(const struct request *request) {
        return request->params.release.lease;
}

int op_release_finish(struct request *request) {
        struct registry *registry = request_registry(request);
        struct lease *lease = registry_find_lease(registry, request->client, request->params.release.lease);

        if (!lease)
                return fail_plain(&request->failure, VERDICT_NO_SUCH_LEASE);
        registry_release(registry, lease, clock_real_usec(), clock_monotonic_usec());
        return 0;
}

/* The buffer, if the peer may rule over it. Who may not see it learns nothing of it. */
static int buffer_resolve(struct request *request, const char *id, const char *name, const char *what,
                          struct buffer **ret) {
        struct registry *registry = request_registry(request);
        const struct peer *peer = request_peer(request);
        struct buffer *buffer = registry_find_buffer(registry, id, name);

        if (!buffer || !policy_may_see(&registry->policy, peer, &buffer->owner, buffer->mode))
                return fail_plain(&request->failure, VERDICT_NO_SUCH_BUFFER);
        if (!policy_may_rule(&registry->policy, peer, &buffer->owner))
                return fail_reason(&request->failure, VERDICT_ACCESS_DENIED, "",
                                   "only the buffer's owner (uid %u) or an administrator may %s it",
                                   (unsigned)buffer->owner.uid, what);
        *ret = buffer;
        return 0;
}

const char *op_free_about(const struct request *request) {
        return request->params.free.name ? request->params.free.name : request->params.free.buffer;
}

int op_free_finish(struct request *request) {
        const struct free_params *params = &request->params.free;
        struct buffer *buffer;
        int r;

        if (!params->buffer == !params->name)
                return fail_parameter(&request->failure, params->buffer ? "name" : "buffer");
        r = buffer_resolve(request, params->buffer, params->name, "free", &buffer);
        if (r != 0)
                return r;
        registry_free(request_registry(request), buffer, clock_real_usec(), clock_monotonic_usec());
        return 0;
}

const char *op_seal_about(const struct request *request) {
        return request->params.seal.buffer;
}

int op_seal_begin(struct request *request) {
        struct buffer *buffer;
        int r;

        r = buffer_resolve(request, request->params.seal.buffer, NULL, "seal", &buffer);
        if (r != 0)
                return r;
        if (buffer->sealed)
                return fail_plain(&request->failure, VERDICT_ALREADY_SEALED);
        if (buffer->charge.device->degraded)
                return fail_subject(&request->failure, VERDICT_DEVICE_DEGRADED, rcstr_text(buffer->charge.device->uuid));
        buffer_pin(buffer);
        request->buffer = buffer;
        request->backing = buffer->backing; /* borrowed: pinned */
        request->place = workplace_of(buffer->charge.device);
        return 0;
}

int op_seal_work(struct request *request) {
        return request->place->backend->seal(request->backing, &request->detail);
}

void op_seal_abandon(struct request *request) {
        if (!request->buffer)
                return;
        registry_unpin(request_registry(request), request->buffer, clock_real_usec(), clock_monotonic_usec());
        request->buffer = NULL;
}

int op_seal_finish(struct request *request) {
        int r = 0;

        if (request->job.result != 0)
                r = request_internal(request, "sealing a buffer", request->job.result);
        else if (!request->buffer->sealed)
                registry_seal(request_registry(request), request->buffer, clock_real_usec());
        op_seal_abandon(request);
        return r;
}
