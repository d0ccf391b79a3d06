/* SPDX-License-Identifier: Apache-2.0 */
/* alloc: an empty buffer, held. */
#include "connect.h"
#include "hold.h"
#include "parse.h"
#include "proto/cleanup.h"
#include "report.h"

int verb_alloc(const struct arguments *arguments) {
        _cleanup_client_ gpuipc_client *client = NULL;
        _cleanup_buffer_ gpuipc_buffer *buffer = NULL;
        _cleanup_stop_ struct stop stop = { .fd = -1 };
        gpuipc_allocate_options options;
        gpuipc_error error;
        int64_t size;
        int r = hold_options(arguments, &options);

        if (r != EXIT_DONE)
                return r;
        if (parse_size(arguments->operands[0], &size) != 0)
                return report_usage(
                        arguments->verb,
                        "\"%s\" is no size: " PARSE_SIZE_HINT,
                        arguments->operands[0]);
        r = ctl_connect(arguments, 0, &client);
        if (r != EXIT_DONE)
                return r;
        if (gpuipc_allocate(client, size, &options, &buffer, &error) != GPUIPC_OK)
                return report_error(&error);
        r = stop_init(&stop);
        if (r < 0)
                return report_errno("signals", -r);
        r = hold_announce(buffer);
        if (r != EXIT_DONE || arguments_has(arguments, OPTION_DETACH)) {
                stop_leave(&stop);
                return r == EXIT_DONE ? hold_release(&buffer) : r;
        }
        return hold_until_stopped(client, &buffer, &stop);
}
