/* SPDX-License-Identifier: Apache-2.0 */
/* Which daemon to speak to. */
#ifndef CTL_CONNECT_H
#define CTL_CONNECT_H

#include "arguments.h"
#include "include/gpuipc.h"

/* --socket, else $GPUIPC_SOCKET, else the administrators' socket when it lets us in, else everyone's. timeout_ms as in
 * gpuipc_connect_options. An exit code; the caller frees *ret_client. */
int ctl_connect(const struct arguments *arguments, int timeout_ms, gpuipc_client **ret_client);

/* The same in silence: a gpuipc_status. restart_ms as in gpuipc_connect_options. */
int ctl_connect_quietly(const struct arguments *arguments, int timeout_ms, int restart_ms, gpuipc_client **ret_client,
                        gpuipc_error *ret_error);

static inline void client_freep(gpuipc_client **client) {
        gpuipc_client_free(*client);
        *client = NULL;
}
#define _cleanup_client_ __attribute__((cleanup(client_freep)))

static inline void watch_freep(gpuipc_watch **watch) {
        gpuipc_watch_free(*watch);
        *watch = NULL;
}
#define _cleanup_watch_ __attribute__((cleanup(watch_freep)))

#endif
