/* SPDX-License-Identifier: Apache-2.0 */
/* Calls as bytes, and replies as structs or errors. */
#ifndef CLIENT_MESSAGE_H
#define CLIENT_MESSAGE_H

#include <stdbool.h>

#include "conn.h"
#include "include/gpuipc.h"
#include "proto/bytes.h"
#include "proto/schema.h"

/* Appends a call. GPUIPC_ERROR_INVALID_PARAMETER when it is longer than the daemon reads. */
int message_put(struct bytes *out, enum method method, const void *params, bool more, gpuipc_error *ret_error);

/* The same with JSON text for parameters (NULL: none), which is checked; `method` is a full name. */
int message_put_text(struct bytes *out, const char *method, const char *params, bool more, gpuipc_error *ret_error);

/* Whether n bytes of text are one JSON object such as the daemon accepts; `what` is the parameter to name if not. */
int message_check_json(const char *text, size_t n, const char *what, gpuipc_error *ret_error);

/* The reply's parameters, or its error as a status. `method` may be N_METHODS and `ret` NULL: no parameters wanted. */
int message_read(const struct reply *reply, enum method method, void *ret, gpuipc_error *ret_error);

/* Whether the reply only says that the daemon is on its way out. */
bool message_is_stopping(const struct reply *reply);

#endif
