/* SPDX-License-Identifier: Apache-2.0 */
/* A session that outlives its connection: the token that takes it up again, and one step of doing so. The caller has the
 * connection busy. Never sleeps but for the daemon's reply. */
#ifndef CLIENT_RESUME_H
#define CLIENT_RESUME_H

#include "claim.h"
#include "client.h"
#include "conn.h"

#define RESUME_IDS_BYTES_MAX ((size_t)48 << 10) /* of ids in one call of Resume, so that the daemon reads it */

/* Asks for the session's token, once a connection, before the first lease is made over it. */
int resume_learn(gpuipc_client *client, struct conn *conn, int64_t deadline, gpuipc_error *ret_error);

/* Whether there is something that only Resume can save or end. */
static inline bool resume_wanted(const struct conn *conn) {
        return conn->token && (conn->claims || conn->doubtful);
}

/* Connects anew and, where it is wanted, takes up the session. GPUIPC_OK: the connection is usable, and each lease stands or
 * is known to be lost. GPUIPC_ERROR_TIMED_OUT with conn->resuming set: the reply is still awaited. Else there is no connection. */
int resume_step(gpuipc_client *client, struct conn *conn, int64_t deadline, gpuipc_error *ret_error);

/* Why a lease without a token is lost when its connection ends. */
static inline enum claim_loss resume_loss(const gpuipc_client *client) {
        return client->restart_ms < 0 ? LOSS_OFF : LOSS_NO_STORE;
}

/* Forgets the session: what is held is lost. */
void resume_forget(gpuipc_client *client, struct conn *conn, enum claim_loss why);

#endif
