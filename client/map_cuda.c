/* SPDX-License-Identifier: Apache-2.0 */
/* Memory on a GPU behind a descriptor: imported, given an address range of exactly its size, opened to one GPU, and the range given
 * back. Any thread enters. Never keeps the driver's handle, never synchronises, and never calls the driver in a forked child. */
#include "cuda_context.h"
#include "cuda_copy.h"
#include "error.h"
#include "fence.h"
#include "map.h"

/* A mapping on its way. */
struct window {
        const struct cuda *cuda;
        const struct cuda_device *device; /* for whom */
        const struct map_request *request;
        CUmemGenericAllocationHandle handle; /* 0: none */
        CUdeviceptr base;                    /* 0: no range */
        size_t n;
        bool mapped, peer;
};

static CUmemLocation location_of(const struct cuda_device *device) {
        return (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->ordinal };
}

static int cannot(gpuipc_error *ret_error, const char *why) {
        return error_set(ret_error, GPUIPC_ERROR_MAP, 0, NULL, "The buffer cannot be mapped: %s.", why);
}

/* Where the memory is another GPU's, that is the likely cause of whatever fails. */
static int refused(const struct window *window, CUresult result, const char *call, enum doctor_code code,
                   const char *remedy, gpuipc_error *ret_error) {
        const struct cuda *cuda = window->cuda;

        if (!cuda_driver_result_speaks(result) && cuda_device_find(cuda, window->request->device) != window->device)
                return cuda_device_unreachable(cuda, window->device, window->request->device, result, call, ret_error);
        return cuda_driver_error(&cuda->driver, result, call, code, remedy, ret_error);
}

/* ---- the steps -------------------------------------------------------------------------------------------- */

/* The daemon's figures, in whole granules. What the memory really has, cuMemMap() checks. */
static int window_measure(struct window *window, gpuipc_error *ret_error) {
        const struct map_request *request = window->request;
        CUmemAllocationProp properties = { .type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = location_of(window->device),
                                           .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR };
        size_t granule = 0, n = (size_t)(request->offset + request->size);
        CUresult result = window->cuda->driver.cuMemGetAllocationGranularity(&granule, &properties,
                                                                             CU_MEM_ALLOC_GRANULARITY_MINIMUM);

        if (result == CUDA_SUCCESS && granule == 0)
                result = CUDA_ERROR_NOT_SUPPORTED;
        if (result != CUDA_SUCCESS)
                return cuda_driver_error(&window->cuda->driver, result, "cuMemGetAllocationGranularity()",
                                         DOCTOR_DRIVER_REFUSES, "Does this GPU have virtual memory management?", ret_error);
        if (n < (size_t)request->allocated)
                n = (size_t)request->allocated;
        window->n = (n + granule - 1) / granule * granule;
        return GPUIPC_OK;
}

