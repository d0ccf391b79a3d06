/* SPDX-License-Identifier: Apache-2.0 */
/* The growing byte string. One thread at a time; it never reports an error but by `failed`. */
#include "bytes.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES_FIRST = 256 };

void bytes_deinit(struct bytes *bytes) {
        free(bytes->data);
        *bytes = (struct bytes){ 0 };
}

static char *bytes_grow(struct bytes *bytes, size_t n) {
        size_t capacity = bytes->capacity > 0 ? bytes->capacity : BYTES_FIRST;
        char *data;

        if (n > SIZE_MAX / 4 || bytes->n > SIZE_MAX / 4) {
                bytes->failed = true;
                return NULL;
        }
        while (capacity - bytes->n < n)
                capacity *= 2;
        data = realloc(bytes->data, capacity);
        if (data == NULL) {
                bytes->failed = true;
                return NULL;
        }
        bytes->data = data;
        bytes->capacity = capacity;
        return data + bytes->n;
}

char *bytes_reserve(struct bytes *bytes, size_t n) {
        if (bytes->failed)
                return NULL;
        if (bytes->data != NULL && bytes->capacity - bytes->n >= n)
                return bytes->data + bytes->n;
        return bytes_grow(bytes, n);
}

void bytes_append(struct bytes *bytes, const void *data, size_t n) {
        char *room = bytes_reserve(bytes, n);

        if (room == NULL || n == 0)
                return;
        memcpy(room, data, n);
        bytes->n += n;
}

void bytes_append_str(struct bytes *bytes, const char *text) {
        bytes_append(bytes, text, strlen(text));
}

void bytes_append_char(struct bytes *bytes, char c) {
        char *room = bytes_reserve(bytes, 1);

        if (room == NULL)
                return;
        *room = c;
        bytes->n++;
}

void bytes_consume(struct bytes *bytes, size_t n) {
        if (n >= bytes->n) {
                bytes->n = 0;
                return;
        }
        if (n == 0)
                return;
        bytes->n -= n;
        memmove(bytes->data, bytes->data + n, bytes->n);
}
