/* SPDX-License-Identifier: Apache-2.0 */
/* Something to be done in the service manager's descriptor store; memory only, so that whoever needs one sets it aside beforehand.
 * Owned by whoever sends it, and the store's from store_send() until `done`, with `passed` until that. */
#ifndef DAEMON_ERRAND_H
#define DAEMON_ERRAND_H

#include <stddef.h>
#include <stdint.h>

#include "list.h"

#define ERRAND_PARCELS_MAX 4 /* a channel's three and a process */

struct errand {
        struct list by_store;
        enum { ERRAND_PUT, ERRAND_REMOVE } what;
        size_t n; /* 0: nothing but to come after all that was sent before */
        uint32_t parcels[ERRAND_PARCELS_MAX];
        int fds[ERRAND_PARCELS_MAX]; /* of a PUT; borrowed, must stay open until `done` */
        void *arg;                   /* the owner's */
        int result;                  /* 0 or the first -errno */
        void (*done)(struct errand *errand);   /* loop: it is on its way to the manager, or cannot be sent */
        void (*passed)(struct errand *errand); /* loop, after `done`: the manager has done it. NULL: nobody wants to know */
};

#endif
