/* SPDX-License-Identifier: Apache-2.0 */
/* free: a buffer's name, keep and openness end. */
#include "connect.h"
#include "report.h"

int verb_free(const struct arguments *arguments) {
        _cleanup_client_ gpuipc_client *client = NULL;
        const char *subject = arguments->operands[0];
        gpuipc_error error;
        int r = ctl_connect(arguments, 0, &client), status = GPUIPC_ERROR_NO_SUCH_BUFFER;

        if (r != EXIT_DONE)
                return r;
        if (!arguments_has(arguments, OPTION_ID))
                status = gpuipc_free(client, NULL, subject, &error);
        if (status == GPUIPC_ERROR_NO_SUCH_BUFFER)
                status = gpuipc_free(client, subject, NULL, &error);
        return status == GPUIPC_OK ? EXIT_DONE : report_error(&error);
}
