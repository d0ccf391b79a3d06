/* SPDX-License-Identifier: Apache-2.0 */
/* The only place that writes to stderr, the progress bar apart. It never exits. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "print.h"
#include "proto/bytes.h"
#include "report.h"

__attribute__((format(printf, 1, 0))) static void say(const char *format, va_list list) {
        struct bytes out = { 0 };
        char text[1024];

        (void)vsnprintf(text, sizeof(text), format, list);
        print_escaped(&out, text);
        bytes_append_char(&out, 0);
        (void)fflush(stdout);
        (void)fprintf(stderr, "gpuipcctl: %s\n", out.failed ? "out of memory" : out.data);
        bytes_deinit(&out);
}

int report_usage(const struct verb *verb, const char *format, ...) {
        va_list list;

        va_start(list, format);
        say(format, list);
        va_end(list);
        if (verb)
                (void)fprintf(stderr, "Try: gpuipcctl %s --help\n", verb->name);
        else
                (void)fputs("Try: gpuipcctl help\n", stderr);
        return EXIT_BAD_USAGE;
}

int report_failure(const char *format, ...) {
        va_list list;

        va_start(list, format);
        say(format, list);
        va_end(list);
        return EXIT_REFUSED;
}

void report_note(const char *format, ...) {
        va_list list;

        va_start(list, format);
        say(format, list);
        va_end(list);
}

int report_error(const gpuipc_error *error) {
        (void)report_failure("%s", error->message[0] ? error->message : gpuipc_status_name(error->status));
        if (error->status == GPUIPC_ERROR_UNREACHABLE || error->status == GPUIPC_ERROR_DISCONNECTED)
                return EXIT_NO_DAEMON;
        return EXIT_REFUSED;
}

int report_errno(const char *what, int error) {
        return report_failure("%s: %s", what, strerror(error));
}

int report_flush(void) {
        if (fflush(stdout) == 0 && !ferror(stdout))
                return EXIT_DONE;
        return report_errno("standard output", errno);
}
