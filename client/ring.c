/* SPDX-License-Identifier: Apache-2.0 */
/* The ring as its users see it: joined, items begun and published, taken and released. Any thread enters; those with a
 * deadline wait. Sizes and metadata lengths are read from the page once, checked, then used; nothing else that is read there
 * is an index. */
#include "ring.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "ring_inner.h"

const char *ring_verdict_sentence(int verdict) {
        switch (verdict) {
        case RING_OK: return "done";
        case RING_TIMED_OUT: return "the deadline passed";
        case RING_CLOSED: return "the channel is closed";
        case RING_BROKEN: return "the item's producer died before the item was whole";
        case RING_GONE: return "this process is no member of the channel any more; attach anew";
        case RING_BUSY: return "a consumer of a broadcast holds one item at a time: release it first";
        case RING_CORRUPT: return "the channel is corrupt: a process that shares it wrote over its control page; make a new one";
        default: return "unknown verdict";
        }
}

int ring_is_corrupt(struct ring *ring) {
        atomic_store(&ring->corrupt, true);
        return RING_CORRUPT;
}

int ring_may_go_on(struct ring *ring) {
        uint64_t alive = ring_member_word(ring->generation, ring->role, RING_ALIVE);

        if (atomic_load_explicit(&ring->corrupt, memory_order_relaxed))
                return RING_CORRUPT;
        if (atomic_load_explicit(&ring->gone, memory_order_relaxed))
                return RING_GONE;
        if (atomic_load_explicit(&ring->stopped, memory_order_relaxed))
                return RING_CLOSED;
        return ring_load(&ring_myself(ring)->word) == alive ? RING_OK : RING_GONE;
}

int ring_check(struct ring *ring) {
        return ring_may_go_on(ring);
}

enum ring_sight ring_look(struct ring *ring, struct ring_spot *spot) {
        uint64_t word = ring_load(&spot->slot->word), ticket = ring_word_ticket(word);
        enum ring_state state = ring_word_state(word);

        spot->word = word;
        if (state < RING_FREE || state > RING_CANCELLED)
                return RING_SIGHT_WRONG;
        if (ticket == spot->ticket)
                return state == RING_FREE ? RING_SIGHT_NEXT : RING_SIGHT_HERE;
        if (ticket > spot->ticket)
                return (ticket - spot->ticket) % ring->geometry.n_slots == 0 ? RING_SIGHT_PAST : RING_SIGHT_WRONG;
        return spot->ticket - ticket == ring->geometry.n_slots && state != RING_FREE ? RING_SIGHT_BEFORE : RING_SIGHT_WRONG;
}

void ring_help(_Atomic uint64_t *index, uint64_t ticket, uint64_t next) {
        if (RING_RULE(everyone_helps))
                (void)ring_cas(index, ticket, next);
}

int ring_claimed(struct ring *ring, const struct ring_spot *spot) {
        uint64_t mine = ring_word(spot->ticket, ring->me, RING_CLAIMED);

        (void)ring_cas(&ring->page->tail, spot->ticket, spot->ticket + 1);
        if (!RING_RULE(claimer_looks_whether_closed) || !ring_load(&ring->page->closed))
                return RING_OK;
        (void)ring_cas(&spot->slot->word, mine, ring_word(spot->ticket, ring->me, RING_CANCELLED));
        ring_wake_both(ring);
        return RING_CLOSED;
}

/* ---- joining ---------------------------------------------------------------------------------------------- */

