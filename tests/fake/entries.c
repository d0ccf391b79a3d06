/* SPDX-License-Identifier: Apache-2.0 */
/* The names of all entry points that can fail, for the script to be checked against. Constant. */
#include <fnmatch.h>
#include <stddef.h>

#include "script.h"

static const char *const entries[] = {
        /* the driver */
        "cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString", "cuGetProcAddress", "cuGetProcAddress_v2",
        "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetUuid", "cuDeviceGetUuid_v2", "cuDeviceTotalMem_v2",
        "cuDeviceGetAttribute", "cuDeviceGetPCIBusId", "cuDeviceCanAccessPeer", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2",
        "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxGetState",
        "cuCtxCreate_v2", "cuCtxCreate_v4", "cuCtxDestroy_v2", "cuCtxGetCurrent", "cuCtxSetCurrent", "cuCtxPushCurrent_v2",
        "cuCtxPopCurrent_v2", "cuCtxGetDevice", "cuCtxSynchronize", "cuMemGetAllocationGranularity", "cuMemCreate", "cuMemRelease",
        "cuMemRetainAllocationHandle", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle",
        "cuMemGetAllocationPropertiesFromHandle", "cuMemAddressReserve", "cuMemAddressFree", "cuMemMap", "cuMemUnmap",
        "cuMemSetAccess", "cuMemGetAccess", "cuMemAlloc_v2", "cuMemFree_v2", "cuMemGetInfo_v2", "cuMemGetAddressRange_v2",
        "cuIpcGetMemHandle", "cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle", "cuPointerGetAttribute",
        "cuPointerGetAttributes", "cuMemcpy", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuMemcpyDtoD_v2", "cuMemcpyAsync",
        "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2", "cuMemsetD8_v2", "cuMemsetD8Async",
        "cuMemsetD32_v2", "cuMemsetD32Async", "cuMemHostAlloc", "cuMemAllocHost_v2", "cuMemFreeHost", "cuCtxGetStreamPriorityRange",
        "cuStreamCreate", "cuStreamCreateWithPriority", "cuStreamDestroy_v2", "cuStreamSynchronize", "cuStreamQuery", "cuStreamGetCtx",
        "cuStreamWaitEvent", "cuStreamWaitValue32_v2", "cuStreamWaitValue64_v2", "cuStreamWriteValue32_v2", "cuStreamWriteValue64_v2",
        "cuStreamBatchMemOp_v2",
        "cuLaunchHostFunc", "cuEventCreate", "cuEventDestroy_v2", "cuEventRecord", "cuEventQuery", "cuEventSynchronize",
        /* the runtime */
        "cudaGetDeviceCount", "cudaGetDevice", "cudaSetDevice", "cudaDeviceSynchronize", "cudaDeviceReset", "cudaDeviceCanAccessPeer",
        "cudaDeviceGetAttribute", "cudaMalloc", "cudaFree", "cudaMemGetInfo", "cudaMemcpy", "cudaMemset", "cudaIpcGetMemHandle",
        "cudaIpcOpenMemHandle", "cudaIpcCloseMemHandle", "cudaRuntimeGetVersion", "cudaDriverGetVersion",
        /* NVML */
        "nvmlInit", "nvmlInit_v2", "nvmlShutdown", "nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion_v2",
        "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetUUID",
        "nvmlDeviceGetName", "nvmlDeviceGetIndex", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetVirtualizationMode", "nvmlDeviceIsMigDeviceHandle", "nvmlDeviceGetMigMode",
};

bool entry_known(const char *pattern) {
        for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++)
                if (fnmatch(pattern, entries[i], 0) == 0)
                        return true;
        return false;
}
