/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes of device memory, at once or in a stream. Under the driver's lock. What is wrong from the start is said at once;
 * memory that is gone by the time ends the context. */
#include <stdlib.h>
#include <string.h>

#include "driver.h"

static void *address(CUdeviceptr pointer) {
        return (void *)(uintptr_t)pointer;
}

static CUdeviceptr host(const void *pointer) {
        return (CUdeviceptr)(uintptr_t)pointer;
}

/* ---- what is done ----------------------------------------------------------------------------------------- */

static bool still_there(const struct work *work) {
        int device = stream_context(work->stream)->device;

        return work->n == 0 || ((!work->to_device || range_allows(work->to, work->n, device, ACCESS_WRITE)) &&
                                (!work->from_device || range_allows(work->from, work->n, device, ACCESS_READ)));
}

static CUresult run_copy(struct work *work) {
        if (!still_there(work))
                return CUDA_ERROR_ILLEGAL_ADDRESS;
        memmove(address(work->to), work->bytes ? work->bytes : address(work->from), work->n);
        return CUDA_SUCCESS;
}

static CUresult run_set(struct work *work) {
        if (!still_there(work))
                return CUDA_ERROR_ILLEGAL_ADDRESS;
        if (work->flags == 1)
                memset(address(work->to), (int)work->value, work->n);
        for (size_t i = 0; work->flags == sizeof(unsigned) && i < work->n / sizeof(unsigned); i++)
                ((unsigned *)address(work->to))[i] = (unsigned)work->value;
        return CUDA_SUCCESS;
}

/* ---- what is asked for ------------------------------------------------------------------------------------ */

/* Host memory, or device memory that this device may use so. */
static CUresult usable(CUdeviceptr pointer, size_t n, int device, int access, bool must_be_device) {
        if (n == 0 || (!must_be_device && range_device(pointer) < 0))
                return CUDA_SUCCESS;
        return range_allows(pointer, n, device, access) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static struct work copy_of(CUdeviceptr to, CUdeviceptr from, size_t n) {
        return (struct work){ .run = run_copy, .to = to, .from = from, .n = n, .to_device = range_device(to) >= 0,
                              .from_device = range_device(from) >= 0 };
}

static CUresult check(const struct work *work, int device, bool to_device, bool from_device) {
        CUresult result = usable(work->to, work->n, device, ACCESS_WRITE, to_device);
        return result == CUDA_SUCCESS ? usable(work->from, work->n, device, ACCESS_READ, from_device) : result;
}

static CUresult copy(CUdeviceptr to, bool to_device, CUdeviceptr from, bool from_device, size_t n) {
        struct work work = copy_of(to, from, n);

        if (!context_current())
                return context_error();
        CUresult result = check(&work, context_device(), to_device, from_device);
        return result == CUDA_SUCCESS ? stream_run(&work) : result;
}

/* Of memory that is not the driver's the bytes are taken at once, and to such memory they are waited for, as the driver does. */
static CUresult copy_async(CUdeviceptr to, bool to_device, CUdeviceptr from, bool from_device, size_t n, CUstream handle) {
        struct work work = copy_of(to, from, n);
        struct stream *stream;
        CUresult result = stream_find(handle, &stream);

        if (result == CUDA_SUCCESS)
                result = check(&work, stream_context(stream)->device, to_device, from_device);
        if (result != CUDA_SUCCESS || n == 0)
                return result;
        if (!work.from_device && !pinned(from)) {
                work.bytes = malloc(n);
                if (!work.bytes)
                        return CUDA_ERROR_OUT_OF_MEMORY;
                memcpy(work.bytes, address(from), n);
        }
        result = stream_push(stream, &work);
        if (result == CUDA_SUCCESS && !work.to_device && !pinned(to))
                result = stream_drain(stream);
        return result;
}

EXPORT CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t n) {
        return DRIVER_CALL(context_device(), copy(dst, false, src, false, n));
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream) {
        return DRIVER_CALL(stream_device(stream), copy_async(dst, false, src, false, n, stream));
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t n) {
        return DRIVER_CALL(range_device(dst), copy(dst, true, host(src), false, n));
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t n, CUstream stream) {
        return DRIVER_CALL(range_device(dst), copy_async(dst, true, host(src), false, n, stream));
}

EXPORT CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t n) {
        return DRIVER_CALL(range_device(src), copy(host(dst), false, src, true, n));
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t n, CUstream stream) {
        return DRIVER_CALL(range_device(src), copy_async(host(dst), false, src, true, n, stream));
}

EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t n) {
        return DRIVER_CALL(range_device(dst), copy(dst, true, src, true, n));
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream) {
        return DRIVER_CALL(range_device(dst), copy_async(dst, true, src, true, n, stream));
}

/* `width` bytes at a time; n counts bytes. */
static CUresult set(CUdeviceptr to, unsigned value, unsigned width, size_t n) {
        struct work work = { .run = run_set, .to = to, .n = n, .value = value, .flags = width, .to_device = true };

        if (!context_current())
                return context_error();
        CUresult result = to % width ? CUDA_ERROR_INVALID_VALUE : usable(to, n, context_device(), ACCESS_WRITE, true);
        return result == CUDA_SUCCESS ? stream_run(&work) : result;
}

static CUresult set_async(CUdeviceptr to, unsigned value, unsigned width, size_t n, CUstream handle) {
        struct work work = { .run = run_set, .to = to, .n = n, .value = value, .flags = width, .to_device = true };
        struct stream *stream;
        CUresult result = stream_find(handle, &stream);

        if (result == CUDA_SUCCESS)
                result = to % width ? CUDA_ERROR_INVALID_VALUE :
                                      usable(to, n, stream_context(stream)->device, ACCESS_WRITE, true);
        return result == CUDA_SUCCESS && n > 0 ? stream_push(stream, &work) : result;
}

EXPORT CUresult cuMemsetD8_v2(CUdeviceptr dst, unsigned char value, size_t n) {
        return DRIVER_CALL(range_device(dst), set(dst, value, 1, n));
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t n, CUstream stream) {
        return DRIVER_CALL(range_device(dst), set_async(dst, value, 1, n, stream));
}

EXPORT CUresult cuMemsetD32_v2(CUdeviceptr dst, unsigned int value, size_t n) {
        return DRIVER_CALL(range_device(dst), set(dst, value, sizeof(value), n * sizeof(value)));
}

EXPORT CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned int value, size_t n, CUstream stream) {
        return DRIVER_CALL(range_device(dst), set_async(dst, value, sizeof(value), n * sizeof(value), stream));
}