static int processors(void) {
        cpu_set_t set;
        return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

int ring_attach_page(void *page, size_t bytes, unsigned member, uint32_t generation, struct ring **ret_ring,
                     const char **ret_fault) {
        struct ring *ring;
        uint64_t word;
        int r;

        if (member >= RING_MEMBERS)
                return -EINVAL;
        ring = calloc(1, sizeof(*ring));
        if (!ring)
                return -ENOMEM;
        ring->page = page;
        *ret_fault = ring_page_check(page, bytes, &ring->geometry);
        if (*ret_fault) {
                free(ring);
                return -EPROTO;
        }
        ring->stride = ring_stride(&ring->geometry);
        ring->me = member;
        ring->generation = generation;
        (void)pthread_mutex_init(&ring->mutex, NULL);
        atomic_init(&ring->spin_usec, processors() > 1 ? RING_SPIN_USEC : 0);
        word = ring_load(&ring_myself(ring)->word);
        ring->role = ring_member_role(word) == RING_PRODUCER ? RING_PRODUCER : RING_CONSUMER;
        r = ring_may_go_on(ring);
        if (r == RING_OK) {
                (void)ring_or(&ring->page->joined, UINT64_C(1) << member);
                /* After it was said: see ring_page_mark_left(). */
                r = RING_RULE(who_joins_looks_whether_it_left) ? ring_may_go_on(ring) : RING_OK;
                if (r != RING_OK)
                        ring_page_give_back(page, member, generation); /* where it was seen to have come, this is left to it */
        }
        if (r == RING_OK && ring->role == RING_CONSUMER && ring->geometry.mode == RING_BROADCAST)
                r = broadcast_join(ring);
        if (r != RING_OK) {
                (void)pthread_mutex_destroy(&ring->mutex);
                free(ring);
                return r;
        }
        *ret_ring = ring;
        return RING_OK;
}

int ring_attach(int control_fd, unsigned member, uint32_t generation, struct ring **ret_ring, const char **ret_fault) {
        struct stat facts;
        void *page;
        int r, seals = fcntl(control_fd, F_GET_SEALS);

        if (seals < 0 || fstat(control_fd, &facts) < 0)
                return -errno;
        if (!(seals & F_SEAL_SHRINK)) {
                *ret_fault = "the control page is not sealed against shrinking";
                return -EPROTO;
        }
        if (facts.st_size < (off_t)sizeof(struct ring_page)) {
                *ret_fault = "the control page is too short to be one";
                return -EPROTO;
        }
        page = mmap(NULL, (size_t)facts.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, control_fd, 0);
        if (page == MAP_FAILED)
                return -errno;
        r = ring_attach_page(page, (size_t)facts.st_size, member, generation, ret_ring, ret_fault);
        if (r != RING_OK)
                (void)munmap(page, (size_t)facts.st_size);
        else
                (*ret_ring)->mapped_bytes = (size_t)facts.st_size;
        return r;
}

void ring_spin(struct ring *ring, int64_t usec) {
        atomic_store(&ring->spin_usec, usec);
}

void ring_free(struct ring *ring) {
        if (!ring)
                return;
        if (ring->mapped_bytes > 0)
                (void)munmap(ring->page, ring->mapped_bytes);
        (void)pthread_mutex_destroy(&ring->mutex);
        free(ring);
}

const struct ring_geometry *ring_geometry(const struct ring *ring) {
        return &ring->geometry;
}

unsigned ring_me(const struct ring *ring) {
        return ring->me;
}

struct ring_page *ring_page(const struct ring *ring) {
        return ring->page;
}

/* ---- items ------------------------------------------------------------------------------------------------ */

/* The item's own slot with the word that it has in its holder's hand. */
static struct ring_spot held(const struct ring *ring, const struct ring_item *item, enum ring_state state) {
        struct ring_spot spot = ring_spot_of(ring, item->ticket);
        spot.word = ring_word(item->ticket, ring->me, state);
        return spot;
}

/* A word that was this member's has changed: it was declared dead, or somebody scribbled. */
static int lost(struct ring *ring) {
        int r = ring_may_go_on(ring);
        return r == RING_GONE || r == RING_CORRUPT ? r : ring_is_corrupt(ring);
}

static void read_fences(const struct ring_spot *spot, struct ring_item *item) {
        uint64_t produced = ring_note(&spot->slot->produced), consumed = ring_note(&spot->slot->consumed);

        item->producer = ring_fence_member(produced);
        item->produced = ring_fence_value(produced);
        item->consumer = ring_fence_member(consumed);
        item->consumed = ring_fence_value(consumed);
}

int ring_begin_produce(struct ring *ring, int64_t deadline, struct ring_item *ret_item) {
        ring_attempt *claim = ring->geometry.mode == RING_QUEUE ? queue_claim : broadcast_claim;
        struct ring_spot spot;
        int r;

        if (ring->role != RING_PRODUCER)
                return -EPERM;
        r = ring_until(ring, claim, &ring->page->room, deadline, &spot);
        if (r != RING_OK)
                return r;
        ret_item->ticket = spot.ticket;
        ret_item->slot = spot.index;
        ret_item->generation = 0;
        ret_item->size = 0;
        ret_item->n_meta = 0;
        read_fences(&spot, ret_item);
        return RING_OK;
}

int ring_publish(struct ring *ring, const struct ring_item *item, uint64_t size, const void *meta, uint32_t n_meta,
                 uint64_t produced) {
        struct ring_spot spot = held(ring, item, RING_CLAIMED);

        if (size > ring->geometry.slot_bytes || n_meta > ring->geometry.meta_bytes || produced > RING_FENCE_MAX)
                return -EMSGSIZE;
        if (ring_load(&spot.slot->word) != spot.word)
                return lost(ring);
        spot.slot->size = size;
        spot.slot->n_meta = n_meta;
        spot.slot->generation = ring->generation;
        if (n_meta > 0)
                memcpy(spot.slot->meta, meta, n_meta);
        ring_write(&spot.slot->produced, ring_fence(ring->me, produced));
        if (!ring_cas(&spot.slot->word, spot.word, ring_word(item->ticket, ring->me, RING_READY)))
                return lost(ring);
        ring_count(&ring_myself(ring)->figures.items, 1);
        ring_count(&ring_myself(ring)->figures.bytes, size);
        ring_wake(ring, &ring->page->items);
        /* A producer may wait for it, so as to drop it or because no consumer will read it. */
        if (ring->geometry.mode == RING_BROADCAST || ring->geometry.policy == RING_DROP_OLDEST)
                ring_wake(ring, &ring->page->room);
        return RING_OK;
}

int ring_cancel(struct ring *ring, const struct ring_item *item) {
        struct ring_spot spot = held(ring, item, RING_CLAIMED);

        if (!ring_cas(&spot.slot->word, spot.word, ring_word(item->ticket, ring->me, RING_CANCELLED)))
                return lost(ring);
        ring_wake_both(ring);
        return RING_OK;
}

/* Out of the page, each once. */
static int read_item(struct ring *ring, const struct ring_spot *spot, struct ring_item *item) {
        const volatile struct ring_slot *slot = spot->slot;
        uint64_t size = slot->size;
        uint32_t n_meta = slot->n_meta;

        if (size > ring->geometry.slot_bytes || n_meta > ring->geometry.meta_bytes)
                return ring_is_corrupt(ring);
        item->size = size;
        item->n_meta = n_meta;
        item->generation = slot->generation;
        memcpy(item->meta, spot->slot->meta, n_meta);
        read_fences(spot, item);
        return RING_OK;
}

int ring_take(struct ring *ring, int64_t deadline, struct ring_item *ret_item) {
        ring_attempt *take = ring->geometry.mode == RING_QUEUE ? queue_take : broadcast_take;
        struct ring_spot spot;
        int r;

        if (ring->role != RING_CONSUMER)
                return -EPERM;
        r = ring_until(ring, take, &ring->page->items, deadline, &spot);
        if (r != RING_OK && r != RING_BROKEN)
                return r;
        ret_item->ticket = spot.ticket;
        ret_item->slot = spot.index;
        ret_item->producer = ring_word_member(spot.word);
        ret_item->size = ret_item->n_meta = 0;
        if (r == RING_OK)
                return read_item(ring, &spot, ret_item);
        ring_count(&ring_myself(ring)->figures.broken, 1);
        return r;
}

int ring_release(struct ring *ring, const struct ring_item *item, uint64_t consumed) {
        struct ring_spot spot = held(ring, item, RING_TAKEN);
        int r;

        if (consumed > RING_FENCE_MAX)
                return -EMSGSIZE;
        if (ring->geometry.mode == RING_BROADCAST) {
                ring_write(&ring_myself(ring)->consumed, consumed);
                r = broadcast_release(ring, item->ticket);
                /* Nobody waited for one who was declared dead: what was read may have been something else by then. */
                if (r == RING_OK && ring_member_life(ring_load(&ring_myself(ring)->word)) >= RING_DEAD)
                        return RING_GONE;
        } else {
                if (ring_load(&spot.slot->word) != spot.word)
                        return lost(ring);
                ring_write(&spot.slot->consumed, ring_fence(ring->me, consumed));
                r = queue_release(ring, &spot);
        }
        if (r != RING_OK)
                return lost(ring);
        ring_count(&ring_myself(ring)->figures.items, 1);
        ring_count(&ring_myself(ring)->figures.bytes, item->size);
        return RING_OK;
}

int ring_wait(struct ring *ring, int64_t deadline) {
        bool queue = ring->geometry.mode == RING_QUEUE;
        struct ring_spot spot;

        if (ring->role == RING_PRODUCER)
                return ring_until(ring, queue ? queue_find_room : broadcast_find_room, &ring->page->room, deadline, &spot);
        return ring_until(ring, queue ? queue_find_item : broadcast_find_item, &ring->page->items, deadline, &spot);
}

void ring_close(struct ring *ring) {
        ring_page_close(ring->page);
}

void ring_stop(struct ring *ring) {
        atomic_store(&ring->stopped, true);
        ring_page_wake(ring->page);
}
