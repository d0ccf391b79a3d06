/* SPDX-License-Identifier: Apache-2.0 */
/* A channel: what the ledger knows of a buffer that is one, and who takes part in it. Part of the ledger.
 *
 * A participant is a lease with a member's number in the control page. Into the page the ledger only stores, and wakes; what it
 * reads there is whether a number's last holder is reaped, or left before it had come, so that the number can be given again. Who scribbles
 * there has a number given too early or never, and that is all. */
#ifndef DAEMON_CHANNEL_H
#define DAEMON_CHANNEL_H

#include <stdbool.h>

#include "list.h"
#include "proto/ring_page.h"
#include "proto/schema.h"
#include "quota.h"

struct buffer;
struct channel;
struct holder;
struct lease;

enum member_phase { MEMBER_VACANT, MEMBER_RESERVED, MEMBER_ATTACHED, MEMBER_LEFT, MEMBER_DEAD };

struct member {
        struct list by_holder;  /* while attached or left */
        struct channel *channel;
        enum member_phase phase;
        unsigned number;
        uint32_t generation;    /* of its last holder, or of the lease that is reserved; 0: it had none */
        enum ring_role role;
        struct holder *holder;  /* a reference, while its end is waited for */
};

struct channel_spec {
        struct ring_geometry geometry;
        int64_t fences_bytes, control_bytes; /* rounded; fences_bytes 0: none */
        struct device *host;                 /* where the control page is charged */
};

struct channel {
        struct ring_geometry geometry;
        int64_t fences_bytes, control_bytes;
        struct charge charge;    /* the control page; the slots and fences are the buffer's */
        struct ring_page *page;  /* the backing's; NULL before there is one, after it is handed out, and when a stop has begun */
        struct channel_info info; /* what buffer_describe() lends */
        struct member members[RING_MEMBERS];
        uint32_t fences_slot, control_slot, fences_parcel, control_parcel; /* their records; SLOT_NONE; descriptors' numbers in the store */
};

struct channel *channel_new(const struct channel_spec *spec);

/* The charge is the buffer's to drop. NULL is harmless. */
void channel_free(struct channel *channel);

/* How many descriptors it has beside the slots': in the store, and in the daemon, which has one more to look with. */
int64_t channel_n_parcels(int64_t fences_bytes);
int64_t channel_n_descriptors(int64_t fences_bytes);

/* Whether the holder may take part and there is a number: 0, VERDICT_ACCESS_DENIED (its end could not be seen), VERDICT_QUOTA_EXCEEDED
 * (channel_participants). channel may be NULL: a new one. */
int channel_check(struct channel *channel, const struct holder *holder, struct failure *failure);

/* A number for a lease; there must be one. */
struct member *channel_reserve(struct channel *channel, enum access access);
void member_cancel(struct member *member);

/* In the page from now on. */
void member_admit(struct member *member, struct holder *holder);

/* Its lease is over: left or, where that is known, dead. Harmless again. */
void member_leave(struct member *member);

/* The process is seen to have ended: all its members are dead. */
void channel_holder_exited(struct holder *holder);

/* No more is put into it. */
void channel_close(struct channel *channel);

/* Its memory is about to be handed out: closed, and nobody is waited for any more. */
void channel_retire(struct channel *channel);

/* Of a restart, in this order: the page and what it says of all numbers; the numbers that leases have, NULL when that cannot be; what
 * follows for the others. */
void channel_restore_page(struct channel *channel, struct ring_page *page);
struct member *channel_restore_member(struct channel *channel, uint32_t number, uint32_t generation, enum access access,
                                      struct holder *holder);
/* The number that a draining lease had, where it has been given back or to somebody else since; else NULL. */
struct member *channel_restore_drained(struct channel *channel, uint32_t number, uint32_t generation);
void channel_restored(struct channel *channel);

/* Whether the member is one to tell of: attached, or left with its process alive and its number not given back. */
bool member_counts(const struct member *member);

void channel_describe(const struct buffer *buffer, struct channel_info *ret);
void member_describe(const struct member *member, struct participant_info *ret);

#endif
