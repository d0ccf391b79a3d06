/* SPDX-License-Identifier: Apache-2.0 */
/* Memory on a GPU behind a classic CUDA handle of 64 bytes. Any thread enters. The driver counts opens, and one open is one close. Never
 * closes what went with its context, and never calls the driver in a forked child. */
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base64.h"
#include "cuda_context.h"
#include "cuda_copy.h"
#include "error.h"
#include "fence.h"
#include "map.h"

static int cannot(gpuipc_error *ret_error, const char *why) {
        return error_set(ret_error, GPUIPC_ERROR_MAP, 0, NULL, "The buffer cannot be mapped: %s.", why);
}

/* A context is current whenever the driver is asked, so that "no context" means what it means below. */
static int open_error(const struct cuda *cuda, const struct cuda_device *device, const struct map_request *request,
                      CUresult result, gpuipc_error *ret_error) {
        char remedy[320];

        switch (result) {
        case CUDA_ERROR_INVALID_CONTEXT:
                (void)snprintf(remedy, sizeof(remedy),
                               "The driver takes the handle for this process's own: its pid number, %d, is also the daemon's, in "
                               "another pid namespace. Use a handle of the kind 'cuda-fd', or give this process another number "
                               "(docker run --init, or --pid=host).", (int)getpid());
                return cuda_driver_error(&cuda->driver, result, "cuIpcOpenMemHandle()", DOCTOR_SAME_PID, remedy, ret_error);
        case CUDA_ERROR_INVALID_VALUE:
        case CUDA_ERROR_INVALID_HANDLE:
                return cuda_driver_error(&cuda->driver, result, "cuIpcOpenMemHandle()", DOCTOR_HANDLE_GONE,
                                         "Such a handle ends with its buffer and with the daemon that made it: open the buffer "
                                         "anew.", ret_error);
        default:
                if (!cuda_driver_result_speaks(result) && cuda_device_find(cuda, request->device) != device)
                        return cuda_device_unreachable(cuda, device, request->device, result, "cuIpcOpenMemHandle()",
                                                       ret_error);
                return cuda_driver_error(&cuda->driver, result, "cuIpcOpenMemHandle()", DOCTOR_DRIVER_REFUSES,
                                         "A handle of the kind 'cuda-fd' asks less of the driver.", ret_error);
        }
}

/* The handle opens the whole allocation, however small the buffer in it. */
static int check_size(const struct cuda *cuda, CUdeviceptr base, const struct map_request *request,
                      gpuipc_error *ret_error) {
        CUdeviceptr start = 0;
        size_t n = 0;
        CUresult result = cuda->driver.cuMemGetAddressRange(&start, &n, base);

        if (result != CUDA_SUCCESS)
                return cuda_driver_error(&cuda->driver, result, "cuMemGetAddressRange()", DOCTOR_DRIVER_REFUSES, "", ret_error);
        if (start + n - base < (uint64_t)(request->offset + request->size))
                return cannot(ret_error, "its memory is smaller than the daemon says");
        return GPUIPC_OK;
}

static int ipc_aim(const struct map_request *request, struct mapping *mapping, gpuipc_error *ret_error) {
        const struct cuda_device *device;
        const struct cuda *cuda;
        int r;

        if (!request->ipc)
                return cannot(ret_error, "its handle has no bytes");
        if (request->access == GPUIPC_RO)
                return error_set(ret_error, GPUIPC_ERROR_HANDLE_UNSUPPORTED, 0, "cuda-ipc",
                                 "A classic handle maps for writing only, and read-only was asked for. Open it rw, or have it "
                                 "allocated with the handle 'cuda-fd'. [%s]", doctor_code_id(DOCTOR_CLASSIC_READ_ONLY));
        r = cuda_get(&cuda, ret_error);
        if (r == GPUIPC_OK)
                r = cuda_device_accessing(cuda, request->device, &device, ret_error);
        if (r == GPUIPC_OK)
                r = cuda_device_check_peer(cuda, device, request->device, ret_error);
        if (r == GPUIPC_OK)
                mapping->accessor = device->ordinal;
        return r;
}

