/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes of device memory, and what a pointer is. Under the driver's lock. Streams do everything at once, in
 * the caller's thread. */
#include <string.h>

#include "driver.h"

static void *address(CUdeviceptr pointer) {
        return (void *)(uintptr_t)pointer;
}

/* Host memory, or device memory that the current context's device may use so. */
static CUresult usable(CUdeviceptr pointer, size_t n, int access, bool must_be_device) {
        if (!context_current())
                return context_error();
        if (n == 0 || (!must_be_device && range_device(pointer) < 0))
                return CUDA_SUCCESS;
        return range_allows(pointer, n, context_device(), access) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult copy(CUdeviceptr to, bool to_device, CUdeviceptr from, bool from_device, size_t n) {
        CUresult result = usable(to, n, ACCESS_WRITE, to_device);

        if (result == CUDA_SUCCESS)
                result = usable(from, n, ACCESS_READ, from_device);
        if (result == CUDA_SUCCESS)
                memmove(address(to), address(from), n);
        return result;
}

static CUdeviceptr host(const void *pointer) {
        return (CUdeviceptr)(uintptr_t)pointer;
}

EXPORT CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t n) {
        return DRIVER_CALL(context_device(), copy(dst, false, src, false, n));
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream) {
        (void)stream;
        return DRIVER_CALL(context_device(), copy(dst, false, src, false, n));
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t n) {
        return DRIVER_CALL(range_device(dst), copy(dst, true, host(src), false, n));
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t n, CUstream stream) {
        (void)stream;
        return DRIVER_CALL(range_device(dst), copy(dst, true, host(src), false, n));
}

EXPORT CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t n) {
        return DRIVER_CALL(range_device(src), copy(host(dst), false, src, true, n));
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t n, CUstream stream) {
        (void)stream;
        return DRIVER_CALL(range_device(src), copy(host(dst), false, src, true, n));
}

EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t n) {
        return DRIVER_CALL(range_device(dst), copy(dst, true, src, true, n));
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream) {
        (void)stream;
        return DRIVER_CALL(range_device(dst), copy(dst, true, src, true, n));
}

static CUresult set_bytes(CUdeviceptr to, unsigned char value, size_t n) {
        CUresult result = usable(to, n, ACCESS_WRITE, true);
        if (result == CUDA_SUCCESS)
                memset(address(to), value, n);
        return result;
}

EXPORT CUresult cuMemsetD8_v2(CUdeviceptr dst, unsigned char value, size_t n) {
        return DRIVER_CALL(range_device(dst), set_bytes(dst, value, n));
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t n, CUstream stream) {
        (void)stream;
        return DRIVER_CALL(range_device(dst), set_bytes(dst, value, n));
}

static CUresult set_words(CUdeviceptr to, unsigned value, size_t n) {
        CUresult result = usable(to, n * sizeof(value), ACCESS_WRITE, true);

        if (result != CUDA_SUCCESS || to % sizeof(value))
                return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
        for (size_t i = 0; i < n; i++)
                ((unsigned *)address(to))[i] = value;
        return CUDA_SUCCESS;
}

EXPORT CUresult cuMemsetD32_v2(CUdeviceptr dst, unsigned int value, size_t n) {
        return DRIVER_CALL(range_device(dst), set_words(dst, value, n));
}

/* A stream is a context's; there is nothing in it. */
static CUresult stream_create(CUstream *ret) {
        static char streams[64];
        static unsigned n;

        if (!context_current())
                return context_error();
        if (!ret)
                return CUDA_ERROR_INVALID_VALUE;
        *ret = (CUstream)(void *)&streams[n++ % sizeof(streams)];
        return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
        (void)flags;
        return DRIVER_CALL(context_device(), stream_create(stream));
}

static CUresult stream_use(void) {
        return context_current() ? CUDA_SUCCESS : context_error();
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
        (void)stream;
        return DRIVER_CALL(context_device(), stream_use());
}

EXPORT CUresult cuStreamSynchronize(CUstream stream) {
        (void)stream;
        return DRIVER_CALL(context_device(), stream_use());
}

EXPORT CUresult cuStreamQuery(CUstream stream) {
        (void)stream;
        return DRIVER_CALL(context_device(), stream_use());
}

static CUresult attribute_of(const struct range *range, CUpointer_attribute attribute, void *data, CUdeviceptr pointer) {
        const struct part *part = range->kind == RANGE_CLASSIC ? range_part(range, pointer) : NULL;

        switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)data = (CUcontext)(void *)range->context; break;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)data = CU_MEMORYTYPE_DEVICE; break;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)data = pointer; break;
        case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)data = range->tag->name.id; break;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)data = 0; break;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data = process_ordinal(range->tag->name.device); break;
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(unsigned *)data = range->kind == RANGE_CLASSIC; break;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)data = part ? part->start : range->start; break;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)data = (size_t)(part ? part->size : range->size); break;
        case CU_POINTER_ATTRIBUTE_MAPPED: *(unsigned *)data = 1; break;
        case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: *(unsigned long long *)data = (unsigned)range->tag->handle_types; break;
        case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
                if (context_device() < 0)
                        return CUDA_ERROR_INVALID_CONTEXT;
                *(int *)data = range_allows(pointer, 1, context_device(), ACCESS_WRITE) ? ACCESS_WRITE :
                               range_allows(pointer, 1, context_device(), ACCESS_READ)  ? ACCESS_READ :
                                                                                          ACCESS_NONE;
                break;
        default: return CUDA_ERROR_INVALID_VALUE;
        }
        return CUDA_SUCCESS;
}

static CUresult get_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer) {
        const struct range *range = range_find(pointer);

        if (!data || !range)
                return CUDA_ERROR_INVALID_VALUE;
        return attribute_of(range, attribute, data, pointer);
}

EXPORT CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr) {
        return DRIVER_CALL(range_device(ptr), get_attribute(data, attribute, ptr));
}

/* Of host memory, and what cannot be told, 0 is told. */
static CUresult get_attributes(unsigned n, const CUpointer_attribute *attributes, void *const *data, CUdeviceptr pointer) {
        if (!attributes || !data)
                return CUDA_ERROR_INVALID_VALUE;
        for (unsigned i = 0; i < n; i++)
                if (get_attribute(data[i], attributes[i], pointer) != CUDA_SUCCESS)
                        *(unsigned *)data[i] = 0;
        return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerGetAttributes(unsigned int n, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr) {
        return DRIVER_CALL(range_device(ptr), get_attributes(n, attributes, data, ptr));
}
