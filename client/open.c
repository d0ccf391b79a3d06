/* SPDX-License-Identifier: Apache-2.0 */
/* Open, by id and by name. Any thread enters. Never holds a connection on return. */
#include <string.h>

#include "calls.h"
#include "error.h"
#include "message.h"
#include "outage.h"
#include "proto/cleanup.h"
#include "resume.h"
#include "trace.h"

#define OWNER_MINE_OR_ROOT (-1)
#define OWNER_ANYONE (-2)
#define WAITS_MAX 2

/* Whose buffer may be meant, in order of preference. */
struct owners {
        int64_t uids[WAITS_MAX];
        size_t n;
};

/* The caller's uid as the daemon knows it. An older daemon does not tell: then what was worked out here must do. */
static int own_uid(gpuipc_client *client, int64_t *ret_uid, gpuipc_error *ret_error) {
        _cleanup_(reply_deinit) struct reply reply = { 0 };
        struct empty_params params = { 0 };
        struct status_reply status;
        bool sure;
        int r = GPUIPC_OK;

        (void)pthread_mutex_lock(&client->lock);
        *ret_uid = client->uid;
        sure = client->uid_sure;
        (void)pthread_mutex_unlock(&client->lock);
        if (sure)
                return GPUIPC_OK;
        r = call_main(client, METHOD_GET_STATUS, &params, &reply, NULL, ret_error);
        if (r == GPUIPC_OK)
                r = message_read(&reply, METHOD_GET_STATUS, &status, ret_error);
        if (r != GPUIPC_OK)
                return r;
        if (status.uid != SCHEMA_UNSET)
                *ret_uid = status.uid;
        (void)pthread_mutex_lock(&client->lock);
        client->uid = *ret_uid;
        client->uid_sure = true;
        (void)pthread_mutex_unlock(&client->lock);
        return GPUIPC_OK;
}

static int owners_of(gpuipc_client *client, int64_t owner, struct owners *ret, gpuipc_error *ret_error) {
        int64_t uid = SCHEMA_UNSET;
        int r = GPUIPC_OK;

        if (owner == OWNER_MINE_OR_ROOT)
                r = own_uid(client, &uid, ret_error);
        else if (owner != OWNER_ANYONE)
                uid = owner;
        *ret = (struct owners){ .uids = { uid, 0 }, .n = owner != OWNER_MINE_OR_ROOT || uid == 0 ? 1 : 2 };
        return r;
}

static struct grant_call open_call(const struct open_params *params) {
        return (struct grant_call){ .method = METHOD_OPEN, .params.open = *params,
                                    .access = params->access ? GPUIPC_RO : GPUIPC_RW };
}

/* The same call, of one owner's, waiting so long. */
static struct grant_call call_of(const struct grant_call *call, int64_t owner, int64_t wait_ms) {
        struct grant_call one = *call;

        if (call->method == METHOD_CHANNEL_ATTACH) {
                one.params.channel_attach.owner = owner;
                one.params.channel_attach.wait_ms = wait_ms;
        } else {
                one.params.open.owner = owner;
                one.params.open.wait_ms = wait_ms;
        }
        return one;
}

static int open_now(gpuipc_client *client, const struct grant_call *call, const struct owners *owners,
                    gpuipc_buffer **ret_buffer, gpuipc_error *ret_error) {
        int r = GPUIPC_ERROR_NO_SUCH_BUFFER;

        for (size_t i = 0; i < owners->n && r == GPUIPC_ERROR_NO_SUCH_BUFFER; i++) {
                struct grant_call one = call_of(call, owners->uids[i], SCHEMA_UNSET);
                r = call_grant(client, &one, 0, ret_buffer, ret_error);
        }
        return r;
}

/* ---- waiting for two owners at once ----------------------------------------------------------------------- */

/* A wait that lost: a lease may have come at the same instant. */
static void drop_wait(gpuipc_client *client, struct conn *conn) {
        _cleanup_(reply_deinit) struct reply reply = { 0 };
        const char *lease = NULL;

        if (conn_open(conn) && conn->owed && conn_receive(conn, 0, &reply, NULL) == GPUIPC_OK)
                lease = conn_lease_of(&reply);
        if (lease)
                (void)conn_return_lease(conn, lease, client_deadline(client));
        client_put(client, conn); /* closes it if its answer is still to come */
}