static int ipc_open(const struct cuda *cuda, const struct cuda_device *device, const struct map_request *request,
                    CUdeviceptr *ret_base, gpuipc_error *ret_error) {
        CUipcMemHandle handle;
        CUdeviceptr base = 0;
        CUresult result;
        int r;

        if (base64_decode(request->ipc, &handle, sizeof(handle)) < 0)
                return cannot(ret_error, "its handle is not 64 bytes in base64");
        result = cuda->driver.cuIpcOpenMemHandle(&base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
        if (result != CUDA_SUCCESS)
                return open_error(cuda, device, request, result, ret_error);
        r = check_size(cuda, base, request, ret_error);
        if (r != GPUIPC_OK)
                (void)cuda->driver.cuIpcCloseMemHandle(base);
        else
                *ret_base = base;
        return r;
}

/* The context that memory was opened in. NULL: there is none any more, or the driver does not say. */
static CUcontext context_of(const struct cuda_driver *driver, CUdeviceptr base) {
        CUcontext context = NULL;

        return driver->cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, base) == CUDA_SUCCESS ? context : NULL;
}

static int ipc_map(const struct map_request *request, struct mapping *mapping, gpuipc_error *ret_error) {
        const struct cuda_device *device;
        struct cuda_context context;
        const struct cuda *cuda;
        CUdeviceptr base = 0;
        int r = cuda_get(&cuda, ret_error);

        if (r != GPUIPC_OK)
                return r;
        device = cuda_device_at(cuda, mapping->accessor);
        r = cuda_context_enter(cuda, device, &context, ret_error);
        if (r != GPUIPC_OK)
                return r;
        r = ipc_open(cuda, device, request, &base, ret_error);
        cuda_context_leave(cuda, &context, r == GPUIPC_OK);
        if (r != GPUIPC_OK)
                return r;
        mapping->base = (void *)(uintptr_t)base;
        mapping->pointer = (void *)(uintptr_t)(base + (CUdeviceptr)request->offset);
        mapping->peer = cuda_device_find(cuda, request->device) != device;
        mapping->retained = context.retained;
        mapping->context = context_of(&cuda->driver, base);
        return GPUIPC_OK;
}

/* When the context that it was opened in is gone, so is the mapping, and only the driver knows: by now another may be at its address. */
static bool is_gone(const struct cuda_driver *driver, const struct mapping *mapping) {
        return mapping->context && context_of(driver, (CUdeviceptr)(uintptr_t)mapping->base) != mapping->context;
}

static bool ipc_gone(const struct mapping *mapping) {
        const struct cuda *cuda;

        return cuda_get(&cuda, NULL) == GPUIPC_OK && is_gone(&cuda->driver, mapping);
}

static void ipc_close(const struct cuda_driver *driver, CUdeviceptr base) {
        CUcontext context = context_of(driver, base), popped;

        if (!context || driver->cuCtxPushCurrent(context) != CUDA_SUCCESS)
                return;
        (void)driver->cuIpcCloseMemHandle(base);
        (void)driver->cuCtxPopCurrent(&popped);
}

static void ipc_unmap(struct mapping *mapping) {
        const struct cuda *cuda;

        if (cuda_get(&cuda, NULL) != GPUIPC_OK) /* in a forked child */
                return;
        if (!mapping->gone && !is_gone(&cuda->driver, mapping))
                ipc_close(&cuda->driver, (CUdeviceptr)(uintptr_t)mapping->base);
        if (mapping->retained)
                cuda_context_release(cuda, mapping->accessor);
}

const struct map_kind map_ipc = { .name = "cuda-ipc", .aim = ipc_aim, .map = ipc_map, .copy = cuda_copy, .unmap = ipc_unmap,
                                 .gone = ipc_gone, .fences = &fence_cuda };
