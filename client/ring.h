/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of a channel: who may write to and read from which slot, decided in shared memory alone.
 *
 * It hands out slots and knows nothing of what lies in them: the bytes of an item are elsewhere, at slot * slot_bytes of
 * the channel's data. gpuipc-channel(7) tells the protocol and its memory model; the page is in proto/ring_page.h.
 *
 * Functions return RING_OK, a positive verdict, or a negative errno. Deadlines are those of client/deadline.h; one that is
 * past makes a call that does not wait. A ring may be used by several threads, but a consumer of a broadcast holds one item
 * at a time. After RING_CORRUPT every call answers so: the page is never trusted again. */
#ifndef CLIENT_RING_H
#define CLIENT_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/ring_page.h"

enum ring_verdict {
        RING_OK = 0,
        RING_TIMED_OUT, /* the deadline passed */
        RING_CLOSED,    /* the channel is closed and, for a consumer, empty; or ring_stop() was called */
        RING_BROKEN,    /* ring_take(): the next item's producer died before it was whole; nothing is to be released */
        RING_GONE,      /* this member is no longer one: it left, or was declared so or dead */
        RING_BUSY,      /* a consumer of a broadcast has yet to release its item; or, of ring_reap(), the member lives */
        RING_CORRUPT,   /* the control page holds what no member following the protocol writes */
};

/* One sentence for a human. Never NULL. */
const char *ring_verdict_sentence(int verdict);

struct ring;

/* What a member has in hand. The fence of `producer` reaches `produced` once the item is written; that of `consumer` reaches
 * `consumed` once the item before it is read. A producer gets the two of the item before, which in a drop-oldest ring may have
 * been dropped while it was still being written: there `produced` must have been seen reached before ring_publish(). A value
 * of 0 is nothing to wait for. In a broadcast ring_reader_fences() takes the place of `consumed`. */
struct ring_item {
        uint64_t ticket;
        uint32_t slot;
        unsigned producer, consumer;
        uint32_t generation; /* of the producer */
        uint64_t produced, consumed;
        uint64_t size;
        uint32_t n_meta;
        unsigned char meta[RING_META_MAX];
};

/* Joins the page as the member that the broker admitted. Borrows the descriptor, which is to be sealed against shrinking.
 * A consumer of a broadcast sees what is claimed from now on. `ret_fault` names what is wrong with the page on -EPROTO. */
int ring_attach(int control_fd, unsigned member, uint32_t generation, struct ring **ret_ring, const char **ret_fault);

/* The same on memory that is mapped already and outlives the ring. */
int ring_attach_page(void *page, size_t bytes, unsigned member, uint32_t generation, struct ring **ret_ring,
                     const char **ret_fault);

/* Cancels and releases what is in hand, and gives the number back. The member's fence must have reached all its values. */
int ring_leave(struct ring *ring);

/* The longest that a wait keeps a processor looking before it sleeps; 0: none. It does so while waits take no longer than that on average.
 * At first it is RING_SPIN_USEC where this process may run on more than one processor, else 0. */
#define RING_SPIN_USEC 50
void ring_spin(struct ring *ring, int64_t usec);

/* Leaves nothing: a process that lives on keeps its slots quarantined. */
void ring_free(struct ring *ring);

const struct ring_geometry *ring_geometry(const struct ring *ring);
unsigned ring_me(const struct ring *ring);
struct ring_page *ring_page(const struct ring *ring);

/* ---- producing -------------------------------------------------------------------------------------------- */

int ring_begin_produce(struct ring *ring, int64_t deadline, struct ring_item *ret_item);

/* -EMSGSIZE: larger than a slot, or more metadata than the channel has room for; the item stays in hand. */
int ring_publish(struct ring *ring, const struct ring_item *item, uint64_t size, const void *meta, uint32_t n_meta,
                 uint64_t produced);

int ring_cancel(struct ring *ring, const struct ring_item *item);

/* ---- consuming -------------------------------------------------------------------------------------------- */

/* On RING_BROKEN `ret_item` has ticket, slot and producer. */
int ring_take(struct ring *ring, int64_t deadline, struct ring_item *ret_item);

