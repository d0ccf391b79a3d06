/* SPDX-License-Identifier: Apache-2.0 */
/* A watch: one connection that only brings events. */
#ifndef CLIENT_WATCH_H
#define CLIENT_WATCH_H

#include "include/gpuipc.h"

/* Ends a client's watches, as gpuipc_watch_stop() would; under the client's lock. */
void watch_stop_all(struct gpuipc_watch *first);

#endif
