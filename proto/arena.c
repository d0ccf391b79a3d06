/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is freed together, cut from chunks that grow. One thread at a time; it never moves what it gave
 * out. */
#include "arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CHUNK = 480, LARGEST_CHUNK = 32768 };

struct arena_chunk {
        struct arena_chunk *next;
        size_t n, used; /* bytes */
        _Alignas(max_align_t) char data[];
};

void arena_deinit(struct arena *arena) {
        while (arena->chunks != NULL) {
                struct arena_chunk *next = arena->chunks->next;

                free(arena->chunks);
                arena->chunks = next;
        }
}

static struct arena_chunk *arena_grow(struct arena *arena, size_t n) {
        size_t size = arena->chunks != NULL ? arena->chunks->n * 2 : FIRST_CHUNK;
        struct arena_chunk *chunk;

        size = size < LARGEST_CHUNK ? size : LARGEST_CHUNK;
        size = size > n ? size : n;
        chunk = malloc(sizeof(*chunk) + size);
        if (chunk == NULL)
                return NULL;
        chunk->next = arena->chunks;
        chunk->n = size;
        chunk->used = 0;
        arena->chunks = chunk;
        return chunk;
}

static void *arena_cut(struct arena *arena, size_t n, size_t align) {
        struct arena_chunk *chunk = arena->chunks;
        size_t start = chunk != NULL ? (chunk->used + align - 1) / align * align : 0;

        if (chunk == NULL || start > chunk->n || chunk->n - start < n) {
                chunk = arena_grow(arena, n);
                start = 0;
        }
        if (chunk == NULL)
                return NULL;
        chunk->used = start + n;
        return chunk->data + start;
}

void *arena_alloc(struct arena *arena, size_t n, size_t size) {
        size_t n_bytes;

        if (__builtin_mul_overflow(n, size, &n_bytes) || n_bytes > SIZE_MAX / 2)
                return NULL;
        return arena_cut(arena, n_bytes, _Alignof(max_align_t));
}

char *arena_copy(struct arena *arena, const char *text, size_t n) {
        char *copy = arena_cut(arena, n + 1, 1);

        if (copy == NULL)
                return NULL;
        memcpy(copy, text, n);
        copy[n] = '\0';
        return copy;
}
