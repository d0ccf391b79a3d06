/* SPDX-License-Identifier: Apache-2.0 */
/* The state's bytes, for state.c and state_record.c alone. */
#ifndef DAEMON_STATE_FILE_H
#define DAEMON_STATE_FILE_H

#include <stdatomic.h>

#include "state.h"

#define STATE_MAGIC "gpuipcst"
#define STATE_HEADER_BYTES 4096
#define STATE_EXTENT_BYTES 65536
#define STATE_EXTENT_MAGIC UINT32_C(0x45585431)
#define STATE_EXTENTS_MAX 16383 /* 1 GiB in all */
#define STATE_MAP_BYTES (STATE_HEADER_BYTES + (size_t)STATE_EXTENTS_MAX * STATE_EXTENT_BYTES)

struct state_header {
        char magic[8];
        uint32_t header_bytes, extent_bytes;
        struct state_layout layout;
        uint32_t unused;
        uint64_t generation;
        uint64_t sum; /* of all before it */
        _Atomic uint64_t n_extents;
        _Atomic uint64_t numbers[N_STATE_NUMBERS];
};

struct state_extent {
        uint32_t magic, kind;
        uint64_t unused[7];
};

struct state_head {
        _Atomic uint32_t word;
        uint32_t n_body; /* bytes of fixed part and texts */
        uint64_t sum;    /* of them */
        _Atomic uint64_t live[N_STATE_LIVE];
};

struct state_table {
        uint32_t *extents; /* indices in the file */
        uint32_t n_extents, per_extent;
        uint32_t *free_slots; /* a stack with room for all */
        uint32_t n_free;
};

struct state {
        int fd;
        struct state_header *header;
        struct state_table tables[N_STATE_KINDS];
        uint32_t n_damaged;
};

extern const uint32_t state_n_texts[N_STATE_KINDS];

uint64_t state_sum(const void *data, size_t n);
struct state_head *state_record(const struct state *state, enum state_kind kind, uint32_t slot);

/* One extent more of a kind. -ENOMEM, -ENOSPC. */
int state_grow(struct state *state, enum state_kind kind);

#endif
