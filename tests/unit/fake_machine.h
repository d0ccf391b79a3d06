/* SPDX-License-Identifier: Apache-2.0 */
/* A machine with false GPUs for a test, and its three libraries loaded into this process, as tables. */
#ifndef UNIT_FAKE_MACHINE_H
#define UNIT_FAKE_MACHINE_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "tests/fake/nvml.h"

#define MIB ((size_t)1 << 20)

#define DRIVER_FUNCTIONS(X)                                                                                  \
        X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuGetErrorString) X(cuGetProcAddress_v2) X(cuDeviceGetCount)          \
        X(cuDeviceGet) X(cuDeviceGetName) X(cuDeviceGetUuid_v2) X(cuDeviceTotalMem_v2) X(cuDeviceGetAttribute)                     \
        X(cuDeviceCanAccessPeer) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease_v2) X(cuDevicePrimaryCtxGetState)          \
        X(cuCtxCreate_v4) X(cuCtxDestroy_v2) X(cuCtxGetCurrent) X(cuCtxSetCurrent) X(cuCtxPushCurrent_v2) X(cuCtxPopCurrent_v2)      \
        X(cuCtxGetDevice) X(cuCtxSynchronize) X(cuMemGetAllocationGranularity) X(cuMemCreate) X(cuMemRelease)                       \
        X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle) X(cuMemGetAllocationPropertiesFromHandle)                \
        X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess) X(cuMemGetAccess) X(cuMemAlloc_v2)      \
        X(cuMemFree_v2) X(cuMemGetInfo_v2) X(cuMemGetAddressRange_v2) X(cuIpcGetMemHandle) X(cuIpcOpenMemHandle_v2)                  \
        X(cuIpcCloseMemHandle) X(cuPointerGetAttribute) X(cuMemcpyHtoD_v2) X(cuMemcpyDtoH_v2) X(cuMemcpyDtoD_v2) X(cuMemsetD8_v2)  \
        X(cuMemcpyHtoDAsync_v2) X(cuMemcpyDtoHAsync_v2) X(cuMemcpyDtoDAsync_v2) X(cuMemsetD8Async) X(cuMemsetD32_v2)                 \
        X(cuMemsetD32Async) X(cuMemHostAlloc) X(cuMemFreeHost) X(cuCtxGetStreamPriorityRange) X(cuStreamCreate)                     \
        X(cuStreamCreateWithPriority) X(cuStreamDestroy_v2) X(cuStreamSynchronize) X(cuStreamQuery) X(cuStreamGetCtx)               \
        X(cuStreamWaitEvent) X(cuStreamWaitValue32_v2) X(cuStreamWaitValue64_v2) X(cuStreamWriteValue32_v2)                         \
        X(cuStreamWriteValue64_v2) X(cuStreamBatchMemOp_v2) X(cuLaunchHostFunc) X(cuEventCreate) X(cuEventDestroy_v2)              \
        X(cuEventRecord) X(cuEventQuery) X(cuEventSynchronize)
#define RUNTIME_FUNCTIONS(X)                                                                                 \
        X(cudaGetDeviceCount) X(cudaGetDevice) X(cudaSetDevice) X(cudaDeviceSynchronize) X(cudaDeviceReset) X(cudaMalloc)            \
        X(cudaFree) X(cudaMemcpy) X(cudaMemset) X(cudaIpcGetMemHandle) X(cudaIpcOpenMemHandle) X(cudaIpcCloseMemHandle)              \
        X(cudaGetErrorName) X(cudaGetErrorString) X(cudaGetLastError) X(cudaPeekAtLastError) X(cudaRuntimeGetVersion)               \
        X(cudaDriverGetVersion)
#define NVML_FUNCTIONS(X)                                                                                    \
        X(nvmlInit_v2) X(nvmlShutdown) X(nvmlErrorString) X(nvmlSystemGetDriverVersion) X(nvmlDeviceGetCount_v2)                    \
        X(nvmlDeviceGetHandleByIndex_v2) X(nvmlDeviceGetHandleByUUID) X(nvmlDeviceGetUUID) X(nvmlDeviceGetName)                     \
        X(nvmlDeviceGetMemoryInfo) X(nvmlDeviceGetMemoryInfo_v2) X(nvmlDeviceGetVirtualizationMode)

#define MEMBER(name) __typeof__(&name) name;
extern struct gpu {
        DRIVER_FUNCTIONS(MEMBER) RUNTIME_FUNCTIONS(MEMBER) NVML_FUNCTIONS(MEMBER)
} gpu;
#undef MEMBER

/* For children, in which nothing may be asserted: what failed is printed, and the function returns 1. */
#define TRY(condition)                                                                                       \
        do {                                                                                                 \
                if (!(condition)) {                                                                          \
                        fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                      \
                        return 1;                                                                            \
                }                                                                                            \
        } while (0)

/* A new machine with this script, in the environment; gone, with its state, after machine_end(). */
void machine_start(const char *script);
void machine_script(const char *script); /* from now on */
void machine_end(void);
const char *machine_file(const char *name); /* a path of the test's own; the last result is overwritten */

/* Loads the libraries into this process; false, with a message, when one is not there. */
bool machine_load(void);
bool machine_load_runtime_alone(void);

/* How often the log has such text. */
int machine_logged(const char *text);

/* MiB in use on a device by NVML, which machine_load() has initialised; -1 when it cannot tell. */
int machine_used(unsigned device);

/* A VMM allocation with a descriptor; the descriptor alone; and what a descriptor refers to, mapped. */
CUresult vmm_create(size_t size, int ordinal, CUmemGenericAllocationHandle *ret);
CUresult vmm_export(size_t size, int ordinal, int *ret_fd);
CUresult vmm_map(CUmemGenericAllocationHandle handle, size_t size, int ordinal, CUmemAccess_flags access, CUdeviceptr *ret);
CUresult vmm_import(int fd, size_t size, int ordinal, CUmemAccess_flags access, CUdeviceptr *ret);
CUresult vmm_unmap(CUdeviceptr pointer, size_t size);

/* The first context of this thread. */
CUresult context_use(int ordinal);

/* Descriptors over a child's talk_fd. */
int send_fd(int talk_fd, int fd);
int receive_fd(int talk_fd);

#endif
