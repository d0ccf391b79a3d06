/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces of JSON text as the daemon sent it, passed on untouched. Nothing is converted: what a newer daemon adds comes
 * through too. */
#ifndef CTL_RAWJSON_H
#define CTL_RAWJSON_H

#include <stdbool.h>
#include <stddef.h>

#include "arguments.h"
#include "include/gpuipc.h"
#include "proto/bytes.h"

struct rawjson_slice {
        const char *text;
        size_t n;
};

/* The next member of an object: *cursor starts at its text and is moved on. The key is without its quotes, the value
 * as it stands. False at the end, and at what is no JSON. */
bool rawjson_next(const char **cursor, struct rawjson_slice *ret_key, struct rawjson_slice *ret_value);

/* The value of the member of that name, or false. */
bool rawjson_member(const char *object, const char *name, struct rawjson_slice *ret_value);

bool rawjson_is(const struct rawjson_slice *slice, const char *text);

/* Calls a method that answers in pages of {"MEMBER":[…]} and appends the whole array, "[…]". An exit code. */
int rawjson_collect(gpuipc_client *client, const char *method, const char *parameters, const char *member,
                    struct bytes *out);

/* The parameters of List and ListBuffers by --uid and --name, NUL-ended. */
int rawjson_filter(const struct arguments *arguments, struct bytes *out);

/* Prints the text and a newline on stdout, flushed. An exit code. */
int rawjson_print(struct bytes *text);

#endif
