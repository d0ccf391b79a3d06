/* SPDX-License-Identifier: Apache-2.0 */
/* Where the tier's programs have their memory: the daemon's own choice is its GPU only where it has one. */
#ifndef GPU_FIRST_GPU_H
#define GPU_FIRST_GPU_H

#include <gpuipc.h>

#define FIRST_GPU_SIZE 80

/* The UUID of the daemon's first GPU; "": it has none. A gpuipc_status. */
int first_gpu(gpuipc_client *client, char ret_uuid[FIRST_GPU_SIZE], gpuipc_error *ret_error);

#endif
