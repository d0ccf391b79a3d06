/* SPDX-License-Identifier: Apache-2.0 */
/* list: leases or buffers, once or followed by events. */
#include "connect.h"
#include "events.h"
#include "proto/cleanup.h"
#include "rawjson.h"
#include "report.h"
#include "rows.h"

static int list_json(const struct arguments *arguments, gpuipc_client *client) {
        bool buffers = arguments_has(arguments, OPTION_BUFFERS);
        struct bytes parameters = { 0 }, out = { 0 };
        int r = rawjson_filter(arguments, &parameters);

        bytes_append_str(&out, buffers ? "{\"buffers\":" : "{\"leases\":");
        if (r == EXIT_DONE)
                r = rawjson_collect(client, buffers ? "io.gpuipc.Broker.ListBuffers" : "io.gpuipc.Broker.List",
                                    parameters.data, buffers ? "buffers" : "leases", &out);
        bytes_append_char(&out, '}');
        if (r == EXIT_DONE)
                r = rawjson_print(&out);
        bytes_deinit(&parameters);
        bytes_deinit(&out);
        return r;
}

static int list_table(const struct arguments *arguments, gpuipc_client *client) {
        _cleanup_rows_ struct rows rows = { 0 };
        gpuipc_list_options options = GPUIPC_LIST_OPTIONS_INIT;
        bool exact = arguments_has(arguments, OPTION_BYTES);
        gpuipc_error error;
        int r;

        options.name = arguments->values[OPTION_NAME];
        if (arguments_uid(arguments, OPTION_UID, &options.uid) != EXIT_DONE)
                return EXIT_BAD_USAGE;
        if (arguments_has(arguments, OPTION_BUFFERS)) {
                rows_init_buffers(&rows, exact);
                r = gpuipc_list_buffers(client, &options, rows_buffer, &rows, &error);
        } else {
                rows_init_leases(&rows, exact);
                r = gpuipc_list(client, &options, rows_lease, &rows, &error);
        }
        if (r != GPUIPC_OK)
                return report_error(&error);
        r = rows_print(&rows);
        return r == EXIT_DONE ? report_flush() : r;
}

int verb_list(const struct arguments *arguments) {
        _cleanup_client_ gpuipc_client *client = NULL;
        _cleanup_watch_ gpuipc_watch *watch = NULL;
        bool json = arguments_has(arguments, OPTION_JSON), follow = arguments_has(arguments, OPTION_WATCH);
        int r;

        if (json && follow)
                return report_usage(arguments->verb,
                                    "--json and --watch exclude each other; watch --json gives events as JSON");
        r = ctl_connect(arguments, 0, &client);
        /* The stream comes first, so that nothing is missed between the two. */
        if (r == EXIT_DONE && follow)
                r = events_watch(client, -1, &watch);
        if (r == EXIT_DONE)
                r = json ? list_json(arguments, client) : list_table(arguments, client);
        if (r == EXIT_DONE && follow)
                r = events_print(arguments, client, take_ptr(watch));
        return r;
}
