/* SPDX-License-Identifier: Apache-2.0 */
/* Holding: makes or opens by the command line, announces, waits. The library is asked every second whether the lease still
 * stands, so that nobody holds what is no longer theirs without knowing. */
#include "hold.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "report.h"

#define CHECK_EVERY_MS 1000

int hold_options(const struct arguments *arguments, gpuipc_allocate_options *ret) {
        gpuipc_allocate_options options = GPUIPC_ALLOCATE_OPTIONS_INIT;

        options.device = arguments->values[OPTION_DEVICE];
        options.handle = arguments->values[OPTION_HANDLE];
        options.label = arguments->values[OPTION_LABEL];
        options.meta = arguments->values[OPTION_META];
        options.mode = arguments->values[OPTION_MODE];
        options.name = arguments->values[OPTION_NAME];
        if (arguments_duration(arguments, OPTION_KEEP, &options.keep_ms) != EXIT_DONE ||
            arguments_duration(arguments, OPTION_WAIT, &options.wait_ms) != EXIT_DONE)
                return EXIT_BAD_USAGE;
        if (arguments_has(arguments, OPTION_DETACH) && options.keep_ms == 0)
                return report_usage(arguments->verb,
                                    "--detach needs --keep DURATION: nothing else would hold the buffer");
        *ret = options;
        return EXIT_DONE;
}

int hold_open(const struct arguments *arguments, gpuipc_client *client, gpuipc_access access,
              gpuipc_buffer **ret_buffer) {
        gpuipc_open_options options = GPUIPC_OPEN_OPTIONS_INIT;
        const char *owner = arguments->values[OPTION_OWNER];
        gpuipc_error error;
        int r;

        options.access = access;
        options.label = arguments->values[OPTION_LABEL];
        if (arguments_duration(arguments, OPTION_WAIT, &options.wait_ms) != EXIT_DONE)
                return EXIT_BAD_USAGE;
        if (owner && strcmp(owner, "any") == 0)
                options.owner = -2;
        else if (arguments_uid(arguments, OPTION_OWNER, &options.owner) != EXIT_DONE)
                return EXIT_BAD_USAGE;
        if (!arguments_has(arguments, OPTION_ID)) {
                r = gpuipc_open_name(client, arguments->operands[0], &options, ret_buffer, &error);
                return r == GPUIPC_OK ? EXIT_DONE : report_error(&error);
        }
        if (owner)
                return report_usage(arguments->verb,
                                    "--owner goes with a name; an id says by itself which buffer is wanted");
        options.wait_ms = 0;
        r = gpuipc_open_id(client, arguments->operands[0], &options, ret_buffer, &error);
        return r == GPUIPC_OK ? EXIT_DONE : report_error(&error);
}

int hold_announce(const gpuipc_buffer *buffer) {
        const char *name = gpuipc_buffer_name(buffer);

        (void)printf("%s %s %" PRId64 "\n", gpuipc_buffer_id(buffer), name ? name : "-",
                     gpuipc_buffer_size(buffer));
        return report_flush();
}

int hold_release(gpuipc_buffer **buffer) {
        gpuipc_error error;

        if (gpuipc_release(take_ptr(*buffer), &error) != GPUIPC_OK)
                return report_error(&error);
        return EXIT_DONE;
}

/* ---- whether the lease still stands ----------------------------------------------------------------------- */

/* The lease is over. Without a daemon that is the reason to name. */
static int hold_lost(gpuipc_client *client, const gpuipc_error *lost) {
        gpuipc_error error;
        int r = report_error(lost);

        if (gpuipc_get_status(client, NULL, NULL, &error) == GPUIPC_ERROR_UNREACHABLE)
                return report_error(&error);
        return r;
}

int hold_until_stopped(gpuipc_client *client, gpuipc_buffer **buffer, const struct stop *stop) {
        int64_t restarts = gpuipc_client_restarts(client);
        gpuipc_error error;

        while (gpuipc_buffer_check(*buffer, &error) == GPUIPC_OK) {
                if (gpuipc_client_restarts(client) != restarts) {
                        restarts = gpuipc_client_restarts(client);
                        report_note("the daemon was restarted; the lease on %s stands", gpuipc_buffer_id(*buffer));
                }
                if (stop_wait(stop, CHECK_EVERY_MS)) {
                        stop_leave(stop);
                        return hold_release(buffer);
                }
        }
        stop_leave(stop);
        return hold_lost(client, &error);
}
