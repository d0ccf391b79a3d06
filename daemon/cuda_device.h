/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU as the backend knows it, and a buffer's memory on it: what the CUDA rooms share. */
#ifndef DAEMON_CUDA_DEVICE_H
#define DAEMON_CUDA_DEVICE_H

#include <pthread.h>

#include "cuda_api.h"
#include "cuda_nvml.h"

#define CUDA_CLASSIC_BYTES (INT64_C(2) << 20) /* smaller classic allocations share a block of this size, and so a handle */

#define CUDA_FD "cuda-fd"
#define CUDA_IPC "cuda-ipc"

struct backend_device {
        const struct cuda_api *api;
        CUdevice ordinal; /* as this process counts */
        char uuid[CUDA_UUID_SIZE], name[96];
        int64_t total_bytes, granularity;
        const char *handles[2];
        size_t n_handles;
        int zeroed;          /* enum zeroed */
        const char *zeroed_why;
        struct cuda_gauge gauge;

        /* Classic handles: cuda_classic.c. */
        pthread_mutex_t classic_lock;
        const struct cuda_runtime *runtime; /* under classic_lock; NULL until the first is asked for */
        int64_t n_classic;                  /* under classic_lock: buffers; the context is there while there are any */

        /* Handles that the driver would not take back, to be tried again: cuda_vmm.c, the allocating lane alone. */
        struct cuda_stray *strays;

        pthread_mutex_t health_lock;
        bool sick;                     /* under health_lock */
        struct backend_detail illness; /* under health_lock */
};

struct cuda_backing {
        struct backing base;
        struct backend_device *device;
        void *classic; /* NULL for memory with a descriptor */
};

/* Notes what a failed call says of the device and passes the error on. */
int cuda_device_blame(struct backend_device *device, int error, const struct backend_detail *detail);

/* cuda_vmm.c: memory with a descriptor, without any context. */
int cuda_vmm_allocate(struct backend_device *device, int64_t allocated, struct backing **ret, struct backend_detail *detail);
int cuda_vmm_adopt(struct backend_device *device, int fd_take, struct backing **ret); /* an earlier daemon's */
void cuda_vmm_close(struct cuda_backing *backing);
void cuda_vmm_end(struct backend_device *device); /* forgets what could not be given back */
int cuda_vmm_check(struct backend_device *device, struct backend_detail *detail); /* whether the driver still makes any */

/* cuda_classic.c: memory with a classic handle, in a context of the device's that lives as long as any of it. */
int cuda_classic_allocate(struct backend_device *device, int64_t allocated, struct backing **ret, struct backend_detail *detail);
void cuda_classic_close(struct cuda_backing *backing);
int cuda_classic_check(struct backend_device *device, struct backend_detail *detail); /* whether the context, if any, works */

#endif
