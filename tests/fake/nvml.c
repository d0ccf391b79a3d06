/* SPDX-License-Identifier: Apache-2.0 */
/* NVML: every device of the machine, whatever CUDA_VISIBLE_DEVICES says, and what is free on it. Any thread. */
#include "nvml.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "books.h"
#include "call.h"

static _Atomic int n_inits;
static char handles[MACHINE_DEVICES];

#define NVML_CALL(device, work) CALL(device, n_inits > 0 ? (work) : NVML_ERROR_UNINITIALIZED)

/* -1: no such. */
static int device_of(nvmlDevice_t handle) {
        const char *at = (const char *)(void *)handle;
        return at >= handles && at < handles + script_get()->n_devices ? (int)(at - handles) : -1;
}

static const struct device_script *script_of(nvmlDevice_t handle) {
        int device = device_of(handle);
        return device < 0 ? NULL : &script_get()->devices[device];
}

static int init(void) {
        int r = books_reach();
        if (r < 0)
                return books_absent(r) ? NVML_ERROR_DRIVER_NOT_LOADED : NVML_ERROR_UNKNOWN;
        n_inits++;
        return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlInit_v2(void) {
        return CALL(-1, init());
}

EXPORT nvmlReturn_t nvmlInit(void) {
        return CALL(-1, init());
}

static int end(void) {
        n_inits--;
        return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlShutdown(void) {
        return NVML_CALL(-1, end());
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result) {
        static const struct {
                nvmlReturn_t code;
                const char *text;
        } known[] = { { NVML_SUCCESS, "The operation was successful" },
                      { NVML_ERROR_UNINITIALIZED, "Uninitialized" },
                      { NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument" },
                      { NVML_ERROR_NOT_SUPPORTED, "Not Supported" },
                      { NVML_ERROR_NO_PERMISSION, "Insufficient Permissions" },
                      { NVML_ERROR_NOT_FOUND, "Not Found" },
                      { NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size" },
                      { NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded" },
                      { NVML_ERROR_TIMEOUT, "Timeout" },
                      { NVML_ERROR_GPU_IS_LOST, "GPU is lost" },
                      { NVML_ERROR_LIB_RM_VERSION_MISMATCH, "Driver/library version mismatch" },
                      { NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch" } };

        for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
                if (known[i].code == result)
                        return known[i].text;
        return "Unknown Error";
}

static int tell_text(const char *text, char *ret, unsigned length) {
        if (!text || !ret)
                return NVML_ERROR_INVALID_ARGUMENT;
        if (strlen(text) >= length)
                return NVML_ERROR_INSUFFICIENT_SIZE;
        strcpy(ret, text);
        return NVML_SUCCESS;
}

#define TELL(to, value) ((to) ? (*(to) = (value), NVML_SUCCESS) : NVML_ERROR_INVALID_ARGUMENT)

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
        return NVML_CALL(-1, tell_text(script_get()->system, version, length));
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
        return NVML_CALL(-1, TELL(version, script_get()->driver_version));
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
        return NVML_CALL(-1, TELL(count, (unsigned)script_get()->n_devices));
}

static int by_index(unsigned index, nvmlDevice_t *ret) {
        if (!ret || index >= (unsigned)script_get()->n_devices)
                return NVML_ERROR_INVALID_ARGUMENT;
        *ret = (nvmlDevice_t)(void *)&handles[index];
        return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
        return NVML_CALL((int)index, by_index(index, device));
}

static int index_of(const char *uuid) {
        const struct script *script = script_get();

        for (int i = 0; uuid && i < script->n_devices; i++)
                if (strcmp(script->devices[i].uuid, uuid) == 0)
                        return i;
        return -1;
}

static int by_uuid(const char *uuid, nvmlDevice_t *ret) {
        int index = index_of(uuid);

        if (!uuid || !ret)
                return NVML_ERROR_INVALID_ARGUMENT;
        return index < 0 ? NVML_ERROR_NOT_FOUND : by_index((unsigned)index, ret);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
        return NVML_CALL(index_of(uuid), by_uuid(uuid, device));
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length) {
        const struct device_script *script = script_of(device);
        return NVML_CALL(device_of(device), tell_text(script ? script->uuid : NULL, uuid, length));
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length) {
        const struct device_script *script = script_of(device);
        return NVML_CALL(device_of(device), tell_text(script ? script->name : NULL, name, length));
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
        int i = device_of(device);
        return NVML_CALL(i, i < 0 ? NVML_ERROR_INVALID_ARGUMENT : TELL(index, (unsigned)i));
}

static int memory(nvmlDevice_t handle, unsigned long long *ret_total, unsigned long long *ret_free) {
        const struct device_script *script = script_of(handle);

        if (!script)
                return NVML_ERROR_INVALID_ARGUMENT;
        int64_t free_bytes = books_free_bytes(device_of(handle));
        if (free_bytes < 0)
                return NVML_ERROR_UNKNOWN;
        *ret_total = (unsigned long long)script->total_bytes;
        *ret_free = (unsigned long long)free_bytes;
        return NVML_SUCCESS;
}

static int memory_v1(nvmlDevice_t handle, nvmlMemory_t *ret) {
        if (!ret)
                return NVML_ERROR_INVALID_ARGUMENT;
        int r = memory(handle, &ret->total, &ret->free);
        if (r == NVML_SUCCESS)
                ret->used = ret->total - ret->free;
        return r;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *ret) {
        return NVML_CALL(device_of(device), memory_v1(device, ret));
}

static int memory_v2(nvmlDevice_t handle, nvmlMemory_v2_t *ret) {
        if (!ret)
                return NVML_ERROR_INVALID_ARGUMENT;
        if (ret->version != (sizeof(*ret) | 2 << 24))
                return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
        int r = memory(handle, &ret->total, &ret->free);
        if (r == NVML_SUCCESS) {
                ret->reserved = 0;
                ret->used = ret->total - ret->free;
        }
        return r;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *ret) {
        return NVML_CALL(device_of(device), memory_v2(device, ret));
}

EXPORT nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, unsigned *mode) {
        const struct device_script *script = script_of(device);
        return NVML_CALL(device_of(device),
                         script ? TELL(mode, (unsigned)script->virtualization) : NVML_ERROR_INVALID_ARGUMENT);
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_mig) {
        const struct device_script *script = script_of(device);
        return NVML_CALL(device_of(device),
                         script ? TELL(is_mig, strncmp(script->uuid, "MIG-", 4) == 0) : NVML_ERROR_INVALID_ARGUMENT);
}

static int mig_mode(const struct device_script *script, unsigned *ret_current, unsigned *ret_pending) {
        if (!script || !ret_current || !ret_pending)
                return NVML_ERROR_INVALID_ARGUMENT;
        *ret_current = *ret_pending = strncmp(script->uuid, "MIG-", 4) == 0;
        return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
        return NVML_CALL(device_of(device), mig_mode(script_of(device), current, pending));
}
