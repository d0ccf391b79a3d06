/* SPDX-License-Identifier: Apache-2.0 */
/* The buffer object: one lease, its facts, its handle and perhaps its mapping. */
#ifndef CLIENT_BUFFER_H
#define CLIENT_BUFFER_H

#include "claim.h"
#include "client.h"
#include "conn.h"
#include "include/gpuipc.h"
#include "map.h"

struct channel_parts;

struct gpuipc_buffer {
        gpuipc_client *client; /* counted */
        struct claim *claim;   /* to the lease; knows the connection that carries it */
        char *id, *name, *device, *handle, *ipc, *meta;
        int64_t size, allocated, offset, created_usec;
        gpuipc_access access;
        int fd;                  /* -1: the handle has none */
        struct mapping *mapping; /* counted; NULL until mapped */
        struct channel_parts *parts; /* of a channel, until that takes them over; else NULL */
};

/* Makes a buffer of a grant that came over `conn`, which the caller has busy. A grant that cannot be used is given
 * back to the daemon. */
int buffer_from_reply(gpuipc_client *client, struct conn *conn, struct reply *reply, enum method method,
                      gpuipc_access access, int64_t deadline, gpuipc_buffer **ret_buffer, gpuipc_error *ret_error);

#endif
