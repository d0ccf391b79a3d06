/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory with a classic handle of 64 bytes (cuda-ipc), for programs that know nothing else. The device's two lanes enter. The runtime
 * is loaded with the first buffer of all; a device's context comes with its first and goes with its last. */
#include "cuda_device.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

#define BASE64_SIZE(n) (((n) + 2) / 3 * 4 + 1)

/* Filled once; every device uses the same. */
static struct {
        pthread_mutex_t lock;
        bool loaded;
        struct cuda_runtime table;
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int runtime_get(const struct cuda_api *api, const struct cuda_runtime **ret, struct backend_detail *detail) {
        int r = 0;

        pthread_mutex_lock(&shared.lock);
        if (!shared.loaded) {
                detail->free_bytes = SCHEMA_UNSET;
                r = cuda_runtime_load(&shared.table, api->version, detail->text, sizeof(detail->text));
                shared.loaded = r == 0;
        }
        pthread_mutex_unlock(&shared.lock);
        if (r == 0)
                *ret = &shared.table;
        return r;
}

static char *base64(const unsigned char *bytes, size_t n) {
        static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        char *text = calloc(1, BASE64_SIZE(n)), *out = text;

        for (size_t i = 0; text && i < n; i += 3) {
                unsigned bits = (unsigned)bytes[i] << 16 | (i + 1 < n ? (unsigned)bytes[i + 1] << 8 : 0) |
                                (i + 2 < n ? (unsigned)bytes[i + 2] : 0);

                *out++ = digits[bits >> 18];
                *out++ = digits[bits >> 12 & 63];
                *out++ = i + 1 < n ? digits[bits >> 6 & 63] : '=';
                *out++ = i + 2 < n ? digits[bits & 63] : '=';
        }
        return text;
}

/* ---- the context, under the device's lock ------------------------------------------------------------------ */

static int context_use(struct backend_device *device, struct backend_detail *detail) {
        cudaError_t result = device->runtime->cudaSetDevice(device->ordinal);

        return result == cudaSuccess ? 0 : cuda_runtime_fail(device->runtime, detail, result, "cudaSetDevice");
}

static void context_leave(struct backend_device *device) {
        struct backend_detail detail;
        cudaError_t result;
        int r;

        if (device->n_classic > 0)
                return;
        r = context_use(device, &detail);
        if (r == 0 && (result = device->runtime->cudaDeviceReset()) != cudaSuccess)
                r = cuda_runtime_fail(device->runtime, &detail, result, "cudaDeviceReset");
        cuda_device_blame(device, r, &detail);
}

/* ---- memory ------------------------------------------------------------------------------------------------ */

static int classic_wipe(struct backend_device *device, void *pointer, int64_t bytes, struct backend_detail *detail) {
        const struct cuda_runtime *runtime = device->runtime;
        cudaError_t result = runtime->cudaMemset(pointer, 0, (size_t)bytes);

        if (result != cudaSuccess)
                return cuda_runtime_fail(runtime, detail, result, "cudaMemset");
        result = runtime->cudaDeviceSynchronize();
        return result == cudaSuccess ? 0 : cuda_runtime_fail(runtime, detail, result, "cudaDeviceSynchronize");
}

/* The handle, and where in what it stands for the memory begins. */
static int classic_export(struct backend_device *device, void *pointer, struct backing *backing, struct backend_detail *detail) {
        cudaIpcMemHandle_t handle;
        CUdeviceptr base;
        size_t size;
        CUresult found;
        cudaError_t result = device->runtime->cudaIpcGetMemHandle(&handle, pointer);

        if (result != cudaSuccess)
                return cuda_runtime_fail(device->runtime, detail, result, "cudaIpcGetMemHandle");
        found = device->api->cuMemGetAddressRange(&base, &size, (CUdeviceptr)(uintptr_t)pointer);
        if (found != CUDA_SUCCESS)
                return cuda_fail(device->api, detail, found, "cuMemGetAddressRange");
        backing->ipc = base64((const unsigned char *)handle.reserved, sizeof(handle.reserved));
        backing->offset = (int64_t)((CUdeviceptr)(uintptr_t)pointer - base);
        return backing->ipc ? 0 : -ENOMEM;
}

static int classic_make(struct backend_device *device, int64_t bytes, struct cuda_backing *backing, struct backend_detail *detail) {
        const struct cuda_runtime *runtime = device->runtime;
        void *pointer = NULL;
        cudaError_t result;
        int r = context_use(device, detail);

        if (r < 0)
                return r;
        result = runtime->cudaMalloc(&pointer, (size_t)bytes);
        if (result != cudaSuccess)
                return cuda_runtime_fail(runtime, detail, result, "cudaMalloc");
        if (device->zeroed == ZEROED_WIPED)
                r = classic_wipe(device, pointer, bytes, detail);
        if (r == 0)
                r = classic_export(device, pointer, &backing->base, detail);
        if (r == 0)
                backing->classic = pointer;
        else
                (void)runtime->cudaFree(pointer);
        return r;
}

int cuda_classic_allocate(struct backend_device *device, int64_t allocated, struct backing **ret, struct backend_detail *detail) {
        _cleanup_free_ struct cuda_backing *backing = calloc(1, sizeof(*backing));
        int r;

        if (!backing)
                return -ENOMEM;
        backing->device = device;
        backing->base.fds[ACCESS_RW] = backing->base.fds[ACCESS_RO] = -1;

        pthread_mutex_lock(&device->classic_lock);
        r = device->runtime ? 0 : runtime_get(device->api, &device->runtime, detail);
        if (r == 0) {
                r = cuda_device_blame(device, classic_make(device, allocated, backing, detail), detail);
                if (r == 0)
                        device->n_classic++;
                else
                        context_leave(device);
        }
        pthread_mutex_unlock(&device->classic_lock);

        if (r < 0)
                return r;
        *ret = &take_ptr(backing)->base;
        return 0;
}

/* Those who have it mapped keep it until they let go. */
void cuda_classic_close(struct cuda_backing *backing) {
        struct backend_device *device = backing->device;
        struct backend_detail detail;
        cudaError_t result;
        int r;

        pthread_mutex_lock(&device->classic_lock);
        r = context_use(device, &detail);
        if (r == 0 && (result = device->runtime->cudaFree(backing->classic)) != cudaSuccess)
                r = cuda_runtime_fail(device->runtime, &detail, result, "cudaFree");
        cuda_device_blame(device, r, &detail);
        device->n_classic--;
        context_leave(device);
        pthread_mutex_unlock(&device->classic_lock);
        free((char *)backing->base.ipc);
        free(backing);
}

/* An error that stays ("sticky") shows in any call. */
int cuda_classic_check(struct backend_device *device, struct backend_detail *detail) {
        size_t free_bytes, total_bytes;
        cudaError_t result;
        int r = 0;

        pthread_mutex_lock(&device->classic_lock);
        if (device->n_classic > 0) {
                r = context_use(device, detail);
                if (r == 0 && (result = device->runtime->cudaMemGetInfo(&free_bytes, &total_bytes)) != cudaSuccess)
                        r = cuda_runtime_fail(device->runtime, detail, result, "cudaMemGetInfo");
        }
        pthread_mutex_unlock(&device->classic_lock);
        return r;
}
