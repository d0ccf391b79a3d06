/* SPDX-License-Identifier: Apache-2.0 */
/* A lease as the library knows it, from the daemon's grant to its end, and the leases that one connection carries.
 *
 * A lease with an owner belongs to its buffer object. One without was left behind by a Release that could not be sent in
 * time and belongs to its connection. All under the client's lock. */
#ifndef CLIENT_CLAIM_H
#define CLIENT_CLAIM_H

#include <stdbool.h>
#include <stddef.h>

#include "include/gpuipc.h"

struct conn;

enum claim_stand {
        CLAIM_STANDS,
        CLAIM_LEAVING, /* to be released, or being so: not taken along when its session is taken up again */
        CLAIM_OVER,    /* ended as wanted */
        CLAIM_LOST,    /* ended as not wanted; `why` says by what */
};

enum claim_loss {
        LOSS_NONE,
        LOSS_NO_STORE,    /* the daemon gave no token to come back with */
        LOSS_OFF,         /* the caller wants no coming back */
        LOSS_SESSION,     /* the daemon does not know the session any more */
        LOSS_BUFFER,      /* the session was taken up again without this lease */
        LOSS_OLD_DAEMON,  /* the daemon does not know how */
        LOSS_REFUSED,     /* the daemon, or its socket, lets this process in no more */
        LOSS_TIME,        /* no daemon came back in time */
        LOSS_CLIENT_FREED,
};

/* For, in Resume, which may take several calls. */
enum claim_asked { ASKED_NOT, ASKED_NOW, ASKED_BEFORE };

struct claim {
        struct claim *next, **link; /* the connection's list */
        struct conn *conn;          /* carries it; NULL once it is over or lost */
        enum claim_stand stand;
        enum claim_loss why;
        bool owned; /* by a buffer object */
        enum claim_asked asked;
        char id[];
};

/* NULL: no memory. */
struct claim *claim_new(const char *id);

/* Puts a lease on its connection. */
void claim_join(struct claim *claim, struct conn *conn);

/* Takes it off; the caller owns what is left. NULL is allowed, and so is one that is off already. */
void claim_leave(struct claim *claim);

/* Over or lost: takes it off, and frees it when nobody else would. */
void claim_end(struct claim *claim, enum claim_stand stand, enum claim_loss why);

/* The same for all that stand or are leaving. */
void claim_end_all(struct conn *conn, enum claim_loss why);

/* Its buffer object goes: from now on it is the connection's, to be released when that is possible. */
void claim_leave_behind(struct claim *claim);

/* One that was left behind; NULL: none. */
struct claim *claim_left_behind(const struct conn *conn);

/* Says that the lease was lost, and by what. */
int claim_lost(enum claim_loss why, gpuipc_error *ret_error);

#endif