/* One of the waits: a call of its own over a connection of its own. */
struct wait {
        struct grant_call call;
        struct conn *conn;
        struct repeats repeats;
};

struct waits {
        struct wait waits[WAITS_MAX];
        size_t n;
        int64_t until_usec, deadline;
};

/* Asks for the lease, again when the daemon went away meanwhile. */
static int wait_send(gpuipc_client *client, const struct waits *waits, struct wait *wait, int r, gpuipc_error *ret_error) {
        while (r == GPUIPC_OK || (r = outage_repeat(client, wait->conn, r, &wait->repeats, waits->deadline, ret_error)) == GPUIPC_OK) {
                _cleanup_(bytes_deinit) struct bytes message = { 0 };
                int64_t until = wait->repeats.n > 0 ? waits->until_usec : SCHEMA_UNSET;

                r = resume_learn(client, wait->conn, waits->deadline, ret_error);
                if (r == GPUIPC_OK)
                        r = call_put_grant(&message, &wait->call, until, ret_error);
                if (r == GPUIPC_OK)
                        r = conn_send(wait->conn, &message, waits->deadline, ret_error);
                if (r == GPUIPC_OK)
                        return r;
        }
        return r;
}

static int wait_start(gpuipc_client *client, struct waits *waits, const struct grant_call *call, gpuipc_error *ret_error) {
        struct wait *wait = &waits->waits[waits->n];
        int r;

        *wait = (struct wait){ .call = *call };
        r = client_take_side(client, waits->deadline, &wait->conn, ret_error);
        if (r != GPUIPC_OK)
                return r;
        r = wait_send(client, waits, wait, GPUIPC_OK, ret_error);
        if (r != GPUIPC_OK) {
                client_put(client, wait->conn);
                return r;
        }
        waits->n++;
        return GPUIPC_OK;
}

/* The first lease that any of the waits brings; the last one's error when none does. */
static int receive_wait(gpuipc_client *client, struct waits *waits, gpuipc_buffer **ret_buffer, gpuipc_error *ret_error) {
        int r = GPUIPC_ERROR_NO_SUCH_BUFFER;

        while (waits->n > 0) {
                _cleanup_(reply_deinit) struct reply reply = { 0 };
                struct conn *conns[WAITS_MAX];
                struct wait *wait;
                size_t which = 0;

                for (size_t i = 0; i < waits->n; i++)
                        conns[i] = waits->waits[i].conn;
                r = conn_receive_any(conns, waits->n, waits->deadline, &which, &reply, ret_error);
                if (r == GPUIPC_OK)
                        r = outage_sees(client, conns[which], &reply, waits->deadline, ret_error);
                if (r == GPUIPC_ERROR_TIMED_OUT || r == GPUIPC_ERROR_NO_MEMORY)
                        return r;
                wait = &waits->waits[which];
                if (r == GPUIPC_ERROR_DISCONNECTED && (r = wait_send(client, waits, wait, r, ret_error)) == GPUIPC_OK)
                        continue;
                if (r == GPUIPC_OK)
                        r = buffer_from_reply(client, wait->conn, &reply, wait->call.method, wait->call.access, waits->deadline,
                                              ret_buffer, ret_error);
                client_put(client, wait->conn);
                *wait = waits->waits[--waits->n];
                if (r == GPUIPC_OK)
                        return r;
        }
        return r;
}

static int open_waiting_for_two(gpuipc_client *client, const struct grant_call *call, const struct owners *owners, int64_t wait_ms,
                                gpuipc_buffer **ret_buffer, gpuipc_error *ret_error) {
        struct waits waits = { .until_usec = deadline_after_ms(wait_ms),
                               .deadline = deadline_extend_ms(client_deadline(client), wait_ms) };
        int r = GPUIPC_OK;

        while (waits.n < owners->n && r == GPUIPC_OK) {
                struct grant_call one = call_of(call, owners->uids[waits.n], wait_ms);
                r = wait_start(client, &waits, &one, ret_error);
        }
        if (r == GPUIPC_OK)
                r = receive_wait(client, &waits, ret_buffer, ret_error);
        while (waits.n > 0)
                drop_wait(client, waits.waits[--waits.n].conn);
        return r;
}

