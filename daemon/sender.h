/* SPDX-License-Identifier: Apache-2.0 */
/* The processes that speak over one session. Usually one: who connected. A connection that was inherited or passed on has several,
 * all of the same user. Loop thread. */
#ifndef DAEMON_SENDER_H
#define DAEMON_SENDER_H

#include "creds.h"
#include "house.h"
#include "proto/wire.h"

struct process;

struct senders {
        struct list processes; /* process.by_session; a reference each */
        struct process *peer;  /* who connected: the first of them */
};

/* Who is behind the connection; gids stay the creds'. */
struct peer senders_identify(const struct creds *creds, bool admin, uid_t overflow_uid);

/* Takes the pidfd out of creds. 0, VERDICT_QUOTA_EXCEEDED (descriptors), or -errno. */
int senders_init(struct senders *senders, struct house *house, struct creds *creds, struct failure *failure);

/* Gives the references back; harmless when init failed or never ran on zeroed memory. */
void senders_deinit(struct senders *senders);

/* The process that sent a message, made known when it is new (its pidfd is taken out of `sender` then); borrowed. 0;
 * VERDICT_ACCESS_DENIED for another user; VERDICT_QUOTA_EXCEEDED; -ESRCH when it is already gone; -errno. */
int senders_find(struct senders *senders, struct house *house, const struct creds *creds, struct wire_sender *sender,
                 struct holder **ret, struct failure *failure);

/* The session ends: processes whose exit cannot be seen count as exited, so that their leases end with it; of members of channels it is
 * known from here on whether they are about to exit. */
void senders_leave(struct senders *senders);

#endif
