/* SPDX-License-Identifier: Apache-2.0 */
/* proto/vectors as tests see them: each file with its line of expect.tsv. */
#ifndef UNIT_VECTORS_H
#define UNIT_VECTORS_H

#include <stdbool.h>
#include <stddef.h>

#define VECTORS_PATH "proto/vectors"

struct vector {
        char *line; /* holds what the next six point to */
        const char *file, *kind, *of, *outcome, *form, *daemon;
        char *data; /* n bytes, a NUL after them */
        size_t n;
};

struct vectors {
        struct vector *items;
        size_t n;
};

/* Reads all; fails the test when the list and the folder differ. */
struct vectors vectors_load(void);
void vectors_deinit(struct vectors *vectors);

/* A file of n bytes, heap, with a NUL after them; fails the test when it cannot be read. */
char *file_load(const char *path, size_t *ret_n);

#endif
