/* SPDX-License-Identifier: Apache-2.0 */
/* A process that speaks over a session, watched by its pidfd: the ledger's holder with a descriptor behind it. Loop thread. */
#ifndef DAEMON_PROCESS_H
#define DAEMON_PROCESS_H

#include <uv.h>

#include "house.h"

struct process {
        struct holder holder; /* freed with its last reference */
        struct list by_session;
        struct house *house;
        int pidfd; /* owned; -1: its exit can't be seen, its leases end with the session */
        uv_poll_t poll;
};

/* A process with one reference, the caller's. Takes the pidfd, also on failure. A process known to be dead has `holder.exited` set.
 * 0, VERDICT_QUOTA_EXCEEDED (descriptors), or -errno. */
int process_new(struct house *house, pid_t pid, uid_t uid, gid_t gid, int pidfd_take, bool dead, struct process **ret,
                struct failure *failure);

/* One that an earlier daemon knew, from its record. Takes the pidfd (-1: none came back), also on failure. Not counted against any limit.
 * 0 or -errno. */
int process_restore(struct house *house, const struct holder *known, int pidfd_take, struct process **ret);

#endif
