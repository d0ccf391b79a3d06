/* SPDX-License-Identifier: Apache-2.0 */
/* Structured logging to stderr or the journal. Never blocks its caller: lines go through a bounded queue to a thread of its
 * own; what does not fit is dropped and counted, and the count is logged when there is room again. */
#ifndef DAEMON_LOG_H
#define DAEMON_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <syslog.h>

/* One extra field of a line: KEY=value; shown as key=value behind the message on stderr, a field of its own in the journal
 * (prefixed GPUIPC_). Values are escaped. */
struct log_field {
        const char *key; /* upper case: "SESSION" */
        const char *value;
};

#define LOG_JOURNAL_SOCKET "/run/systemd/journal/socket"

enum log_target { LOG_TARGET_AUTO, LOG_TARGET_STDERR, LOG_TARGET_JOURNAL };

/* Before log_start() and after log_stop() lines are written directly, to stderr. 0 or -errno; -EAGAIN: no thread can be had; else the
 * journal cannot be reached. */
int log_start(enum log_target target, int level);
void log_set_level(int level);
bool log_wants(int level);

/* Writes out what is queued, within a second, and ends the thread; one that hangs in a write is left behind after another. */
void log_stop(void);

/* One line; `fields` may be NULL. `message_id` (32 hex digits, may be NULL) goes to MESSAGE_ID. */
void log_line(int level, const char *message_id, const struct log_field *fields, size_t n_fields, const char *format, ...)
        __attribute__((format(printf, 5, 6)));

#define log_error(...) log_line(LOG_ERR, NULL, NULL, 0, __VA_ARGS__)
#define log_warning(...) log_line(LOG_WARNING, NULL, NULL, 0, __VA_ARGS__)
#define log_notice(...) log_line(LOG_NOTICE, NULL, NULL, 0, __VA_ARGS__)
#define log_info(...) log_line(LOG_INFO, NULL, NULL, 0, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, NULL, NULL, 0, __VA_ARGS__)

/* Message ids, one per kind of line an operator may want to find. */
#define MESSAGE_STARTED "6f2d4d2c3b1e4a52a8c01d4f0c9f1a01"
#define MESSAGE_STOPPED "6f2d4d2c3b1e4a52a8c01d4f0c9f1a02"
#define MESSAGE_RELOADED "6f2d4d2c3b1e4a52a8c01d4f0c9f1a03"
#define MESSAGE_REQUEST "6f2d4d2c3b1e4a52a8c01d4f0c9f1a04"
#define MESSAGE_REFUSED "6f2d4d2c3b1e4a52a8c01d4f0c9f1a05"
#define MESSAGE_DEGRADED "6f2d4d2c3b1e4a52a8c01d4f0c9f1a06"
#define MESSAGE_DROPPED "6f2d4d2c3b1e4a52a8c01d4f0c9f1a07" /* a client, for not reading */
#define MESSAGE_LOG_LOST "6f2d4d2c3b1e4a52a8c01d4f0c9f1a08"

#endif
