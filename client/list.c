/* SPDX-License-Identifier: Apache-2.0 */
/* GetStatus, List, ListBuffers, and any method as JSON: what is asked in order to look. Any thread enters. Never calls
 * the user's callback with a lock held or the main connection taken. */
#include <errno.h>
#include <string.h>

#include "calls.h"
#include "error.h"
#include "info.h"
#include "message.h"
#include "outage.h"
#include "proto/cleanup.h"
#include "seen.h"

int gpuipc_get_status(gpuipc_client *client, void (*callback)(const gpuipc_status_info *status, void *data),
                      void *data, gpuipc_error *ret_error) {
        _cleanup_(reply_deinit) struct reply reply = { 0 };
        _cleanup_(status_room_deinit) struct status_room room = { 0 };
        struct empty_params params = { 0 };
        struct status_reply status;
        gpuipc_status_info info;
        int r = call_main(client, METHOD_GET_STATUS, &params, &reply, NULL, ret_error);

        if (r == GPUIPC_OK)
                r = message_read(&reply, METHOD_GET_STATUS, &status, ret_error);
        if (r != GPUIPC_OK)
                return r;
        if (info_status(&status, &room, &info) < 0)
                return error_no_memory(ret_error);
        if (callback)
                callback(&info, data);
        return GPUIPC_OK;
}

/* ---- lists ------------------------------------------------------------------------------------------------ */

/* What is done with each reply of a stream. > 0: a gpuipc_status; < 0: enough. */
struct stream {
        int (*take)(const struct stream *stream, const struct reply *reply, gpuipc_error *ret_error);
        int (*lease)(const gpuipc_lease_info *lease, void *data);
        int (*buffer)(const gpuipc_buffer_info *buffer, void *data);
        int (*text)(const char *parameters, void *data);
        void *data;
        struct seen *seen; /* the entries of lists */
        bool *told;        /* a reply was handed on */
};

#define STREAM_ENOUGH (-1)

/* Receives to the end, or as far as is wanted. Each reply has the client's time of its own. */
static int stream_run(gpuipc_client *client, struct conn *conn, const struct bytes *message,
                      const struct stream *stream, gpuipc_error *ret_error) {
        int r = conn_send(conn, message, client_deadline(client), ret_error);

        while (r == GPUIPC_OK && conn->owed) {
                _cleanup_(reply_deinit) struct reply reply = { 0 };
                r = conn_receive(conn, client_deadline(client), &reply, ret_error);
                if (r == GPUIPC_OK)
                        r = outage_sees(client, conn, &reply, client_deadline(client), ret_error);
                if (r == GPUIPC_OK)
                        r = stream->take(stream, &reply, ret_error);
        }
        return r;
}

/* A stream broken off leaves replies behind: client_put() closes its connection then. One that the daemon's end broke off
 * begins anew. */
static int stream_call(gpuipc_client *client, enum method method, const void *params, struct stream *stream,
                       gpuipc_error *ret_error) {
        _cleanup_(bytes_deinit) struct bytes message = { 0 };
        _cleanup_(seen_deinit) struct seen seen = { 0 };
        struct repeats repeats = { 0 };
        struct conn *conn;
        int r = message_put(&message, method, params, true, ret_error);

        if (r == GPUIPC_OK)
                r = client_take_side(client, client_deadline(client), &conn, ret_error);
        if (r != GPUIPC_OK)
                return r;
        stream->seen = &seen;
        for (;;) {
                r = stream_run(client, conn, &message, stream, ret_error);
                if (r == GPUIPC_OK || r == STREAM_ENOUGH)
                        break;
                r = outage_repeat(client, conn, r, &repeats, client_deadline(client), ret_error);
                if (r != GPUIPC_OK)
                        break;
                seen_again(&seen);
        }
        client_put(client, conn);
        return r == STREAM_ENOUGH ? GPUIPC_OK : r;
}

/* GPUIPC_OK: to be told, and noted. */
static int stream_note(const struct stream *stream, const char *id, bool *ret_tell, gpuipc_error *ret_error) {
        *ret_tell = !seen_has(stream->seen, id);
        return *ret_tell && seen_add(stream->seen, id) < 0 ? error_no_memory(ret_error) : GPUIPC_OK;
}

static int list_params(gpuipc_client *client, const gpuipc_list_options *options, struct list_params *ret,
                       gpuipc_error *ret_error) {
        gpuipc_list_options o = GPUIPC_LIST_OPTIONS_INIT;
        int r = client_check(client, ret_error);

        if (r == GPUIPC_OK)
                r = client_options(&o, sizeof(o), options, ret_error);
        if (r != GPUIPC_OK)
                return r;
        if (o.uid < -1)
                return error_parameter(ret_error, "uid", "a uid, -1 for everyone's");
        *ret = (struct list_params){ .uid = o.uid < 0 ? SCHEMA_UNSET : o.uid, .name = o.name };
        return GPUIPC_OK;
}

