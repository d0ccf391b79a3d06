/* SPDX-License-Identifier: Apache-2.0 */
/* The reply that lends a handle, and the durations a client may ask for. Loop thread. */
#include "grant.h"

int grant_check_duration(struct request *request, const char *scope, int64_t limit_ms, int64_t asked_ms) {
        if (asked_ms == SCHEMA_UNSET || asked_ms <= limit_ms)
                return 0;
        return fail_quota(&request->failure, scope, limit_ms, 0, asked_ms);
}

bool grant_patient(struct request *request, int64_t wait_ms) {
        request->wait_ms = wait_ms == SCHEMA_UNSET ? 0 : wait_ms;
        return request->wait_ms > 0;
}

void grant_fill(struct request *request, struct lease *lease) {
        struct grant_reply *reply = &request->reply.grant;
        struct buffer *buffer = lease->buffer;
        int fd = request->fresh_fd >= 0 ? request->fresh_fd : backing_fd(buffer->backing, lease->access);

        buffer_describe(buffer, &reply->buffer);
        reply->lease = rcstr_text(lease->id);
        reply->handle = (struct handle_info){
                .kind = buffer->handle,
                .fd = fd >= 0 ? 0 : SCHEMA_UNSET,
                .ipc = buffer->backing->ipc,
                .offset = buffer->backing->offset,
                .size = buffer->size,
                .device = rcstr_text(buffer->charge.device->uuid),
        };
        request->lend_fd = fd;
        request->lending = (struct lending){.fds = &request->lend_fd, .n_fds = fd >= 0 ? 1 : 0};
        request->pinned = true;
        request->buffer = buffer;
        buffer_pin(buffer);
}
