/* SPDX-License-Identifier: Apache-2.0 */
/* The control page of a channel as the broker sees it: made, members let in and declared dead, closed. Any thread of any
 * process enters. Never waits, never loops on what it reads, never follows anything in the page. */
#include "ring_page.h"

#include "ring_atomic.h"

#define PAGE 4096u

_Static_assert(sizeof(struct ring_slot) == 64, "a slot's head is one cache line");
_Static_assert(sizeof(struct ring_page) == 384 + RING_MEMBERS * 128, "both ends agree on where the slots begin");

const char *ring_geometry_fault(const struct ring_geometry *geometry) {
        if (geometry->mode != RING_QUEUE && geometry->mode != RING_BROADCAST)
                return "mode is unknown: queue (1) or broadcast (2)";
        if (geometry->policy != RING_BLOCK && geometry->policy != RING_DROP_OLDEST)
                return "policy is unknown: block (1) or drop-oldest (2)";
        if (geometry->n_slots < 1 || geometry->n_slots > RING_SLOTS_MAX)
                return "n_slots is out of range: 1 to 65536";
        if (geometry->meta_bytes > RING_META_MAX)
                return "meta_bytes is out of range: at most 1024";
        if (geometry->slot_bytes < 1 || geometry->slot_bytes > RING_SLOT_BYTES_MAX)
                return "slot_bytes is out of range: 1 to 2^53 - 1";
        return NULL;
}

size_t ring_stride(const struct ring_geometry *geometry) {
        return sizeof(struct ring_slot) + (geometry->meta_bytes + 63) / 64 * 64;
}

size_t ring_page_bytes(const struct ring_geometry *geometry) {
        return (sizeof(struct ring_page) + geometry->n_slots * ring_stride(geometry) + PAGE - 1) / PAGE * PAGE;
}

void ring_page_init(struct ring_page *page, const struct ring_geometry *geometry) {
        page->version = RING_VERSION;
        page->mode = geometry->mode;
        page->policy = geometry->policy;
        page->n_slots = geometry->n_slots;
        page->meta_bytes = geometry->meta_bytes;
        page->slot_bytes = geometry->slot_bytes;
        for (uint32_t i = 0; i < geometry->n_slots; i++) {
                struct ring_slot *slot = (struct ring_slot *)((char *)(page + 1) + i * ring_stride(geometry));
                ring_write(&slot->word, ring_word(i, 0, RING_FREE));
        }
        page->magic = RING_MAGIC;
}

const char *ring_page_check(const struct ring_page *page, size_t bytes, struct ring_geometry *ret_geometry) {
        const volatile struct ring_page *shared = page;
        struct ring_geometry geometry;
        const char *fault;

        if (bytes < sizeof(*page))
                return "the control page is too short to be one";
        if (shared->magic != RING_MAGIC)
                return "magic is not a control page's";
        if (shared->version != RING_VERSION)
                return "version is another one than this library's: update the older side";
        geometry = (struct ring_geometry){ .mode = shared->mode,
                                           .policy = shared->policy,
                                           .n_slots = shared->n_slots,
                                           .meta_bytes = shared->meta_bytes,
                                           .slot_bytes = shared->slot_bytes };
        fault = ring_geometry_fault(&geometry);
        if (fault)
                return fault;
        if (bytes < ring_page_bytes(&geometry))
                return "n_slots and meta_bytes need a longer control page";
        *ret_geometry = geometry;
        return NULL;
}

void ring_page_wake(struct ring_page *page) {
        ring_event_change(&page->items.count);
        ring_futex_wake(&page->items.count);
        ring_event_change(&page->room.count);
        ring_futex_wake(&page->room.count);
}

/* The number's last holder may have died while it reaped others. */
static void stop_helping(struct ring_page *page, uint64_t others) {
        for (unsigned i = 0; i < RING_MEMBERS; i++)
                if (ring_note(&page->members[i].helpers) & ~others)
                        (void)ring_and(&page->members[i].helpers, others);
}

void ring_page_admit(struct ring_page *page, unsigned member, uint32_t generation, enum ring_role role) {
        struct ring_member *place = &page->members[member % RING_MEMBERS];
        uint64_t others = ~(UINT64_C(1) << member % RING_MEMBERS);

        /* Nobody until all of this is done. The generation comes first: what was remembered of the one before the last is
         * forgotten only when it can be seen that it is too old (ring_is_broken). */
        ring_store(&place->word, ring_member_word(generation, role, RING_VACANT));
        (void)ring_and(&page->items.waiting, others);
        (void)ring_and(&page->room.waiting, others);
        (void)ring_and(&page->joined, others);
        stop_helping(page, others);
        ring_store(&place->cursor, ring_cursor(0, RING_NOWHERE));
        ring_store(&place->reached[generation & 1], 0);
        ring_write(&place->consumed, 0);
        ring_write(&place->figures.items, 0);
        ring_write(&place->figures.bytes, 0);
        ring_write(&place->figures.drops, 0);
        ring_write(&place->figures.broken, 0);
        ring_store(&place->word, ring_member_word(generation, role, RING_ALIVE));
}

/* From a life before `until`. */
static void set_life(struct ring_page *page, unsigned member, uint32_t generation, enum ring_life until, enum ring_life life) {
        struct ring_member *place = &page->members[member % RING_MEMBERS];

        /* Enough: a life goes from alive to left to ending to dead, and each step is taken once. */
        for (int i = 0; i < 4; i++) {
                uint64_t word = ring_load(&place->word);
                enum ring_life now = ring_member_life(word);
                if (ring_member_generation(word) != generation || now == RING_VACANT || now >= until)
                        break;
                if (ring_cas(&place->word, word, ring_member_word(generation, ring_member_role(word), life)))
                        break;
        }
}

/* The dead are reaped by others. */
void ring_page_give_back(struct ring_page *page, unsigned member, uint32_t generation) {
        set_life(page, member, generation, RING_DEAD, RING_REAPED);
}

static void mark(struct ring_page *page, unsigned member, uint32_t generation, enum ring_life life) {
        set_life(page, member, generation, life, life);
        ring_page_wake(page);
}

static bool has_joined(struct ring_page *page, unsigned member) {
        return ring_load(&page->joined) & UINT64_C(1) << member % RING_MEMBERS;
}

/* Whoever joins says so, then looks whether it was declared left; so either this sees it, or it stops. */
void ring_page_mark_left(struct ring_page *page, unsigned member, uint32_t generation) {
        mark(page, member, generation, RING_LEFT);
        if (!has_joined(page, member))
                ring_page_give_back(page, member, generation);
}

/* Who runs no more will not join. Nobody begins to help one that is given back, who would be at it when the number is another's. */
static void mark_over(struct ring_page *page, unsigned member, uint32_t generation, enum ring_life life) {
        if (!has_joined(page, member))
                ring_page_give_back(page, member, generation);
        mark(page, member, generation, life);
}

void ring_page_mark_ending(struct ring_page *page, unsigned member, uint32_t generation) {
        mark_over(page, member, generation, RING_ENDING);
}

void ring_page_mark_dead(struct ring_page *page, unsigned member, uint32_t generation) {
        mark_over(page, member, generation, RING_DEAD);
}

bool ring_page_is_reaped(struct ring_page *page, unsigned member, uint32_t generation) {
        uint64_t word = ring_load(&page->members[member % RING_MEMBERS].word);
        return ring_member_generation(word) == generation && ring_member_life(word) == RING_REAPED;
}

void ring_page_close(struct ring_page *page) {
        ring_store(&page->closed, 1);
        ring_page_wake(page);
}
