/* SPDX-License-Identifier: Apache-2.0 */
/* Fences in the memory of a GPU: stream memory operations, or waiting here where there are none. Any thread enters. Never waits for the
 * program's streams but where the GPU leaves no choice. */
#include <time.h>

#include "cuda_context.h"
#include "cuda_side.h"
#include "cuda_stream.h"
#include "deadline.h"
#include "error.h"
#include "fence.h"

#define FIRST_LOOKS 16 /* without a pause: each takes the time of a copy */
#define PAUSE_USEC_MAX 1000

static const char cannot_signal[] = "The fence cannot be signalled by the stream", cannot_wait[] = "The stream cannot wait for the fence";

static CUdeviceptr address(const gpuipc_fence *fence) {
        return (CUdeviceptr)(uintptr_t)fence->word;
}

static int device_open(gpuipc_fence *fence, gpuipc_error *ret_error) {
        const struct cuda *cuda;
        int r = cuda_get(&cuda, ret_error);

        if (r == GPUIPC_OK)
                r = cuda_side_get(cuda, cuda_device_at(cuda, fence->mapping->accessor), &fence->side, ret_error);
        if (r == GPUIPC_OK)
                fence->synchronous = !fence->side->memops;
        return r;
}

static void device_close(gpuipc_fence *fence) {
        cuda_side_put(fence->side);
        fence->side = NULL;
}

static int device_load(const gpuipc_fence *fence, uint64_t *ret_value, gpuipc_error *ret_error) {
        return cuda_side_read(fence->side, address(fence), ret_value, ret_error);
}

static int device_store(const gpuipc_fence *fence, uint64_t value, gpuipc_error *ret_error) {
        return cuda_side_write(fence->side, address(fence), value, ret_error);
}

/* The first looks are counted in the same number, below the pauses. */
static void device_rest(const gpuipc_fence *fence, uint64_t seen, int64_t deadline, unsigned *pause_usec) {
        int64_t left = deadline == DEADLINE_NONE ? PAUSE_USEC_MAX : deadline - clock_usec();
        struct timespec pause;

        (void)fence, (void)seen;
        if (*pause_usec < FIRST_LOOKS) {
                ++*pause_usec;
                return;
        }
        *pause_usec = *pause_usec * 2 > PAUSE_USEC_MAX ? PAUSE_USEC_MAX : *pause_usec * 2;
        pause = usec_to_timespec(left < (int64_t)*pause_usec ? left : (int64_t)*pause_usec);
        (void)nanosleep(&pause, NULL);
}

/* ---- streams ---------------------------------------------------------------------------------------------- */

/* The stream's context is current, and of the GPU that the word is mapped for. */
static int enter(const gpuipc_fence *fence, CUstream stream, const char *what, struct cuda_context *ret, gpuipc_error *ret_error) {
        const struct cuda_side *side = fence->side;
        const struct cuda *cuda = side->cuda;
        const struct cuda_device *device;
        CUdevice ordinal = 0;
        CUresult result;
        int r = cuda_stream_enter(cuda, stream, side->context, what, ret, ret_error);

        if (r != GPUIPC_OK)
                return r;
        /* That of the word's GPU; others may be as well. */
        if (ret->current == side->context)
                return GPUIPC_OK;
        result = cuda->driver.cuCtxGetDevice(&ordinal);
        if (result == CUDA_SUCCESS && ordinal == side->device->ordinal)
                return GPUIPC_OK;
        cuda_context_leave(cuda, ret, false);
        if (result != CUDA_SUCCESS)
                return cuda_driver_refused(&cuda->driver, result, what, "cuCtxGetDevice()", DOCTOR_DRIVER_REFUSES, "", ret_error);
        device = cuda_device_at(cuda, ordinal);
        return error_set(ret_error, GPUIPC_ERROR_INVALID_PARAMETER, 0, "stream",
                         "The parameter 'stream' is not valid: it is one of %s, and the buffer is mapped for %s. Map it, by a lease of "
                         "its own, with a context of the stream's GPU current.", device ? device->name : "another GPU", side->device->name);
}

