/* SPDX-License-Identifier: Apache-2.0 */
/* Whose context a stream of the program's is in. Any thread enters. The caller's current context is as before after leaving. */
#include "cuda_stream.h"

static bool is_default(CUstream stream) {
        return !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

int cuda_stream_enter(const struct cuda *cuda, CUstream stream, CUcontext otherwise, const char *what, struct cuda_context *ret,
                      gpuipc_error *ret_error) {
        const struct cuda_driver *driver = &cuda->driver;
        const char *call = is_default(stream) ? "cuCtxGetCurrent()" : "cuStreamGetCtx()";
        CUcontext context = NULL;
        CUresult result = is_default(stream) ? driver->cuCtxGetCurrent(&context) : driver->cuStreamGetCtx(stream, &context);

        if (result == CUDA_SUCCESS && !context)
                context = otherwise;
        if (result == CUDA_SUCCESS && !context)
                result = CUDA_ERROR_INVALID_CONTEXT;
        if (result != CUDA_SUCCESS)
                return cuda_driver_refused(driver, result, what, call, DOCTOR_DRIVER_REFUSES,
                                           is_default(stream) ? "A default stream is that of the current context."
                                                              : "Is the stream still there?", ret_error);
        return cuda_context_enter_this(cuda, context, what, ret, ret_error);
}

int cuda_stream_settle(void *stream, CUcontext otherwise, gpuipc_error *ret_error) {
        static const char what[] = "The fence cannot be signalled";
        struct cuda_context context;
        const struct cuda *cuda;
        CUresult result;
        int r = cuda_get(&cuda, ret_error);

        if (r == GPUIPC_OK)
                r = cuda_stream_enter(cuda, stream, otherwise, what, &context, ret_error);
        if (r != GPUIPC_OK)
                return r;
        result = cuda->driver.cuStreamSynchronize(stream);
        cuda_context_leave(cuda, &context, false);
        if (result != CUDA_SUCCESS)
                return cuda_driver_refused(&cuda->driver, result, what, "cuStreamSynchronize()", DOCTOR_DRIVER_REFUSES, "", ret_error);
        return GPUIPC_OK;
}
