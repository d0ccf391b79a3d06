/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime: the driver's entry points behind those of libcudart. Any thread; holds no lock while in the driver, but for
 * the making of a context. Codes are the same in both, as far as they are met here. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "call.h"
#include "errors.h"
#include "script.h"

static struct {
        __typeof__(&cuInit) init;
        __typeof__(&cuDriverGetVersion) version;
        __typeof__(&cuDeviceGetCount) count;
        __typeof__(&cuDeviceGetAttribute) attribute;
        __typeof__(&cuDeviceCanAccessPeer) can_access_peer;
        __typeof__(&cuDevicePrimaryCtxRetain) retain;
        __typeof__(&cuDevicePrimaryCtxReset) reset;
        __typeof__(&cuDevicePrimaryCtxGetState) state;
        __typeof__(&cuCtxGetCurrent) get_current;
        __typeof__(&cuCtxSetCurrent) set_current;
        __typeof__(&cuCtxGetDevice) get_device;
        __typeof__(&cuCtxSynchronize) synchronize;
        __typeof__(&cuMemAlloc) allocate;
        __typeof__(&cuMemFree) deallocate;
        __typeof__(&cuMemGetInfo) info;
        __typeof__(&cuMemcpy) copy;
        __typeof__(&cuMemcpyHtoD) copy_to_device;
        __typeof__(&cuMemcpyDtoH) copy_to_host;
        __typeof__(&cuMemcpyDtoD) copy_within;
        __typeof__(&cuMemsetD8) set_bytes;
        __typeof__(&cuIpcGetMemHandle) ipc_get;
        __typeof__(&cuIpcOpenMemHandle) ipc_open;
        __typeof__(&cuIpcCloseMemHandle) ipc_close;
        int (*physical)(int ordinal);
} driver;

static bool driver_found;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static CUcontext primaries[MACHINE_DEVICES]; /* retained once in a process; under the mutex */
static _Thread_local int current_device;
static _Thread_local cudaError_t last_error;

static void find_driver(void) {
        static const struct {
                const char *name;
                void *function;
        } symbols[] = {
                { "cuInit", &driver.init },
                { "cuDriverGetVersion", &driver.version },
                { "cuDeviceGetCount", &driver.count },
                { "cuDeviceGetAttribute", &driver.attribute },
                { "cuDeviceCanAccessPeer", &driver.can_access_peer },
                { "cuDevicePrimaryCtxRetain", &driver.retain },
                { "cuDevicePrimaryCtxReset_v2", &driver.reset },
                { "cuDevicePrimaryCtxGetState", &driver.state },
                { "cuCtxGetCurrent", &driver.get_current },
                { "cuCtxSetCurrent", &driver.set_current },
                { "cuCtxGetDevice", &driver.get_device },
                { "cuCtxSynchronize", &driver.synchronize },
                { "cuMemAlloc_v2", &driver.allocate },
                { "cuMemFree_v2", &driver.deallocate },
                { "cuMemGetInfo_v2", &driver.info },
                { "cuMemcpy", &driver.copy },
                { "cuMemcpyHtoD_v2", &driver.copy_to_device },
                { "cuMemcpyDtoH_v2", &driver.copy_to_host },
                { "cuMemcpyDtoD_v2", &driver.copy_within },
                { "cuMemsetD8_v2", &driver.set_bytes },
                { "cuIpcGetMemHandle", &driver.ipc_get },
                { "cuIpcOpenMemHandle_v2", &driver.ipc_open },
                { "cuIpcCloseMemHandle", &driver.ipc_close },
                { "cuFakeDevice", &driver.physical },
        };
        void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

        for (size_t i = 0; library && i < sizeof(symbols) / sizeof(symbols[0]); i++) {
                void *function = dlsym(library, symbols[i].name);
                if (!function)
                        fake_die("the driver lacks %s", symbols[i].name);
                memcpy(symbols[i].function, &function, sizeof(function));
        }
        driver_found = library;
}

/* Driver found and initialised; no context. */
static int start(void) {
        pthread_once(&once, find_driver);
        return driver_found ? (int)driver.init(0) : (int)cudaErrorInsufficientDriver;
}

