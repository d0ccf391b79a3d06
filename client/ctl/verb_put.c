/* SPDX-License-Identifier: Apache-2.0 */
/* put: a buffer of a file's contents, held. What cannot be filled is given back, its keep included. */
#include <string.h>

#include "connect.h"
#include "hold.h"
#include "proto/cleanup.h"
#include "report.h"
#include "source.h"

static int fill(gpuipc_buffer *buffer, struct source *source, const struct stop *stop) {
        gpuipc_error error;
        void *memory;

        if (strcmp(gpuipc_buffer_device(buffer), "host") != 0)
                return source_copy(source, buffer, stop);
        if (gpuipc_buffer_map(buffer, &memory, &error) != GPUIPC_OK)
                return report_error(&error);
        return source_read(source, memory, stop);
}

static int seal(gpuipc_client *client, const gpuipc_buffer *buffer) {
        gpuipc_error error;

        if (gpuipc_seal(client, gpuipc_buffer_id(buffer), &error) != GPUIPC_OK)
                return report_error(&error);
        return EXIT_DONE;
}

/* Fills, seals, announces: until then the buffer is good for nobody and goes on any failure. */
static int publish(const struct arguments *arguments, gpuipc_client *client, gpuipc_buffer *buffer,
                   struct source *source, const struct stop *stop) {
        int r = fill(buffer, source, stop);

        if (r == EXIT_DONE && arguments_has(arguments, OPTION_SEAL))
                r = seal(client, buffer);
        if (r == EXIT_DONE)
                r = hold_announce(buffer);
        if (r == EXIT_DONE)
                return EXIT_DONE;
        stop_leave(stop);
        (void)gpuipc_free(client, gpuipc_buffer_id(buffer), NULL, NULL);
        return r;
}

int verb_put(const struct arguments *arguments) {
        _cleanup_source_ struct source source = { .fd = -1 };
        _cleanup_client_ gpuipc_client *client = NULL;
        _cleanup_buffer_ gpuipc_buffer *buffer = NULL;
        _cleanup_stop_ struct stop stop = { .fd = -1 };
        gpuipc_allocate_options options;
        gpuipc_error error;
        int64_t size = -1;
        int r = hold_options(arguments, &options);

        if (r != EXIT_DONE || arguments_size(arguments, OPTION_SIZE, &size) != EXIT_DONE)
                return EXIT_BAD_USAGE;
        options.name = arguments->operands[0];
        r = source_open(arguments->operands[1], size, &source);
        if (r == EXIT_DONE)
                r = ctl_connect(arguments, 0, &client);
        if (r != EXIT_DONE)
                return r;
        if (gpuipc_allocate(client, source.size, &options, &buffer, &error) != GPUIPC_OK)
                return report_error(&error);
        r = stop_init(&stop);
        if (r < 0)
                return report_errno("signals", -r);
        r = publish(arguments, client, buffer, &source, &stop);
        if (r != EXIT_DONE)
                return r;
        source_deinit(&source);
        if (arguments_has(arguments, OPTION_DETACH)) {
                stop_leave(&stop);
                return hold_release(&buffer);
        }
        return hold_until_stopped(client, &buffer, &stop, options.wait_ms > 0);
}
