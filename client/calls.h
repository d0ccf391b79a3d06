/* SPDX-License-Identifier: Apache-2.0 */
/* What the public functions share in making calls. */
#ifndef CLIENT_CALLS_H
#define CLIENT_CALLS_H

#include "buffer.h"
#include "client.h"
#include "deadline.h"
#include "proto/schema.h"

/* One call, one reply, over the main connection; made again when the daemon went away meanwhile. `ret_again` (may be NULL)
 * tells that it was, so that an earlier try may have done what was asked. */
int call_main(gpuipc_client *client, enum method method, const void *params, struct reply *ret_reply, bool *ret_again,
              gpuipc_error *ret_error);

/* A call that is answered with a lease. */
struct grant_call {
        enum method method;
        union {
                struct allocate_params allocate;
                struct open_params open;
                struct channel_create_params channel_create;
                struct channel_attach_params channel_attach;
        } params;
        gpuipc_access access;
};

/* Over the main connection, or over a side one when it waits; the lease stays with it. `wait_ms` 0: it does not. */
int call_grant(gpuipc_client *client, const struct grant_call *call, int64_t wait_ms, gpuipc_buffer **ret_buffer,
               gpuipc_error *ret_error);

/* By name: of whichever owner is meant (as in gpuipc_open_options), waiting for it `wait_ms`. */
int call_grant_by_name(gpuipc_client *client, const struct grant_call *call, int64_t owner, int64_t wait_ms,
                       gpuipc_buffer **ret_buffer, gpuipc_error *ret_error);

/* The call as bytes, but to wait until `until_usec` only; SCHEMA_UNSET: as its params say. */
int call_put_grant(struct bytes *out, const struct grant_call *call, int64_t until_usec, gpuipc_error *ret_error);

#endif
