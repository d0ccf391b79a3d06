/* SPDX-License-Identifier: Apache-2.0 */
/* ChannelCreate, ChannelAttach, ChannelParticipants: a channel is a buffer with fences and a control page, a participant a lease on it
 * with a number in that page. Loop thread but for op_channel_create_work(). */
#include "annex.h"
#include "clock.h"
#include "grant.h"
#include "making.h"
#include "opening.h"
#include "ops.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

#define CHANNEL_DESCRIPTORS 3 /* data, fences, control */

/* What a reply tells and lends; request->page. */
struct channel_answer {
        struct participant_info participants[RING_MEMBERS];
        struct holder *holders[RING_MEMBERS]; /* whose pidfds are lent */
        int fds[CHANNEL_DESCRIPTORS + RING_MEMBERS];
        struct handle_info fences, control;
        size_t n, n_holders, n_fds;
};

static struct channel_answer *answer_of(const struct request *request) {
        return request->page;
}

/* Set aside before anything is promised. A request that has waited begins again. */
static int answer_new(struct request *request) {
        if (!request->page)
                request->page = calloc(1, sizeof(struct channel_answer));
        return request->page ? 0 : -ENOMEM;
}

static int64_t answer_lend(struct channel_answer *answer, int fd) {
        answer->fds[answer->n_fds] = fd;
        return (int64_t)answer->n_fds++;
}

/* All but one's own. */
static struct struct_array answer_participants(struct channel_answer *answer, const struct channel *channel, const struct member *self) {
        for (size_t i = 0; i < RING_MEMBERS; i++) {
                const struct member *member = &channel->members[i];
                struct participant_info *info = &answer->participants[answer->n];

                if (member == self || !member_counts(member))
                        continue;
                member_describe(member, info);
                if (member->holder->pidfd >= 0) {
                        info->fd = answer_lend(answer, member->holder->pidfd);
                        answer->holders[answer->n_holders++] = member->holder;
                }
                answer->n++;
        }
        return (struct struct_array){answer->participants, answer->n};
}

static struct lending answer_lending(const struct channel_answer *answer) {
        return (struct lending){.fds = answer->fds, .n_fds = answer->n_fds, .holders = answer->holders, .n_holders = answer->n_holders};
}

static struct handle_info answer_handle(const struct buffer *buffer, int64_t fd, int64_t size) {
        return (struct handle_info){
                .kind = buffer->handle, .fd = fd, .size = size, .device = rcstr_text(buffer->charge.device->uuid)};
}

static struct handle_info answer_control(struct channel_answer *answer, const struct buffer *buffer, enum access access) {
        return (struct handle_info){
                .kind = "memfd",
                .fd = answer_lend(answer, backing_fd(buffer->backing->annex->control, access)),
                .size = buffer->channel->control_bytes,
                .device = rcstr_text(buffer->channel->charge.device->uuid),
        };
}

/* The lease is committed. */
static void answer_fill(struct request *request) {
        struct channel_answer *answer = answer_of(request);
        struct channel_reply *reply = &request->reply.channel;
        const struct lease *lease = request->lease;
        struct buffer *buffer = lease->buffer;
        const struct annex *annex = buffer->backing->annex;
        int data = request->fresh_fd >= 0 ? request->fresh_fd : backing_fd(buffer->backing, lease->access);

        *reply = (struct channel_reply){.lease = rcstr_text(lease->id), .number = lease->member->number,
                                        .generation = lease->member->generation};
        channel_describe(buffer, &reply->channel);
        reply->data = answer_handle(buffer, answer_lend(answer, data), buffer->size);
        reply->data.offset = buffer->backing->offset;
        if (annex->fences) {
                answer->fences = answer_handle(buffer, answer_lend(answer, backing_fd(annex->fences, ACCESS_RW)), FENCES_BYTES);
                reply->fences = &answer->fences;
        }
        reply->control = answer_control(answer, buffer, ACCESS_RW);
        reply->participants = answer_participants(answer, buffer->channel, lease->member);
        request->lending = answer_lending(answer);
        request->pinned = true;
        request->buffer = buffer;
        buffer_pin(buffer);
}

/* ---- ChannelCreate ----------------------------------------------------------------------------------------- */

