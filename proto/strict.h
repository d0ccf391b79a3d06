/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a text is exactly one JSON value as RFC 8259 has it, and where each value in it stands.
 *
 * Refused beyond the grammar: invalid UTF-8, a NUL byte or an escaped one, unpaired surrogates, keys that are
 * equal after unescaping within one object, nesting over the depth asked for, and anything after the value but
 * blanks. */
#ifndef PROTO_STRICT_H
#define PROTO_STRICT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One value, in order of appearance: a container stands before what is in it. */
struct span {
        uint32_t start, end; /* its text */
        uint32_t next;       /* index of the first span after it and all in it */
        uint32_t key, n_key; /* of an object's member: its key's text between the quotes */
        bool key_escaped;    /* that text has a backslash */
        bool escaped;        /* a string whose text has one */
};

struct spans {
        struct span *items;
        size_t n, capacity;
};

void spans_deinit(struct spans *spans);

/* 0, -EBADMSG with a static sentence in `ret_why`, -ENOMEM. `ret` must be empty and is the caller's either way. */
int strict_check(const char *text, size_t n, unsigned depth_max, struct spans *ret, const char **ret_why);

/* 1 when two of the n_keys members from span `first` to the last have the same key, 0, -ENOMEM. For
 * strict_check(). */
int strict_key_twice(const char *text, const struct spans *spans, size_t first, size_t n_keys);

/* Whether a checked string's text, between its quotes, stands for these plain letters. */
bool strict_equal(const char *text, size_t n, bool escaped, const char *letters);

/* Reads "-?digits" without leading zeros or "-0", at most SCHEMA_INT_MAX in magnitude. False when it is not. */
bool strict_integer(const char *text, size_t n, int64_t *ret);

#endif