int ring_release(struct ring *ring, const struct ring_item *item, uint64_t consumed);

/* Whether a taken item's producer died, or was ending, before its fence reached the item's value. False is right when the consumer's stream
 * is past its wait: a fence is completed only after this answer is in the page. Of one that is ending it can yet become true, of an item
 * that its GPU writes after all. */
bool ring_is_broken(struct ring *ring, const struct ring_item *item);

/* ---- either ----------------------------------------------------------------------------------------------- */

/* RING_OK, or what every call would come to: RING_GONE, RING_CORRUPT, RING_CLOSED after ring_stop(). */
int ring_check(struct ring *ring);

/* Waits until this member's next call need not, and takes nothing: for a thread that feeds an event loop. */
int ring_wait(struct ring *ring, int64_t deadline);

/* No more is claimed by anyone. */
void ring_close(struct ring *ring);

/* Every call on this ring, waiting ones too, ends with RING_CLOSED; the others do not notice. */
void ring_stop(struct ring *ring);

/* ---- deaths ----------------------------------------------------------------------------------------------- */

/* By whoever saw the member's process end. */
void ring_mark_dead(struct ring *ring, unsigned member, uint32_t generation);

/* Of one that is ending: whether nobody has said yet how far its fence has come. */
bool ring_is_undecided(struct ring *ring, unsigned member, uint32_t generation);

/* Says how far the fence of one has come that is ending or dead; the first survivor to say counts, and what the member published beyond
 * that is broken from now on, whatever its fence comes to. Frees nothing. RING_BUSY: it is neither. RING_GONE: all was done by others.
 * To be called by the thread that reaps. */
int ring_decide(struct ring *ring, unsigned member, uint32_t generation, uint64_t reached);

/* Completes what a dead member left: items it was writing become broken, items it was reading become free, items it
 * published whose value is above `reached` become broken. `reached` is what the member's fence says now, RING_FENCE_MAX where
 * there are no fences; the first survivor to say counts. Any number of them may do it at once and again. RING_BUSY: the
 * member is not marked dead. RING_GONE: all was done by others, and its fence may be somebody else's by now. After RING_OK
 * the number is not given again until this ring says ring_reaped(). */
int ring_reap(struct ring *ring, unsigned member, uint32_t generation, uint64_t reached);

/* What counts as reached by the dead member's fence, after ring_reap(). */
uint64_t ring_reached(struct ring *ring, unsigned member, uint32_t generation);

/* After ring_reap(), and after the dead member's fence was set above every value of its generation: this ring is done with it.
 * Once all are that began, the number is free to be given again; to be called again while it is not. */
int ring_reaped(struct ring *ring, unsigned member, uint32_t generation);

/* ---- looking ---------------------------------------------------------------------------------------------- */

struct ring_member_stats {
        enum ring_life life;
        enum ring_role role;
        uint32_t generation;
        uint64_t items, bytes; /* published, or released */
        uint64_t drops;        /* that this producer of a queue made, or that this consumer of a broadcast suffered */
        uint64_t broken;       /* that this consumer was told of */
        uint64_t lag;          /* of a broadcast's consumer: items it has yet to read */
};

struct ring_stats {
        uint64_t tail, depth; /* tickets claimed; of those, not yet taken by (all of) the consumers */
        bool closed;
        struct ring_member_stats members[RING_MEMBERS];
};

uint64_t ring_peek_depth(struct ring *ring);
void ring_stats(struct ring *ring, struct ring_stats *ret_stats);

/* The same of a page that is mapped for reading only, by one who is no member. NULL, or what is wrong with the page. */
const char *ring_stats_of_page(const void *page, size_t bytes, struct ring_stats *ret_stats);

/* Of a broadcast: the values that the consumers' fences reach when they have read what they have released; bit n of what
 * is returned: ret_values[n] is that of a living consumer. */
uint64_t ring_reader_fences(struct ring *ring, uint64_t ret_values[RING_MEMBERS]);

/* How often this ring went to sleep and woke others, by system calls. */
void ring_calls(const struct ring *ring, uint64_t *ret_sleeps, uint64_t *ret_wakes);

#endif
