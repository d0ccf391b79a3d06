/* SPDX-License-Identifier: Apache-2.0 */
/* What alloc, put and hold have in common: a buffer is held until a signal comes. */
#ifndef CTL_HOLD_H
#define CTL_HOLD_H

#include <stdbool.h>

#include "arguments.h"
#include "include/gpuipc.h"
#include "stop.h"

static inline void buffer_releasep(gpuipc_buffer **buffer) {
        if (*buffer)
                (void)gpuipc_release(*buffer, NULL);
        *buffer = NULL;
}
#define _cleanup_buffer_ __attribute__((cleanup(buffer_releasep)))

/* How a new buffer is to be, by the options of put and alloc. Strings are borrowed. An exit code. */
int hold_options(const struct arguments *arguments, gpuipc_allocate_options *ret);

/* An open by the options of get and hold. An exit code; the caller releases *ret_buffer. */
int hold_open(const struct arguments *arguments, gpuipc_client *client, gpuipc_access access,
              gpuipc_buffer **ret_buffer);

/* "ID NAME BYTES" on stdout, at once. An exit code. */
int hold_announce(const gpuipc_buffer *buffer);

/* Holds until one of the signals, or until the lease is over without our doing, and releases. An exit code. */
int hold_until_stopped(gpuipc_client *client, gpuipc_buffer **buffer, const struct stop *stop);

/* Releases now. An exit code. */
int hold_release(gpuipc_buffer **buffer);

#endif