static enum access role_access(const char *role) {
        return strcmp(role, "producer") == 0 ? ACCESS_RW : ACCESS_RO;
}

static struct ring_geometry create_geometry(const struct channel_create_params *params) {
        return (struct ring_geometry){
                .mode = params->kind && strcmp(params->kind, "broadcast") == 0 ? RING_BROADCAST : RING_QUEUE,
                .policy = params->policy && strcmp(params->policy, "drop_oldest") == 0 ? RING_DROP_OLDEST : RING_BLOCK,
                .n_slots = (uint32_t)params->slots,
                .slot_bytes = (uint64_t)params->slot_bytes,
                .meta_bytes = params->meta_bytes == SCHEMA_UNSET ? 0 : (uint32_t)params->meta_bytes,
        };
}

/* Memory with a descriptor, and a host for the control page. */
static int create_find_places(struct request *request, struct buffer_spec *spec, struct channel_spec *channel) {
        const struct device *device;
        int r;

        r = making_find_device(request, request->params.channel_create.device, &spec->device);
        if (r != 0)
                return r;
        device = spec->device;
        for (size_t i = 0; i < device->n_handles; i++)
                if (strcmp(device->handles[i], "cuda-ipc") != 0)
                        spec->handle = device->handles[i];
        if (!spec->handle)
                return fail_reason(&request->failure, VERDICT_HANDLE_UNSUPPORTED, "cuda-fd",
                                   "a channel needs memory with a descriptor, which device %s does not offer; make it on device \"host\"",
                                   rcstr_text(device->uuid));
        channel->host = registry_find_device(request_registry(request), "host");
        if (channel->host && !channel->host->degraded)
                return 0;
        return fail_reason(&request->failure, VERDICT_HANDLE_UNSUPPORTED, "memfd",
                           "a channel's control page is host memory, which this daemon was told to leave out; set Backend=auto");
}

static int create_measure(struct request *request, struct buffer_spec *spec, struct channel_spec *channel) {
        uint64_t stride = ring_data_stride(channel->geometry.slot_bytes);
        struct device *device = spec->device;
        int r;

        if (__builtin_mul_overflow((int64_t)stride, (int64_t)channel->geometry.n_slots, &spec->size) || spec->size > SCHEMA_INT_MAX)
                spec->size = SCHEMA_INT_MAX; /* which no device has */
        r = making_round(request, device, spec->size, spec->handle, &spec->allocated);
        if (r == 0 && device->kind == DEVICE_CUDA)
                r = making_round(request, device, FENCES_BYTES, spec->handle, &channel->fences_bytes);
        if (r == 0)
                r = making_round(request, channel->host, (int64_t)ring_page_bytes(&channel->geometry), "memfd", &channel->control_bytes);
        spec->allocated += channel->fences_bytes;
        spec->n_descriptors = BACKING_DESCRIPTORS + channel_n_descriptors(channel->fences_bytes);
        return r;
}

static int create_check(struct request *request) {
        const struct channel_create_params *params = &request->params.channel_create;
        const struct limits *limits = &request_registry(request)->limits;
        int r;

        (void)grant_patient(request, params->wait_ms);
        r = grant_check_duration(request, "wait_ms", limits->wait_ms, params->wait_ms);
        return r == 0 ? grant_check_duration(request, "keep_ms", limits->keep_ms, params->keep_ms) : r;
}

const char *op_channel_create_about(const struct request *request) {
        return request->params.channel_create.name;
}

int op_channel_create_begin(struct request *request) {
        const struct channel_create_params *params = &request->params.channel_create;
        struct channel_spec channel = {.geometry = create_geometry(params)};
        struct buffer_spec spec = {
                .name = params->name,
                .label = params->label,
                .mode = policy_mode(params->mode ? params->mode : "0600"),
                .keep_ms = params->keep_ms == SCHEMA_UNSET ? 0 : params->keep_ms,
                .channel = &channel,
                .access = role_access(params->role),
        };
        int r;

        r = create_check(request);
        if (r == 0)
                r = create_find_places(request, &spec, &channel);
        if (r == 0)
                r = create_measure(request, &spec, &channel);
        if (r != 0)
                return r;
        spec.stored = workplace_of(spec.device)->store;
        spec.ro_enforced = workplace_of(spec.device)->info.ro_enforced;
        request->access = spec.access;
        request->short_of_host = false;
        if (spec.access == ACCESS_RO)
                r = opening_check_read_only(request, spec.handle, spec.ro_enforced, "consume on host memory");
        if (r == 0)
                r = answer_new(request);
        return r == 0 ? making_reserve(request, &spec) : r;
}

