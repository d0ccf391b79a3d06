/* SPDX-License-Identifier: Apache-2.0 */
/* One connection to the daemon: framing, descriptors, one call in flight, every wait with a deadline.
 *
 * A connection belongs to one thread while it is `busy`; the pool hands it out. All functions return a gpuipc_status
 * and fill `ret_error`. A connection whose stream broke or stopped making sense is closed at once (conn_open() is
 * false then) and stays so; the object lives on for the leases that were made over it. */
#ifndef CLIENT_CONN_H
#define CLIENT_CONN_H

#include <stdbool.h>
#include <stdint.h>

#include "include/gpuipc.h"
#include "proto/bytes.h"
#include "proto/codec.h"
#include "proto/fdset.h"
#include "proto/wire.h"

#define CONN_REPLY_MAX ((size_t)16 << 20) /* bytes of one reply; a longer one makes no sense */

/* A lease's id, in a form that can stand in a list without further memory. */
struct lease {
        struct lease *next;
        char id[];
};

struct conn {
        struct conn *next;        /* the pool's list */
        struct wire wire;         /* wire.fd is -1 while there is no connection */
        size_t leases;            /* leases that live in this connection */
        struct lease *unreleased; /* to be given back as soon as the connection is idle; under the client's lock */
        bool busy;                /* some thread is using it */
        bool owed;                /* a call's last reply has not been received */
        bool unasked;             /* something had come before the call was sent */
};

struct reply {
        struct codec_doc *doc;
        const char *error; /* borrowed from doc; NULL: none */
        bool continues;
        bool truncated;   /* the kernel dropped descriptors: this process has no room for more */
        struct fdset fds; /* what came with it */
};

void reply_deinit(struct reply *reply);

/* Not connected yet. NULL: no memory. */
struct conn *conn_new(void);
void conn_free(struct conn *conn);
static inline void conn_freep(struct conn **conn) {
        conn_free(*conn);
}

/* Closes the socket and whatever came over it; the object remains. */
void conn_close(struct conn *conn);

/* Lets go of the socket in a forked child, where another thread of the parent may have been using the connection:
 * what was busy is closed and otherwise left alone. */
void conn_abandon(struct conn *conn);

static inline bool conn_open(const struct conn *conn) {
        return conn->wire.fd >= 0;
}

int conn_connect(struct conn *conn, const char *path, int64_t deadline, gpuipc_error *ret_error);

/* Whether the daemon still has its end, as far as one can know without asking it. Looked at before each call. */
bool conn_alive(struct conn *conn);

/* Alive, and nothing came that was not asked for. */
bool conn_quiet(struct conn *conn);

/* Sends one call. The daemon having closed is left to conn_receive() to tell, since its last words may be there. */
int conn_send(struct conn *conn, const struct bytes *message, int64_t deadline, gpuipc_error *ret_error);

/* The next reply, error replies included. GPUIPC_ERROR_TIMED_OUT leaves the connection as it is, with the reply owed. */
int conn_receive(struct conn *conn, int64_t deadline, struct reply *ret_reply, gpuipc_error *ret_error);

/* The next reply on any of n connections. `*ret_which` is set on success and on failures other than
 * GPUIPC_ERROR_TIMED_OUT and GPUIPC_ERROR_NO_MEMORY. */
int conn_receive_any(struct conn *const *conns, size_t n, int64_t deadline, size_t *ret_which,
                     struct reply *ret_reply, gpuipc_error *ret_error);

/* Receives what an earlier call that timed out still owes; a lease found there is given back. */
int conn_settle(struct conn *conn, int64_t deadline, gpuipc_error *ret_error);

/* One call, one reply; settles first. */
int conn_call(struct conn *conn, const struct bytes *message, int64_t deadline, struct reply *ret_reply,
              gpuipc_error *ret_error);

/* Gives a lease back that nobody will hold. Best effort. */
void conn_return_lease(struct conn *conn, const char *lease, int64_t deadline);

#endif
