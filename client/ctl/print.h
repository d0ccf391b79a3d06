/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers, times and foreign text as people read them. */
#ifndef CTL_PRINT_H
#define CTL_PRINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/bytes.h"

#define PRINT_MAX 32 /* bytes that any of the char arrays below needs */

/* "0 B", "1000 B", "64 KiB", "1.5 GiB": at most four significant digits. "-" for a negative (unknown) size. */
void print_size(char ret[PRINT_MAX], int64_t bytes);

/* The same, or all digits when `exact`. */
void print_bytes(char ret[PRINT_MAX], int64_t bytes, bool exact);

/* "0s", "59s", "5m02s", "3h07m", "2d04h". "-" for a negative one. */
void print_age(char ret[PRINT_MAX], int64_t usec);

/* "5ms", "30s", "5m", "1h30m", "1d": exactly what was set. */
void print_duration(char ret[PRINT_MAX], int64_t ms);

/* "14:05:09.123456", local time; "-" for a negative one. */
void print_clock(char ret[PRINT_MAX], int64_t usec_since_epoch);

int64_t print_now_usec(void);       /* since the epoch */
int64_t print_monotonic_usec(void); /* to measure by */

/* Appends text that came from elsewhere so that it cannot command the terminal or pretend to be something else:
 * control characters, invalid UTF-8, bidirectional overrides and what the locale cannot show become \n, \t, \r or
 * \xHH, a backslash becomes two. */
void print_escaped(struct bytes *out, const char *text);

/* Columns of a terminal that n bytes of text take, and the bytes of its longest start that takes at most `columns`. */
int print_width(const char *text, size_t n);
size_t print_prefix(const char *text, int columns);

/* "…" where the locale can show it, else "~". One column. */
const char *print_ellipsis(void);
bool print_utf8(void);

/* Columns of the terminal behind fd: $COLUMNS, else the terminal's own; 0 when it is none (no limit). */
int print_columns(int fd);

/* "#" and "-" as a bar of `width` columns in all, without brackets. */
void print_bar(struct bytes *out, int64_t part, int64_t whole, int width);

#endif
