/* SPDX-License-Identifier: Apache-2.0 */
/* Copies through the driver, in a context of the GPU that the memory is mapped for. Any thread enters. The caller's current context is
 * as before afterwards. */
#include "cuda_copy.h"

#include "cuda_context.h"

/* A copy to the device may return while its last part is still on its way, and whoever opens the buffer next is in no stream of ours. */
static int copy_in_context(const struct cuda_driver *driver, CUdeviceptr at, const struct map_copy *copy, gpuipc_error *ret_error) {
        const char *call = copy->to_buffer ? "cuMemcpyHtoD()" : "cuMemcpyDtoH()";
        CUresult result = copy->to_buffer ? driver->cuMemcpyHtoD(at, copy->memory, copy->n)
                                          : driver->cuMemcpyDtoH(copy->memory, at, copy->n);

        if (result == CUDA_SUCCESS && copy->to_buffer) {
                call = "cuStreamSynchronize()";
                result = driver->cuStreamSynchronize(NULL);
        }
        if (result != CUDA_SUCCESS)
                return cuda_driver_error(driver, result, call, DOCTOR_DRIVER_REFUSES, "", ret_error);
        return GPUIPC_OK;
}

int cuda_copy(const struct mapping *mapping, const struct map_copy *copy, gpuipc_error *ret_error) {
        CUdeviceptr at = (CUdeviceptr)(uintptr_t)mapping->pointer + (CUdeviceptr)copy->offset;
        struct cuda_context context;
        const struct cuda *cuda;
        int r = cuda_get(&cuda, ret_error);

        if (r == GPUIPC_OK)
                r = cuda_context_enter_own(cuda, cuda_device_at(cuda, mapping->accessor), &context, ret_error);
        if (r != GPUIPC_OK)
                return r;
        r = copy_in_context(&cuda->driver, at, copy, ret_error);
        cuda_context_leave(cuda, &context, false);
        return r;
}
