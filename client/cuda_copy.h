/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between memory on a GPU and this process's. */
#ifndef CLIENT_CUDA_COPY_H
#define CLIENT_CUDA_COPY_H

#include "map.h"

/* For a map_kind whose mappings are device pointers of `accessor`. GPUIPC_ERROR_MAP. */
int cuda_copy(const struct mapping *mapping, const struct map_copy *copy, gpuipc_error *ret_error);

#endif
