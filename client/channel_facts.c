/* SPDX-License-Identifier: Apache-2.0 */
/* A channel's facts and figures. Any thread enters. Never waits but for the daemon, in gpuipc_channel_look(). */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "calls.h"
#include "channel.h"
#include "doctor_codes.h"
#include "error.h"
#include "message.h"
#include "proto/cleanup.h"

const char *gpuipc_channel_id(const gpuipc_channel *channel) {
        return channel->buffer->id;
}

const char *gpuipc_channel_name(const gpuipc_channel *channel) {
        return channel->buffer->name;
}

const char *gpuipc_channel_device(const gpuipc_channel *channel) {
        return channel->buffer->device;
}

gpuipc_channel_kind gpuipc_channel_get_kind(const gpuipc_channel *channel) {
        return channel->geometry.mode == RING_BROADCAST ? GPUIPC_CHANNEL_BROADCAST : GPUIPC_CHANNEL_QUEUE;
}

gpuipc_channel_policy gpuipc_channel_get_policy(const gpuipc_channel *channel) {
        return channel->geometry.policy == RING_DROP_OLDEST ? GPUIPC_CHANNEL_DROP_OLDEST : GPUIPC_CHANNEL_BLOCK;
}

gpuipc_channel_role gpuipc_channel_get_role(const gpuipc_channel *channel) {
        return channel->role == RING_PRODUCER ? GPUIPC_CHANNEL_PRODUCER : GPUIPC_CHANNEL_CONSUMER;
}

int gpuipc_channel_number(const gpuipc_channel *channel) {
        return (int)channel->me;
}

int64_t gpuipc_channel_slots(const gpuipc_channel *channel) {
        return channel->geometry.n_slots;
}

int64_t gpuipc_channel_slot_bytes(const gpuipc_channel *channel) {
        return (int64_t)channel->geometry.slot_bytes;
}

int64_t gpuipc_channel_meta_bytes(const gpuipc_channel *channel) {
        return channel->geometry.meta_bytes;
}

int gpuipc_channel_is_peer(const gpuipc_channel *channel) {
        return gpuipc_buffer_is_peer(channel->buffer);
}

int gpuipc_channel_cuda_device(const gpuipc_channel *channel) {
        return gpuipc_buffer_cuda_device(channel->buffer);
}

int gpuipc_channel_is_synchronous(const gpuipc_channel *channel) {
        return channel->synchronous;
}

int gpuipc_channel_check(gpuipc_channel *channel, gpuipc_error *ret_error) {
        int r = channel_check(channel, ret_error);

        if (r == GPUIPC_OK)
                r = channel_verdict(channel, ring_check(channel->ring), 0, ret_error);
        return r == GPUIPC_OK ? gpuipc_buffer_check(channel->buffer, ret_error) : r;
}

/* ---- figures ---------------------------------------------------------------------------------------------- */

static bool is_member(const struct ring_member_stats *member) {
        return member->life > RING_VACANT && member->life < RING_REAPED;
}

static void stats_fill(const struct ring_stats *from, gpuipc_channel_stats *to) {
        to->begun = from->tail;
        to->depth = from->depth;
        to->closed = from->closed;
        for (int i = 0; i < RING_MEMBERS; i++) {
                const struct ring_member_stats *member = &from->members[i];

                if (is_member(member))
                        to->members[to->n_members++] = (gpuipc_channel_member){
                                .number = i,
                                .role = member->role == RING_PRODUCER ? GPUIPC_CHANNEL_PRODUCER : GPUIPC_CHANNEL_CONSUMER,
                                .alive = member->life == RING_ALIVE,
                                .items = member->items,
                                .bytes = member->bytes,
                                .drops = member->drops,
                                .broken = member->broken,
                                .lag = member->lag,
                                .pid = -1,
                        };
        }
}

/* To the caller, as much as it has room for. */
static void stats_hand_out(const gpuipc_channel_stats *from, gpuipc_channel_stats *to) {
        size_t size = to->struct_size, n = size < sizeof(*from) ? size : sizeof(*from);

        (void)memcpy((char *)to + sizeof(to->struct_size), (const char *)from + sizeof(from->struct_size), n - sizeof(to->struct_size));
}

