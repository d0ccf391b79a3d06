/* SPDX-License-Identifier: Apache-2.0 */
/* GetStatus for the token, Resume with it, and what its reply means for each lease. The thread that has the connection busy
 * enters. Never decides how long to go on: that is outage.c's. */
#include "resume.h"

#include <string.h>

#include "error.h"
#include "warden.h"
#include "message.h"
#include "proto/cleanup.h"

void resume_forget(gpuipc_client *client, struct conn *conn, enum claim_loss why) {
        (void)pthread_mutex_lock(&client->lock);
        claim_end_all(conn, why);
        (void)pthread_mutex_unlock(&client->lock);
        free(take_ptr(conn->token));
        conn->learned = conn->doubtful = false;
}

bool resume_is_full(const struct conn *conn) {
        return conn->token && conn->claim_bytes + conn->n_claims * strlen("\"\",") > RESUME_CLAIM_BYTES_MAX;
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
                r = conn_call(conn, &message, deadline, &reply, ret_error);
        if (r == GPUIPC_OK)
                r = message_read(&reply, METHOD_GET_STATUS, &status, ret_error);
        if (r != GPUIPC_OK)
                return r;
        if (status.resume_token) {
                conn->token = strdup(status.resume_token);
                if (!conn->token)
                        return error_no_memory(ret_error);
        }
        conn->learned = true;
        return conn->token ? warden_watch(client, conn, false, ret_error) : GPUIPC_OK;
}

/* ---- asking ----------------------------------------------------------------------------------------------- */

/* The leases that are to stand, as the message wants them; each is marked. Under the lock. -ENOMEM. */
static int ask_locked(struct conn *conn, struct string_array *ret) {
        const char **ids = calloc(conn->n_claims + 1, sizeof(*ids));
        size_t n = 0;

        if (!ids)
                return -ENOMEM;
        for (struct claim *claim = conn->claims; claim; claim = claim->next) {
                claim->asked = claim->stand == CLAIM_STANDS;
                if (claim->asked)
                        ids[n++] = claim->id;
        }
        *ret = (struct string_array){ .items = ids, .n = n };
        return 0;
}

static int resume_send(gpuipc_client *client, struct conn *conn, int64_t deadline, gpuipc_error *ret_error) {
        _cleanup_(bytes_deinit) struct bytes message = { 0 };
        struct resume_params params = { .token = conn->token };
        int r;

        (void)pthread_mutex_lock(&client->lock);
        r = ask_locked(conn, &params.leases) < 0 ? error_no_memory(ret_error)
                                                 : message_put(&message, METHOD_RESUME, &params, false, ret_error);
        (void)pthread_mutex_unlock(&client->lock);
        free((void *)(uintptr_t)params.leases.items);
        if (r == GPUIPC_OK)
                r = conn_send(conn, &message, deadline, ret_error);
        conn->resuming = r == GPUIPC_OK || (r == GPUIPC_ERROR_TIMED_OUT && conn->owed);
        if (conn->resuming)
                (void)warden_watch(client, conn, true, NULL); /* that the session is back matters more */
        return r;
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
                bool stands = bsearch(&id, ids, n, sizeof(*ids), compare) != NULL;

                next = claim->next;
                if (!claim->asked || (!stands && claim->stand == CLAIM_LEAVING))
                        claim_end(claim, CLAIM_OVER, LOSS_NONE);
                else if (!stands)
                        claim_end(claim, CLAIM_LOST, LOSS_BUFFER);
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
                        return GPUIPC_OK;
                }
                if (r == GPUIPC_OK)
                        r = resume_accept(client, conn, &resumed, ret_error);
        }
        if (r == GPUIPC_OK)
                (void)warden_watch(client, conn, false, NULL);
        else
                conn_close(conn);
        return r;
}

int resume_step(gpuipc_client *client, struct conn *conn, int64_t deadline, gpuipc_error *ret_error) {
        int r;

        if (!conn->resuming) {
                if (!resume_wanted(conn))
                        resume_forget(client, conn, resume_loss(client));
                r = conn_connect(conn, client->path, deadline, ret_error);
                if (r != GPUIPC_OK || !conn->token)
                        return r;
                r = resume_send(client, conn, deadline, ret_error);
                if (!conn->resuming) {
                        conn_close(conn);
                        return r;
                }
        }
        return resume_receive(client, conn, deadline, ret_error);
}
