/* SPDX-License-Identifier: Apache-2.0 */
/* A stream of the library's own beside the program's, one a context: words of device memory are read and written through it whatever
 * the program's streams wait for. */
#ifndef CLIENT_CUDA_SIDE_H
#define CLIENT_CUDA_SIDE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda_device.h"
#include "process.h"

struct cuda_side {
        struct cuda_side *next; /* the list's */
        unsigned refs;
        struct process_mark mark;
        const struct cuda *cuda;
        const struct cuda_device *device;
        CUcontext context;
        bool retained; /* the device's primary context is held */
        bool memops;   /* 64-bit stream memory operations */
        bool flush;    /* waits can flush remote writes */
        CUstream stream;

        pthread_mutex_t lock; /* the word */
        uint64_t *word;       /* memory of the driver's that copies go through, without a detour that others may hold up */
};

/* A reference on that of the current context, if this is of `device`, else of the device's primary context. GPUIPC_ERROR_MAP. */
int cuda_side_get(const struct cuda *cuda, const struct cuda_device *device, struct cuda_side **ret_side, gpuipc_error *ret_error);
void cuda_side_put(struct cuda_side *side);

/* Done when they return. */
int cuda_side_read(struct cuda_side *side, CUdeviceptr at, uint64_t *ret_value, gpuipc_error *ret_error);
int cuda_side_write(struct cuda_side *side, CUdeviceptr at, uint64_t value, gpuipc_error *ret_error);

#endif
