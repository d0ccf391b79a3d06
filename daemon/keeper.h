/* SPDX-License-Identifier: Apache-2.0 */
/* All that a restart needs, as one: what came back, the state, the store, the grace time. Loop thread. */
#ifndef DAEMON_KEEPER_H
#define DAEMON_KEEPER_H

#include "alarm.h"
#include "recovery.h"

struct keeper {
        struct house *house;
        struct handed handed;
        struct recovery recovery;
        struct store *store;  /* NULL: a restart keeps nothing */
        struct alarm *grace;  /* until detached sessions end */
        uint64_t grace_ends_usec;
};

/* Before devices are looked for: takes what was handed over and opens the state. Lowers limits->stored_descriptors to what the manager
 * and the daemon's own limit of open files allow, and says so. 0 or -errno. */
int keeper_begin(struct keeper *keeper, const struct config *config, struct limits *limits);

/* Once house and lane are there: takes up what was left. 0 or -errno. */
int keeper_open(struct keeper *keeper, struct house *house, struct lane *lane);

/* Of a stop: from now on nothing is undone that the next daemon is to find. Harmless twice. */
void keeper_freeze(struct keeper *keeper);
bool keeper_idle(const struct keeper *keeper);

/* The first before the registry goes, the second after the loop's other handles were closed. */
void keeper_stop(struct keeper *keeper);
void keeper_end(struct keeper *keeper);

#endif
