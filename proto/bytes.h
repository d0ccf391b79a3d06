/* SPDX-License-Identifier: Apache-2.0 */
/* A growing byte string. After a failed append it is poisoned (`failed`), so that a chain of appends needs one
 * check at its end. */
#ifndef PROTO_BYTES_H
#define PROTO_BYTES_H

#include <stdbool.h>
#include <stddef.h>

struct bytes {
        char *data;
        size_t n, capacity;
        bool failed;
};

void bytes_deinit(struct bytes *bytes);

/* Makes room for n more and returns where they go, or NULL (and poisons). Does not change `n`. */
char *bytes_reserve(struct bytes *bytes, size_t n);
void bytes_append(struct bytes *bytes, const void *data, size_t n);
void bytes_append_str(struct bytes *bytes, const char *text);
void bytes_append_char(struct bytes *bytes, char c);

/* Drops the first n bytes. */
void bytes_consume(struct bytes *bytes, size_t n);

#endif
