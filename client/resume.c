/* SPDX-License-Identifier: Apache-2.0 */
/* GetStatus for the token, Resume with it, and what its reply means for each lease. The thread that has the connection busy
 * enters. Never decides how long to go on: that is outage.c's. */
#include "resume.h"

#include <string.h>

#include "error.h"
#include "warden.h"
#include "message.h"
#include "outage.h"
#include "proto/cleanup.h"

void resume_forget(gpuipc_client *client, struct conn *conn, enum claim_loss why) {
        (void)pthread_mutex_lock(&client->lock);
        claim_end_all(conn, why);
        (void)pthread_mutex_unlock(&client->lock);
        free(take_ptr(conn->token));
        conn->learned = conn->doubtful = false;
}

int resume_learn(gpuipc_client *client, struct conn *conn, int64_t deadline, gpuipc_error *ret_error) {
        _cleanup_(bytes_deinit) struct bytes message = { 0 };
        _cleanup_(reply_deinit) struct reply reply = { 0 };
        struct empty_params empty = { 0 };
        struct status_reply status;
        int r = GPUIPC_OK;

        if (conn->learned || client->restart_ms < 0)
                return GPUIPC_OK;
        r = message_put(&message, METHOD_GET_STATUS, &empty, false, ret_error);
        if (r == GPUIPC_OK)
                r = outage_call(client, conn, &message, deadline, &reply, ret_error);
        if (r == GPUIPC_OK)
                r = message_read(&reply, METHOD_GET_STATUS, &status, ret_error);
        if (r != GPUIPC_OK)
                return r;
        if (status.resume_token) {
                conn->token = strdup(status.resume_token);
                if (!conn->token)
                        return error_no_memory(ret_error);
        }
        r = conn->token ? warden_watch(client, conn, false, ret_error) : GPUIPC_OK;
        if (r != GPUIPC_OK)
                free(take_ptr(conn->token));
        conn->learned = r == GPUIPC_OK;
        return r;
}

/* ---- asking ----------------------------------------------------------------------------------------------- */

/* Nothing has been asked for yet. */
static void ask_none(gpuipc_client *client, struct conn *conn) {
        (void)pthread_mutex_lock(&client->lock);
        for (struct claim *claim = conn->claims; claim; claim = claim->next)
                claim->asked = ASKED_NOT;
        (void)pthread_mutex_unlock(&client->lock);
}

/* The leases that are to stand, as many as fit into a call; each is marked. Under the lock. -ENOMEM. */
static int ask_locked(struct conn *conn, struct resume_params *params) {
        const char **ids = calloc(conn->n_claims + 1, sizeof(*ids));
        size_t n = 0, n_bytes = 0;
        int64_t n_left = 0;

        if (!ids)
                return -ENOMEM;
        for (struct claim *claim = conn->claims; claim; claim = claim->next) {
                if (claim->stand != CLAIM_STANDS || claim->asked != ASKED_NOT)
                        continue;
                n_bytes += strlen(claim->id) + strlen("\"\",");
                if (n_bytes > RESUME_IDS_BYTES_MAX && n > 0) {
                        n_left++;
                        continue;
                }
                claim->asked = ASKED_NOW;
                ids[n++] = claim->id;
        }
        params->leases = (struct string_array){ .items = ids, .n = n };
        params->follow = n_left > 0 ? n_left : SCHEMA_UNSET;
        return 0;
}

static int resume_send(gpuipc_client *client, struct conn *conn, int64_t deadline, gpuipc_error *ret_error) {
        _cleanup_(bytes_deinit) struct bytes message = { 0 };
        struct resume_params params = { .token = conn->token };
        int r;

        (void)pthread_mutex_lock(&client->lock);
        r = ask_locked(conn, &params) < 0 ? error_no_memory(ret_error)
                                          : message_put(&message, METHOD_RESUME, &params, false, ret_error);
        (void)pthread_mutex_unlock(&client->lock);
        free((void *)(uintptr_t)params.leases.items);
        conn->resume_more = params.follow != SCHEMA_UNSET;
        if (r == GPUIPC_OK)
                r = conn_send(conn, &message, deadline, ret_error);
        /* What could not be sent whole in time is sent by whoever goes on. */
        conn->resuming = r == GPUIPC_OK || (r == GPUIPC_ERROR_TIMED_OUT && conn->owed);
        if (conn->resuming)
                (void)warden_watch(client, conn, true, NULL); /* that the session is back matters more */
        return conn->resuming ? GPUIPC_OK : r;
}

/* ---- the answer ------------------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b) {
        return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Ids of the leases that stand, in order. NULL: no memory. */