static int take_leases(const struct stream *stream, const struct reply *reply, gpuipc_error *ret_error) {
        struct list_reply page;
        int r = message_read(reply, METHOD_LIST, &page, ret_error);

        for (size_t i = 0; r == GPUIPC_OK && i < page.leases.n; i++) {
                gpuipc_lease_info info = info_lease((const struct lease_info *)page.leases.items + i);
                bool tell;

                r = stream_note(stream, info.id, &tell, ret_error);
                if (r == GPUIPC_OK && tell && stream->lease(&info, stream->data) != 0)
                        return STREAM_ENOUGH;
        }
        return r;
}

int gpuipc_list(gpuipc_client *client, const gpuipc_list_options *options,
                int (*callback)(const gpuipc_lease_info *lease, void *data), void *data, gpuipc_error *ret_error) {
        struct stream stream = { .take = take_leases, .lease = callback, .data = data };
        struct list_params params;
        int r = list_params(client, options, &params, ret_error);

        if (r != GPUIPC_OK)
                return r;
        if (!callback)
                return error_parameter(ret_error, "callback", "a function");
        return stream_call(client, METHOD_LIST, &params, &stream, ret_error);
}

static int take_buffers(const struct stream *stream, const struct reply *reply, gpuipc_error *ret_error) {
        struct list_buffers_reply page;
        int r = message_read(reply, METHOD_LIST_BUFFERS, &page, ret_error);

        for (size_t i = 0; r == GPUIPC_OK && i < page.buffers.n; i++) {
                const struct buffer_info *buffer = (const struct buffer_info *)page.buffers.items + i;
                gpuipc_channel_info channel = { 0 };
                gpuipc_buffer_info info = info_buffer(buffer);
                bool tell;

                if (buffer->channel) {
                        channel = info_channel(buffer->channel);
                        info.channel = &channel;
                }
                r = stream_note(stream, info.id, &tell, ret_error);
                if (r == GPUIPC_OK && tell && stream->buffer(&info, stream->data) != 0)
                        return STREAM_ENOUGH;
        }
        return r;
}

int gpuipc_list_buffers(gpuipc_client *client, const gpuipc_list_options *options,
                        int (*callback)(const gpuipc_buffer_info *buffer, void *data), void *data,
                        gpuipc_error *ret_error) {
        struct stream stream = { .take = take_buffers, .buffer = callback, .data = data };
        struct list_params params;
        int r = list_params(client, options, &params, ret_error);

        if (r != GPUIPC_OK)
                return r;
        if (!callback)
                return error_parameter(ret_error, "callback", "a function");
        return stream_call(client, METHOD_LIST_BUFFERS, &params, &stream, ret_error);
}

/* ---- any method ------------------------------------------------------------------------------------------- */

/* The hint for a refused parameter needs the method; an unknown one has none. */
struct text_stream {
        struct stream stream;
        enum method method;
};

static int take_text(const struct stream *stream, const struct reply *reply, gpuipc_error *ret_error) {
        const struct text_stream *text = (const struct text_stream *)stream;

        if (reply->error)
                return message_read(reply, text->method, NULL, ret_error);
        *stream->told = true;
        if (stream->text && stream->text(codec_params_text(reply->doc), stream->data) != 0)
                return STREAM_ENOUGH;
        return GPUIPC_OK;
}

/* Only looks, so that it may be asked twice. */
static bool only_looks(enum method method) {
        switch (method) {
        case METHOD_GET_INFO:
        case METHOD_GET_INTERFACE_DESCRIPTION:
        case METHOD_GET_STATUS:
        case METHOD_LIST:
        case METHOD_LIST_BUFFERS:
                return true;
        default:
                return false;
        }
}

int gpuipc_call_json(gpuipc_client *client, const char *method, const char *parameters, int more,
                     int (*callback)(const char *parameters, void *data), void *data, gpuipc_error *ret_error) {
        _cleanup_(bytes_deinit) struct bytes message = { 0 };
        _cleanup_(conn_freep) struct conn *conn = NULL;
        bool told = false;
        struct text_stream text = { .stream = { .take = take_text, .text = callback, .data = data, .told = &told } };
        struct repeats repeats = { 0 };
        int r = client_check(client, ret_error);

        if (r != GPUIPC_OK)
                return r;
        if (!method)
                return error_parameter(ret_error, "method", "a full name such as io.gpuipc.Broker.GetStatus");
        r = message_put_text(&message, method, parameters, more != 0, ret_error);
        if (r != GPUIPC_OK)
                return r;
        text.method = schema_method(method, NULL);
        conn = conn_new();
        if (!conn)
                return error_no_memory(ret_error);
        r = outage_mend(client, conn, client_deadline(client), ret_error);
        while (r == GPUIPC_OK) {
                r = stream_run(client, conn, &message, &text.stream, ret_error);
                if (r == GPUIPC_OK || told || !only_looks(text.method))
                        break;
                r = outage_repeat(client, conn, r, &repeats, client_deadline(client), ret_error);
        }
        return r == STREAM_ENOUGH ? GPUIPC_OK : r;
}