/* The current device's primary context, current in this thread. A context that the program made current is left alone. */
static int need_context(void) {
        CUcontext context;
        CUdevice device;
        unsigned flags;
        int active, r = start();

        if (r != 0)
                return r;
        if (driver.get_current(&context) == CUDA_SUCCESS && context && driver.get_device(&device) == CUDA_SUCCESS)
                return 0;
        pthread_mutex_lock(&mutex);
        r = (int)driver.state(current_device, &flags, &active);
        if (r == 0 && (!active || !primaries[current_device]))
                r = (int)driver.retain(&primaries[current_device], current_device);
        context = primaries[current_device];
        pthread_mutex_unlock(&mutex);
        return r != 0 ? r : (int)driver.set_current(context);
}

static cudaError_t remember(int result) {
        if (result != 0)
                last_error = (cudaError_t)result;
        return (cudaError_t)result;
}

#define WITH_CONTEXT(work)                                                                                   \
        ({                                                                                                   \
                int _ready = need_context();                                                                 \
                _ready != 0 ? _ready : (int)(work);                                                          \
        })
/* A call concerns the device that is current when it begins. */
#define RUNTIME_CALL(work) remember(CALL(driver_found ? driver.physical(current_device) : -1, (work)))
#define PLAIN_CALL(work) remember(CALL(-1, (work)))

static int count_devices(int *ret) {
        int r = start();
        return r != 0 ? r : ret ? (int)driver.count(ret) : (int)cudaErrorInvalidValue;
}

EXPORT cudaError_t cudaGetDeviceCount(int *count) {
        return PLAIN_CALL(count_devices(count));
}

static int get_device(int *ret) {
        CUdevice device;
        int r = start();

        if (r != 0)
                return r;
        *ret = driver.get_device(&device) == CUDA_SUCCESS ? device : current_device;
        return 0;
}

EXPORT cudaError_t cudaGetDevice(int *device) {
        return RUNTIME_CALL(get_device(device));
}

/* Since 12.0 this makes the context at once. */
static int set_device(int device) {
        CUcontext context;
        int n, r = count_devices(&n);

        if (r != 0)
                return r;
        if (device < 0 || device >= n)
                return cudaErrorInvalidDevice;
        CUdevice now;
        current_device = device;
        if (driver.get_current(&context) == CUDA_SUCCESS && context && driver.get_device(&now) == CUDA_SUCCESS && now != device)
                driver.set_current(NULL);
        return need_context();
}

EXPORT cudaError_t cudaSetDevice(int device) {
        return remember(CALL(driver_found ? driver.physical(device) : -1, set_device(device)));
}

EXPORT cudaError_t cudaDeviceSynchronize(void) {
        return RUNTIME_CALL(WITH_CONTEXT(driver.synchronize()));
}

static int reset_device(void) {
        int r = start();
        if (r == 0)
                r = (int)driver.set_current(NULL);
        return r != 0 ? r : (int)driver.reset(current_device);
}

EXPORT cudaError_t cudaDeviceReset(void) {
        return RUNTIME_CALL(reset_device());
}

static int can_access_peer(int *ret, int device, int peer) {
        int r = start();
        return r != 0 ? r : (int)driver.can_access_peer(ret, device, peer);
}

EXPORT cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
        return RUNTIME_CALL(can_access_peer(can, device, peer));
}

static int attribute(int *ret, enum cudaDeviceAttr which, int device) {
        int r = start();
        return r != 0 ? r : (int)driver.attribute(ret, (CUdevice_attribute)which, device);
}

EXPORT cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device) {
        return RUNTIME_CALL(attribute(value, attr, device));
}

static CUdeviceptr pointer_of(const void *address) {
        return (CUdeviceptr)(uintptr_t)address;
}

static int allocate(void **ret, size_t size) {
        CUdeviceptr pointer = 0;
        int r = size ? (int)driver.allocate(&pointer, size) : 0;
        if (r == 0)
                *ret = (void *)(uintptr_t)pointer;
        return r;
}

EXPORT cudaError_t cudaMalloc(void **ptr, size_t size) {
        return RUNTIME_CALL(ptr ? WITH_CONTEXT(allocate(ptr, size)) : (int)cudaErrorInvalidValue);
}

