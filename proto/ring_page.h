/* SPDX-License-Identifier: Apache-2.0 */
/* The control page of a channel: its layout, and the few things that the broker does to it.
 *
 * Whoever maps the page may have scribbled over it. The geometry is read once (ring_page_check) and kept privately; a
 * ticket from the page is used as an index only modulo the private number of slots. The functions here never loop on what
 * they read, so the broker may call them from its loop. What each word means and which store publishes what is told in
 * gpuipc-channel(7). */
#ifndef PROTO_RING_PAGE_H
#define PROTO_RING_PAGE_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RING_MAGIC UINT64_C(0x676e697243495047) /* "GPICring" */
#define RING_VERSION 3
#define RING_MEMBERS 64
#define RING_META_MAX 1024
#define RING_SLOTS_MAX 65536
#define RING_SLOT_BYTES_MAX ((UINT64_C(1) << 53) - 1)

enum ring_mode { RING_QUEUE = 1, RING_BROADCAST };
enum ring_policy { RING_BLOCK = 1, RING_DROP_OLDEST };
enum ring_role { RING_PRODUCER = 1, RING_CONSUMER };

struct ring_geometry {
        uint32_t mode, policy;
        uint32_t n_slots;
        uint32_t meta_bytes; /* room for an item's metadata */
        uint64_t slot_bytes; /* what an item may be in size */
};

/* ---- words ------------------------------------------------------------------------------------------------ */

/* Of a slot: {ticket 55, member 6, state 3}. Ticket t belongs into slot t mod n_slots; 55 bits last for a century at ten
 * million items a second. */
enum ring_state { RING_FREE = 1, RING_CLAIMED, RING_READY, RING_TAKEN, RING_BROKEN_ITEM, RING_CANCELLED };
#define RING_TICKET_MAX ((UINT64_C(1) << 55) - 1 - RING_SLOTS_MAX)

static inline uint64_t ring_word(uint64_t ticket, unsigned member, enum ring_state state) {
        return ticket << 9 | (uint64_t)member << 3 | state;
}

static inline uint64_t ring_word_ticket(uint64_t word) {
        return word >> 9;
}

static inline unsigned ring_word_member(uint64_t word) {
        return (unsigned)(word >> 3) & (RING_MEMBERS - 1);
}

static inline enum ring_state ring_word_state(uint64_t word) {
        return (enum ring_state)(word & 7);
}

/* Of a broadcast's consumer: {ticket 62, state 2}, the ticket that it reads or will read next. JOINING: it may yet begin later. */
enum ring_cursor_state { RING_NOWHERE = 0, RING_IDLE, RING_READING, RING_JOINING };

static inline uint64_t ring_cursor(uint64_t ticket, enum ring_cursor_state state) {
        return ticket << 2 | state;
}

static inline uint64_t ring_cursor_ticket(uint64_t cursor) {
        return cursor >> 2;
}

static inline enum ring_cursor_state ring_cursor_state(uint64_t cursor) {
        return (enum ring_cursor_state)(cursor & 3);
}

/* Of a member: {generation 32, role 8, life 8}. A number is given again, with the next generation, only when its last holder
 * is REAPED. A life goes through these in their order, and may leave some out. */
enum ring_life { RING_VACANT = 0, RING_ALIVE, RING_LEFT, RING_ENDING, RING_DEAD, RING_REAPING, RING_REAPED };

static inline uint64_t ring_member_word(uint32_t generation, enum ring_role role, enum ring_life life) {
        return (uint64_t)generation << 16 | (uint64_t)role << 8 | life;
}

static inline uint32_t ring_member_generation(uint64_t word) {
        return (uint32_t)(word >> 16);
}

static inline unsigned ring_member_role(uint64_t word) {
        return (unsigned)(word >> 8) & 0xff;
}

static inline enum ring_life ring_member_life(uint64_t word) {
        return (enum ring_life)(word & 0xff);
}

/* Whether its process, or what that still has at work, can change what it has in hand. */
static inline bool ring_has_process(enum ring_life life) {
        return life >= RING_ALIVE && life <= RING_ENDING;
}

/* Of a fence: each member has one of its own, whose values only grow, over generations too. */
#define RING_FENCE_MAX ((UINT64_C(1) << 58) - 1)

static inline uint64_t ring_fence(unsigned member, uint64_t value) {
        return value << 6 | member;
}

static inline unsigned ring_fence_member(uint64_t fence) {
        return (unsigned)fence & (RING_MEMBERS - 1);
}

