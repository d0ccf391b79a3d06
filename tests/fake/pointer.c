/* SPDX-License-Identifier: Apache-2.0 */
/* What a pointer is. Under the driver's lock. */
#include "driver.h"

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
