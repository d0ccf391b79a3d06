/* SPDX-License-Identifier: Apache-2.0 */
/* Where sessions live: what they share beyond the house. One per daemon; loop thread only. */
#ifndef DAEMON_HALL_H
#define DAEMON_HALL_H

#include <uv.h>

#include "house.h"

struct hall {
        struct house *house;
        struct list sessions;  /* session.by_hall */
        struct list ready;     /* session.by_ready: have work that no poll will announce */
        struct list late;      /* session.by_ready: likewise, but their user has had his part of this round */
        uint64_t round;        /* of the loop */
        struct lane *doorman;  /* closes descriptors that came from strangers, and their connections */
        bool sender_refuses;   /* SO_PASSRIGHTS=0 is in force: nobody can send us descriptors */
        bool sender_known;     /* the kernel gives credentials with each message */
        uid_t overflow_uid;
        int64_t n_turned_away; /* sessions that only wait to be told why they were not let in */
};

/* Sees to what the last turn of the loop left behind: keeps that ended, memory to close, room for those who wait, news for those
 * who watch, sessions with work. True while some is left: do not sleep. *ret_next_usec: when to call again in any case (monotonic;
 * UINT64_MAX: never). */
bool hall_settle(struct hall *hall, uint64_t *ret_next_usec);

#endif
