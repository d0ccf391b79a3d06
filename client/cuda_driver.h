/* SPDX-License-Identifier: Apache-2.0 */
/* libcuda.so.1 as a table of functions, and its errors in words. */
#ifndef CLIENT_CUDA_DRIVER_H
#define CLIENT_CUDA_DRIVER_H

#include <stdbool.h>

#include <cuda.h>

#include "doctor_codes.h"
#include "include/gpuipc.h"

/* The header renames some to their newest form; the table's members and the symbols looked up follow it. */
#define CUDA_FUNCTIONS(X)                                                                                    \
        X(cuInit)                                                                                            \
        X(cuGetErrorName)                                                                                    \
        X(cuGetErrorString)                                                                                  \
        X(cuDeviceGetCount)                                                                                  \
        X(cuDeviceGet)                                                                                       \
        X(cuDeviceGetName)                                                                                   \
        X(cuDeviceGetUuid_v2)                                                                                \
        X(cuDeviceCanAccessPeer)                                                                             \
        X(cuDevicePrimaryCtxRetain)                                                                          \
        X(cuDevicePrimaryCtxRelease)                                                                         \
        X(cuCtxGetCurrent)                                                                                   \
        X(cuCtxGetDevice)                                                                                    \
        X(cuCtxPushCurrent)                                                                                  \
        X(cuCtxPopCurrent)                                                                                   \
        X(cuCtxSynchronize)                                                                                  \
        X(cuMemGetAllocationGranularity)                                                                     \
        X(cuMemImportFromShareableHandle)                                                                    \
        X(cuMemGetAllocationPropertiesFromHandle)                                                            \
        X(cuMemAddressReserve)                                                                               \
        X(cuMemAddressFree)                                                                                  \
        X(cuMemMap)                                                                                          \
        X(cuMemUnmap)                                                                                        \
        X(cuMemSetAccess)                                                                                    \
        X(cuMemRelease)                                                                                      \
        X(cuMemcpyDtoH)                                                                                      \
        X(cuMemcpyHtoD)                                                                                      \
        X(cuStreamSynchronize)                                                                               \
        X(cuMemGetAddressRange)                                                                              \
        X(cuPointerGetAttribute)                                                                             \
        X(cuIpcOpenMemHandle)                                                                                \
        X(cuIpcCloseMemHandle)                                                                               \
        X(cuDeviceGetAttribute)                                                                              \
        X(cuCtxGetStreamPriorityRange)                                                                       \
        X(cuStreamCreateWithPriority)                                                                        \
        X(cuStreamDestroy)                                                                                   \
        X(cuStreamGetCtx)                                                                                    \
        X(cuMemHostAlloc)                                                                                    \
        X(cuMemFreeHost)                                                                                     \
        X(cuMemcpyDtoHAsync)                                                                                 \
        X(cuMemcpyHtoDAsync)

/* NULL in a driver older than 515. */
#define CUDA_FUNCTIONS_OPTIONAL(X)                                                                           \
        X(cuStreamWaitValue64)                                                                               \
        X(cuStreamWriteValue64)                                                                              \
        X(cuStreamBatchMemOp)

struct cuda_driver {
#define CUDA_MEMBER_(function) __typeof__(&function) function;
        CUDA_FUNCTIONS(CUDA_MEMBER_)
        CUDA_FUNCTIONS_OPTIONAL(CUDA_MEMBER_)
#undef CUDA_MEMBER_
};

/* Finds the library and fills the table; initialises nothing. GPUIPC_ERROR_MAP. */
int cuda_driver_load(struct cuda_driver *driver, gpuipc_error *ret_error);

/* cuInit(). GPUIPC_ERROR_MAP, GPUIPC_ERROR_FORKED. */
int cuda_driver_init(const struct cuda_driver *driver, gpuipc_error *ret_error);

/* What the driver answered to `call`, a sentence of what to do about it ("" for none), and the code; where the result tells its own
 * cause, that goes before what is given. GPUIPC_ERROR_MAP. */
int cuda_driver_error(const struct cuda_driver *driver, CUresult result, const char *call, enum doctor_code code,
                      const char *remedy, gpuipc_error *ret_error);

/* The same where it is no mapping that failed: `what` begins the sentence, "The fence cannot be read". */
int cuda_driver_refused(const struct cuda_driver *driver, CUresult result, const char *what, const char *call,
                        enum doctor_code code, const char *remedy, gpuipc_error *ret_error);

/* "CUDA_ERROR_INVALID_VALUE (1): invalid argument" */
#define CUDA_WORDS_SIZE 160
const char *cuda_driver_words(const struct cuda_driver *driver, CUresult result, char words[CUDA_WORDS_SIZE]);

/* Out of memory, or a context lost: the result tells its own cause, whatever was called. */
bool cuda_driver_result_speaks(CUresult result);

/* CUDA was initialised on the other side of a fork(). */
int cuda_driver_forked(gpuipc_error *ret_error);

#endif
