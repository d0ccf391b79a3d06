/* SPDX-License-Identifier: Apache-2.0 */
/* One function a method: Allocate, Seal, Free, Kick. (Open is in open.c, Release in buffer.c, lists in list.c.) Any
 * thread enters. Never holds a connection on return. */
#include "calls.h"

#include <string.h>

#include "error.h"
#include "message.h"
#include "outage.h"
#include "proto/cleanup.h"
#include "resume.h"
#include "trace.h"

int call_main(gpuipc_client *client, enum method method, const void *params, struct reply *ret_reply, bool *ret_again,
              gpuipc_error *ret_error) {
        _cleanup_(bytes_deinit) struct bytes message = { 0 };
        struct repeats repeats = { 0 };
        int64_t deadline;
        struct conn *conn;
        int r = client_check(client, ret_error);

        if (r == GPUIPC_OK)
                r = message_put(&message, method, params, false, ret_error);
        if (r != GPUIPC_OK)
                return r;
        deadline = client_deadline(client);
        r = client_take_main(client, deadline, &conn, ret_error);
        if (r != GPUIPC_OK)
                return r;
        do {
                r = outage_call(client, conn, &message, deadline, ret_reply, ret_error);
        } while (r != GPUIPC_OK && (r = outage_repeat(client, conn, r, &repeats, deadline, ret_error)) == GPUIPC_OK);
        client_put(client, conn);
        if (ret_again)
                *ret_again = repeats.n > 0;
        return r;
}

/* A call over the main connection whose answer is nothing but yes or no. `done` is the answer to one made a second time. */
static int call_plain(gpuipc_client *client, enum method method, const void *params, int done, gpuipc_error *ret_error) {
        _cleanup_(reply_deinit) struct reply reply = { 0 };
        bool again = false;
        int r = call_main(client, method, params, &reply, &again, ret_error);

        if (r == GPUIPC_OK)
                r = message_read(&reply, method, NULL, ret_error);
        return again && r == done ? GPUIPC_OK : r;
}

/* ---- leases ----------------------------------------------------------------------------------------------- */

static int64_t *wait_ms_of(struct grant_call *call) {
        switch (call->method) {
        case METHOD_ALLOCATE: return &call->params.allocate.wait_ms;
        case METHOD_CHANNEL_CREATE: return &call->params.channel_create.wait_ms;
        case METHOD_CHANNEL_ATTACH: return &call->params.channel_attach.wait_ms;
        default: return &call->params.open.wait_ms;
        }
}

int call_put_grant(struct bytes *out, const struct grant_call *call, int64_t until_usec, gpuipc_error *ret_error) {
        struct grant_call now = *call;
        int64_t *wait_ms = wait_ms_of(&now);

        if (until_usec != SCHEMA_UNSET && until_usec != DEADLINE_NONE) {
                int64_t left = (until_usec - clock_usec() + 999) / 1000;
                *wait_ms = left > 1 ? left : 1; /* so that it is late rather than not there */
        }
        return message_put(out, call->method, &now.params, false, ret_error);
}

/* What is asked of the connection each time: its session's token when that is not known, then the lease. */
static int grant_try(gpuipc_client *client, struct conn *conn, const struct grant_call *call, int64_t until_usec,
                     int64_t deadline, struct reply *ret_reply, gpuipc_error *ret_error) {
        _cleanup_(bytes_deinit) struct bytes message = { 0 };
        int r = resume_learn(client, conn, deadline, ret_error);

        if (r == GPUIPC_OK)
                r = call_put_grant(&message, call, until_usec, ret_error);
        return r == GPUIPC_OK ? outage_call(client, conn, &message, deadline, ret_reply, ret_error) : r;
}

int call_grant(gpuipc_client *client, const struct grant_call *call, int64_t wait_ms, gpuipc_buffer **ret_buffer,
               gpuipc_error *ret_error) {
        _cleanup_(reply_deinit) struct reply reply = { 0 };
        struct repeats repeats = { 0 };
        int64_t until = wait_ms > 0 ? deadline_after_ms(wait_ms) : SCHEMA_UNSET;
        int64_t deadline = deadline_extend_ms(client_deadline(client), wait_ms);
        struct conn *conn;
        int r;

        r = wait_ms > 0 ? client_take_side(client, deadline, &conn, ret_error)
                        : client_take_main(client, deadline, &conn, ret_error);
        if (r != GPUIPC_OK)
                return r;
        do {
                r = grant_try(client, conn, call, repeats.n > 0 ? until : SCHEMA_UNSET, deadline, &reply, ret_error);
        } while (r != GPUIPC_OK && (r = outage_repeat(client, conn, r, &repeats, deadline, ret_error)) == GPUIPC_OK);
        if (r == GPUIPC_OK)
                r = buffer_from_reply(client, conn, &reply, call->method, call->access, deadline, ret_buffer, ret_error);
        client_put(client, conn);
        return r;
}

