/* SPDX-License-Identifier: Apache-2.0 */
/* Channels made, attached to, left, and their facts. Any thread enters. What happens to items is in channel_item.c. */
#include "channel.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "doctor_codes.h"
#include "error.h"
#include "proto/cleanup.h"
#include "trace.h"

#define SPIN_VARIABLE "GPUIPC_CHANNEL_SPIN_USEC"
#define SPIN_USEC_MAX 10000

int channel_check(const gpuipc_channel *channel, gpuipc_error *ret_error) {
        if (!channel)
                return error_parameter(ret_error, "channel", "one made by gpuipc_channel_create() or gpuipc_channel_attach()");
        if (!process_is(channel->mark))
                return error_set(ret_error, GPUIPC_ERROR_FORKED, 0, "channel",
                                 "This channel was made before fork() and belongs to the parent process. Connect and attach anew.");
        return GPUIPC_OK;
}

static int late(const gpuipc_channel *channel, int timeout_ms, gpuipc_error *ret_error) {
        return error_set(ret_error, GPUIPC_ERROR_TIMED_OUT, 0, "channel",
                         channel->role == RING_CONSUMER ? "No item came within %d ms."
                                                        : "No slot came free within %d ms: the consumers are slow, or there are none.",
                         timeout_ms);
}

int channel_verdict(const gpuipc_channel *channel, int verdict, int timeout_ms, gpuipc_error *ret_error) {
        switch (verdict) {
        case RING_OK: return GPUIPC_OK;
        case RING_TIMED_OUT: return late(channel, timeout_ms, ret_error);
        case RING_CLOSED:
                return error_set(ret_error, GPUIPC_ERROR_CLOSED, 0, "channel", "The channel is closed%s.",
                                 channel->role == RING_CONSUMER ? " and empty" : "");
        case RING_GONE:
                return error_set(ret_error, GPUIPC_ERROR_LEASE_LOST, 0, "channel",
                                 "This process is no longer a member of the channel: its lease ended, or it was taken for dead. Free the "
                                 "channel and attach anew. [%s]", doctor_code_id(DOCTOR_CHANNEL_LEFT));
        case RING_BUSY:
                return error_parameter(ret_error, "channel", "one whose item was released: a consumer of a broadcast holds one at a time");
        case RING_CORRUPT:
                return error_set(ret_error, GPUIPC_ERROR_CORRUPT, 0, "channel",
                                 "The channel cannot be used any more: a process that shares it wrote over its control page. Free it and "
                                 "make a new one. [%s]", doctor_code_id(DOCTOR_CHANNEL_CORRUPT));
        case -EPERM:
                return error_parameter(ret_error, "channel", channel->role == RING_PRODUCER
                                                                     ? "attached to as a consumer: this one was as a producer"
                                                                     : "attached to as a producer: this one was as a consumer");
        case -ENOMEM: return error_no_memory(ret_error);
        default:
                return error_set(ret_error, GPUIPC_ERROR_MAP, verdict < 0 ? -verdict : 0, "channel", "The channel's control page: %s.",
                                 verdict < 0 ? strerrordesc_np(-verdict) : ring_verdict_sentence(verdict));
        }
}

/* ---- from a grant ----------------------------------------------------------------------------------------- */

static void channel_destroy(gpuipc_channel *channel) {
        channel_watch_stop(channel);
        channel_feed_stop(channel);
        for (int i = 0; i < RING_MEMBERS; i++)
                gpuipc_fence_free(channel->fences[i]);
        ring_free(channel->ring);
        while (channel->late) {
                struct channel_late *first = channel->late;
                channel->late = first->next;
                free(first);
        }
        (void)pthread_mutex_destroy(&channel->lock);
        free(channel->in_hand);
        free(channel);
}