static const char **standing(const struct resume_reply *reply, size_t *ret_n) {
        const struct lease_info *leases = reply->leases.items;
        const char **ids = calloc(reply->leases.n + 1, sizeof(*ids));
        size_t n = 0;

        for (size_t i = 0; ids && i < reply->leases.n; i++)
                if (leases[i].state != LEASE_DRAINING)
                        ids[n++] = leases[i].id;
        if (ids)
                qsort(ids, n, sizeof(*ids), compare);
        *ret_n = n;
        return ids;
}

static void judge_locked(struct conn *conn, const char *const *ids, size_t n) {
        struct claim *next;

        for (struct claim *claim = conn->claims; claim; claim = next) {
                const char *id = claim->id;

                next = claim->next;
                if (claim->asked == ASKED_NOW && bsearch(&id, ids, n, sizeof(*ids), compare))
                        claim->asked = ASKED_BEFORE;
                else if (claim->asked == ASKED_NOW && claim->stand == CLAIM_STANDS)
                        claim_end(claim, CLAIM_LOST, LOSS_BUFFER);
                else if (claim->asked == ASKED_NOW || (claim->asked == ASKED_NOT && !conn->resume_more))
                        claim_end(claim, CLAIM_OVER, LOSS_NONE);
        }
}

static int resume_accept(gpuipc_client *client, struct conn *conn, const struct resume_reply *reply, gpuipc_error *ret_error) {
        char *token = reply->resume_token ? strdup(reply->resume_token) : NULL;
        const char **ids;
        size_t n;

        ids = standing(reply, &n);
        if (!ids || (reply->resume_token && !token)) {
                free(token);
                free(ids);
                return error_no_memory(ret_error);
        }
        (void)pthread_mutex_lock(&client->lock);
        judge_locked(conn, ids, n);
        (void)pthread_mutex_unlock(&client->lock);
        free(ids);
        free(conn->token);
        conn->token = token;
        if (conn->resume_more)
                return token ? GPUIPC_OK : error_protocol(ret_error, "a session taken up in part has no token");
        conn->learned = true;
        conn->doubtful = false;
        return GPUIPC_OK;
}

/* What a refusal means for the leases; LOSS_NONE: nothing yet, it may go better another time. */
static enum claim_loss loss_of(int status) {
        switch (status) {
        case GPUIPC_ERROR_NO_SUCH_SESSION:
        case GPUIPC_ERROR_INVALID_PARAMETER:
                return LOSS_SESSION;
        case GPUIPC_ERROR_UNSUPPORTED:
                return LOSS_OLD_DAEMON;
        case GPUIPC_ERROR_ACCESS_DENIED:
                return LOSS_REFUSED;
        default:
                return LOSS_NONE;
        }
}

/* The reply to one call. With conn->resume_more another is to be made. */
static int resume_receive(gpuipc_client *client, struct conn *conn, int64_t deadline, gpuipc_error *ret_error) {
        _cleanup_(reply_deinit) struct reply reply = { 0 };
        struct resume_reply resumed;
        int r = conn_push(conn, deadline, ret_error);

        if (r == GPUIPC_OK)
                r = conn_receive(conn, deadline, &reply, ret_error);
        if (r == GPUIPC_ERROR_TIMED_OUT)
                return r;
        conn->resuming = false;
        if (r == GPUIPC_OK && reply.continues)
                r = error_protocol(ret_error, "it goes on where one reply is due");
        if (r == GPUIPC_OK) {
                r = message_read(&reply, METHOD_RESUME, &resumed, ret_error);
                if (reply.error && loss_of(r) != LOSS_NONE) {
                        /* The connection is as good as any; only the session is gone. */
                        resume_forget(client, conn, loss_of(r));
                        conn->resume_more = false;
                        return GPUIPC_OK;
                }
                if (r == GPUIPC_OK)
                        r = resume_accept(client, conn, &resumed, ret_error);
        }
        if (r != GPUIPC_OK) {
                conn_close(conn);
                return r;
        }
        (void)warden_watch(client, conn, false, NULL);
        return GPUIPC_OK;
}

int resume_step(gpuipc_client *client, struct conn *conn, int64_t deadline, gpuipc_error *ret_error) {
        int r;

        if (!conn->resuming) {
                if (!resume_wanted(conn))
                        resume_forget(client, conn, resume_loss(client));
                r = conn_connect(conn, client->path, deadline, ret_error);
                if (r != GPUIPC_OK || !conn->token)
                        return r;
                ask_none(client, conn);
                conn->resume_more = true;
        } else {
                r = resume_receive(client, conn, deadline, ret_error);
        }
        while (r == GPUIPC_OK && conn->resume_more) {
                r = resume_send(client, conn, deadline, ret_error);
                if (r == GPUIPC_OK)
                        r = resume_receive(client, conn, deadline, ret_error);
                else
                        conn_close(conn);
        }
        return r;
}