/* What was made so far goes. */
static int create_fail(struct request *request, int r) {
        const struct annex *annex = request->backing->annex;

        request->short_of_host = annex && annex->short_of_host;
        backing_close(request->place->backend, take_ptr(request->backing));
        return r;
}

/* In steps: the slots, then what belongs to them, then a consumer's own descriptor. */
int op_channel_create_work(struct request *request) {
        const struct backend *backend = request->place->backend;
        struct backend_device *device = request->place->backend_device;
        const struct buffer *buffer = request->buffer;
        const struct channel *channel = buffer->channel;
        struct annex_spec spec = {
                .geometry = channel->geometry, .fences_bytes = channel->fences_bytes, .control_bytes = channel->control_bytes};
        int r;

        if (!request->slots_made) {
                r = backend->allocate(device, buffer->size, buffer->allocated - spec.fences_bytes, buffer->handle, &request->backing,
                                      &request->detail);
                request->slots_made = r == 0;
                return r == 0 ? JOB_MORE : r;
        }
        r = annex_allocate(backend, device, buffer->handle, &spec, request->backing, &request->detail);
        if (r == 0 && !backing_prepared(request->backing, request->access))
                r = opening_work(request);
        return r < 0 ? create_fail(request, r) : r;
}

bool op_channel_create_again(struct request *request) {
        request->slots_made = false; /* all of it was closed */
        return !request->short_of_host && spare_give_way(request->place);
}

int op_channel_create_finish(struct request *request) {
        int r;

        request->slots_made = false;
        r = making_judge(request);
        if (r != 0)
                return r;
        request->buffer->channel->page = request->backing->annex->page;
        registry_allocate_commit(request_registry(request), request->buffer, take_ptr(request->backing), clock_real_usec());
        answer_fill(request);
        return 0;
}

/* ---- ChannelAttach ----------------------------------------------------------------------------------------- */

const char *op_channel_attach_about(const struct request *request) {
        return request->params.channel_attach.name ? request->params.channel_attach.name : request->params.channel_attach.channel;
}

int op_channel_attach_begin(struct request *request) {
        const struct channel_attach_params *params = &request->params.channel_attach;
        struct opening opening = {
                .id_field = "channel",
                .id = params->channel,
                .name = params->name,
                .owner = params->owner,
                .wait_ms = params->wait_ms,
                .access = role_access(params->role),
                .label = params->label,
                .channel = true,
        };
        int r = answer_new(request);

        return r == 0 ? opening_begin(request, &opening) : r;
}

int op_channel_attach_finish(struct request *request) {
        int r = opening_judge(request);

        if (r != 0)
                return r;
        registry_open_commit(request_registry(request), request->lease, clock_real_usec());
        answer_fill(request);
        return 0;
}

/* ---- ChannelParticipants ----------------------------------------------------------------------------------- */

int op_channel_participants_finish(struct request *request) {
        struct participants_reply *reply = &request->reply.participants;
        struct registry *registry = request_registry(request);
        struct channel_answer *answer;
        struct buffer *buffer = registry_find_buffer(registry, request->params.channel.channel, NULL);

        if (!buffer || !buffer->channel || !policy_may_see(&registry->policy, request_peer(request), &buffer->owner, buffer->mode))
                return fail_plain(&request->failure, VERDICT_NO_SUCH_BUFFER);
        if (answer_new(request) < 0)
                return -ENOMEM;
        answer = answer_of(request);
        *reply = (struct participants_reply){0};
        if (backing_prepared(buffer->backing->annex->control, ACCESS_RO)) {
                answer->control = answer_control(answer, buffer, ACCESS_RO);
                reply->control = &answer->control;
        }
        reply->participants = answer_participants(answer, buffer->channel, NULL);
        request->lending = answer_lending(answer);
        request->pinned = true;
        request->buffer = buffer;
        buffer_pin(buffer);
        return 0;
}