/* ---- Allocate --------------------------------------------------------------------------------------------- */

/* meta goes into the message as it is: it must be whole, and not too deep once it is inside. */
static int check_meta(const struct allocate_params *params, gpuipc_error *ret_error) {
        _cleanup_(bytes_deinit) struct bytes message = { 0 };
        int r;

        if (!params->meta)
                return GPUIPC_OK;
        if (strlen(params->meta) > SCHEMA_META_MAX)
                return error_parameter(ret_error, "meta", "at most 4 KiB");
        r = message_check_json(params->meta, strlen(params->meta), "meta", ret_error);
        if (r == GPUIPC_OK)
                r = message_put(&message, METHOD_ALLOCATE, params, false, ret_error);
        return r != GPUIPC_OK ? r : message_check_json(message.data, message.n, "meta", ret_error);
}

int gpuipc_allocate(gpuipc_client *client, int64_t size, const gpuipc_allocate_options *options,
                    gpuipc_buffer **ret_buffer, gpuipc_error *ret_error) {
        gpuipc_allocate_options o = GPUIPC_ALLOCATE_OPTIONS_INIT;
        struct grant_call call = { .method = METHOD_ALLOCATE, .access = GPUIPC_RW };
        struct allocate_params *params = &call.params.allocate;
        int r = client_check(client, ret_error);

        if (r == GPUIPC_OK)
                r = client_options(&o, sizeof(o), options, ret_error);
        if (r != GPUIPC_OK)
                return r;
        if (!ret_buffer)
                return error_parameter(ret_error, "ret_buffer", "a pointer to where the buffer goes");
        if (o.wait_ms < 0)
                return error_parameter(ret_error, "wait_ms", "milliseconds, 0 for not waiting");
        *params = (struct allocate_params){ .size = size, .keep_ms = SCHEMA_UNSET, .wait_ms = SCHEMA_UNSET };
        params->device = o.device;
        params->name = o.name;
        params->handle = o.handle;
        params->mode = o.mode;
        params->meta = o.meta;
        params->label = o.label;
        if (o.keep_ms != 0)
                params->keep_ms = o.keep_ms;
        r = check_meta(params, ret_error);
        if (r != GPUIPC_OK)
                return r;
        /* Asked without waiting first: what need not wait need not have a connection of its own for its lease. */
        trace_scope(TRACE_ALLOCATE, size);
        r = call_grant(client, &call, 0, ret_buffer, ret_error);
        if (o.wait_ms == 0 || (r != GPUIPC_ERROR_QUOTA_EXCEEDED && r != GPUIPC_ERROR_OUT_OF_MEMORY))
                return r;
        params->wait_ms = o.wait_ms;
        return call_grant(client, &call, o.wait_ms, ret_buffer, ret_error);
}

/* ---- Seal, Free, Kick ------------------------------------------------------------------------------------- */

int gpuipc_seal(gpuipc_client *client, const char *id, gpuipc_error *ret_error) {
        struct seal_params params = { .buffer = id };

        if (!id)
                return error_parameter(ret_error, "id", "a buffer's id");
        return call_plain(client, METHOD_SEAL, &params, GPUIPC_ERROR_ALREADY_SEALED, ret_error);
}

int gpuipc_free(gpuipc_client *client, const char *id, const char *name, gpuipc_error *ret_error) {
        struct free_params params = { .buffer = id, .name = name };

        if (!id == !name)
                return error_parameter(ret_error, id ? "name" : "id", "NULL where the other is given, and only there");
        return call_plain(client, METHOD_FREE, &params, GPUIPC_ERROR_NO_SUCH_BUFFER, ret_error);
}

int gpuipc_kick(gpuipc_client *client, const char *session, gpuipc_error *ret_error) {
        struct kick_params params = { .session = session };

        if (!session)
                return error_parameter(ret_error, "session", "a session's id, as gpuipc_list() tells");
        return call_plain(client, METHOD_KICK, &params, GPUIPC_ERROR_NO_SUCH_SESSION, ret_error);
}
