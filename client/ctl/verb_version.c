/* SPDX-License-Identifier: Apache-2.0 */
/* version: of the command, its library, and the daemon when one answers soon. */
#include <stdio.h>

#include "connect.h"
#include "print.h"
#include "report.h"

#define SOON_MS 2000

static void version_take(const gpuipc_status_info *status, void *data) {
        print_escaped(data, status->version ? status->version : "-");
}

int verb_version(const struct arguments *arguments) {
        _cleanup_client_ gpuipc_client *client = NULL;
        struct bytes text = { 0 };
        gpuipc_error error;

        (void)printf("gpuipcctl %s\nlibgpuipc %s\n", GPUIPC_VERSION, gpuipc_version());
        if (ctl_connect_quietly(arguments, SOON_MS, -1, &client, &error) == GPUIPC_OK &&
            gpuipc_get_status(client, version_take, &text, &error) == GPUIPC_OK) {
                bytes_append_str(&text, " at ");
                print_escaped(&text, gpuipc_client_socket(client));
        } else {
                bytes_append_str(&text, "unknown: ");
                print_escaped(&text, error.message);
        }
        bytes_append_char(&text, 0);
        (void)printf("gpuipcd   %s\n", text.failed ? "unknown" : text.data);
        bytes_deinit(&text);
        return report_flush();
}
