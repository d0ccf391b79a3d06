/* SPDX-License-Identifier: Apache-2.0 */
/* The broadcast: each item to every consumer that was there when it was claimed, each at its own cursor. Any thread
 * enters; nothing here waits. */
#include "ring_inner.h"

#define JOIN_TRIES 100000 /* laps in a row, each within two steps of the joiner's */

/* ---- producers -------------------------------------------------------------------------------------------- */

/* Whether that consumer is past the ticket, or is no reason to wait. */
static int pass_reader(struct ring *ring, unsigned member, uint64_t ticket, bool may_drop) {
        struct ring_member *place = &ring->page->members[member];
        uint64_t cursor = ring_load(&place->cursor);
        enum ring_life life;

        if (ring_cursor_state(cursor) == RING_NOWHERE || ring_cursor_ticket(cursor) > ticket)
                return RING_OK;
        /* After the cursor: one who is given a dead member's number lives before it has a cursor of its own. */
        life = ring_member_life(ring_load(&place->word));
        if (!ring_has_process(life))
                return RING_OK;
        /* After the life, twice over: the cursor may have been that of the number's last holder; and one who begins to read
         * from now on sees that it was declared left, and stops. */
        if (RING_RULE(the_cursor_is_looked_at_again) && ring_load(&place->cursor) != cursor)
                return RING_AGAIN;
        if (ring_cursor_state(cursor) == RING_READING)
                return RING_UNREADY;
        if (life != RING_ALIVE)
                return RING_OK;
        if (ring->geometry.policy == RING_BLOCK)
                return RING_UNREADY;
        /* Counted here: several of the consumer's threads may move the cursor too, and none of them knows of this. */
        if (may_drop && ring_cas(&place->cursor, cursor, ring_cursor(ticket + 1, ring_cursor_state(cursor))) &&
            ring_cursor_state(cursor) == RING_IDLE)
                ring_count(&place->figures.drops, ticket + 1 - ring_cursor_ticket(cursor));
        return may_drop ? RING_AGAIN : RING_OK;
}

/* Whether every consumer is past the ticket. */
static int pass_readers(struct ring *ring, uint64_t ticket, bool may_drop) {
        uint64_t readers = ring_load(&ring->page->readers);

        for (; readers; readers &= readers - 1) {
                int r = pass_reader(ring, (unsigned)__builtin_ctzll(readers), ticket, may_drop);
                if (r != RING_OK)
                        return r;
        }
        return RING_OK;
}

static int find_room(struct ring *ring, struct ring_spot *spot, bool may_drop) {
        /* Before the readers: see broadcast_join(). */
        uint64_t ticket = ring_load(&ring->page->tail);

        if (ticket > RING_TICKET_MAX)
                return ring_is_corrupt(ring);
        *spot = ring_spot_of(ring, ticket);
        switch (ring_look(ring, spot)) {
        case RING_SIGHT_NEXT: return ticket < ring->geometry.n_slots ? RING_OK : ring_is_corrupt(ring);
        case RING_SIGHT_HERE:
        case RING_SIGHT_PAST: ring_help(&ring->page->tail, ticket, ticket + 1); return RING_AGAIN;
        case RING_SIGHT_BEFORE: break;
        default: return ring_is_corrupt(ring);
        }
        switch (ring_word_state(spot->word)) {
        case RING_READY:
        case RING_BROKEN_ITEM:
        case RING_CANCELLED: return pass_readers(ring, ticket - ring->geometry.n_slots, may_drop);
        case RING_CLAIMED: return ring_bury(ring, spot);
        default: return ring_is_corrupt(ring);
        }
}

int broadcast_find_room(struct ring *ring, struct ring_spot *spot) {
        return find_room(ring, spot, false);
}

int broadcast_claim(struct ring *ring, struct ring_spot *spot) {
        int r = find_room(ring, spot, true);

        if (r != RING_OK)
                return r;
        if (!ring_cas(&spot->slot->word, spot->word, ring_word(spot->ticket, ring->me, RING_CLAIMED)))
                return RING_AGAIN;
        return ring_claimed(ring, spot);
}

/* ---- consumers -------------------------------------------------------------------------------------------- */

/* A producer loads tail, finds t, then looks at the cursors before it claims t. One who does not see this cursor looked
 * before it was stored, so found t before that; so tail, loaded after the store, is at least t. As long as it is within a
 * lap of the cursor, whoever claims the cursor's slot anew has still to look, and will see it.
 *
 * Until then it is JOINING, and nobody takes it for being there: whoever sees it IDLE begins nothing that it does not get. */
