/* SPDX-License-Identifier: Apache-2.0 */
/* What the living do for the dead, and how a member leaves. Any thread enters, any number at once: each step is one
 * compare-and-swap from a word that names the dead member, and such a word does not come again. Nothing here waits. */
#include "ring_inner.h"

#define TRIES 8 /* a dead member's word changes twice at most */

bool ring_set_free(struct ring *ring, const struct ring_spot *spot) {
        uint64_t next = ring_word(spot->ticket + ring->geometry.n_slots, 0, RING_FREE);
        bool done = ring_cas(&spot->slot->word, spot->word, next);

        if (done)
                ring_wake(ring, &ring->page->room);
        return done;
}

static void set_broken(struct ring *ring, const struct ring_spot *spot) {
        uint64_t next = ring_word(ring_word_ticket(spot->word), ring_word_member(spot->word), RING_BROKEN_ITEM);

        if (ring_cas(&spot->slot->word, spot->word, next))
                ring_wake_both(ring);
}

int ring_bury(struct ring *ring, const struct ring_spot *spot) {
        enum ring_life life = ring_member_life(ring_load(&ring->page->members[ring_word_member(spot->word)].word));
        struct ring_spot old = *spot;

        if (RING_RULE(only_the_dead_are_buried) && ring_has_process(life))
                return RING_UNREADY;
        /* Nobody owns it: unless it is not what was seen any more, it was never given out by the rules. */
        if (life < RING_ALIVE || life > RING_REAPED)
                return ring_load(&spot->slot->word) != spot->word ? RING_AGAIN : ring_is_corrupt(ring);
        /* What is found may be of the lap before. */
        old.ticket = ring_word_ticket(spot->word);
        if (ring_word_state(old.word) == RING_CLAIMED)
                set_broken(ring, &old);
        else
                (void)ring_set_free(ring, &old);
        return RING_AGAIN;
}

void ring_mark_dead(struct ring *ring, unsigned member, uint32_t generation) {
        ring_page_mark_dead(ring->page, member, generation);
}

/* One slot. `reached` is what the dead member's fence had reached. */
static int reap_slot(struct ring *ring, uint32_t index, unsigned member, uint64_t reached) {
        struct ring_spot spot = ring_spot_of(ring, index);

        for (int i = 0; i < TRIES; i++) {
                uint64_t value;
                spot.word = ring_load(&spot.slot->word);
                spot.ticket = ring_word_ticket(spot.word);
                if (ring_word_member(spot.word) != member)
                        return RING_OK;
                switch (ring_word_state(spot.word)) {
                case RING_CLAIMED:
                case RING_TAKEN:
                        if (ring_bury(ring, &spot) != RING_AGAIN)
                                return RING_BUSY; /* the number is another's by now */
                        break;
                case RING_READY:
                        /* The item's as long as the word is the same, which the swap sees to. */
                        value = ring_fence_value(ring_note(&spot.slot->produced));
                        if (value <= reached)
                                return RING_OK;
                        set_broken(ring, &spot);
                        break;
                default: return RING_OK;
                }
        }
        return ring_is_corrupt(ring);
}

/* Registers as one who says something of the member, `since` when it may: how far its fence has come, since it is ending; that it is
 * reaped, since it is dead. RING_BUSY: it is too early. RING_GONE: there is nothing more to do for it. */
static int begin_helping(struct ring *ring, struct ring_member *place, uint32_t generation, enum ring_life since) {
        uint64_t mine = UINT64_C(1) << ring->me, word;
        enum ring_life life;

        if (atomic_load(&ring->corrupt))
                return RING_CORRUPT;
        /* First the bit: whoever declares it reaped says so before it looks at the bits. */
        (void)ring_or(&place->helpers, mine);
        word = ring_load(&place->word);
        life = ring_member_life(word);
        if (ring_member_generation(word) == generation && life >= since && life <= RING_DEAD)
                return RING_OK;
        (void)ring_and(&place->helpers, ~mine);
        return ring_member_generation(word) == generation && life < since ? RING_BUSY : RING_GONE;
}

/* The first who says so is believed: whoever comes second may read a fence that the first has completed. What is believed. */
static uint64_t say_reached(struct ring_member *place, uint32_t generation, uint64_t reached) {
        _Atomic uint64_t *said = &place->reached[generation & 1];

        if (reached > RING_FENCE_MAX)
                reached = RING_FENCE_MAX;
        if (!RING_RULE(the_first_word_counts))
                ring_store(said, reached + 1);
        (void)ring_cas(said, 0, reached + 1);
        return ring_load(said) - 1;
}

bool ring_is_undecided(struct ring *ring, unsigned member, uint32_t generation) {
        struct ring_member *place = &ring->page->members[member % RING_MEMBERS];
        uint64_t word = ring_load(&place->word);

        return ring_member_generation(word) == generation && ring_member_life(word) == RING_ENDING &&
               ring_load(&place->reached[generation & 1]) == 0;
}

