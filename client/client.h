/* SPDX-License-Identifier: Apache-2.0 */
/* The client object and its pool of connections.
 *
 * Plain calls share the main connection, one after the other. A call that waits, and a list that streams, take a side
 * connection that carries no lease, so that nobody's Release ever stands behind them; a lease stays with the
 * connection that made it, and its Release goes there. Side connections without leases are reused. When the daemon goes
 * away, whoever next has a connection busy brings it back (outage.h), and the warden those that nobody uses. */
#ifndef CLIENT_CLIENT_H
#define CLIENT_CLIENT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "claim.h"
#include "conn.h"
#include "include/gpuipc.h"
#include "warden.h"
#include "process.h"

#define CLIENT_TIMEOUT_MS 30000
#define CLIENT_SPARES_MAX 2 /* idle side connections without leases that are kept */

struct gpuipc_client {
        atomic_uint refs; /* the caller's, one a buffer, one a watch */
        struct process_mark mark;
        char *path;
        int timeout_ms; /* -1: none */
        int restart_ms; /* how long the daemon may be away; -1: not at all */
        bool no_thread;
        atomic_llong restarts;
        int64_t uid;    /* this process's at connect, as the daemon sees it; with the lock, until it is sure */
        bool uid_sure;  /* else the daemon has yet to be asked */

        /* Guards what follows; lists change under process_lock() as well, for forked children. */
        pthread_mutex_t lock;
        pthread_cond_t changed; /* a connection is no longer busy */
        struct conn *conns;     /* all, the main one too; owned */
        struct conn *main;      /* never NULL */
        struct gpuipc_watch *watches;
        bool closed;            /* gpuipc_client_free() was called */
        bool given_up;          /* the daemon stayed away for too long, and has not been seen since */
        struct warden warden;
};

gpuipc_client *client_ref(gpuipc_client *client);
void client_unref(gpuipc_client *client);

/* GPUIPC_OK, or why this client must not be used: NULL, or another process's. Checked first by every call. */
int client_check(const gpuipc_client *client, gpuipc_error *ret_error);

/* When a call begun now must be answered. */
int64_t client_deadline(const gpuipc_client *client);

/* A connection, busy on behalf of the caller, who gives it back with client_put(). */
int client_take_main(gpuipc_client *client, int64_t deadline, struct conn **ret_conn, gpuipc_error *ret_error);
int client_take_side(gpuipc_client *client, int64_t deadline, struct conn **ret_conn, gpuipc_error *ret_error);

/* The connection of a lease, which may have ended; from now on the lease is leaving. GPUIPC_ERROR_LEASE_LOST. */
int client_take_leaving(gpuipc_client *client, struct claim *claim, int64_t deadline, struct conn **ret_conn,
                        gpuipc_error *ret_error);

/* GPUIPC_OK while a lease stands, as far as can be told without asking the daemon; else GPUIPC_ERROR_LEASE_LOST. */
int client_check_claim(gpuipc_client *client, const struct claim *claim, gpuipc_error *ret_error);

/* Gives a connection back. A side one that still owes a reply and carries no lease is closed. */
void client_put(gpuipc_client *client, struct conn *conn);

/* The same; what was left behind is released by `deadline`. */
void client_put_by(gpuipc_client *client, struct conn *conn, int64_t deadline);

/* Copies what the caller's options struct has of ours; `options` may be NULL. `to` holds the defaults. */
int client_options(void *to, size_t size, const void *options, gpuipc_error *ret_error);

#endif
