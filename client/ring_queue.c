/* SPDX-License-Identifier: Apache-2.0 */
/* The queue: each item to one consumer, in the order of tickets. Any thread enters; nothing here waits. What is read from
 * the page is compared, never followed: a slot's word either is one of those that the protocol allows for the ticket, or
 * the channel is corrupt. */
#include "ring_inner.h"

/* A slot that still has the ticket of a lap ago. */
static int room_behind(struct ring *ring, struct ring_spot *spot) {
        switch (ring_word_state(spot->word)) {
        case RING_CLAIMED:
        case RING_TAKEN: return ring_bury(ring, spot);
        case RING_CANCELLED: return RING_OK;
        case RING_READY:
        case RING_BROKEN_ITEM:
                /* The ring is full, so this is the oldest. Its successor takes its place in the same step. */
                return ring->geometry.policy == RING_DROP_OLDEST ? RING_OK : RING_UNREADY;
        default: return ring_is_corrupt(ring);
        }
}

int queue_find_room(struct ring *ring, struct ring_spot *spot) {
        uint64_t ticket = ring_load(&ring->page->tail);

        if (ticket > RING_TICKET_MAX)
                return ring_is_corrupt(ring);
        *spot = ring_spot_of(ring, ticket);
        switch (ring_look(ring, spot)) {
        case RING_SIGHT_NEXT: return RING_OK;
        case RING_SIGHT_HERE:
        case RING_SIGHT_PAST: ring_help(&ring->page->tail, ticket, ticket + 1); return RING_AGAIN;
        case RING_SIGHT_BEFORE: return room_behind(ring, spot);
        default: return ring_is_corrupt(ring);
        }
}

int queue_claim(struct ring *ring, struct ring_spot *spot) {
        int r = queue_find_room(ring, spot);
        enum ring_state was;

        if (r != RING_OK)
                return r;
        was = ring_word_state(spot->word);
        if (!ring_cas(&spot->slot->word, spot->word, ring_word(spot->ticket, ring->me, RING_CLAIMED)))
                return RING_AGAIN;
        if (was == RING_READY || was == RING_BROKEN_ITEM)
                ring_count(&ring_myself(ring)->figures.drops, 1);
        return ring_claimed(ring, spot);
}

/* From a ticket that has been here and gone. Where that is laps ago, nobody took for long: what was claimed has taken the place of all
 * that was a lap before it, so there is no need to look at each of those, however many. */
static void pass_over(struct ring *ring, const struct ring_spot *spot) {
        uint64_t n = ring->geometry.n_slots, next = spot->ticket + 1;

        if (ring_word_ticket(spot->word) - spot->ticket > n) {
                uint64_t tail = ring_load(&ring->page->tail);
                if (tail > next + n)
                        next = tail - n;
        }
        ring_help(&ring->page->head, spot->ticket, next);
}

int queue_find_item(struct ring *ring, struct ring_spot *spot) {
        uint64_t ticket = ring_load(&ring->page->head);

        if (ticket > RING_TICKET_MAX)
                return ring_is_corrupt(ring);
        *spot = ring_spot_of(ring, ticket);
        switch (ring_look(ring, spot)) {
        case RING_SIGHT_NEXT: return RING_EMPTY;
        case RING_SIGHT_PAST: pass_over(ring, spot); return RING_AGAIN;
        case RING_SIGHT_BEFORE:
                /* Who took it has not released it; whatever else would have kept head from coming here. */
                return ring_word_state(spot->word) == RING_TAKEN ? RING_EMPTY : ring_is_corrupt(ring);
        case RING_SIGHT_HERE: break;
        default: return ring_is_corrupt(ring);
        }
        switch (ring_word_state(spot->word)) {
        case RING_READY:
        case RING_BROKEN_ITEM: return RING_OK;
        case RING_TAKEN: ring_help(&ring->page->head, ticket, ticket + 1); return RING_AGAIN;
        case RING_CANCELLED:
                if (ring_set_free(ring, spot))
                        ring_help(&ring->page->head, ticket, ticket + 1);
                return RING_AGAIN;
        default: return ring_bury(ring, spot);
        }
}

int queue_take(struct ring *ring, struct ring_spot *spot) {
        int r = queue_find_item(ring, spot);

        if (r != RING_OK)
                return r;
        if (ring_word_state(spot->word) == RING_BROKEN_ITEM) {
                if (!ring_set_free(ring, spot))
                        return RING_AGAIN;
                ring_help(&ring->page->head, spot->ticket, spot->ticket + 1);
                return RING_BROKEN;
        }
        if (!ring_cas(&spot->slot->word, spot->word, ring_word(spot->ticket, ring->me, RING_TAKEN)))
                return RING_AGAIN;
        ring_help(&ring->page->head, spot->ticket, spot->ticket + 1);
        return RING_OK;
}

int queue_release(struct ring *ring, const struct ring_spot *spot) {
        return ring_set_free(ring, spot) ? RING_OK : RING_AGAIN;
}
