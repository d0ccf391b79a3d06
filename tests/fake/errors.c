/* SPDX-License-Identifier: Apache-2.0 */
/* Names and texts of errors. Constant. */
#include "errors.h"

#include <stddef.h>

static const struct error_text errors[] = {
        { 0, "CUDA_SUCCESS", "cudaSuccess", "no error" },
        { 1, "CUDA_ERROR_INVALID_VALUE", "cudaErrorInvalidValue", "invalid argument" },
        { 2, "CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation", "out of memory" },
        { 3, "CUDA_ERROR_NOT_INITIALIZED", "cudaErrorInitializationError", "initialization error" },
        { 4, "CUDA_ERROR_DEINITIALIZED", "cudaErrorCudartUnloading", "driver shutting down" },
        { 21, NULL, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy" },
        { 35, NULL, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version" },
        { 46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable" },
        { 100, "CUDA_ERROR_NO_DEVICE", "cudaErrorNoDevice", "no CUDA-capable device is detected" },
        { 101, "CUDA_ERROR_INVALID_DEVICE", "cudaErrorInvalidDevice", "invalid device ordinal" },
        { 201, "CUDA_ERROR_INVALID_CONTEXT", "cudaErrorDeviceUninitialized", "invalid device context" },
        { 205, "CUDA_ERROR_MAP_FAILED", "cudaErrorMapBufferObjectFailed", "mapping of buffer object failed" },
        { 206, "CUDA_ERROR_UNMAP_FAILED", "cudaErrorUnmapBufferObjectFailed", "unmapping of buffer object failed" },
        { 214, "CUDA_ERROR_ECC_UNCORRECTABLE", "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered" },
        { 217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "cudaErrorPeerAccessUnsupported",
          "peer access is not supported between these two devices" },
        { 304, "CUDA_ERROR_OPERATING_SYSTEM", "cudaErrorOperatingSystem", "OS call failed or operation not supported on this OS" },
        { 400, "CUDA_ERROR_INVALID_HANDLE", "cudaErrorInvalidResourceHandle", "invalid resource handle" },
        { 401, "CUDA_ERROR_ILLEGAL_STATE", "cudaErrorIllegalState",
          "the operation cannot be performed in the present state" },
        { 500, "CUDA_ERROR_NOT_FOUND", "cudaErrorSymbolNotFound", "named symbol not found" },
        { 600, "CUDA_ERROR_NOT_READY", "cudaErrorNotReady", "device not ready" },
        { 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "cudaErrorIllegalAddress", "an illegal memory access was encountered" },
        { 702, "CUDA_ERROR_LAUNCH_TIMEOUT", "cudaErrorLaunchTimeout", "the launch timed out and was terminated" },
        { 704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "cudaErrorPeerAccessAlreadyEnabled",
          "peer access is already enabled" },
        { 708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "cudaErrorSetOnActiveProcess",
          "cannot set while device is active in this process" },
        { 709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "cudaErrorContextIsDestroyed", "context is destroyed" },
        { 719, "CUDA_ERROR_LAUNCH_FAILED", "cudaErrorLaunchFailure", "unspecified launch failure" },
        { 800, "CUDA_ERROR_NOT_PERMITTED", "cudaErrorNotPermitted", "operation not permitted" },
        { 801, "CUDA_ERROR_NOT_SUPPORTED", "cudaErrorNotSupported", "operation not supported" },
        { 802, "CUDA_ERROR_SYSTEM_NOT_READY", "cudaErrorSystemNotReady", "system not yet initialized" },
        { 803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "cudaErrorSystemDriverMismatch",
          "system has unsupported display driver / cuda driver combination" },
        { 804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "cudaErrorCompatNotSupportedOnDevice",
          "forward compatibility was attempted on non supported HW" },
        { 805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "cudaErrorMpsConnectionFailed",
          "MPS client failed to connect to the MPS control daemon or the MPS server" },
        { 909, "CUDA_ERROR_TIMEOUT", "cudaErrorTimeout", "wait operation timed out" },
        { 999, "CUDA_ERROR_UNKNOWN", "cudaErrorUnknown", "unknown error" },
};

const struct error_text *error_find(int code) {
        for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
                if (errors[i].code == code)
                        return &errors[i];
        return NULL;
}
