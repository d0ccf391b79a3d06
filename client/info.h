/* SPDX-License-Identifier: Apache-2.0 */
/* The interface's structs as the public ones. Strings stay borrowed from where they were. */
#ifndef CLIENT_INFO_H
#define CLIENT_INFO_H

#include "include/gpuipc.h"
#include "proto/schema.h"

gpuipc_channel_info info_channel(const struct channel_info *channel);
/* Without its channel. */
gpuipc_buffer_info info_buffer(const struct buffer_info *buffer);
gpuipc_lease_info info_lease(const struct lease_info *lease);

/* What a status owns beside its strings. */
struct status_room {
        gpuipc_device_info *devices;
        const char **words; /* the NULL-ended lists, one after the other */
};

void status_room_deinit(struct status_room *room);

/* `room` must live as long as `ret`. -ENOMEM. */
int info_status(const struct status_reply *status, struct status_room *room, gpuipc_status_info *ret);

#endif