static int open_ring(gpuipc_channel *channel, const struct channel_parts *parts, gpuipc_error *ret_error) {
        const struct ring_geometry *said = &parts->geometry, *found;
        const char *fault = NULL;
        int r = ring_attach(parts->control_fd, parts->number, parts->generation, &channel->ring, &fault);

        if (r == -EPROTO)
                return error_protocol(ret_error, "of the control page, %s", fault);
        if (r != RING_OK)
                return channel_verdict(channel, r, 0, ret_error);
        found = ring_geometry(channel->ring);
        if (found->mode != said->mode || found->policy != said->policy || found->n_slots != said->n_slots ||
            found->slot_bytes != said->slot_bytes || found->meta_bytes != said->meta_bytes)
                return channel_verdict(channel, RING_CORRUPT, 0, ret_error);
        return GPUIPC_OK;
}

/* The environment may say how long waits look before they sleep. */
static int set_spin(const gpuipc_channel *channel, gpuipc_error *ret_error) {
        const char *text = secure_getenv(SPIN_VARIABLE);
        char *end = NULL;
        long usec;

        if (!text || !text[0])
                return GPUIPC_OK;
        usec = text[0] >= '0' && text[0] <= '9' ? strtol(text, &end, 10) : -1;
        if (usec < 0 || usec > SPIN_USEC_MAX || *end)
                return error_parameter(ret_error, "$" SPIN_VARIABLE, "microseconds, 0 to 10000; unset it for the default");
        ring_spin(channel->ring, usec);
        return GPUIPC_OK;
}

static int open_data(gpuipc_channel *channel, gpuipc_error *ret_error) {
        void *pointer;
        int r = gpuipc_buffer_map(channel->buffer, &pointer, ret_error);

        if (r != GPUIPC_OK)
                return r;
        channel->slots = pointer;
        channel->stride = (size_t)(channel->buffer->size / channel->geometry.n_slots);
        return GPUIPC_OK;
}

/* Its fence goes on where the number's last holder, or the reaper of that one, left it. */
static int open_fences(gpuipc_channel *channel, const struct channel_parts *parts, gpuipc_error *ret_error) {
        char id[SCHEMA_ID_MAX + 16];
        struct map_request request = { .id = id, .kind = parts->fences_kind, .access = GPUIPC_RW, .fd = parts->fences_fd,
                                       .device = channel->buffer->device, .offset = parts->fences_offset, .size = parts->fences_size,
                                       .allocated = parts->fences_size, .created_usec = channel->buffer->created_usec };
        struct mapping *mapping = NULL;
        int r;

        if (!parts->fences_kind)
                return GPUIPC_OK;
        /* A descriptor of memory on a GPU has nothing of its own to tell it from the data's. */
        (void)snprintf(id, sizeof(id), "%.*s fences", SCHEMA_ID_MAX, channel->buffer->id);
        r = mapping_get(&request, &mapping, ret_error);
        for (int i = 0; r == GPUIPC_OK && i < RING_MEMBERS; i++)
                r = fence_open(mapping, i * (int64_t)sizeof(uint64_t), &channel->fences[i], ret_error);
        if (r == GPUIPC_OK)
                r = gpuipc_fence_query(channel->fences[channel->me], &channel->value, ret_error);
        if (r == GPUIPC_OK && channel->value > RING_FENCE_MAX - 2 * CHANNEL_FENCE_ROOM)
                r = channel_verdict(channel, RING_CORRUPT, 0, ret_error);
        if (r == GPUIPC_OK)
                channel->synchronous = gpuipc_fence_is_synchronous(channel->fences[channel->me]) != 0;
        mapping_put(mapping);
        return r;
}

