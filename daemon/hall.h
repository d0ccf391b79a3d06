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
        struct lane *doorman;  /* closes descriptors that came from strangers, and their connections */
        bool sender_refuses;   /* SO_PASSRIGHTS=0 is in force: nobody can send us descriptors */
        bool sender_known;     /* the kernel gives credentials with each message */
        uid_t overflow_uid;
        int64_t n_turned_away; /* sessions that only wait to be told why they were not let in */
};

#endif
