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

struct claim;

struct conn {
        struct conn *next; /* the pool's list */
        struct wire wire;  /* wire.fd is -1 while there is no connection */
        bool busy;         /* some thread is using it */
        bool owed;         /* a call's last reply has not been received */
        bool unasked;      /* something had come before the call was sent */

        /* The leases that live in this connection; under the client's lock. */
        struct claim *claims;
        size_t n_claims, n_left; /* all; those left behind by their buffer objects */

        /* The session, which may outlive a connection; see resume.h. */
        char *token;        /* takes the session up again; NULL: nothing does */
        bool learned;       /* the daemon was asked for the token */
        bool doubtful;      /* a connection broke with a call in flight: the daemon may have made a lease for it */
        bool resuming;      /* connected anew, and the reply to Resume is awaited */
        bool resume_more;   /* and further calls are to list the rest */
        bool used;          /* was connected before */
        int epoll_fd;       /* -1, or the set that it is in; borrowed */
        bool watched_in;    /* replies are waited for there too */
        int watched_fd;     /* -1, or its number there; under the client's lock, as is the next */
        bool look;          /* the set says that something happened to it */
        unsigned n_retries; /* since away_usec */
        unsigned n_soon;    /* how often in a row it broke soon after back_usec */
        int64_t away_usec;  /* when the connection was found broken; 0: it is not */
        int64_t retry_usec; /* when to try again */
        int64_t back_usec;  /* when it was there again; 0: it has served a call since, or never broke */
};

struct reply {
        struct codec_doc *doc;
        const char *error; /* borrowed from doc; NULL: none */
        bool continues;
        bool truncated;   /* the kernel dropped descriptors: this process has no room for more */
        bool forgotten;   /* descriptors were dropped for want of memory */
        struct fdset fds; /* what came with it */
};

void reply_deinit(struct reply *reply);

/* Not connected yet. NULL: no memory. */
struct conn *conn_new(void);
void conn_free(struct conn *conn);
static inline void conn_freep(struct conn **conn) {
        conn_free(*conn);
}

/* Closes the socket and whatever came over it; the object remains, and so do the session and its leases. */
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

/* The next reply, error replies included. GPUIPC_ERROR_TIMED_OUT and GPUIPC_ERROR_NO_MEMORY leave the connection as it is, with the reply
 * owed. */
int conn_receive(struct conn *conn, int64_t deadline, struct reply *ret_reply, gpuipc_error *ret_error);

/* The next reply on any of n connections. `*ret_which` is set on success and on failures other than
 * GPUIPC_ERROR_TIMED_OUT and GPUIPC_ERROR_NO_MEMORY. */
int conn_receive_any(struct conn *const *conns, size_t n, int64_t deadline, size_t *ret_which,
                     struct reply *ret_reply, gpuipc_error *ret_error);

/* Sends what is left of a call that was not sent whole in time. */
int conn_push(struct conn *conn, int64_t deadline, gpuipc_error *ret_error);

/* Bytes that wait unread: 1 some, 0 none, -EPIPE when the stream is at its end or broke. */
int conn_peek(const struct conn *conn);

/* Receives what an earlier call that timed out still owes; a lease found there is given back. */
int conn_settle(struct conn *conn, int64_t deadline, gpuipc_error *ret_error);

/* One call, one reply; settles first. */
int conn_call(struct conn *conn, const struct bytes *message, int64_t deadline, struct reply *ret_reply,
              gpuipc_error *ret_error);

/* The lease that a reply grants, by whatever method, borrowed from it; NULL: none. */
const char *conn_lease_of(const struct reply *reply);

/* Gives a lease back that nobody will hold. Best effort. False: for want of memory not even that. */
bool conn_return_lease(struct conn *conn, const char *lease, int64_t deadline);

/* A descriptor that a reply names has not come: why. `whose` begins the sentence, "The buffer's descriptor". */
int conn_no_descriptor(const struct reply *reply, const char *whose, gpuipc_error *ret_error);

#endif
