/* SPDX-License-Identifier: Apache-2.0 */
/* Where the contents of a buffer go: standard output, or a file that is there as a whole or not at all. */
#ifndef CTL_SINK_H
#define CTL_SINK_H

#include <stdint.h>

#include "include/gpuipc.h"
#include "progress.h"

struct sink {
        int fd;           /* owned */
        const char *name; /* for people; borrowed */
        char *path;       /* the file to be replaced; NULL: written in place */
        char *temporary;  /* what is written meanwhile, beside it */
};

/* Opens `path` (NULL or "-": standard output). An exit code, having said why. */
int sink_open(const char *path, int64_t size, struct sink *ret);

/* Forgets what was written, unless sink_commit() was called. */
void sink_deinit(struct sink *sink);
#define _cleanup_sink_ __attribute__((cleanup(sink_deinit)))

/* Writes `size` bytes: those at `memory`, which are also those from `offset` of the descriptor `from` (-1: of none). An
 * exit code, having said why. */
int sink_put(struct sink *sink, const char *memory, int64_t size, int from, int64_t offset);

/* Writes all of a buffer that is reached by copying alone. An exit code, having said why. */
int sink_copy(struct sink *sink, gpuipc_buffer *buffer);

/* The file takes its name. An exit code, having said why. */
int sink_commit(struct sink *sink);

/* Writes n bytes to a descriptor, blocking or not. `progress` may be NULL and begins at `done`. 0 or -errno. */
int sink_write(int fd, const char *memory, int64_t n, struct progress *progress, int64_t done);

#endif
