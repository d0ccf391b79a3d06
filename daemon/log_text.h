/* SPDX-License-Identifier: Apache-2.0 */
/* How a line of the log is written down. Pure. */
#ifndef DAEMON_LOG_TEXT_H
#define DAEMON_LOG_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "log.h"
#include "proto/bytes.h"

#define LOG_TEXT_MAX 8192 /* bytes of a message or a value; the rest is cut */

/* One line, copied from its caller: message, then keys and values, each NUL-ended, in `text`. */
struct log_entry {
        struct log_entry *next;
        int level;
        int64_t time_usec;
        uint64_t n_dropped; /* lines lost just before this one */
        char message_id[33];
        size_t n_fields;
        char text[];
};

/* NULL: out of memory. */
struct log_entry *log_entry_new(int level, int64_t time_usec, const char *message_id, const char *message,
                                const struct log_field *fields, size_t n_fields);

/* The string of an entry that follows `text`, one of its strings. */
static inline const char *log_entry_next(const char *text) {
        return text + strlen(text) + 1;
}

/* Appends text with control characters and bytes that are no UTF-8 as \n, \t, \xNN; with `quote`, in quotation marks when it
 * could not be told from what is around it. */
void log_escape(struct bytes *bytes, const char *text, bool quote);

/* Appends the line for stderr, with its newline. `journal`: with the priority prefix that a journal stream understands instead of
 * time and level. */
void log_entry_print(const struct log_entry *entry, bool journal, struct bytes *bytes);

const char *log_level_name(int level);

#endif
