/* SPDX-License-Identifier: Apache-2.0 */
/* This process's CUDA: the driver, initialised once, and the GPUs as CUDA_VISIBLE_DEVICES shows them. */
#ifndef CLIENT_CUDA_DEVICE_H
#define CLIENT_CUDA_DEVICE_H

#include <stddef.h>

#include "cuda_driver.h"
#include "include/gpuipc.h"

#define CUDA_UUID_SIZE 48

struct cuda_device {
        CUdevice ordinal;
        CUuuid uuid;
        char name[CUDA_UUID_SIZE]; /* "GPU-…", "MIG-…" */
};

struct cuda {
        struct cuda_driver driver;
        struct cuda_device *devices;
        size_t n_devices;
};

/* Makes it on the first call, and again on the next after a failure; lives as long as the process. GPUIPC_ERROR_MAP,
 * GPUIPC_ERROR_FORKED: it was made on the other side of a fork(). */
int cuda_get(const struct cuda **ret_cuda, gpuipc_error *ret_error);

/* The device of that UUID ("GPU-…", "MIG-…"), whatever its ordinal here; NULL when it is hidden. */
const struct cuda_device *cuda_device_find(const struct cuda *cuda, const char *uuid);

/* The device of that ordinal; NULL when there is none. */
const struct cuda_device *cuda_device_at(const struct cuda *cuda, CUdevice ordinal);

/* The device that will access a mapping of memory on `owner` (a UUID) made by this thread now: that of the current context;
 * without one the owner, or the first there is when the owner is hidden. */
int cuda_device_accessing(const struct cuda *cuda, const char *owner, const struct cuda_device **ret_device,
                          gpuipc_error *ret_error);

/* GPUIPC_ERROR_HANDLE_UNSUPPORTED when both are visible and `device` has no peer access to `owner`. */
int cuda_device_check_peer(const struct cuda *cuda, const struct cuda_device *device, const char *owner,
                           gpuipc_error *ret_error);

/* The same for a reason of the driver's: names both, and what it said to `call`. */
int cuda_device_unreachable(const struct cuda *cuda, const struct cuda_device *device, const char *owner, CUresult result,
                            const char *call, gpuipc_error *ret_error);

#endif