static gpuipc_channel *channel_alloc(gpuipc_buffer *buffer_take, const struct channel_parts *parts) {
        gpuipc_channel *channel = calloc(1, sizeof(*channel));

        if (!channel)
                return NULL;
        channel->in_hand = calloc(parts->geometry.n_slots, sizeof(*channel->in_hand));
        if (!channel->in_hand) {
                free(channel);
                return NULL;
        }
        channel->mark = process_mark();
        channel->buffer = buffer_take;
        channel->geometry = parts->geometry;
        channel->role = parts->role;
        channel->me = parts->number;
        channel->generation = parts->generation;
        channel->watch.wake_fd = -1;
        (void)pthread_mutex_init(&channel->lock, NULL);
        channel_feed_init(&channel->feed);
        return channel;
}

int channel_new(gpuipc_buffer *buffer_take, gpuipc_channel **ret_channel, gpuipc_error *ret_error) {
        _cleanup_(channel_parts_freep) struct channel_parts *parts = take_ptr(buffer_take->parts);
        gpuipc_channel *channel = channel_alloc(buffer_take, parts);
        int r;

        if (!channel) {
                (void)gpuipc_release(buffer_take, NULL);
                return error_no_memory(ret_error);
        }
        r = open_data(channel, ret_error);
        if (r == GPUIPC_OK)
                r = open_fences(channel, parts, ret_error);
        if (r == GPUIPC_OK)
                r = open_ring(channel, parts, ret_error);
        if (r == GPUIPC_OK)
                r = set_spin(channel, ret_error);
        if (r == GPUIPC_OK)
                r = channel_watch_start(channel, parts->peers, ret_error);
        if (r == GPUIPC_OK) {
                for (int i = 0; i < RING_MEMBERS; i++)
                        parts->peers[i].pidfd = -1; /* the watcher's now */
                *ret_channel = channel;
                return GPUIPC_OK;
        }
        if (channel->ring)
                (void)ring_leave(channel->ring);
        channel_destroy(channel);
        (void)gpuipc_release(buffer_take, NULL);
        return r;
}

/* ---- create and attach ------------------------------------------------------------------------------------ */

static const char *role_name(int role) {
        return role == GPUIPC_CHANNEL_PRODUCER ? "producer" : "consumer";
}

static enum ring_role ring_role_of(int role) {
        return role == GPUIPC_CHANNEL_PRODUCER ? RING_PRODUCER : RING_CONSUMER;
}

static int check_caller(const gpuipc_client *client, gpuipc_channel_role role, int64_t wait_ms, gpuipc_channel **ret_channel,
                        gpuipc_error *ret_error) {
        if (!ret_channel)
                return error_parameter(ret_error, "ret_channel", "a pointer to where the channel goes");
        if (role != GPUIPC_CHANNEL_PRODUCER && role != GPUIPC_CHANNEL_CONSUMER)
                return error_parameter(ret_error, "role", "GPUIPC_CHANNEL_PRODUCER or GPUIPC_CHANNEL_CONSUMER");
        if (wait_ms < 0)
                return error_parameter(ret_error, "wait_ms", "milliseconds, 0 for not waiting");
        if (client->no_thread)
                return error_parameter(ret_error, "client", "one without the option no_thread: a thread of the library's sees to members "
                                                            "of a channel that die");
        return GPUIPC_OK;
}

static int channel_of_grant(gpuipc_buffer *buffer_take, gpuipc_channel_role role, gpuipc_channel **ret_channel, gpuipc_error *ret_error) {
        buffer_take->parts->role = ring_role_of(role);
        return channel_new(buffer_take, ret_channel, ret_error);
}

