/* SPDX-License-Identifier: Apache-2.0 */
/* Mappings of this process: one for each buffer, access and accessing GPU, shared by all leases on it, unmapped with the last. */
#ifndef CLIENT_MAP_H
#define CLIENT_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "include/gpuipc.h"
#include "process.h"

/* What is to be mapped. Strings and the descriptor are borrowed for the call. */
struct map_request {
        const char *id;   /* of the buffer */
        const char *kind; /* of the handle */
        gpuipc_access access;
        int fd;             /* -1: the handle has none */
        const char *ipc;    /* a classic CUDA handle in base64; NULL likewise */
        const char *device; /* UUID, or "host" */
        int64_t offset, size, allocated, created_usec;
};

struct fence_kind;

struct mapping {
        struct mapping *next; /* the table's list */
        unsigned refs;
        struct process_mark mark;
        char *id;
        gpuipc_access access;
        int64_t offset, size;
        /* What the handle refers to, since ids of two daemons, or of one after a restart, may be alike. A descriptor of memory on a GPU
         * has nothing of its own to tell it by. */
        int64_t created_usec;
        dev_t device;
        ino_t inode;
        char *ipc;
        int accessor; /* the ordinal of the GPU that it is mapped for; -1 on host */
        const struct map_kind *kind;

        void *pointer; /* the buffer's first byte */
        bool peer;
        void *base; /* what the kind mapped */
        size_t n_base;
        bool retained; /* holds the accessor's primary context */
        void *context; /* with which it ends, if it is of a kind that does */
        bool gone;     /* it was found to have ended so; under process_lock() */
};

/* Bytes to be copied between a mapping and this process's memory. */
struct map_copy {
        int64_t offset; /* in the buffer; the whole lies inside it */
        void *memory;   /* not written to when `to_buffer` */
        size_t n;
        bool to_buffer;
};

/* One kind of handle. All run without the table's lock. `aim` (may be NULL) says for whom: it fills accessor, which is part of what
 * tells mappings apart. `map` fills pointer, peer, base and n_base. `copy` returns when the bytes are there. `unmap` may run in a
 * forked child. `gone` (may be NULL) says whether it ended by itself. */
struct map_kind {
        const char *name;
        int (*aim)(const struct map_request *request, struct mapping *mapping, gpuipc_error *ret_error);
        int (*map)(const struct map_request *request, struct mapping *mapping, gpuipc_error *ret_error);
        int (*copy)(const struct mapping *mapping, const struct map_copy *copy, gpuipc_error *ret_error);
        void (*unmap)(struct mapping *mapping);
        bool (*gone)(const struct mapping *mapping);
        const struct fence_kind *fences; /* what a word in it is waited for by */
};

extern const struct map_kind map_host; /* "memfd" */
extern const struct map_kind map_cuda; /* "cuda-fd"; not in a build without CUDA, nor is the next */
extern const struct map_kind map_ipc;  /* "cuda-ipc" */

/* A reference on the mapping, made when there is none. GPUIPC_ERROR_MAP. */
int mapping_get(const struct map_request *request, struct mapping **ret_mapping, gpuipc_error *ret_error);

/* One more reference on a mapping that the caller has one on. */
struct mapping *mapping_ref(struct mapping *mapping);

/* Both ends are the caller's. GPUIPC_ERROR_MAP. */
int mapping_copy(const struct mapping *mapping, const struct map_copy *copy, gpuipc_error *ret_error);

/* NULL is allowed. A forked child may drop what it inherited. */
void mapping_put(struct mapping *mapping);

#endif