/* Whose memory it really is. The driver knows it by its ordinal here, or as that of no visible GPU. */
static int window_check_owner(struct window *window, gpuipc_error *ret_error) {
        const struct cuda *cuda = window->cuda;
        const struct cuda_device *named = cuda_device_find(cuda, window->request->device);
        CUmemAllocationProp properties = { 0 };
        CUresult result = cuda->driver.cuMemGetAllocationPropertiesFromHandle(&properties, window->handle);
        bool same;

        if (result != CUDA_SUCCESS)
                return refused(window, result, "cuMemGetAllocationPropertiesFromHandle()", DOCTOR_HANDLE_REFUSED, "", ret_error);
        if (properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
                return cannot(ret_error, "its memory is not on a GPU, as the daemon says");
        same = named ? properties.location.id == named->ordinal : properties.location.id < 0;
        if (!same)
                return cannot(ret_error, "its memory is on another GPU than the daemon says");
        window->peer = properties.location.id != window->device->ordinal;
        return GPUIPC_OK;
}

static int window_import(struct window *window, gpuipc_error *ret_error) {
        CUresult result = window->cuda->driver.cuMemImportFromShareableHandle(
                &window->handle, (void *)(uintptr_t)window->request->fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

        if (result != CUDA_SUCCESS) {
                window->handle = 0;
                return refused(window, result, "cuMemImportFromShareableHandle()", DOCTOR_HANDLE_REFUSED,
                               "Are this process's driver and the daemon's the same, and is its GPU's device node here?",
                               ret_error);
        }
        return window_check_owner(window, ret_error);
}

static int window_map(struct window *window, gpuipc_error *ret_error) {
        const struct cuda_driver *driver = &window->cuda->driver;
        CUmemAccessDesc access = { .location = location_of(window->device),
                                   .flags = window->request->access == GPUIPC_RO ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                                                                 : CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
        CUresult result = driver->cuMemAddressReserve(&window->base, window->n, 0, 0, 0);

        if (result != CUDA_SUCCESS) {
                window->base = 0;
                return cuda_driver_error(driver, result, "cuMemAddressReserve()", DOCTOR_DRIVER_REFUSES, "", ret_error);
        }
        result = driver->cuMemMap(window->base, window->n, 0, window->handle, 0);
        if (result != CUDA_SUCCESS)
                return refused(window, result, "cuMemMap()", DOCTOR_HANDLE_REFUSED,
                               "Is the memory smaller than the daemon says?", ret_error);
        window->mapped = true;
        result = driver->cuMemSetAccess(window->base, window->n, &access, 1);
        if (result != CUDA_SUCCESS)
                return refused(window, result, "cuMemSetAccess()", DOCTOR_DRIVER_REFUSES, "", ret_error);
        return GPUIPC_OK;
}

static void window_give_back(const struct cuda *cuda, CUdeviceptr base, size_t n, bool mapped) {
        if (mapped)
                (void)cuda->driver.cuMemUnmap(base, n);
        if (base)
                (void)cuda->driver.cuMemAddressFree(base, n);
}

/* The mapping itself keeps the memory; the handle goes whatever became of it. */
static int window_make(struct window *window, gpuipc_error *ret_error) {
        int r = window_measure(window, ret_error);

        if (r == GPUIPC_OK)
                r = window_import(window, ret_error);
        if (r == GPUIPC_OK)
                r = window_map(window, ret_error);
        if (window->handle)
                (void)window->cuda->driver.cuMemRelease(window->handle);
        if (r != GPUIPC_OK)
                window_give_back(window->cuda, window->base, window->n, window->mapped);
        return r;
}

/* ---- the kind --------------------------------------------------------------------------------------------- */

static int cuda_aim(const struct map_request *request, struct mapping *mapping, gpuipc_error *ret_error) {
        const struct cuda_device *device;
        const struct cuda *cuda;
        int r;

        if (request->fd < 0)
                return cannot(ret_error, "its handle has no descriptor");
        r = cuda_get(&cuda, ret_error);
        if (r == GPUIPC_OK)
                r = cuda_device_accessing(cuda, request->device, &device, ret_error);
        if (r == GPUIPC_OK)
                r = cuda_device_check_peer(cuda, device, request->device, ret_error);
        if (r == GPUIPC_OK)
                mapping->accessor = device->ordinal;
        return r;
}

static int cuda_map(const struct map_request *request, struct mapping *mapping, gpuipc_error *ret_error) {
        struct window window = { .request = request };
        struct cuda_context context;
        int r = cuda_get(&window.cuda, ret_error);

        if (r != GPUIPC_OK)
                return r;
        window.device = cuda_device_at(window.cuda, mapping->accessor);
        r = cuda_context_enter(window.cuda, window.device, &context, ret_error);
        if (r != GPUIPC_OK)
                return r;
        r = window_make(&window, ret_error);
        cuda_context_leave(window.cuda, &context, r == GPUIPC_OK);
        if (r != GPUIPC_OK)
                return r;
        mapping->base = (void *)(uintptr_t)window.base;
        mapping->n_base = window.n;
        mapping->pointer = (void *)(uintptr_t)(window.base + (CUdeviceptr)request->offset);
        mapping->peer = window.peer;
        mapping->retained = context.retained;
        return GPUIPC_OK;
}

static void cuda_unmap(struct mapping *mapping) {
        const struct cuda *cuda;

        if (cuda_get(&cuda, NULL) != GPUIPC_OK) /* in a forked child */
                return;
        window_give_back(cuda, (CUdeviceptr)(uintptr_t)mapping->base, mapping->n_base, true);
        if (mapping->retained)
                cuda_context_release(cuda, mapping->accessor);
}

const struct map_kind map_cuda = { .name = "cuda-fd", .aim = cuda_aim, .map = cuda_map, .copy = cuda_copy, .unmap = cuda_unmap,
                                   .fences = &fence_cuda };
