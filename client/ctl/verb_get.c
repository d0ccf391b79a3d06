/* SPDX-License-Identifier: Apache-2.0 */
/* get: a buffer's contents, written out. */
#include <signal.h>
#include <string.h>

#include "connect.h"
#include "hold.h"
#include "proto/cleanup.h"
#include "report.h"
#include "sealed.h"
#include "sink.h"

static int write_out(gpuipc_buffer *buffer, const char *path) {
        _cleanup_sink_ struct sink sink = { .fd = -1 };
        int64_t size = gpuipc_buffer_size(buffer);
        gpuipc_error error;
        void *memory;
        int r;

        if (gpuipc_buffer_map(buffer, &memory, &error) != GPUIPC_OK)
                return report_error(&error);
        r = sink_open(path, size, &sink);
        if (r == EXIT_DONE && strcmp(gpuipc_buffer_device(buffer), "host") != 0)
                r = sink_copy(&sink, buffer);
        else if (r == EXIT_DONE)
                r = sink_put(&sink, memory, size, gpuipc_buffer_fd(buffer), gpuipc_buffer_offset(buffer));
        if (r == EXIT_DONE)
                r = sink_commit(&sink);
        return r;
}

int verb_get(const struct arguments *arguments) {
        _cleanup_client_ gpuipc_client *client = NULL;
        _cleanup_buffer_ gpuipc_buffer *buffer = NULL;
        int r;

        (void)signal(SIGPIPE, SIG_IGN); /* a reader that leaves is a failure to tell, not a death */
        r = ctl_connect(arguments, 0, &client);
        if (r == EXIT_DONE)
                r = hold_open(arguments, client, GPUIPC_RO, &buffer);
        if (r == EXIT_DONE && arguments_has(arguments, OPTION_SEALED))
                r = sealed_wait(arguments, client, buffer);
        if (r == EXIT_DONE)
                r = write_out(buffer, arguments->operands[1]);
        if (r == EXIT_DONE)
                r = hold_release(&buffer);
        return r;
}
