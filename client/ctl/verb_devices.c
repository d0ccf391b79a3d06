/* SPDX-License-Identifier: Apache-2.0 */
/* devices: one row each. */
#include "connect.h"
#include "rawjson.h"
#include "report.h"
#include "rows.h"

static void devices_fill(const gpuipc_status_info *status, void *data) {
        for (size_t i = 0; i < status->n_devices; i++)
                rows_device(data, &status->devices[i]);
}

static int devices_cut(const char *parameters, void *data) {
        struct rawjson_slice devices;
        struct bytes *out = data;

        if (!rawjson_member(parameters, "devices", &devices))
                return 0;
        bytes_append_str(out, "{\"devices\":");
        bytes_append(out, devices.text, devices.n);
        bytes_append_char(out, '}');
        return 0;
}

static int devices_json(gpuipc_client *client) {
        struct bytes out = { 0 };
        gpuipc_error error;
        int r;

        if (gpuipc_call_json(client, "io.gpuipc.Broker.GetStatus", NULL, 0, devices_cut, &out, &error) !=
            GPUIPC_OK)
                r = report_error(&error);
        else
                r = rawjson_print(&out);
        bytes_deinit(&out);
        return r;
}

int verb_devices(const struct arguments *arguments) {
        _cleanup_client_ gpuipc_client *client = NULL;
        _cleanup_rows_ struct rows rows = { 0 };
        gpuipc_error error;
        int r = ctl_connect(arguments, 0, &client);

        if (r != EXIT_DONE)
                return r;
        if (arguments_has(arguments, OPTION_JSON))
                return devices_json(client);
        rows_init_devices(&rows, arguments_has(arguments, OPTION_BYTES));
        if (gpuipc_get_status(client, devices_fill, &rows, &error) != GPUIPC_OK)
                return report_error(&error);
        r = rows_print(&rows);
        return r == EXIT_DONE ? report_flush() : r;
}
