/* SPDX-License-Identifier: Apache-2.0 */
/* What people write, to numbers. Each answers 0, or -EINVAL for text that is none, -ERANGE for a number that is too
 * big or too small. */
#ifndef CTL_PARSE_H
#define CTL_PARSE_H

#include <stdint.h>

/* "4096", "64K", "2MiB", "1.5G": powers of 1024, rounded up to a whole byte; 1 to 2^53-1. */
#define PARSE_SIZE_HINT "give bytes, from 1 to 9007199254740991, or a number with K, M, G, T or P (powers of 1024)"
int parse_size(const char *text, int64_t *ret_bytes);

/* "500ms", "30s", "1h30m", "2d"; a bare number is seconds. To 2^53-1 ms; 0 is allowed. */
int parse_duration(const char *text, int64_t *ret_ms);

/* Decimal digits only, to 2^53-1. */
int parse_number(const char *text, int64_t *ret);

/* A uid, or a user's name. */
int parse_uid(const char *text, int64_t *ret_uid);

#endif
