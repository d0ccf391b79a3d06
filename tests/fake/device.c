/* SPDX-License-Identifier: Apache-2.0 */
/* Questions about devices. Under the driver's lock, but for what works before cuInit. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "driver.h"

EXPORT CUresult cuInit(unsigned int flags) {
        return CALL(-1, LOCKED(process_init(flags)));
}

static CUresult driver_version(int *ret) {
        if (!ret)
                return CUDA_ERROR_INVALID_VALUE;
        *ret = script_get()->driver_version;
        return CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int *version) {
        return CALL(-1, driver_version(version));
}

static CUresult count_devices(int *ret) {
        if (!ret)
                return CUDA_ERROR_INVALID_VALUE;
        *ret = process_n_devices();
        return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count) {
        return DRIVER_CALL(-1, count_devices(count));
}

/* Most questions about a device start so. */
static CUresult check(CUdevice ordinal, const void *ret) {
        if (process_device(ordinal) < 0)
                return CUDA_ERROR_INVALID_DEVICE;
        return ret ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult get(CUdevice *ret, int ordinal) {
        CUresult result = check(ordinal, ret);
        if (result == CUDA_SUCCESS)
                *ret = ordinal;
        return result;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
        return DRIVER_CALL(process_device(ordinal), get(device, ordinal));
}

static CUresult name(char *ret, int n, CUdevice ordinal) {
        CUresult result = check(ordinal, ret);
        if (result == CUDA_SUCCESS && n <= 0)
                return CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS)
                snprintf(ret, (size_t)n, "%s", device_script(process_device(ordinal))->name);
        return result;
}

EXPORT CUresult cuDeviceGetName(char *text, int len, CUdevice dev) {
        return DRIVER_CALL(process_device(dev), name(text, len, dev));
}

/* The first function of that name does not know slices: it tells the GPU that one is cut from. */
static CUresult uuid(CUuuid *ret, CUdevice ordinal, bool knows_slices) {
        CUresult result = check(ordinal, ret);

        if (result != CUDA_SUCCESS)
                return result;
        const char *text = device_script(process_device(ordinal))->uuid, *at = text;
        for (int i = 0; i < 16; i++) {
                unsigned byte;
                at += strcspn(at, "-") <= 3 && i == 0 ? 4 : *at == '-';
                if (sscanf(at, "%2x", &byte) != 1)
                        return CUDA_ERROR_UNKNOWN;
                ret->bytes[i] = (char)byte;
                at += 2;
        }
        if (!knows_slices && strncmp(text, "MIG-", 4) == 0)
                ret->bytes[0] = (char)~ret->bytes[0];
        return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid(CUuuid *ret, CUdevice dev) {
        return DRIVER_CALL(process_device(dev), uuid(ret, dev, false));
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *ret, CUdevice dev) {
        return DRIVER_CALL(process_device(dev), uuid(ret, dev, true));
}

static CUresult total_memory(size_t *ret, CUdevice ordinal) {
        CUresult result = check(ordinal, ret);
        if (result == CUDA_SUCCESS)
                *ret = (size_t)device_script(process_device(ordinal))->total_bytes;
        return result;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev) {
        return DRIVER_CALL(process_device(dev), total_memory(bytes, dev));
}

static CUresult pci_id(char *ret, int n, CUdevice ordinal) {
        CUresult result = check(ordinal, ret);
        if (result == CUDA_SUCCESS && n < 13)
                return CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS)
                snprintf(ret, (size_t)n, "0000:%02X:00.0", process_device(ordinal) + 1);
        return result;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *text, int len, CUdevice dev) {
        return DRIVER_CALL(process_device(dev), pci_id(text, len, dev));
}

static int attribute_of(const struct device_script *device, CUdevice_attribute attribute) {
        for (int i = 0; i < device->n_attributes; i++)
                if (device->attributes[i].number == (int)attribute)
                        return device->attributes[i].value;
        switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_INTEGRATED: return device->integrated;
        case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: return device->vmm;
        case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: return device->vmm && device->fd;
        case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1:
        case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
        case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1:
        case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
        case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1: return device->memops;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return 9;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return 132;
        case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return 1024;
        case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
        case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
        case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY: return 1;
        default: return 0;
        }
}

int device_attribute(int device, CUdevice_attribute attribute) {
        return attribute_of(device_script(device), attribute);
}

static CUresult get_attribute(int *ret, CUdevice_attribute attribute, CUdevice ordinal) {
        CUresult result = check(ordinal, ret);
        int device = process_device(ordinal);

        if (result != CUDA_SUCCESS)
                return result;
        if (attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
                return CUDA_ERROR_INVALID_VALUE;
        *ret = attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID ? device + 1 : attribute_of(device_script(device), attribute);
        return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice dev) {
        return DRIVER_CALL(process_device(dev), get_attribute(value, attribute, dev));
}

static CUresult can_access(int *ret, CUdevice from, CUdevice to) {
        CUresult result = check(from, ret);

        if (result == CUDA_SUCCESS)
                result = check(to, ret);
        if (result == CUDA_SUCCESS)
                *ret = from != to && device_reaches(process_device(from), process_device(to));
        return result;
}

EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer) {
        return DRIVER_CALL(process_device(dev), can_access(can, dev, peer));
}

/* The newest version of an entry point; this library has no older ones that would differ. */
static CUresult find(const char *symbol, void **ret, CUdriverProcAddressQueryResult *ret_status) {
        static const char *const versions[] = { "_v4", "_v2", "" };
        char versioned[96];
        Dl_info self;

        if (!symbol || !ret || !dladdr((void *)(uintptr_t)cuInit, &self))
                return CUDA_ERROR_INVALID_VALUE;
        void *library = dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
        *ret = NULL;
        for (size_t i = 0; library && !*ret && i < sizeof(versions) / sizeof(versions[0]); i++) {
                snprintf(versioned, sizeof(versioned), "%s%s", symbol, versions[i]);
                *ret = dlsym(library, versioned);
        }
        if (library)
                dlclose(library);
        if (ret_status)
                *ret_status = *ret ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        return *ret ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult *status) {
        (void)version;
        (void)flags;
        return CALL(-1, find(symbol, function, status));
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags) {
        (void)version;
        (void)flags;
        return CALL(-1, find(symbol, function, NULL));
}