static int refused(const gpuipc_fence *fence, CUresult result, const char *what, const char *call, gpuipc_error *ret_error) {
        bool unsupported = result == CUDA_ERROR_NOT_SUPPORTED;
        const char *remedy = "";

        if (fence->mapping->peer)
                remedy = "The fence lies on another GPU, which this driver may not let a stream wait for: put it on the GPU of who waits.";
        else if (unsupported)
                remedy = "This GPU is said to have 64-bit stream memory operations: does something stand between, as MPS or a vGPU?";
        return cuda_driver_refused(&fence->side->cuda->driver, result, what, call,
                                   unsupported ? DOCTOR_NO_STREAM_MEMOPS : DOCTOR_DRIVER_REFUSES, remedy, ret_error);
}

/* ---- steps ------------------------------------------------------------------------------------------------ */

static unsigned wait_flags(const gpuipc_fence *fence) {
        return CU_STREAM_WAIT_VALUE_GEQ | (fence->side->flush ? CU_STREAM_WAIT_VALUE_FLUSH : 0);
}

static CUresult step_alone(const struct fence_step *step, CUstream stream, const char **ret_call) {
        const struct cuda_driver *driver = &step->fence->side->cuda->driver;

        *ret_call = step->signals ? "cuStreamWriteValue64()" : "cuStreamWaitValue64()";
        return step->signals ? driver->cuStreamWriteValue64(stream, address(step->fence), step->value, CU_STREAM_WRITE_VALUE_DEFAULT)
                             : driver->cuStreamWaitValue64(stream, address(step->fence), step->value, wait_flags(step->fence));
}

static CUresult steps_together(const struct fence_step *steps, size_t n, CUstream stream, const char **ret_call) {
        CUstreamBatchMemOpParams operations[FENCE_STEPS_MAX];

        for (size_t i = 0; i < n; i++) {
                CUdeviceptr at = address(steps[i].fence);

                operations[i] = (CUstreamBatchMemOpParams){ 0 };
                if (steps[i].signals) {
                        operations[i].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
                        operations[i].writeValue.address = at;
                        operations[i].writeValue.value64 = steps[i].value;
                        operations[i].writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
                } else {
                        operations[i].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
                        operations[i].waitValue.address = at;
                        operations[i].waitValue.value64 = steps[i].value;
                        operations[i].waitValue.flags = wait_flags(steps[i].fence);
                }
        }
        *ret_call = "cuStreamBatchMemOp()";
        return steps[0].fence->side->cuda->driver.cuStreamBatchMemOp(stream, (unsigned)n, operations, 0);
}

/* Several in one call of the driver's, which costs about as much as one of them. */
static int device_stream_steps(const struct fence_step *steps, size_t n, void *stream, gpuipc_error *ret_error) {
        const struct cuda_side *side = steps[0].fence->side;
        const char *what = steps[n - 1].signals ? cannot_signal : cannot_wait, *call = "";
        bool together = n > 1 && side->cuda->driver.cuStreamBatchMemOp;
        struct cuda_context context;
        CUresult result = CUDA_SUCCESS;
        int r = enter(steps[0].fence, stream, what, &context, ret_error);

        if (r != GPUIPC_OK)
                return r;
        if (together)
                result = steps_together(steps, n, stream, &call);
        for (size_t i = 0; !together && result == CUDA_SUCCESS && i < n; i++)
                result = step_alone(&steps[i], stream, &call);
        cuda_context_leave(side->cuda, &context, false);
        return result == CUDA_SUCCESS ? GPUIPC_OK : refused(steps[0].fence, result, what, call, ret_error);
}

static int device_stream_signal(gpuipc_fence *fence, void *stream, uint64_t value, gpuipc_error *ret_error) {
        struct cuda_context context;
        CUresult result;
        int r;

        if (!fence->synchronous)
                return device_stream_steps(&(struct fence_step){ .fence = fence, .value = value, .signals = true }, 1, stream, ret_error);
        r = enter(fence, stream, cannot_signal, &context, ret_error);
        if (r != GPUIPC_OK)
                return r;
        result = fence->side->cuda->driver.cuStreamSynchronize(stream);
        cuda_context_leave(fence->side->cuda, &context, false);
        if (result != CUDA_SUCCESS)
                return refused(fence, result, cannot_signal, "cuStreamSynchronize()", ret_error);
        return device_store(fence, value, ret_error);
}

const struct fence_kind fence_cuda = { .open = device_open, .close = device_close, .load = device_load, .store = device_store,
                                       .rest = device_rest, .stream_signal = device_stream_signal,
                                       .stream_steps = device_stream_steps };
