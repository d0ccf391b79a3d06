/* SPDX-License-Identifier: Apache-2.0 */
/* Pools: allocators whose blocks are buffers, and the way from an address to its block. */
#ifndef CLIENT_POOL_H
#define CLIENT_POOL_H

#include <stdbool.h>

#include "buffer.h"
#include "include/gpuipc.h"
#include "process.h"

struct gpuipc_pool {
        gpuipc_client *client; /* counted */
        struct process_mark mark;
        char *handle, *mode, *label; /* NULL: none */
        int64_t keep_ms, wait_ms;
        size_t slot;

        /* Under process_lock(). */
        unsigned refs; /* the owner's, and one for each block and each call under way */
        bool closed;
        int64_t bytes, failures;
        gpuipc_error error; /* of the last failure */
};

struct pool_block {
        struct pool_block *next;
        gpuipc_pool *pool; /* counted */
        gpuipc_buffer *buffer;
        void *pointer;
        int64_t size;
        int ordinal;   /* -1: host memory */
        bool retained; /* holds that GPU's primary context */
};

/* Which device a pool's block is made on. */
struct pool_place {
        int ordinal;
        const char *device; /* UUID or "host" */
        bool retained;
        bool entered; /* its context is current by our doing */
        void *pushed;
};

/* The function of each slot, of the form of gpuipc_pool_alloc_fn. */
gpuipc_pool_alloc_fn pool_entry(size_t slot);

void *pool_alloc(size_t slot, int64_t size, int ordinal);
void pool_free(void *pointer, int64_t size, int ordinal, void *stream);

/* Memory on a GPU; not in a build without CUDA. Makes a context of that GPU current, which pool_cuda_leave() undoes; `keep` it held.
 * GPUIPC_ERROR_MAP, GPUIPC_ERROR_NO_SUCH_DEVICE. */
int pool_cuda_enter(int ordinal, struct pool_place *ret_place, gpuipc_error *ret_error);
void pool_cuda_leave(struct pool_place *place, bool keep);

/* Waits until that GPU has done what this process gave it; in a forked child not. */
void pool_cuda_settle(int ordinal);
void pool_cuda_release(int ordinal);

#endif