static int check_create(const gpuipc_channel_create_options *o, gpuipc_error *ret_error) {
        const struct ring_geometry geometry = {
                .mode = o->kind == GPUIPC_CHANNEL_BROADCAST ? RING_BROADCAST : RING_QUEUE,
                .policy = o->policy == GPUIPC_CHANNEL_DROP_OLDEST ? RING_DROP_OLDEST : RING_BLOCK,
                .n_slots = (uint32_t)o->slots,
                .meta_bytes = (uint32_t)o->meta_bytes,
                .slot_bytes = (uint64_t)o->slot_bytes,
        };

        if (o->kind != GPUIPC_CHANNEL_QUEUE && o->kind != GPUIPC_CHANNEL_BROADCAST)
                return error_parameter(ret_error, "kind", "GPUIPC_CHANNEL_QUEUE or GPUIPC_CHANNEL_BROADCAST");
        if (o->policy != GPUIPC_CHANNEL_BLOCK && o->policy != GPUIPC_CHANNEL_DROP_OLDEST)
                return error_parameter(ret_error, "policy", "GPUIPC_CHANNEL_BLOCK or GPUIPC_CHANNEL_DROP_OLDEST");
        if (o->slots < 1 || o->slots > RING_SLOTS_MAX)
                return error_parameter(ret_error, "slots", "1 to 65536");
        if (o->slot_bytes < 1 || o->slot_bytes > SCHEMA_INT_MAX / o->slots - 255)
                return error_parameter(ret_error, "slot_bytes", "1 or more, the largest item's, and times the slots below 2^53");
        if (o->meta_bytes < 0 || o->meta_bytes > RING_META_MAX)
                return error_parameter(ret_error, "meta_bytes", "0 to 1024");
        if (ring_geometry_fault(&geometry))
                return error_parameter(ret_error, "options", ring_geometry_fault(&geometry));
        return GPUIPC_OK;
}

static struct channel_create_params create_params(const gpuipc_channel_create_options *o) {
        return (struct channel_create_params){
                .slots = o->slots,
                .slot_bytes = o->slot_bytes,
                .role = role_name(o->role),
                .kind = o->kind == GPUIPC_CHANNEL_BROADCAST ? "broadcast" : NULL,
                .policy = o->policy == GPUIPC_CHANNEL_DROP_OLDEST ? "drop_oldest" : NULL,
                .meta_bytes = o->meta_bytes > 0 ? o->meta_bytes : SCHEMA_UNSET,
                .device = o->device,
                .name = o->name,
                .mode = o->mode,
                .keep_ms = o->keep_ms != 0 ? o->keep_ms : SCHEMA_UNSET,
                .wait_ms = SCHEMA_UNSET,
                .label = o->label,
        };
}

int gpuipc_channel_create(gpuipc_client *client, const gpuipc_channel_create_options *options, gpuipc_channel **ret_channel,
                          gpuipc_error *ret_error) {
        gpuipc_channel_create_options o = GPUIPC_CHANNEL_CREATE_OPTIONS_INIT;
        struct grant_call call = { .method = METHOD_CHANNEL_CREATE };
        gpuipc_buffer *buffer;
        int r = client_check(client, ret_error);

        if (r == GPUIPC_OK && !options)
                r = error_parameter(ret_error, "options", "given: slots and slot_bytes have no defaults");
        if (r == GPUIPC_OK)
                r = client_options(&o, sizeof(o), options, ret_error);
        if (r == GPUIPC_OK)
                r = check_caller(client, o.role, o.wait_ms, ret_channel, ret_error);
        if (r == GPUIPC_OK)
                r = check_create(&o, ret_error);
        if (r != GPUIPC_OK)
                return r;
        trace_scope(TRACE_ALLOCATE, o.slots * o.slot_bytes);
        call.params.channel_create = create_params(&o);
        call.access = o.role == GPUIPC_CHANNEL_PRODUCER ? GPUIPC_RW : GPUIPC_RO;
        r = call_grant(client, &call, 0, &buffer, ret_error);
        if (o.wait_ms > 0 && (r == GPUIPC_ERROR_QUOTA_EXCEEDED || r == GPUIPC_ERROR_OUT_OF_MEMORY)) {
                call.params.channel_create.wait_ms = o.wait_ms;
                r = call_grant(client, &call, o.wait_ms, &buffer, ret_error);
        }
        return r == GPUIPC_OK ? channel_of_grant(buffer, o.role, ret_channel, ret_error) : r;
}

