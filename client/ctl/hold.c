/* SPDX-License-Identifier: Apache-2.0 */
/* Holding: makes or opens by the command line, announces, waits. The daemon is asked every few seconds whether the
 * lease still stands, so that nobody holds what is no longer theirs without knowing. */
#include "hold.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "report.h"

#define CHECK_EVERY_MS 3000

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

struct lease_search {
        const char *lease;
        bool found;
};

static int lease_match(const gpuipc_lease_info *lease, void *data) {
        struct lease_search *search = data;

        search->found = lease->id && strcmp(lease->id, search->lease) == 0;
        return search->found;
}

static void session_copy(const gpuipc_status_info *status, void *data) {
        char **session = data;

        free(*session);
        *session = status->session ? strdup(status->session) : NULL;
}

/* A buffer that was waited for may live in a session of its own, which only the list tells of; else it is enough, and
 * cheap, that the session is still the same. A gpuipc_status. */
static int lease_check(gpuipc_client *client, const gpuipc_buffer *buffer, const char *session, bool waited,
                       bool *ret_stands, gpuipc_error *ret_error) {
        _cleanup_free_ char *now = NULL;
        gpuipc_list_options options = GPUIPC_LIST_OPTIONS_INIT;
        struct lease_search search = { gpuipc_buffer_lease(buffer), false };
        int r;

        if (waited) {
                options.name = gpuipc_buffer_name(buffer);
                options.uid = options.name ? -1 : (int64_t)geteuid();
                r = gpuipc_list(client, &options, lease_match, &search, ret_error);
                *ret_stands = search.found;
                return r;
        }
        r = gpuipc_get_status(client, session_copy, &now, ret_error);
        *ret_stands = !session || !now || strcmp(session, now) == 0;
        return r;
}

int hold_until_stopped(gpuipc_client *client, gpuipc_buffer **buffer, const struct stop *stop, bool waited) {
        _cleanup_free_ char *session = NULL;
        gpuipc_error error;
        bool stands = true;
        int r;

        stop_expose(stop);
        r = gpuipc_get_status(client, session_copy, &session, &error);
        stop_cover(stop);
        while (r == GPUIPC_OK && stands) {
                if (stop_wait(stop, CHECK_EVERY_MS)) {
                        stop_leave(stop);
                        return hold_release(buffer);
                }
                stop_expose(stop);
                r = lease_check(client, *buffer, session, waited, &stands, &error);
                stop_cover(stop);
                if (r == GPUIPC_ERROR_TIMED_OUT || r == GPUIPC_ERROR_TOO_MANY_REQUESTS)
                        r = GPUIPC_OK; /* busy is not gone */
        }
        stop_leave(stop);
        if (r != GPUIPC_OK)
                return report_error(&error);
        return report_failure("the lease on %s is over: its session was closed by the daemon or by kick",
                              gpuipc_buffer_id(*buffer));
}
