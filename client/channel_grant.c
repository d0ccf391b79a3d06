/* SPDX-License-Identifier: Apache-2.0 */
/* What the daemon grants with a channel: facts, three pieces of memory, and pidfds. Any thread enters. Never uses a number that was not
 * checked, and leaves no descriptor behind. */
#include <errno.h>
#include <string.h>

#include "channel.h"
#include "error.h"
#include "message.h"
#include "proto/cleanup.h"

#define WORD_BYTES ((int64_t)sizeof(uint64_t))

void channel_parts_free(struct channel_parts *parts) {
        if (!parts)
                return;
        fd_closep(&parts->control_fd);
        fd_closep(&parts->fences_fd);
        for (int i = 0; i < RING_MEMBERS; i++)
                fd_closep(&parts->peers[i].pidfd);
        free(parts->fences_kind);
        free(parts);
}

static struct channel_parts *parts_new(void) {
        struct channel_parts *parts = calloc(1, sizeof(*parts));

        if (!parts)
                return NULL;
        parts->control_fd = parts->fences_fd = -1;
        for (int i = 0; i < RING_MEMBERS; i++)
                parts->peers[i].pidfd = -1;
        return parts;
}

static int descriptor(struct fdset *fds, int64_t index, const struct reply *reply, int *ret_fd, gpuipc_error *ret_error) {
        int fd = index >= 0 && index < FDSET_MAX ? fdset_take(fds, (size_t)index) : -1;

        if (fd < 0)
                return conn_no_descriptor(reply, "The channel's descriptors", ret_error);
        fd_closep(ret_fd);
        *ret_fd = fd;
        return GPUIPC_OK;
}

int channel_peers_read(const struct struct_array *participants, struct fdset *fds, struct peer peers[RING_MEMBERS],
                       gpuipc_error *ret_error) {
        const struct participant_info *list = participants->items;

        for (size_t i = 0; i < participants->n; i++) {
                const struct participant_info *one = &list[i];
                struct peer *peer;

                if (one->number < 0 || one->number >= RING_MEMBERS || one->generation < 0 || one->generation > UINT32_MAX)
                        return error_protocol(ret_error, "a participant numbered %lld of generation %lld", (long long)one->number,
                                              (long long)one->generation);
                peer = &peers[one->number];
                if (one->fd == SCHEMA_UNSET || (peer->pidfd >= 0 && peer->generation == (uint32_t)one->generation))
                        continue;
                fd_closep(&peer->pidfd);
                peer->pidfd = one->fd >= 0 && one->fd < FDSET_MAX ? fdset_take(fds, (size_t)one->fd) : -1;
                peer->generation = (uint32_t)one->generation;
        }
        return GPUIPC_OK;
}

static int facts_check(const struct channel_reply *reply, gpuipc_error *ret_error) {
        const struct channel_info *channel = &reply->channel;

        if (channel->slots < 1 || channel->slots > RING_SLOTS_MAX || channel->slot_bytes < 1 ||
            channel->slot_bytes > channel->size / channel->slots || channel->meta_bytes < 0 || channel->meta_bytes > RING_META_MAX)
                return error_protocol(ret_error, "a channel of %lld slots of %lld bytes, %lld for metadata, in %lld",
                                      (long long)channel->slots, (long long)channel->slot_bytes, (long long)channel->meta_bytes,
                                      (long long)channel->size);
        if (channel->size / channel->slots < (int64_t)ring_data_stride((uint64_t)channel->slot_bytes))
                return error_protocol(ret_error, "slots of %lld bytes, each beside the next", (long long)channel->slot_bytes);
        if (reply->number < 0 || reply->number >= RING_MEMBERS || reply->generation < 0 || reply->generation > UINT32_MAX)
                return error_protocol(ret_error, "the number %lld", (long long)reply->number);
        if (reply->fences && (reply->fences->size < RING_MEMBERS * WORD_BYTES || reply->fences->offset < 0 ||
                              reply->fences->offset > SCHEMA_INT_MAX - reply->fences->size))
                return error_protocol(ret_error, "fences of %lld bytes at %lld", (long long)reply->fences->size,
                                      (long long)reply->fences->offset);
        return GPUIPC_OK;
}

static void facts_fill(const struct channel_reply *reply, struct channel_parts *parts) {
        const struct channel_info *channel = &reply->channel;

        parts->geometry = (struct ring_geometry){
                .mode = channel->kind == CHANNEL_BROADCAST ? RING_BROADCAST : RING_QUEUE,
                .policy = channel->policy == CHANNEL_DROP_OLDEST ? RING_DROP_OLDEST : RING_BLOCK,
                .n_slots = (uint32_t)channel->slots,
                .meta_bytes = (uint32_t)channel->meta_bytes,
                .slot_bytes = (uint64_t)channel->slot_bytes,
        };
        parts->number = (unsigned)reply->number;
        parts->generation = (uint32_t)reply->generation;
}

static int parts_read(const struct channel_reply *reply, struct fdset *fds, const struct reply *whole, int *ret_fd,
                      struct channel_parts *parts, gpuipc_error *ret_error) {
        int r = facts_check(reply, ret_error);

        if (r != GPUIPC_OK)
                return r;
        facts_fill(reply, parts);
        r = descriptor(fds, reply->data.fd, whole, ret_fd, ret_error);
        if (r == GPUIPC_OK)
                r = descriptor(fds, reply->control.fd, whole, &parts->control_fd, ret_error);
        if (r == GPUIPC_OK && reply->fences) {
                parts->fences_kind = strdup(reply->fences->kind);
                parts->fences_offset = reply->fences->offset;
                parts->fences_size = reply->fences->size;
                if (!parts->fences_kind)
                        return error_no_memory(ret_error);
                r = descriptor(fds, reply->fences->fd, whole, &parts->fences_fd, ret_error);
        }
        return r == GPUIPC_OK ? channel_peers_read(&reply->participants, fds, parts->peers, ret_error) : r;
}

int channel_grant_read(struct reply *reply, enum method method, struct grant_reply *ret_grant, int *ret_fd,
                       struct channel_parts **ret_parts, gpuipc_error *ret_error) {
        _cleanup_(channel_parts_freep) struct channel_parts *parts = NULL;
        _cleanup_(fdset_deinit) struct fdset fds = { 0 };
        struct channel_reply grant;
        int r = message_read(reply, method, &grant, ret_error);

        if (r != GPUIPC_OK)
                return r;
        *ret_grant = (struct grant_reply){
                .lease = grant.lease,
                .handle = grant.data,
                /* What the slots take; the channel's `allocated` is more. */
                .buffer = { .id = grant.channel.id, .name = grant.channel.name, .size = grant.channel.size,
                            .allocated = grant.channel.size, .device = grant.channel.device, .handle = grant.channel.handle,
                            .created_usec = grant.channel.created_usec },
        };
        parts = parts_new();
        if (!parts || fdset_split_take(&reply->fds, reply->fds.n, &fds) == -ENOMEM)
                return error_no_memory(ret_error);
        r = parts_read(&grant, &fds, reply, ret_fd, parts, ret_error);
        if (r != GPUIPC_OK)
                return r;
        *ret_parts = take_ptr(parts);
        return GPUIPC_OK;
}