int call_grant_by_name(gpuipc_client *client, const struct grant_call *call, int64_t owner, int64_t wait_ms,
                       gpuipc_buffer **ret_buffer, gpuipc_error *ret_error) {
        struct owners owners;
        struct grant_call one;
        int r = owners_of(client, owner, &owners, ret_error);

        if (r != GPUIPC_OK)
                return r;
        r = open_now(client, call, &owners, ret_buffer, ret_error);
        if (r != GPUIPC_ERROR_NO_SUCH_BUFFER || wait_ms == 0)
                return r;
        if (owners.n > 1)
                return open_waiting_for_two(client, call, &owners, wait_ms, ret_buffer, ret_error);
        one = call_of(call, owners.uids[0], wait_ms);
        return call_grant(client, &one, wait_ms, ret_buffer, ret_error);
}

/* ---- the public functions --------------------------------------------------------------------------------- */

static int open_check(const gpuipc_client *client, const gpuipc_open_options *options, gpuipc_buffer **ret_buffer,
                      gpuipc_open_options *ret, gpuipc_error *ret_error) {
        gpuipc_open_options o = GPUIPC_OPEN_OPTIONS_INIT;
        int r = client_check(client, ret_error);

        if (r == GPUIPC_OK)
                r = client_options(&o, sizeof(o), options, ret_error);
        if (r != GPUIPC_OK)
                return r;
        if (!ret_buffer)
                return error_parameter(ret_error, "ret_buffer", "a pointer to where the buffer goes");
        if (o.access != GPUIPC_RW && o.access != GPUIPC_RO)
                return error_parameter(ret_error, "access", "GPUIPC_RW or GPUIPC_RO");
        if (o.wait_ms < 0)
                return error_parameter(ret_error, "wait_ms", "milliseconds, 0 for not waiting");
        if (o.owner < OWNER_ANYONE)
                return error_parameter(ret_error, "owner", "a uid, -1 for the caller's own or root's, -2 for anyone's");
        *ret = o;
        return GPUIPC_OK;
}

int gpuipc_open_name(gpuipc_client *client, const char *name, const gpuipc_open_options *options,
                     gpuipc_buffer **ret_buffer, gpuipc_error *ret_error) {
        gpuipc_open_options o;
        struct open_params params = { .name = name, .wait_ms = SCHEMA_UNSET };
        struct grant_call call;
        int r = open_check(client, options, ret_buffer, &o, ret_error);

        if (r != GPUIPC_OK)
                return r;
        if (!name)
                return error_parameter(ret_error, "name", "a buffer's name");
        params.access = o.access == GPUIPC_RO ? "ro" : NULL;
        params.label = o.label;
        trace_scope(TRACE_OPEN, 0);
        call = open_call(&params);
        return call_grant_by_name(client, &call, o.owner, o.wait_ms, ret_buffer, ret_error);
}

int gpuipc_open_id(gpuipc_client *client, const char *id, const gpuipc_open_options *options,
                   gpuipc_buffer **ret_buffer, gpuipc_error *ret_error) {
        gpuipc_open_options o;
        struct open_params params = { .buffer = id, .owner = SCHEMA_UNSET, .wait_ms = SCHEMA_UNSET };
        struct grant_call call;
        int r = open_check(client, options, ret_buffer, &o, ret_error);

        if (r != GPUIPC_OK)
                return r;
        if (!id)
                return error_parameter(ret_error, "id", "a buffer's id");
        params.access = o.access == GPUIPC_RO ? "ro" : NULL;
        params.label = o.label;
        trace_scope(TRACE_OPEN, 0);
        call = open_call(&params);
        return call_grant(client, &call, 0, ret_buffer, ret_error);
}
