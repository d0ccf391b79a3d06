/* SPDX-License-Identifier: Apache-2.0 */
/* While the daemon is away: how often, how long and for what a connection is tried anew. The caller has it busy. */
#ifndef CLIENT_OUTAGE_H
#define CLIENT_OUTAGE_H

#include "client.h"
#include "conn.h"

#define OUTAGE_RESTART_MS 30000   /* in line with the daemon's grace time */
#define OUTAGE_PAUSE_MS 10        /* the first pause; each is twice as long as the one before, */
#define OUTAGE_PAUSE_MAX_MS 250   /* up to this */
#define OUTAGE_REPEATS_MAX 5      /* of a call that breaks the connection each time, */
#define OUTAGE_REPEAT_SOON_MS 100 /* within this time */
#define OUTAGE_SOON_PAUSES 2      /* a connection that breaks so soon after it is back pauses as after so many tries in vain at most */

/* How long to wait after so many tries in vain. */
int64_t outage_pause_usec(unsigned n);

/* Notes that the connection is broken, unless that is known: conn->retry_usec is when to try first. */
void outage_begin(struct conn *conn);

/* Tries once. GPUIPC_OK: the connection is there, and each lease stands or is known to be lost. Else, with
 * conn->away_usec set: at conn->retry_usec again (with conn->resuming: when the daemon answers). Else it is given up, and the
 * leases with it. */
int outage_try(gpuipc_client *client, struct conn *conn, int64_t deadline, gpuipc_error *ret_error);

/* Until the connection is back, or the deadline is past, or it is given up. */
int outage_mend(gpuipc_client *client, struct conn *conn, int64_t deadline, gpuipc_error *ret_error);

/* A reply came that says the daemon is stopping, and waiting for its return is worth while: waits for the connection to end.
 * GPUIPC_OK: it is another reply. GPUIPC_ERROR_DISCONNECTED, or GPUIPC_ERROR_TIMED_OUT: that is what the call came to. */
int outage_sees(gpuipc_client *client, struct conn *conn, struct reply *reply, int64_t deadline, gpuipc_error *ret_error);

/* conn_call(), with the two for one. */
int outage_call(gpuipc_client *client, struct conn *conn, const struct bytes *message, int64_t deadline,
                struct reply *ret_reply, gpuipc_error *ret_error);

/* Whether the daemon's return is worth waiting for: leases without a token are lost anyhow. */
bool outage_is_hopeful(const gpuipc_client *client, const struct conn *conn);

/* How often one call was made in vain. Starts as { 0 }. */
struct repeats {
        unsigned n, in_a_row;
        int64_t since_usec;
};

/* A call on `conn` came to `r`. GPUIPC_OK: make it once more, the connection is back. Else that is the call's result. */
int outage_repeat(gpuipc_client *client, struct conn *conn, int r, struct repeats *repeats, int64_t deadline,
                  gpuipc_error *ret_error);

#endif
