/* SPDX-License-Identifier: Apache-2.0 */
/* Where the contents of a new buffer come from: a file, or a stream whose size must be told or found out. */
#ifndef CTL_SOURCE_H
#define CTL_SOURCE_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "include/gpuipc.h"
#include "progress.h"
#include "stop.h"

struct source {
        int fd;           /* owned */
        const char *name; /* for people; borrowed */
        bool seekable;
        int64_t start; /* where in the file it begins */
        int64_t size;  /* bytes wanted; at least 1 */
        struct timespec changed;
};

/* Opens `path` ("-": standard input). `size` -1: what a file holds, or what a stream gives, which is then spooled in
 * $TMPDIR or /var/tmp; otherwise exactly so many bytes are expected. An exit code, having said why. */
int source_open(const char *path, int64_t size, struct source *ret);
void source_deinit(struct source *source);
#define _cleanup_source_ __attribute__((cleanup(source_deinit)))

/* Reads all of it to `memory` (source->size bytes, zero), holes of a file left out. An exit code, having said why: fewer
 * bytes than expected is a failure, and so are more of a stream; a file that grows or changes meanwhile is noted. */
int source_read(struct source *source, char *memory, const struct stop *stop);

/* The same to memory that is reached by copying alone, holes included: nobody promises there what was not written. */
int source_copy(struct source *source, gpuipc_buffer *buffer, const struct stop *stop);

#endif
