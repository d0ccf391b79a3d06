/* SPDX-License-Identifier: Apache-2.0 */
/* The few functions of the driver that are called here, declared by hand: the command is built without the Toolkit's headers too. Only
 * ever loaded into a child. */
#ifndef DOCTOR_DRIVER_H
#define DOCTOR_DRIVER_H

#include <stddef.h>
#include <stdint.h>

enum driver_attribute {
        DRIVER_INTEGRATED = 18,
        DRIVER_VMM = 102,
        DRIVER_FD = 103,
        DRIVER_MEMOPS_V1 = 93, /* 64-bit, before version 12 */
        DRIVER_MEMOPS = 122,   /* 64-bit */
};

struct driver_uuid {
        unsigned char bytes[16];
};

struct driver {
        int (*cuInit)(unsigned flags);
        int (*cuDriverGetVersion)(int *version);
        int (*cuGetErrorName)(int result, const char **text);
        int (*cuGetErrorString)(int result, const char **text);
        int (*cuDeviceGetCount)(int *n);
        int (*cuDeviceGet)(int *device, int ordinal);
        int (*cuDeviceGetName)(char *name, int n, int device);
        int (*cuDeviceGetUuid)(struct driver_uuid *uuid, int device);
        int (*cuDeviceGetAttribute)(int *value, int attribute, int device);
        int (*cuDevicePrimaryCtxRetain)(void **context, int device);
        int (*cuCtxSetCurrent)(void *context);
        int (*cuMemcpyHtoD)(uint64_t to, const void *from, size_t n);
        int (*cuMemcpyDtoH)(void *to, uint64_t from, size_t n);
};

/* 0, or as symbols_load() with the loader's words. */
int driver_load(struct driver *driver, char *ret_why, size_t n);

/* "CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected" */
void driver_words(const struct driver *driver, int result, char *ret, size_t n);

#endif
