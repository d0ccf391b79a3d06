/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the socket and connects. */
#include <stdlib.h>

#include "connect.h"
#include "report.h"

int ctl_connect_quietly(const struct arguments *arguments, int timeout_ms, int restart_ms, gpuipc_client **ret_client,
                        gpuipc_error *ret_error) {
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        const char *variable = getenv("GPUIPC_SOCKET");

        options.timeout_ms = timeout_ms;
        options.restart_ms = restart_ms;
        options.socket_path = arguments->values[OPTION_SOCKET];
        if (!options.socket_path && !(variable && variable[0])) {
                options.socket_path = GPUIPC_DEFAULT_ADMIN_SOCKET;
                if (gpuipc_connect(&options, ret_client, ret_error) == GPUIPC_OK)
                        return GPUIPC_OK;
                options.socket_path = NULL;
        }
        return gpuipc_connect(&options, ret_client, ret_error);
}

int ctl_connect(const struct arguments *arguments, int timeout_ms, gpuipc_client **ret_client) {
        gpuipc_error error;

        if (ctl_connect_quietly(arguments, timeout_ms, 0, ret_client, &error) != GPUIPC_OK)
                return report_error(&error);
        return EXIT_DONE;
}
