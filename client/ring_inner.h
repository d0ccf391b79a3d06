/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the ring share, and nobody else includes. */
#ifndef CLIENT_RING_INNER_H
#define CLIENT_RING_INNER_H

#include <pthread.h>

#include "proto/ring_atomic.h"
#include "ring.h"

struct ring {
        struct ring_page *page;
        size_t mapped_bytes; /* 0: the memory is someone else's */
        struct ring_geometry geometry;
        size_t stride;
        unsigned me;
        uint32_t generation;
        enum ring_role role;
        atomic_bool corrupt, stopped, gone;
        uint64_t start; /* of a broadcast's consumer: the first ticket that was its own */
        pthread_mutex_t mutex;
        unsigned n_waiting[2]; /* threads of this ring that announced themselves; under the mutex */
        atomic_int_least64_t spin_usec; /* the longest that a wait looks before it sleeps; 0: not at all */
        atomic_int_least64_t wait_usec; /* what waits took of late */
        atomic_int credit;              /* what looking has earned of late; below 0: it does not pay */
        atomic_uint_least64_t n_sleeps, n_wakes;
};

/* What an attempt comes to besides a verdict. */
enum {
        RING_AGAIN = 1000, /* something moved: look again at once */
        RING_EMPTY,        /* nothing is claimed that could be waited for */
        RING_UNREADY,      /* it is up to another member */
};

/* A slot at one moment: where, and the word it had. */
struct ring_spot {
        struct ring_slot *slot;
        uint32_t index;
        uint64_t ticket, word;
};

typedef int ring_attempt(struct ring *ring, struct ring_spot *spot);

static inline struct ring_spot ring_spot_of(const struct ring *ring, uint64_t ticket) {
        uint32_t index = (uint32_t)(ticket % ring->geometry.n_slots);
        char *slots = (char *)(ring->page + 1);
        return (struct ring_spot){ .slot = (struct ring_slot *)(slots + index * ring->stride),
                                   .index = index,
                                   .ticket = ticket };
}

static inline struct ring_member *ring_myself(const struct ring *ring) {
        return &ring->page->members[ring->me];
}

/* What a slot is, seen by one who comes for `ticket`. */
enum ring_sight {
        RING_SIGHT_NEXT,   /* free for the ticket */
        RING_SIGHT_HERE,   /* the ticket was claimed here */
        RING_SIGHT_BEFORE, /* the ticket a lap earlier is still here */
        RING_SIGHT_PAST,   /* the ticket has been here and gone */
        RING_SIGHT_WRONG,
};
enum ring_sight ring_look(struct ring *ring, struct ring_spot *spot);

/* RING_CORRUPT, now and ever after. */
int ring_is_corrupt(struct ring *ring);

/* RING_OK, or why this member may not go on. */
int ring_may_go_on(struct ring *ring);

/* Moves tail or head from a ticket to a later one, if nobody did. */
void ring_help(_Atomic uint64_t *index, uint64_t ticket, uint64_t next);

/* Whether any of these members lives, of a mask. */
bool ring_lives_one_of(struct ring *ring, uint64_t members);

/* Wakes whoever waits for the event, if anyone living does. */
void ring_wake(struct ring *ring, struct ring_event *event);
void ring_wake_both(struct ring *ring);

/* Attempts until it is neither RING_AGAIN nor to be waited for, or until the deadline. */
int ring_until(struct ring *ring, ring_attempt *attempt, struct ring_event *event, int64_t deadline, struct ring_spot *spot);

/* The member that a claimed or taken slot names: dead, so finish it (RING_AGAIN); living (RING_UNREADY). */
int ring_bury(struct ring *ring, const struct ring_spot *spot);

/* From the spot's word to free for the ticket a lap later. */
bool ring_set_free(struct ring *ring, const struct ring_spot *spot);

/* Attempts. The finding ones take nothing. */
ring_attempt queue_find_room, queue_claim, queue_find_item, queue_take;
ring_attempt broadcast_find_room, broadcast_claim, broadcast_find_item, broadcast_take;
int queue_release(struct ring *ring, const struct ring_spot *spot);
int broadcast_release(struct ring *ring, uint64_t ticket);
int broadcast_join(struct ring *ring);

/* After a claim: tail moves on. A closed channel takes the claim back and answers RING_CLOSED. */
int ring_claimed(struct ring *ring, const struct ring_spot *spot);

#endif
