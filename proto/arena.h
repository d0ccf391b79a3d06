/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is freed together. */
#ifndef PROTO_ARENA_H
#define PROTO_ARENA_H

#include <stddef.h>

struct arena_chunk;

struct arena {
        struct arena_chunk *chunks;
};

void arena_deinit(struct arena *arena);

/* Room for n items of size bytes, not cleared, aligned for any type; NULL when out of memory. */
void *arena_alloc(struct arena *arena, size_t n, size_t size);

/* A copy of n bytes with a NUL after them. */
char *arena_copy(struct arena *arena, const char *text, size_t n);

#endif