int ring_decide(struct ring *ring, unsigned member, uint32_t generation, uint64_t reached) {
        struct ring_member *place = &ring->page->members[member % RING_MEMBERS];
        int r = begin_helping(ring, place, generation, RING_ENDING);

        if (r != RING_OK)
                return r;
        (void)say_reached(place, generation, reached);
        (void)ring_and(&place->helpers, ~(UINT64_C(1) << ring->me));
        return RING_OK;
}

int ring_reap(struct ring *ring, unsigned member, uint32_t generation, uint64_t reached) {
        struct ring_member *place = &ring->page->members[member % RING_MEMBERS];
        int r = begin_helping(ring, place, generation, RING_DEAD);

        if (r != RING_OK)
                return r;
        reached = say_reached(place, generation, reached);
        for (uint32_t i = 0; r == RING_OK && i < ring->geometry.n_slots; i++)
                r = reap_slot(ring, i, member % RING_MEMBERS, reached);
        ring_page_wake(ring->page);
        return r == RING_BUSY ? RING_OK : r;
}

uint64_t ring_reached(struct ring *ring, unsigned member, uint32_t generation) {
        uint64_t reached = ring_load(&ring->page->members[member % RING_MEMBERS].reached[generation & 1]);
        return reached == 0 || reached - 1 > RING_FENCE_MAX ? RING_FENCE_MAX : reached - 1;
}

int ring_reaped(struct ring *ring, unsigned member, uint32_t generation) {
        struct ring_member *place = &ring->page->members[member % RING_MEMBERS];
        uint64_t word = ring_load(&place->word), reaping;

        (void)ring_and(&place->helpers, ~(UINT64_C(1) << ring->me));
        if (ring_member_generation(word) != generation || ring_member_life(word) == RING_REAPED)
                return RING_OK;
        if (ring_member_life(word) < RING_DEAD)
                return RING_BUSY;
        reaping = ring_member_word(generation, ring_member_role(word), RING_REAPING);
        (void)ring_cas(&place->word, ring_member_word(generation, ring_member_role(word), RING_DEAD), reaping);
        /* Nobody begins from here on. The last who had begun gets past this. */
        if (!RING_RULE(reaped_when_all_are_done) || !ring_lives_one_of(ring, ring_load(&place->helpers)))
                (void)ring_cas(&place->word, reaping, ring_member_word(generation, ring_member_role(word), RING_REAPED));
        return RING_OK;
}

bool ring_is_broken(struct ring *ring, const struct ring_item *item) {
        struct ring_member *place = &ring->page->members[item->producer % RING_MEMBERS];
        uint64_t reached = ring_load(&place->reached[item->generation & 1]);
        uint64_t word = ring_load(&place->word);
        uint32_t generation = ring_member_generation(word);

        /* After a second successor nobody remembers: better a good item too many than a bad one. */
        if (generation != item->generation && generation != item->generation + 1)
                return true;
        if (generation == item->generation && ring_member_life(word) < RING_ENDING)
                return false;
        return reached != 0 && item->produced > reached - 1;
}

/* A slot that this member has in hand, when it leaves. */
static void put_down(struct ring *ring, uint32_t index) {
        struct ring_spot spot = ring_spot_of(ring, index);

        spot.word = ring_load(&spot.slot->word);
        spot.ticket = ring_word_ticket(spot.word);
        if (ring_word_member(spot.word) != ring->me)
                return;
        if (ring_word_state(spot.word) == RING_TAKEN)
                (void)ring_set_free(ring, &spot);
        if (ring_word_state(spot.word) == RING_CLAIMED &&
            ring_cas(&spot.slot->word, spot.word, ring_word(spot.ticket, ring->me, RING_CANCELLED)))
                ring_wake_both(ring);
}

int ring_leave(struct ring *ring) {
        struct ring_member *me = ring_myself(ring);
        uint64_t mine = UINT64_C(1) << ring->me;

        if (atomic_load(&ring->corrupt))
                return RING_CORRUPT;
        if (ring_member_generation(ring_load(&me->word)) != ring->generation || atomic_exchange(&ring->gone, true))
                return RING_GONE;
        for (uint32_t i = 0; i < ring->geometry.n_slots; i++)
                put_down(ring, i);
        for (unsigned i = 0; i < RING_MEMBERS; i++)
                if (ring_note(&ring->page->members[i].helpers) & mine)
                        (void)ring_and(&ring->page->members[i].helpers, ~mine);
        ring_store(&me->cursor, ring_cursor(0, RING_NOWHERE));
        ring_page_give_back(ring->page, ring->me, ring->generation);
        ring_page_wake(ring->page);
        return RING_OK;
}