/* cudaFree(0) is the customary way to get a context. */
EXPORT cudaError_t cudaFree(void *ptr) {
        return RUNTIME_CALL(WITH_CONTEXT(ptr ? driver.deallocate(pointer_of(ptr)) : CUDA_SUCCESS));
}

EXPORT cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
        return RUNTIME_CALL(WITH_CONTEXT(driver.info(free_bytes, total)));
}

static CUresult copy(void *to, const void *from, size_t n, enum cudaMemcpyKind kind) {
        switch (kind) {
        case cudaMemcpyHostToHost: memmove(to, from, n); return CUDA_SUCCESS;
        case cudaMemcpyHostToDevice: return driver.copy_to_device(pointer_of(to), from, n);
        case cudaMemcpyDeviceToHost: return driver.copy_to_host(to, pointer_of(from), n);
        case cudaMemcpyDeviceToDevice: return driver.copy_within(pointer_of(to), pointer_of(from), n);
        case cudaMemcpyDefault: return driver.copy(pointer_of(to), pointer_of(from), n);
        default: return (CUresult)cudaErrorInvalidMemcpyDirection;
        }
}

EXPORT cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind) {
        return RUNTIME_CALL(WITH_CONTEXT(copy(dst, src, count, kind)));
}

EXPORT cudaError_t cudaMemset(void *ptr, int value, size_t count) {
        return RUNTIME_CALL(WITH_CONTEXT(driver.set_bytes(pointer_of(ptr), (unsigned char)value, count)));
}

static CUresult ipc_get(cudaIpcMemHandle_t *ret, void *pointer) {
        CUipcMemHandle handle;
        CUresult result = driver.ipc_get(&handle, pointer_of(pointer));
        if (result == CUDA_SUCCESS)
                memcpy(ret->reserved, handle.reserved, sizeof(ret->reserved));
        return result;
}

EXPORT cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *ptr) {
        return RUNTIME_CALL(handle ? WITH_CONTEXT(ipc_get(handle, ptr)) : (int)cudaErrorInvalidValue);
}

static CUresult ipc_open(void **ret, const cudaIpcMemHandle_t *wire, unsigned flags) {
        CUipcMemHandle handle;
        CUdeviceptr pointer;

        memcpy(handle.reserved, wire->reserved, sizeof(handle.reserved));
        CUresult result = driver.ipc_open(&pointer, handle, flags);
        if (result == CUDA_SUCCESS)
                *ret = (void *)(uintptr_t)pointer;
        return result;
}

EXPORT cudaError_t cudaIpcOpenMemHandle(void **ptr, cudaIpcMemHandle_t handle, unsigned int flags) {
        return RUNTIME_CALL(ptr ? WITH_CONTEXT(ipc_open(ptr, &handle, flags)) : (int)cudaErrorInvalidValue);
}

EXPORT cudaError_t cudaIpcCloseMemHandle(void *ptr) {
        return RUNTIME_CALL(WITH_CONTEXT(driver.ipc_close(pointer_of(ptr))));
}

EXPORT cudaError_t cudaRuntimeGetVersion(int *version) {
        return PLAIN_CALL(version ? (*version = script_get()->runtime_version, 0) : (int)cudaErrorInvalidValue);
}

/* Without a driver: success, and version 0. */
static int driver_version(int *ret) {
        pthread_once(&once, find_driver);
        if (driver_found)
                return (int)driver.version(ret);
        *ret = 0;
        return 0;
}

EXPORT cudaError_t cudaDriverGetVersion(int *version) {
        return PLAIN_CALL(version ? driver_version(version) : (int)cudaErrorInvalidValue);
}

EXPORT cudaError_t cudaGetLastError(void) {
        cudaError_t error = last_error;
        last_error = cudaSuccess;
        return error;
}

EXPORT cudaError_t cudaPeekAtLastError(void) {
        return last_error;
}

EXPORT const char *cudaGetErrorName(cudaError_t error) {
        const struct error_text *known = error_find((int)error);
        return known ? known->runtime_name : "unrecognized error code";
}

EXPORT const char *cudaGetErrorString(cudaError_t error) {
        const struct error_text *known = error_find((int)error);
        return known ? known->text : "unrecognized error code";
}
