/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTL_SEALED_H
#define CTL_SEALED_H

#include "arguments.h"
#include "include/gpuipc.h"

/* Waits until the buffer is sealed, at most as long as --wait says (without it: not at all). An exit code. */
int sealed_wait(const struct arguments *arguments, gpuipc_client *client, const gpuipc_buffer *buffer);

#endif
