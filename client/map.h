/* SPDX-License-Identifier: Apache-2.0 */
/* Mappings of this process: one for each buffer and access, shared by all leases on it, unmapped with the last. */
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
        int fd;
        int64_t offset, size;
};

struct mapping {
        struct mapping *next; /* the table's list */
        unsigned refs;
        struct process_mark mark;
        char *id;
        gpuipc_access access;
        int64_t offset, size;
        dev_t device; /* what the handle refers to: ids of two daemons may be alike */
        ino_t inode;
        const struct map_kind *kind;

        void *pointer; /* the buffer's first byte */
        bool peer;
        void *base; /* what the kind mapped */
        size_t n_base;
};

/* One kind of handle. Both run without the table's lock; `map` fills pointer, peer, base and n_base. */
struct map_kind {
        const char *name;
        int (*map)(const struct map_request *request, struct mapping *mapping, gpuipc_error *ret_error);
        void (*unmap)(struct mapping *mapping);
};

extern const struct map_kind map_host; /* "memfd" */

/* A reference on the mapping, made when there is none. GPUIPC_ERROR_MAP. */
int mapping_get(const struct map_request *request, struct mapping **ret_mapping, gpuipc_error *ret_error);

/* NULL is allowed. A forked child may drop what it inherited. */
void mapping_put(struct mapping *mapping);

#endif
