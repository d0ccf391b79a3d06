/* SPDX-License-Identifier: Apache-2.0 */
/* What an earlier daemon left: finds it among the descriptors handed over, and fills the house with it. Main thread, at start. */
#ifndef DAEMON_RECOVERY_H
#define DAEMON_RECOVERY_H

#include "config.h"
#include "handed.h"
#include "house.h"

struct recovery {
        struct state *state;       /* owned; NULL: there is no store */
        const char *held;          /* in words: what was left cannot be read and stays as it is */
        char words[400];
        struct handed_item **left; /* by parcel: what came back from the store */
        size_t n_left;
        char **devices;            /* their uuids, in the state */
        size_t n_devices;
        int64_t stored_max;        /* as many the manager takes; 0: not known */
        bool kept_something;
};

/* Decides whether there is a store, and opens the state that was left, or makes a new one, which goes to the store at once. The cause of
 * a failure is in the log. 0 or -errno; without a store all is well, too. */
int recovery_begin(struct recovery *recovery, struct handed *handed, const struct config *config);

/* Takes back into the house, whose devices are there, all that was left; the rest goes to the lane. 0 or -errno. */
int recovery_run(struct recovery *recovery, struct house *house, struct lane *lane);

void recovery_deinit(struct recovery *recovery);

#endif
