/* SPDX-License-Identifier: Apache-2.0 */
/* What went wrong, on stderr, as "gpuipcctl: …"; control characters escaped. Each answers the exit code to leave with. */
#ifndef CTL_REPORT_H
#define CTL_REPORT_H

#include "include/gpuipc.h"
#include "verbs.h"

/* EXIT_BAD_USAGE. `verb` may be NULL. */
int report_usage(const struct verb *verb, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The library's message. EXIT_NO_DAEMON when there is nobody to speak to (any more), else EXIT_REFUSED. */
int report_error(const gpuipc_error *error);

/* EXIT_REFUSED. */
int report_failure(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* "WHAT: No such file or directory". EXIT_REFUSED. */
int report_errno(const char *what, int error);

/* Something to know that changes no exit code. */
void report_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Flushes stdout. EXIT_REFUSED when what was printed could not be written. */
int report_flush(void);

#endif
