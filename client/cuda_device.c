/* SPDX-License-Identifier: Apache-2.0 */
/* The driver and its devices, once a process. Any thread enters. Never makes a context, and never waits in a child for what a
 * thread of its parent had begun. */
#include "cuda_device.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "error.h"
#include "process.h"
#include "proto/cleanup.h"

static struct cuda the_cuda;
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER; /* only ever taken by threads counted in `inside` */

/* Under process_lock(). */
static struct {
        bool ready;
        unsigned inside; /* threads that are making it */
        struct process_mark mark;
} state;

/* ---- the list of devices ---------------------------------------------------------------------------------- */

static void uuid_print(const CUuuid *uuid, bool mig, char to[CUDA_UUID_SIZE]) {
        const unsigned char *b = (const unsigned char *)uuid->bytes;

        (void)snprintf(to, CUDA_UUID_SIZE,
                       "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", mig ? "MIG" : "GPU", b[0],
                       b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

/* The driver's UUIDs are bare numbers; what a slice of a GPU is called tells it from a whole one. */
static CUresult device_read(const struct cuda_driver *driver, int ordinal, struct cuda_device *ret) {
        char name[128] = "";
        CUresult result = driver->cuDeviceGet(&ret->ordinal, ordinal);

        if (result == CUDA_SUCCESS)
                result = driver->cuDeviceGetUuid_v2(&ret->uuid, ret->ordinal);
        if (result == CUDA_SUCCESS)
                result = driver->cuDeviceGetName(name, sizeof(name) - 1, ret->ordinal);
        if (result == CUDA_SUCCESS)
                uuid_print(&ret->uuid, strstr(name, " MIG ") != NULL, ret->name);
        return result;
}

static int devices_read(struct cuda *cuda, gpuipc_error *ret_error) {
        _cleanup_free_ struct cuda_device *devices = NULL;
        int n = 0;
        CUresult result = cuda->driver.cuDeviceGetCount(&n);

        if (result == CUDA_SUCCESS && n <= 0)
                result = CUDA_ERROR_NO_DEVICE;
        if (result != CUDA_SUCCESS)
                return cuda_driver_error(&cuda->driver, result, "cuDeviceGetCount()", DOCTOR_NO_GPU, "", ret_error);
        devices = calloc((size_t)n, sizeof(*devices));
        if (!devices)
                return error_no_memory(ret_error);
        for (int i = 0; i < n && result == CUDA_SUCCESS; i++)
                result = device_read(&cuda->driver, i, &devices[i]);
        if (result != CUDA_SUCCESS)
                return cuda_driver_error(&cuda->driver, result, "cuDeviceGetUuid()", DOCTOR_DRIVER_REFUSES, "", ret_error);
        cuda->n_devices = (size_t)n;
        cuda->devices = take_ptr(devices);
        return GPUIPC_OK;
}

/* ---- once a process --------------------------------------------------------------------------------------- */

static int cuda_make(struct cuda *cuda, gpuipc_error *ret_error) {
        int r = cuda_driver_load(&cuda->driver, ret_error);

        if (r == GPUIPC_OK)
                r = cuda_driver_init(&cuda->driver, ret_error);
        if (r == GPUIPC_OK)
                r = devices_read(cuda, ret_error);
        return r;
}

/* Whether it is ready; else this thread is counted as inside. */
static int enter(bool *ret_ready, gpuipc_error *ret_error) {
        struct process_mark mark = process_mark();
        bool ours, ready;

        process_lock();
        if (!state.ready && state.inside == 0)
                state.mark = mark;
        ready = state.ready;
        ours = process_is(state.mark);
        if (ours && !ready)
                state.inside++;
        process_unlock();
        if (!ours)
                return cuda_driver_forked(ret_error);
        *ret_ready = ready;
        return GPUIPC_OK;
}

static void leave(bool ready) {
        process_lock();
        state.ready = state.ready || ready;
        state.inside--;
        process_unlock();
}

int cuda_get(const struct cuda **ret_cuda, gpuipc_error *ret_error) {
        bool ready = false;
        int r = enter(&ready, ret_error);

        if (r != GPUIPC_OK)
                return r;
        if (!ready) {
                (void)pthread_mutex_lock(&making);
                r = the_cuda.devices ? GPUIPC_OK : cuda_make(&the_cuda, ret_error);
                (void)pthread_mutex_unlock(&making);
                leave(r == GPUIPC_OK);
        }
        if (r == GPUIPC_OK)
                *ret_cuda = &the_cuda;
        return r;
}

/* ---- finding ---------------------------------------------------------------------------------------------- */

static int hex_digit(char c) {
        if (c >= '0' && c <= '9')
                return c - '0';
        c |= 0x20;
        return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The 16 bytes of "GPU-…" or "MIG-…". */
static bool uuid_parse(const char *text, CUuuid *ret) {
        const char *at = strchr(text, '-');
        size_t n = 0;

        while (at && *at && n < sizeof(ret->bytes)) {
                int high, low;
                at += *at == '-';
                high = hex_digit(at[0]);
                low = high < 0 ? -1 : hex_digit(at[1]);
                if (low < 0)
                        return false;
                ret->bytes[n++] = (char)(high << 4 | low);
                at += 2;
        }
        return n == sizeof(ret->bytes) && !*at;
}

const struct cuda_device *cuda_device_find(const struct cuda *cuda, const char *uuid) {
        CUuuid wanted;

        if (!uuid_parse(uuid, &wanted))
                return NULL;
        for (size_t i = 0; i < cuda->n_devices; i++)
                if (memcmp(&cuda->devices[i].uuid, &wanted, sizeof(wanted)) == 0)
                        return &cuda->devices[i];
        return NULL;
}

const struct cuda_device *cuda_device_at(const struct cuda *cuda, CUdevice ordinal) {
        for (size_t i = 0; i < cuda->n_devices; i++)
                if (cuda->devices[i].ordinal == ordinal)
                        return &cuda->devices[i];
        return NULL;
}

int cuda_device_accessing(const struct cuda *cuda, const char *owner, const struct cuda_device **ret_device,
                          gpuipc_error *ret_error) {
        const struct cuda_driver *driver = &cuda->driver;
        const struct cuda_device *device = cuda_device_find(cuda, owner);
        CUcontext current = NULL;
        CUdevice ordinal = 0;
        CUresult result = driver->cuCtxGetCurrent(&current);

        if (result == CUDA_SUCCESS && current)
                result = driver->cuCtxGetDevice(&ordinal);
        if (result != CUDA_SUCCESS)
                return cuda_driver_error(driver, result, "cuCtxGetDevice()", DOCTOR_DRIVER_REFUSES,
                                         "The context current to this thread is not usable.", ret_error);
        if (current)
                device = cuda_device_at(cuda, ordinal);
        else if (!device)
                device = &cuda->devices[0];
        if (!device)
                return cuda_driver_error(driver, CUDA_ERROR_INVALID_DEVICE, "cuCtxGetDevice()", DOCTOR_DRIVER_REFUSES,
                                         "The context current to this thread is on a device that is not listed.", ret_error);
        *ret_device = device;
        return GPUIPC_OK;
}

/* ---- who reaches whom ------------------------------------------------------------------------------------- */

static int unreachable(const struct cuda *cuda, const struct cuda_device *device, const char *owner, const char *why,
                       gpuipc_error *ret_error) {
        bool hidden = !cuda_device_find(cuda, owner);

        return error_set(ret_error, GPUIPC_ERROR_HANDLE_UNSUPPORTED, 0, owner,
                         "The memory is on %.60s%s, and %s, which this thread uses, cannot reach it: %s. %s [%s]", owner,
                         hidden ? " (hidden from this process)" : "", device->name, why,
                         hidden ? "Let this process see that GPU (CUDA_VISIBLE_DEVICES, --gpus)."
                                : "Make a context of that GPU current, or allocate on the one in use.",
                         doctor_code_id(DOCTOR_DEVICE_UNREACHABLE));
}

int cuda_device_check_peer(const struct cuda *cuda, const struct cuda_device *device, const char *owner,
                           gpuipc_error *ret_error) {
        const struct cuda_device *peer = cuda_device_find(cuda, owner);
        CUresult result;
        int can = 0;

        if (!peer || peer == device)
                return GPUIPC_OK;
        result = cuda->driver.cuDeviceCanAccessPeer(&can, device->ordinal, peer->ordinal);
        if (result != CUDA_SUCCESS)
                return cuda_device_unreachable(cuda, device, owner, result, "cuDeviceCanAccessPeer()", ret_error);
        return can ? GPUIPC_OK : unreachable(cuda, device, owner, "there is no peer access between them", ret_error);
}

int cuda_device_unreachable(const struct cuda *cuda, const struct cuda_device *device, const char *owner, CUresult result,
                            const char *call, gpuipc_error *ret_error) {
        char words[CUDA_WORDS_SIZE], why[CUDA_WORDS_SIZE + 64];

        (void)snprintf(why, sizeof(why), "%s says %s", call, cuda_driver_words(&cuda->driver, result, words));
        return unreachable(cuda, device, owner, why, ret_error);
}
