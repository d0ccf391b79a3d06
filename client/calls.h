/* SPDX-License-Identifier: Apache-2.0 */
/* What the public functions share in making calls. */
#ifndef CLIENT_CALLS_H
#define CLIENT_CALLS_H

#include "buffer.h"
#include "client.h"
#include "deadline.h"

/* One call, one reply, over the main connection. */
int call_main(gpuipc_client *client, enum method method, const void *params, struct reply *ret_reply,
              gpuipc_error *ret_error);

/* A call that is answered with a lease. */
struct grant_call {
        enum method method;
        const void *params;
        gpuipc_access access;
};

/* Over the main connection or a side one; the lease stays with it. `wait_ms` is what the params say, 0 for none. */
int call_grant(gpuipc_client *client, const struct grant_call *call, bool side, int64_t wait_ms,
               gpuipc_buffer **ret_buffer, gpuipc_error *ret_error);

#endif
