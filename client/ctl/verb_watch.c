/* SPDX-License-Identifier: Apache-2.0 */
/* watch: a line for each event. */
#include "connect.h"
#include "events.h"

#define NO_TIMEOUT (-1) /* a stream may be silent for as long as it likes */

int verb_watch(const struct arguments *arguments) {
        _cleanup_client_ gpuipc_client *client = NULL;
        gpuipc_watch *watch;
        bool json = arguments_has(arguments, OPTION_JSON);
        int64_t since = -1;
        int r;

        if (arguments_number(arguments, OPTION_SINCE, 0, &since) != EXIT_DONE)
                return EXIT_BAD_USAGE;
        r = ctl_connect(arguments, json ? NO_TIMEOUT : 0, &client);
        if (r != EXIT_DONE)
                return r;
        if (json)
                return events_print_json(client, since);
        r = events_watch(client, since, &watch);
        return r == EXIT_DONE ? events_print(arguments, client, watch) : r;
}
