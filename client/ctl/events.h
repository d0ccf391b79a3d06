/* SPDX-License-Identifier: Apache-2.0 */
/* The stream of events as lines on stdout: watch, and list --watch. */
#ifndef CTL_EVENTS_H
#define CTL_EVENTS_H

#include "arguments.h"
#include "include/gpuipc.h"

/* Takes the watch and prints a line an event, for ever, by --uid and --name. Events that are no longer remembered are
 * told of and passed over. An exit code. */
int events_print(const struct arguments *arguments, gpuipc_client *client, gpuipc_watch *watch_take);

/* The same as JSON, an object a line. `since` -1: from now on. */
int events_print_json(gpuipc_client *client, int64_t since);

/* A watch from `since`, or from the first event still remembered after it, having told so. An exit code. */
int events_watch(gpuipc_client *client, int64_t since, gpuipc_watch **ret_watch);

#endif
