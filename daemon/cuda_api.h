/* SPDX-License-Identifier: Apache-2.0 */
/* NVIDIA's libraries as tables of functions, found at run time, and their errors in the daemon's terms: no CUDA code leaves
 * the rooms behind this one. Any thread, once a table is filled. */
#ifndef DAEMON_CUDA_API_H
#define DAEMON_CUDA_API_H

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "backend.h"

/* The header renames some to their newest form; the table's members and the symbols looked up follow it. */
#define CUDA_DRIVER_FUNCTIONS(X)                                                                                        \
        X(cuInit)                                                                                                       \
        X(cuDriverGetVersion)                                                                                           \
        X(cuGetErrorName)                                                                                               \
        X(cuGetErrorString)                                                                                             \
        X(cuDeviceGetCount)                                                                                             \
        X(cuDeviceGet)                                                                                                  \
        X(cuDeviceGetName)                                                                                              \
        X(cuDeviceGetUuid_v2)                                                                                           \
        X(cuDeviceTotalMem)                                                                                             \
        X(cuDeviceGetAttribute)                                                                                         \
        X(cuDevicePrimaryCtxRetain)                                                                                     \
        X(cuCtxSetCurrent)                                                                                              \
        X(cuCtxSynchronize)                                                                                             \
        X(cuMemGetAllocationGranularity)                                                                                \
        X(cuMemCreate)                                                                                                  \
        X(cuMemRelease)                                                                                                 \
        X(cuMemExportToShareableHandle)                                                                                 \
        X(cuMemImportFromShareableHandle)                                                                               \
        X(cuMemAddressReserve)                                                                                          \
        X(cuMemMap)                                                                                                     \
        X(cuMemSetAccess)                                                                                               \
        X(cuMemGetAddressRange)                                                                                         \
        X(cuMemsetD8)                                                                                                   \
        X(cuMemcpyDtoH)

#define CUDA_RUNTIME_FUNCTIONS(X)                                                                                       \
        X(cudaGetErrorName)                                                                                             \
        X(cudaGetErrorString)                                                                                           \
        X(cudaGetLastError)                                                                                             \
        X(cudaSetDevice)                                                                                                \
        X(cudaDeviceReset)                                                                                              \
        X(cudaDeviceSynchronize)                                                                                        \
        X(cudaMalloc)                                                                                                   \
        X(cudaFree)                                                                                                     \
        X(cudaMemset)                                                                                                   \
        X(cudaMemGetInfo)                                                                                               \
        X(cudaIpcGetMemHandle)

#define CUDA_MEMBER_(function) __typeof__(&function) function;
struct cuda_api {
        CUDA_DRIVER_FUNCTIONS(CUDA_MEMBER_)
        int version; /* of the driver, as cuDriverGetVersion() tells it; 0 before cuda_api_init() */
};

struct cuda_runtime {
        CUDA_RUNTIME_FUNCTIONS(CUDA_MEMBER_)
};
#undef CUDA_MEMBER_

/* Finds libcuda.so.1; calls nothing in it. 0, or -errno with the reason in words. */
int cuda_api_load(struct cuda_api *api, char *ret_why, size_t n_why);

/* cuInit() and the version. 0; -ENODEV: the driver sees no GPU; another -errno. May block for as long as the driver likes. */
int cuda_api_init(struct cuda_api *api, struct backend_detail *detail);

/* Finds the newest runtime that the driver can serve. 0, or -EOPNOTSUPP with the reason in words. */
int cuda_runtime_load(struct cuda_runtime *runtime, int driver_version, char *ret_why, size_t n_why);

/* Whether there is a runtime to be loaded; leaves none behind. */
bool cuda_runtime_found(int driver_version);

/* What the error means here. -ENOMEM: not so much memory; -EOPNOTSUPP: not this way; -EINVAL: a mistake of ours; -EPERM; -EAGAIN: the
 * system, not the device, is short of something; -EIO: the device is sick, and so will the next call be. Negative always. */
int cuda_errno(int code);

/* Writes "CALL: NAME (NUMBER): text" and gives cuda_errno(). For a driver's error, and a runtime's. */
int cuda_fail(const struct cuda_api *api, struct backend_detail *detail, CUresult result, const char *call);
int cuda_runtime_fail(const struct cuda_runtime *runtime, struct backend_detail *detail, cudaError_t result, const char *call);

/* "GPU-12345678-…" or "MIG-…". */
#define CUDA_UUID_SIZE 48
void cuda_uuid_print(const CUuuid *uuid, bool mig, char ret[CUDA_UUID_SIZE]);

#endif
