/* SPDX-License-Identifier: Apache-2.0 */
/* From the interface's structs to the public ones. Any thread enters. Never copies text. */
#include "info.h"

#include <errno.h>

#include "proto/cleanup.h"

static const char *const access_names[] = { [ACCESS_RW] = "rw", [ACCESS_RO] = "ro" };
static const char *const buffer_states[] = { [BUFFER_LIVE] = "live", [BUFFER_KEPT] = "kept",
                                             [BUFFER_DRAINING] = "draining" };
static const char *const lease_states[] = { [LEASE_ACTIVE] = "active", [LEASE_DETACHED] = "detached",
                                            [LEASE_DRAINING] = "draining" };
static const char *const device_kinds[] = { [DEVICE_CUDA] = "cuda", [DEVICE_HOST] = "host" };
static const char *const zeroed_names[] = { [ZEROED_DRIVER] = "driver", [ZEROED_WIPED] = "wiped",
                                            [ZEROED_UNKNOWN] = "unknown" };

#define NAME_OF(names, i) ((size_t)(i) < ELEMENTSOF(names) ? (names)[i] : "unknown")

static int64_t known(int64_t value) {
        return value == SCHEMA_UNSET ? -1 : value;
}

gpuipc_channel_info info_channel(const struct channel_info *channel) {
        return (gpuipc_channel_info){
                .kind = channel->kind == CHANNEL_BROADCAST ? GPUIPC_CHANNEL_BROADCAST : GPUIPC_CHANNEL_QUEUE,
                .policy = channel->policy == CHANNEL_DROP_OLDEST ? GPUIPC_CHANNEL_DROP_OLDEST : GPUIPC_CHANNEL_BLOCK,
                .slots = channel->slots,
                .slot_bytes = channel->slot_bytes,
                .meta_bytes = channel->meta_bytes,
                .participants = channel->participants,
                .control_bytes = channel->control_bytes,
        };
}

gpuipc_buffer_info info_buffer(const struct buffer_info *buffer) {
        return (gpuipc_buffer_info){
                .id = buffer->id,
                .name = buffer->name,
                .device = buffer->device,
                .handle = buffer->handle,
                .mode = buffer->mode,
                .state = NAME_OF(buffer_states, buffer->state),
                .meta = buffer->meta,
                .size = known(buffer->size),
                .allocated = known(buffer->allocated),
                .owner_uid = known(buffer->owner_uid),
                .owner_gid = known(buffer->owner_gid),
                .created_usec = known(buffer->created_usec),
                .leases = known(buffer->leases),
                .charged_uid = known(buffer->charged_uid),
                .sealed = buffer->sealed,
                .ro_enforced = buffer->ro_enforced,
        };
}

gpuipc_lease_info info_lease(const struct lease_info *lease) {
        return (gpuipc_lease_info){
                .id = lease->id,
                .buffer = lease->buffer,
                .name = lease->name,
                .device = lease->device,
                .access = NAME_OF(access_names, lease->access),
                .state = NAME_OF(lease_states, lease->state),
                .session = lease->session,
                .command = lease->command,
                .container = lease->container,
                .label = lease->label,
                .size = known(lease->size),
                .pid = known(lease->pid),
                .uid = known(lease->uid),
                .gid = known(lease->gid),
                .since_usec = known(lease->since_usec),
        };
}

void status_room_deinit(struct status_room *room) {
        free(room->devices);
        free(room->words);
        *room = (struct status_room){ 0 };
}

/* Appends a NULL-ended list and returns where it begins. */
static const char *const *put_words(const char ***at, const struct string_array *from) {
        const char **list = *at;
        for (size_t i = 0; i < from->n; i++)
                *(*at)++ = from->items[i];
        *(*at)++ = NULL;
        return list;
}

static gpuipc_device_info info_device(const struct device_info *device, const char ***words) {
        return (gpuipc_device_info){
                .uuid = device->uuid,
                .name = device->name,
                .kind = NAME_OF(device_kinds, device->kind),
                .zeroed = NAME_OF(zeroed_names, device->zeroed),
                .total_bytes = known(device->total_bytes),
                .free_bytes = known(device->free_bytes),
                .brokered_bytes = known(device->brokered_bytes),
                .draining_bytes = known(device->draining_bytes),
                .handles = put_words(words, &device->handles),
                .degraded = device->degraded,
                .spare_bytes = known(device->spare_bytes),
        };
}

int info_status(const struct status_reply *status, struct status_room *room, gpuipc_status_info *ret) {
        const struct device_info *devices = status->devices.items;
        size_t n = status->devices.n, n_words = status->features.n + 1;
        const char **words;

        for (size_t i = 0; i < n; i++)
                n_words += devices[i].handles.n + 1;
        room->devices = calloc(n + 1, sizeof(*room->devices));
        room->words = words = calloc(n_words, sizeof(*room->words));
        if (!room->devices || !room->words)
                return -ENOMEM;
        *ret = (gpuipc_status_info){
                .version = status->version,
                .backend = status->backend,
                .session = status->session,
                .uptime_usec = known(status->uptime_usec),
                .buffers = known(status->buffers),
                .leases = known(status->leases),
                .sessions = known(status->sessions),
                .features = put_words(&words, &status->features),
                .devices = room->devices,
                .n_devices = n,
                .limits = status->limits,
                .daemon_pid = known(status->daemon_pid),
                .shm_device = known(status->shm_device),
        };
        for (size_t i = 0; i < n; i++)
                room->devices[i] = info_device(&devices[i], &words);
        return 0;
}
