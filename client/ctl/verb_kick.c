/* SPDX-License-Identifier: Apache-2.0 */
/* kick: another session is closed. */
#include "connect.h"
#include "report.h"

int verb_kick(const struct arguments *arguments) {
        _cleanup_client_ gpuipc_client *client = NULL;
        gpuipc_error error;
        int r = ctl_connect(arguments, 0, &client);

        if (r != EXIT_DONE)
                return r;
        if (gpuipc_kick(client, arguments->operands[0], &error) != GPUIPC_OK)
                return report_error(&error);
        return EXIT_DONE;
}