static inline uint64_t ring_fence_value(uint64_t fence) {
        return fence >> 6;
}

/* ---- the page --------------------------------------------------------------------------------------------- */

struct ring_event {
        alignas(64) _Atomic uint64_t waiting; /* bit n: member n sleeps or is about to */
        _Atomic uint32_t count;               /* the futex */
};

struct ring_figures {
        alignas(64) _Atomic uint64_t items;
        _Atomic uint64_t bytes, drops, broken;
};

struct ring_member {
        alignas(64) _Atomic uint64_t word;
        _Atomic uint64_t cursor;
        _Atomic uint64_t consumed;   /* of a broadcast's consumer: what its fence reaches when all it released is read */
        _Atomic uint64_t reached[2]; /* by generation, odd or even: 1 + what its fence had reached when it was ending; 0: unknown */
        _Atomic uint64_t helpers;    /* bit n: member n is at reaping it, or died at it; not before all are done is it REAPED */
        struct ring_figures figures;
};

struct ring_slot {
        alignas(64) _Atomic uint64_t word;
        _Atomic uint64_t produced, consumed; /* {value 58, member 6}: whose fence reaches what when it is written, read */
        uint64_t size;
        uint32_t n_meta;
        uint32_t generation; /* of the producer */
        uint64_t reserved[3];
        unsigned char meta[];
};

struct ring_page {
        uint64_t magic;
        uint32_t version, mode, policy, n_slots, meta_bytes, reserved;
        uint64_t slot_bytes;
        alignas(64) _Atomic uint64_t tail; /* the next ticket to claim */
        alignas(64) _Atomic uint64_t head; /* of a queue: the next ticket to take */
        alignas(64) _Atomic uint64_t closed;
        _Atomic uint64_t readers;          /* of a broadcast: bit n: member n has or had a cursor */
        _Atomic uint64_t joined;           /* bit n: member n has come, and may have something in hand */
        struct ring_event items, room;     /* what consumers, and what producers, wait for */
        struct ring_member members[RING_MEMBERS];
};

/* What is wrong with it, in a sentence that names the field and what it may be; NULL: nothing. */
const char *ring_geometry_fault(const struct ring_geometry *geometry);

/* Bytes of a sound geometry: from a slot to the next, and of the whole page. */
size_t ring_stride(const struct ring_geometry *geometry);
size_t ring_page_bytes(const struct ring_geometry *geometry);

/* Of the data: from a slot to the next. No overflow with slot_bytes at most RING_SLOT_BYTES_MAX. */
static inline uint64_t ring_data_stride(uint64_t slot_bytes) {
        return (slot_bytes + 255) / 256 * 256;
}

/* Writes the beginnings into zeroed memory of ring_page_bytes(). */
void ring_page_init(struct ring_page *page, const struct ring_geometry *geometry);

/* Reads the geometry of a page that is `bytes` long, once. NULL, or a sentence as above. */
const char *ring_page_check(const struct ring_page *page, size_t bytes, struct ring_geometry *ret_geometry);

/* Lets a member in under a number that is vacant, or whose last holder is reaped; the generation is its last one and 1. */
void ring_page_admit(struct ring_page *page, unsigned member, uint32_t generation, enum ring_role role);

/* Nothing names the member any more, or yet: its number can be given again. Of one that was declared dead others say so. */
void ring_page_give_back(struct ring_page *page, unsigned member, uint32_t generation);

/* The member's connection ended, yet its process lives: what it had in hand stays as it is. Who has not come by then will not, and its
 * number is free. */
void ring_page_mark_left(struct ring_page *page, unsigned member, uint32_t generation);

/* The same of one whose process runs no more, but has not ended: its GPU may yet be at work. What it has in hand stays as it is; how far
 * its fence has come may be said, and what it has published beyond that is broken. */
void ring_page_mark_ending(struct ring_page *page, unsigned member, uint32_t generation);

/* The member's process is no more (its pidfd fired). Whoever waits wakes and may finish what it left; the number of one who had not come
 * is free. Marking another generation than the present one does nothing. */
void ring_page_mark_dead(struct ring_page *page, unsigned member, uint32_t generation);

/* Whether nothing in the page names that holder any more. A member can forge this, at the cost of the channel's order. */
bool ring_page_is_reaped(struct ring_page *page, unsigned member, uint32_t generation);

/* No more is claimed; what was claimed may still be published and taken. */
void ring_page_close(struct ring_page *page);

/* Wakes everyone who waits, needed or not. */
void ring_page_wake(struct ring_page *page);

#endif