static int settle(struct ring *ring, uint64_t ticket) {
        struct ring_member *me = ring_myself(ring);

        for (int i = 0; i < JOIN_TRIES; i++) {
                uint64_t cursor = ring_cursor(ticket, RING_JOINING), tail = ring_load(&ring->page->tail);
                bool lapped = tail - ticket >= ring->geometry.n_slots;

                if (tail < ticket || tail > RING_TICKET_MAX)
                        return ring_is_corrupt(ring);
                if (!lapped || !RING_RULE(joiner_looks_again)) {
                        ring->start = ticket;
                        if (ring_cas(&me->cursor, cursor, ring_cursor(ticket, RING_IDLE)))
                                return RING_OK;
                } else if (ring_cas(&me->cursor, cursor, ring_cursor(tail, RING_JOINING))) {
                        ring_wake(ring, &ring->page->room);
                }
                /* Moved, by this or by a producer that gives up the oldest: that one saw it, and so will those after it. */
                cursor = ring_load(&me->cursor);
                if (ring_cursor_state(cursor) != RING_JOINING || ring_cursor_ticket(cursor) < ticket)
                        return ring_is_corrupt(ring);
                ticket = ring_cursor_ticket(cursor);
        }
        return ring_is_corrupt(ring);
}

int broadcast_join(struct ring *ring) {
        uint64_t ticket = ring_load(&ring->page->tail);

        if (ticket > RING_TICKET_MAX)
                return ring_is_corrupt(ring);
        (void)ring_or(&ring->page->readers, UINT64_C(1) << ring->me);
        ring_store(&ring_myself(ring)->cursor, ring_cursor(ticket, RING_JOINING));
        return settle(ring, ticket);
}

/* A slot that is not at the cursor's ticket any more: a producer must have moved the cursor first. */
static int lapped(struct ring *ring, uint64_t cursor) {
        int r = ring_may_go_on(ring);

        if (r != RING_OK)
                return r;
        return ring_load(&ring_myself(ring)->cursor) != cursor ? RING_AGAIN : ring_is_corrupt(ring);
}

static bool advance(struct ring *ring, uint64_t cursor) {
        uint64_t next = ring_cursor(ring_cursor_ticket(cursor) + 1, RING_IDLE);
        bool done = ring_cas(&ring_myself(ring)->cursor, cursor, next);
        if (done)
                ring_wake(ring, &ring->page->room);
        return done;
}

int broadcast_find_item(struct ring *ring, struct ring_spot *spot) {
        uint64_t cursor = ring_load(&ring_myself(ring)->cursor), ticket = ring_cursor_ticket(cursor);

        if (ring_cursor_state(cursor) == RING_READING)
                return RING_BUSY;
        if (ring_cursor_state(cursor) != RING_IDLE || ticket > RING_TICKET_MAX)
                return ring_is_corrupt(ring);
        *spot = ring_spot_of(ring, ticket);
        switch (ring_look(ring, spot)) {
        case RING_SIGHT_NEXT: return RING_EMPTY;
        case RING_SIGHT_PAST: return lapped(ring, cursor);
        case RING_SIGHT_BEFORE: return ring_word_state(spot->word) == RING_TAKEN ? ring_is_corrupt(ring) : RING_EMPTY;
        case RING_SIGHT_HERE: break;
        default: return ring_is_corrupt(ring);
        }
        switch (ring_word_state(spot->word)) {
        case RING_READY:
        case RING_BROKEN_ITEM: return RING_OK;
        case RING_CLAIMED: return ring_bury(ring, spot);
        case RING_CANCELLED:
                (void)advance(ring, cursor);
                return RING_AGAIN;
        default: return ring_is_corrupt(ring);
        }
}

int broadcast_take(struct ring *ring, struct ring_spot *spot) {
        int r = broadcast_find_item(ring, spot);
        struct ring_member *me = ring_myself(ring);
        uint64_t cursor = ring_cursor(spot->ticket, RING_IDLE);

        if (r != RING_OK)
                return r;
        if (ring_word_state(spot->word) == RING_BROKEN_ITEM)
                return advance(ring, cursor) ? RING_BROKEN : RING_AGAIN;
        if (!ring_cas(&me->cursor, cursor, ring_cursor(spot->ticket, RING_READING)))
                return RING_AGAIN;
        /* From here no producer passes. After the cursor: see pass_reader(). */
        r = RING_RULE(reader_looks_whether_it_left) ? ring_may_go_on(ring) : RING_OK;
        if (r != RING_OK) {
                ring_store(&me->cursor, ring_cursor(spot->ticket, RING_NOWHERE));
                ring_wake(ring, &ring->page->room);
                return r;
        }
        return RING_OK;
}

int broadcast_release(struct ring *ring, uint64_t ticket) {
        return advance(ring, ring_cursor(ticket, RING_READING)) ? RING_OK : RING_AGAIN;
}