static int stats_check(const gpuipc_channel_stats *stats, gpuipc_error *ret_error) {
        if (!stats || stats->struct_size < sizeof(*stats) || stats->struct_size > 65536)
                return error_parameter(ret_error, "stats", "a struct that starts from GPUIPC_CHANNEL_STATS_INIT");
        return GPUIPC_OK;
}

int gpuipc_channel_get_stats(gpuipc_channel *channel, gpuipc_channel_stats *stats, gpuipc_error *ret_error) {
        gpuipc_channel_stats filled = { 0 };
        struct ring_stats found;
        int r = channel_check(channel, ret_error);

        if (r == GPUIPC_OK)
                r = stats_check(stats, ret_error);
        if (r != GPUIPC_OK)
                return r;
        ring_stats(channel->ring, &found);
        stats_fill(&found, &filled);
        ring_calls(channel->ring, &filled.sleeps, &filled.wakes);
        stats_hand_out(&filled, stats);
        return GPUIPC_OK;
}

/* ---- of a channel that one is no member of ---------------------------------------------------------------- */

static int look_at_page(int fd, gpuipc_channel_stats *ret, gpuipc_error *ret_error) {
        const char *fault = "the control page is too short to be one";
        int seals = fcntl(fd, F_GET_SEALS);
        struct ring_stats found;
        struct stat facts;
        void *page;

        if (seals < 0 || fstat(fd, &facts) < 0)
                return error_set(ret_error, GPUIPC_ERROR_MAP, errno, "channel", "The channel's control page cannot be looked at: %s.",
                                 strerrordesc_np(errno));
        if (!(seals & F_SEAL_SHRINK) || facts.st_size < (off_t)sizeof(struct ring_page))
                return error_protocol(ret_error, "%s", seals & F_SEAL_SHRINK ? fault : "the control page is not sealed against shrinking");
        page = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (page == MAP_FAILED)
                return error_set(ret_error, GPUIPC_ERROR_MAP, errno, "channel", "The channel's control page cannot be mapped: %s.",
                                 strerrordesc_np(errno));
        fault = ring_stats_of_page(page, (size_t)facts.st_size, &found);
        (void)munmap(page, (size_t)facts.st_size);
        if (fault)
                return error_set(ret_error, GPUIPC_ERROR_CORRUPT, 0, "channel", "The channel's control page makes no sense: %s. [%s]",
                                 fault, doctor_code_id(DOCTOR_CHANNEL_CORRUPT));
        stats_fill(&found, ret);
        return GPUIPC_OK;
}

int gpuipc_channel_look(gpuipc_client *client, const char *id, gpuipc_channel_stats *stats, gpuipc_error *ret_error) {
        _cleanup_(reply_deinit) struct reply reply = { 0 };
        struct channel_params params = { .channel = id };
        gpuipc_channel_stats filled = { 0 };
        struct participants_reply found;
        int r = stats_check(stats, ret_error), fd;

        if (r == GPUIPC_OK && !id)
                r = error_parameter(ret_error, "id", "a channel's id");
        if (r == GPUIPC_OK)
                r = call_main(client, METHOD_CHANNEL_PARTICIPANTS, &params, &reply, NULL, ret_error);
        if (r == GPUIPC_OK)
                r = message_read(&reply, METHOD_CHANNEL_PARTICIPANTS, &found, ret_error);
        if (r != GPUIPC_OK)
                return r;
        if (!found.control)
                return error_set(ret_error, GPUIPC_ERROR_ACCESS_DENIED, 0, "channel",
                                 "The channel's figures are for its owner, for who may attach to it, and for administrators.");
        fd = found.control->fd >= 0 && found.control->fd < FDSET_MAX ? fdset_borrow(&reply.fds, (size_t)found.control->fd) : -1;
        if (fd < 0)
                return error_protocol(ret_error, "a descriptor is missing");
        r = look_at_page(fd, &filled, ret_error);
        for (size_t i = 0; r == GPUIPC_OK && i < found.participants.n; i++) {
                const struct participant_info *one = (const struct participant_info *)found.participants.items + i;

                for (int n = 0; n < filled.n_members; n++)
                        if (filled.members[n].number == one->number)
                                filled.members[n].pid = one->pid;
        }
        if (r == GPUIPC_OK)
                stats_hand_out(&filled, stats);
        return r;
}
