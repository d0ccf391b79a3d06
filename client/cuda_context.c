/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts, borrowed from the caller or held. Any thread enters. Never replaces a context that the caller has made current,
 * never leaves one of its own current, and never synchronises. */
#include "cuda_context.h"

static int push_primary(const struct cuda *cuda, const struct cuda_device *device, struct cuda_context *ret,
                        gpuipc_error *ret_error) {
        const struct cuda_driver *driver = &cuda->driver;
        CUcontext context = NULL;
        CUresult result = driver->cuDevicePrimaryCtxRetain(&context, device->ordinal);
        if (result != CUDA_SUCCESS)
                return cuda_driver_error(driver, result, "cuDevicePrimaryCtxRetain()", DOCTOR_DRIVER_REFUSES,
                                         "Is the GPU in exclusive mode and in use?", ret_error);
        result = driver->cuCtxPushCurrent(context);
        if (result != CUDA_SUCCESS) {
                cuda_context_release(cuda, device->ordinal);
                return cuda_driver_error(driver, result, "cuCtxPushCurrent()", DOCTOR_DRIVER_REFUSES, "", ret_error);
        }
        *ret = (struct cuda_context){ .device = device, .pushed = context, .retained = true };
        return GPUIPC_OK;
}

int cuda_context_enter(const struct cuda *cuda, const struct cuda_device *device, struct cuda_context *ret,
                       gpuipc_error *ret_error) {
        CUcontext context = NULL;
        CUresult result = cuda->driver.cuCtxGetCurrent(&context);

        if (result != CUDA_SUCCESS)
                return cuda_driver_error(&cuda->driver, result, "cuCtxGetCurrent()", DOCTOR_DRIVER_REFUSES, "", ret_error);
        if (!context)
                return push_primary(cuda, device, ret, ret_error);
        *ret = (struct cuda_context){ .device = device };
        return GPUIPC_OK;
}

int cuda_context_enter_own(const struct cuda *cuda, const struct cuda_device *device, struct cuda_context *ret,
                           gpuipc_error *ret_error) {
        CUdevice current;

        if (cuda->driver.cuCtxGetDevice(&current) != CUDA_SUCCESS || current != device->ordinal)
                return push_primary(cuda, device, ret, ret_error);
        *ret = (struct cuda_context){ .device = device };
        return GPUIPC_OK;
}

int cuda_context_enter_this(const struct cuda *cuda, CUcontext context, const char *what, struct cuda_context *ret,
                            gpuipc_error *ret_error) {
        const char *call = "cuCtxGetCurrent()";
        CUcontext current = NULL;
        CUresult result = cuda->driver.cuCtxGetCurrent(&current);

        if (result == CUDA_SUCCESS && current != context) {
                call = "cuCtxPushCurrent()";
                result = cuda->driver.cuCtxPushCurrent(context);
        }
        if (result != CUDA_SUCCESS)
                return cuda_driver_refused(&cuda->driver, result, what, call, DOCTOR_DRIVER_REFUSES, "", ret_error);
        *ret = (struct cuda_context){ .pushed = current != context ? context : NULL, .current = context };
        return GPUIPC_OK;
}

void cuda_context_leave(const struct cuda *cuda, struct cuda_context *context, bool keep) {
        CUcontext popped;

        if (context->pushed)
                (void)cuda->driver.cuCtxPopCurrent(&popped);
        context->pushed = NULL;
        if (context->retained && !keep) {
                cuda_context_release(cuda, context->device->ordinal);
                context->retained = false;
        }
}

void cuda_context_release(const struct cuda *cuda, int ordinal) {
        (void)cuda->driver.cuDevicePrimaryCtxRelease(ordinal);
}
