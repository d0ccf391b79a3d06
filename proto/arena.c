/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is freed together. One thread at a time; it never moves what it gave out. */
#include "arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct arena_chunk {
        struct arena_chunk *next;
        max_align_t data[];
};

void arena_deinit(struct arena *arena) {
        while (arena->chunks != NULL) {
                struct arena_chunk *next = arena->chunks->next;

                free(arena->chunks);
                arena->chunks = next;
        }
}

void *arena_alloc(struct arena *arena, size_t n, size_t size) {
        struct arena_chunk *chunk;
        size_t bytes;

        if (__builtin_mul_overflow(n, size, &bytes) || bytes > SIZE_MAX / 2)
                return NULL;
        chunk = malloc(sizeof(*chunk) + bytes);
        if (chunk == NULL)
                return NULL;
        chunk->next = arena->chunks;
        arena->chunks = chunk;
        return chunk->data;
}

char *arena_copy(struct arena *arena, const char *text, size_t n) {
        char *copy = arena_alloc(arena, n + 1, 1);

        if (copy == NULL)
                return NULL;
        memcpy(copy, text, n);
        copy[n] = '\0';
        return copy;
}
