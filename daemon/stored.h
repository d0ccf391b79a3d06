/* SPDX-License-Identifier: Apache-2.0 */
/* A process whose pidfd is in the service manager's store, so that the next daemon sees its end too: one for each process that holds
 * a lease which a restart keeps, whatever connections it has. Part of the ledger. */
#ifndef DAEMON_STORED_H
#define DAEMON_STORED_H

#include <stdbool.h>

#include "errand.h"
#include "list.h"
#include "proto/verdict.h"

struct account;
struct holder;
struct registry;

enum stored_phase {
        STORED_NEW,     /* nothing was sent yet */
        STORED_SENDING,
        STORED_SENT,
        STORED_FAILED,  /* it could not be sent: to be tried again */
};

struct stored {
        struct list by_leaving; /* in registry.leaving once its last lease is gone */
        struct registry *registry;
        struct account *account; /* of the process's uid; NULL: nothing is counted. A reference */
        uint64_t key;
        unsigned refs;          /* leases */
        uint32_t slot;          /* of its record */
        uint32_t parcel;        /* 0: it has no pidfd, its leases end with the session */
        enum stored_phase phase;
        struct errand errand;   /* for taking it out */
};

/* Whether `n_buffers` of `account` and the process, if it is not stored yet, find room in the store, and in what of it one user may
 * have: 0 or VERDICT_QUOTA_EXCEEDED. */
int stored_check(const struct registry *registry, const struct holder *holder, const struct account *account, int64_t n_buffers,
                 struct failure *failure);

/* Counts it, when it has a descriptor; -ENOMEM. */
int stored_count(struct stored *stored, const struct holder *holder);

/* The holder's process, a reference. -ENOMEM. */
int stored_get(struct registry *registry, const struct holder *holder, struct stored **ret);

/* With the last reference it goes to registry.leaving, or is freed when nothing of it is in the store. NULL is harmless. */
void stored_unref(struct registry *registry, struct stored *stored);

/* It is on its way to the manager (or not: error < 0); its record counts from now on. */
void stored_sent(struct stored *stored, int error);

/* The next one to be taken out of the store; NULL. When that has been sent: stored_removed(). */
struct stored *registry_take_leaving(struct registry *registry);
void stored_removed(struct stored *stored);

#endif
