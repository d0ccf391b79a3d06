/* SPDX-License-Identifier: Apache-2.0 */
/* Figures of a ring, as they are in the page: a member can put anything there, and gets no more than wrong figures. Any
 * thread enters; nothing waits. */
#include "ring_inner.h"

/* How far `to` is ahead, at most a lap. */
static uint64_t ahead(const struct ring *ring, uint64_t from, uint64_t to) {
        uint64_t n = to > from ? to - from : 0;
        return n < ring->geometry.n_slots ? n : ring->geometry.n_slots;
}

static bool is_in_place(uint64_t cursor) {
        enum ring_cursor_state state = ring_cursor_state(cursor);
        return state != RING_NOWHERE && (state != RING_JOINING || !RING_RULE(who_joins_is_not_there));
}

static uint64_t lag(const struct ring *ring, unsigned member, uint64_t tail) {
        const struct ring_member *place = &ring->page->members[member];
        uint64_t cursor = ring_note(&place->cursor);
        enum ring_life life = ring_member_life(ring_note(&place->word));

        if (!is_in_place(cursor) || !ring_has_process(life))
                return 0;
        return ahead(ring, ring_cursor_ticket(cursor), tail);
}

/* A consumer that is let into a broadcast gets nothing before it has a cursor: until then it is not there, nor was it when it died. */
static enum ring_life life_of(const struct ring *ring, const struct ring_member *place, uint64_t word) {
        enum ring_life life = ring_member_life(word);
        bool reads = ring->geometry.mode == RING_BROADCAST && ring_member_role(word) != RING_PRODUCER;

        return life > RING_REAPED || (reads && !is_in_place(ring_note(&place->cursor))) ? RING_VACANT : life;
}

uint64_t ring_peek_depth(struct ring *ring) {
        uint64_t head = ring_note(&ring->page->head), tail = ring_note(&ring->page->tail), most = 0;

        if (ring->geometry.mode == RING_QUEUE)
                return ahead(ring, head, tail);
        for (unsigned i = 0; i < RING_MEMBERS; i++) {
                uint64_t n = lag(ring, i, tail);
                most = n > most ? n : most;
        }
        return most;
}

void ring_stats(struct ring *ring, struct ring_stats *ret_stats) {
        *ret_stats = (struct ring_stats){ .tail = ring_note(&ring->page->tail),
                                          .depth = ring_peek_depth(ring),
                                          .closed = ring_note(&ring->page->closed) != 0 };
        for (unsigned i = 0; i < RING_MEMBERS; i++) {
                const struct ring_member *place = &ring->page->members[i];
                uint64_t word = ring_note(&place->word);
                ret_stats->members[i] = (struct ring_member_stats){
                        .life = life_of(ring, place, word),
                        .role = ring_member_role(word) == RING_PRODUCER ? RING_PRODUCER : RING_CONSUMER,
                        .generation = ring_member_generation(word),
                        .items = ring_note(&place->figures.items),
                        .bytes = ring_note(&place->figures.bytes),
                        .drops = ring_note(&place->figures.drops),
                        .broken = ring_note(&place->figures.broken),
                        .lag = ring->geometry.mode == RING_BROADCAST ? lag(ring, i, ret_stats->tail) : 0,
                };
        }
}

const char *ring_stats_of_page(const void *page, size_t bytes, struct ring_stats *ret_stats) {
        /* Nothing below stores. */
        struct ring ring = { .page = (struct ring_page *)(uintptr_t)page };
        const char *fault = ring_page_check(ring.page, bytes, &ring.geometry);

        if (!fault)
                ring_stats(&ring, ret_stats);
        return fault;
}

uint64_t ring_reader_fences(struct ring *ring, uint64_t ret_values[RING_MEMBERS]) {
        uint64_t found = 0;

        for (uint64_t readers = ring_load(&ring->page->readers); readers; readers &= readers - 1) {
                unsigned member = (unsigned)__builtin_ctzll(readers);
                struct ring_member *place = &ring->page->members[member];
                enum ring_life life = ring_member_life(ring_load(&place->word));
                if (!ring_has_process(life))
                        continue;
                ret_values[member] = ring_note(&place->consumed);
                found |= UINT64_C(1) << member;
        }
        return found;
}

void ring_calls(const struct ring *ring, uint64_t *ret_sleeps, uint64_t *ret_wakes) {
        *ret_sleeps = atomic_load(&ring->n_sleeps);
        *ret_wakes = atomic_load(&ring->n_wakes);
}
