/* SPDX-License-Identifier: Apache-2.0 */
/* The order of those who wait for bytes: one queue per uid (quota) and one per device (memory). Pure; time is handed in.
 *
 * The queue's head is the one that waited longest. Smaller requests may pass it until it has waited WAITQ_PATIENCE_USEC.
 * From then on nobody of the head's own uid passes. Others wait behind it for as long again (its claim: what comes free
 * gathers for the head), then may pass for as long, and so on in turn: the head gets its chance again and again, and a head
 * that asks for nearly everything stalls nobody else for longer than one claim. */
#ifndef DAEMON_WAITQ_H
#define DAEMON_WAITQ_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "list.h"

#define WAITQ_PATIENCE_USEC UINT64_C(1000000)

struct waitq {
        struct list waiters; /* oldest first */
};

struct waiter {
        struct list by_queue;
        struct waitq *queue; /* NULL while not waiting */
        uid_t uid;
        int64_t bytes;
        uint64_t since_usec; /* monotonic */
};

void waitq_init(struct waitq *queue);
void waiter_init(struct waiter *waiter);

/* Puts the waiter at its place by age: a waiter that was in this queue before and is tried again keeps `since_usec`. */
void waitq_join(struct waitq *queue, struct waiter *waiter, uid_t uid, int64_t bytes, uint64_t since_usec);
void waiter_leave(struct waiter *waiter); /* harmless when it waits nowhere */

/* Whether a request may be tried now, given who waits in the queue. `waiter` is itself when it already waits, else NULL. A
 * newcomer that will not wait (`patient` false) is bound by the queue only within its own uid. */
bool waitq_may_try(const struct waitq *queue, const struct waiter *waiter, uid_t uid, int64_t bytes, bool patient,
                   uint64_t now_usec);

/* When waitq_may_try() may next change its mind without anything coming free; UINT64_MAX when never. */
uint64_t waitq_next_change(const struct waitq *queue, uint64_t now_usec);

#endif