int gpuipc_channel_attach(gpuipc_client *client, const char *name, const gpuipc_channel_attach_options *options,
                          gpuipc_channel **ret_channel, gpuipc_error *ret_error) {
        gpuipc_channel_attach_options o = GPUIPC_CHANNEL_ATTACH_OPTIONS_INIT;
        struct grant_call call = { .method = METHOD_CHANNEL_ATTACH };
        gpuipc_buffer *buffer;
        int r = client_check(client, ret_error);

        if (r == GPUIPC_OK)
                r = client_options(&o, sizeof(o), options, ret_error);
        if (r == GPUIPC_OK)
                r = check_caller(client, o.role, o.wait_ms, ret_channel, ret_error);
        if (r == GPUIPC_OK && !name)
                r = error_parameter(ret_error, "name", "a channel's name");
        if (r == GPUIPC_OK && o.owner < -2)
                r = error_parameter(ret_error, "owner", "a uid, -1 for the caller's own or root's, -2 for anyone's");
        if (r != GPUIPC_OK)
                return r;
        trace_scope(TRACE_OPEN, 0);
        call.params.channel_attach = (struct channel_attach_params){ .name = name, .role = role_name(o.role), .owner = SCHEMA_UNSET,
                                                                     .wait_ms = SCHEMA_UNSET, .label = o.label };
        call.access = o.role == GPUIPC_CHANNEL_PRODUCER ? GPUIPC_RW : GPUIPC_RO;
        r = call_grant_by_name(client, &call, o.owner, o.wait_ms, &buffer, ret_error);
        return r == GPUIPC_OK ? channel_of_grant(buffer, o.role, ret_channel, ret_error) : r;
}

/* ---- the end ---------------------------------------------------------------------------------------------- */

/* All that this member's streams were to note is noted; nobody will wait for more. GPUIPC_ERROR_TIMED_OUT; else it cannot be known. */
static int come_to_rest(gpuipc_channel *channel, gpuipc_error *ret_error) {
        gpuipc_error error = { 0 };
        int r;

        if (!channel->told)
                return GPUIPC_OK;
        r = gpuipc_fence_wait(channel->fences[channel->me], channel->value, channel->buffer->client->timeout_ms, &error);
        if (r == GPUIPC_ERROR_TIMED_OUT)
                return error_set(ret_error, r, 0, "channel", "The channel cannot be left yet: a stream has not come to what it was to "
                                                             "publish or release. See that its work ends, then free the channel again.");
        if (r != GPUIPC_OK)
                return error_set(ret_error, r, error.system_errno, "channel",
                                 "The channel is left, but what this process published or released may never be done. Until it ends, "
                                 "others wait for that and its number stays taken. %s", error.message);
        return GPUIPC_OK;
}

int gpuipc_channel_free(gpuipc_channel *channel, gpuipc_error *ret_error) {
        gpuipc_buffer *buffer;
        int rested = GPUIPC_OK, r;

        if (!channel)
                return GPUIPC_OK;
        if (process_is(channel->mark)) {
                rested = come_to_rest(channel, ret_error);
                if (rested == GPUIPC_ERROR_TIMED_OUT)
                        return rested;
                ring_stop(channel->ring);
                channel_watch_stop(channel);
                channel_feed_stop(channel);
                /* Who has left is not reaped, and nobody completes its fence. What is not done is left for when this process has ended. */
                if (rested == GPUIPC_OK)
                        (void)ring_leave(channel->ring);
        }
        buffer = channel->buffer;
        channel_destroy(channel);
        r = gpuipc_release(buffer, rested == GPUIPC_OK ? ret_error : NULL);
        return rested == GPUIPC_OK ? r : rested;
}

int gpuipc_channel_close(gpuipc_channel *channel, gpuipc_error *ret_error) {
        int r = channel_check(channel, ret_error);

        if (r == GPUIPC_OK)
                ring_close(channel->ring);
        return r;
}
