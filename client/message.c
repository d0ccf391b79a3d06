/* SPDX-License-Identifier: Apache-2.0 */
/* Between structs and bytes, by the tables of proto/. Any thread enters. Never touches a connection. */
#include "message.h"

#include <errno.h>
#include <string.h>

#include "error.h"
#include "proto/cleanup.h"
#include "proto/codec.h"

static int message_check(const struct bytes *out, gpuipc_error *ret_error) {
        if (out->failed)
                return error_no_memory(ret_error);
        /* The daemon would close the connection, and with it every lease. */
        if (out->n > WIRE_MESSAGE_MAX)
                return error_parameter(ret_error, "parameters", "at most 64 KiB in all, as JSON");
        return GPUIPC_OK;
}

int message_put(struct bytes *out, enum method method, const void *params, bool more, gpuipc_error *ret_error) {
        codec_put_call(out, method_schemas[method].name, method_schemas[method].params, params, NULL,
                       (struct codec_call_options){ .more = more });
        return message_check(out, ret_error);
}

int message_check_json(const char *text, size_t n, const char *what, gpuipc_error *ret_error) {
        _cleanup_(codec_doc_freep) struct codec_doc *doc = NULL;
        const char *why = NULL;
        int r = codec_parse(text, n, &doc, &why);

        if (r == -ENOMEM)
                return error_no_memory(ret_error);
        if (r < 0)
                return error_set(ret_error, GPUIPC_ERROR_INVALID_PARAMETER, 0, what,
                                 "The parameter '%s' is not valid: it must be a JSON object (%s).", what,
                                 why ? why : "it is none");
        return GPUIPC_OK;
}

int message_put_text(struct bytes *out, const char *method, const char *params, bool more, gpuipc_error *ret_error) {
        int r = params ? message_check_json(params, strlen(params), "parameters", ret_error) : GPUIPC_OK;

        if (r != GPUIPC_OK)
                return r;
        codec_put_call(out, method, NULL, NULL, params ? params : "{}", (struct codec_call_options){ .more = more });
        r = message_check(out, ret_error);
        if (r != GPUIPC_OK)
                return r;
        /* Once more as a whole: what is nested deepest counts from the message's own braces. */
        return message_check_json(out->data, out->n, "parameters", ret_error);
}

static int read_error(const struct reply *reply, enum method method, gpuipc_error *ret_error) {
        enum verdict verdict = verdict_from_error_name(reply->error);
        struct failure failure = { .verdict = verdict };
        const char *field = "?";
        int r = 0;

        if (verdict == VERDICT_OK)
                return error_unknown(ret_error, reply->error);
        if (error_schemas[verdict])
                r = codec_reply_params(reply->doc, error_schemas[verdict], &failure, &field);
        if (r == -ENOMEM)
                return error_no_memory(ret_error);
        if (r < 0)
                return error_protocol(ret_error, "'%s' of the error %s", field, reply->error);
        failure.verdict = verdict;
        return error_failure(ret_error, method, &failure);
}

int message_read(const struct reply *reply, enum method method, void *ret, gpuipc_error *ret_error) {
        const char *field = "?";
        int r;

        if (reply->error)
                return read_error(reply, method, ret_error);
        if (!ret)
                return GPUIPC_OK;
        r = codec_reply_params(reply->doc, method_schemas[method].reply, ret, &field);
        if (r == -ENOMEM)
                return error_no_memory(ret_error);
        if (r < 0)
                return error_protocol(ret_error, "'%s' of a reply to %s", field, method_schemas[method].name);
        return GPUIPC_OK;
}

bool message_is_stopping(const struct reply *reply) {
        struct failure failure = { 0 };
        const char *field;

        return reply->error && verdict_from_error_name(reply->error) == VERDICT_TOO_MANY_REQUESTS &&
               codec_reply_params(reply->doc, error_schemas[VERDICT_TOO_MANY_REQUESTS], &failure, &field) == 0 &&
               strcmp(failure.reason, VERDICT_REASON_STOPPING) == 0;
}
