/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors that came back from the store and belong to nothing: taken out of it, and closed where closing may take its time.
 * Loop thread. */
#ifndef DAEMON_LEFTOVERS_H
#define DAEMON_LEFTOVERS_H

#include <stdint.h>

#include "lane.h"
#include "store.h"

struct leftovers {
        struct job job;
        struct errand *errands; /* two parcels each */
        uint32_t *parcels;
        int *fds;
        size_t n_parcels, n_fds, n_sent, n_errands;
        bool closed;
};

/* With room for n. NULL: out of memory. */
struct leftovers *leftovers_new(size_t n);

/* To be closed; with a parcel (0: none), to be taken out of the store too. */
void leftovers_add(struct leftovers *leftovers, int fd_take, uint32_t parcel);

/* Sends everything on its way and frees itself when it is done. `store` may be NULL. */
void leftovers_send(struct leftovers *leftovers_take, struct store *store, struct lane *lane);

#endif
