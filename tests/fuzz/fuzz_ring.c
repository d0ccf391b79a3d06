/* SPDX-License-Identifier: Apache-2.0 */
/* The control page in an enemy's hands: the input is what is written over it between a member's calls.
 *
 * Its first byte chooses the mode, the policy and the number of slots. Then commands: a byte, whose low bits are a call and
 * whose high bits the member, or a write to the page of what follows. No call waits. A member that finds the page corrupt
 * joins anew, if it can. What the members are given always lies within the channel; afterwards as much is mapped as before. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/ring.h"

#define N_USERS 4
#define SLOT_BYTES 4096

struct input {
        const uint8_t *bytes;
        size_t n;
};

struct user {
        struct ring *ring;
        struct ring_item item;
        bool holds;
};

static struct {
        struct ring_geometry geometry;
        size_t bytes;
        struct ring_page *page;
        struct user users[N_USERS];
} channel;

static void must(bool good) {
        if (!good)
                abort();
}

static uint64_t next(struct input *input, size_t n) {
        uint64_t value = 0;

        n = n < input->n ? n : input->n;
        memcpy(&value, input->bytes, n);
        input->bytes += n;
        input->n -= n;
        return value;
}

static void write_over(struct input *input) {
        uint64_t how = next(input, 1), at = next(input, 2), value;
        uint64_t *words = (uint64_t *)channel.page;
        size_t n_words = channel.bytes / sizeof(uint64_t);

        /* A word that matters, more often than not. */
        static const size_t hot[] = { 8, 16, 24, 25, 32, 33, 40, 41, 48, 49, 64, 65, 80, 81, 96, 97 };
        if (how & 0x80)
                at = hot[at % (sizeof(hot) / sizeof(*hot))];
        else if (how & 0x40)
                at = sizeof(struct ring_page) / 8 + at % (channel.geometry.n_slots * ring_stride(&channel.geometry) / 8);
        at %= n_words;
        switch (how & 3) {
        case 0: value = next(input, 8); break;
        case 1: value = words[at] + next(input, 1); break;
        case 2: value = words[at] - next(input, 1); break;
        default: value = ring_word(next(input, 1), next(input, 1) % RING_MEMBERS, (enum ring_state)(how >> 2 & 7)); break;
        }
        words[at] = value;
}

static void see(const struct ring *ring, const struct ring_item *item) {
        must(item->slot < channel.geometry.n_slots && item->size <= SLOT_BYTES && item->n_meta <= channel.geometry.meta_bytes);
        must(item->producer < RING_MEMBERS && item->consumer < RING_MEMBERS && ring_geometry(ring)->slot_bytes == SLOT_BYTES);
}

static void attach(unsigned member) {
        struct user *user = &channel.users[member];
        const char *fault;

        ring_free(user->ring);
        user->ring = NULL;
        user->holds = false;
        if (ring_attach_page(channel.page, channel.bytes, member, 1, &user->ring, &fault) != RING_OK)
                return;
        /* The page may say something else by now than what it was made as; then members would not agree on slots. */
        if (memcmp(ring_geometry(user->ring), &channel.geometry, sizeof(channel.geometry)) != 0) {
                ring_free(user->ring);
                user->ring = NULL;
        }
}

/* Whatever call it is, one that the page's state may not allow. */
static int call(struct user *user, unsigned what, struct input *input) {
        static struct ring_stats stats;
        uint64_t fences[RING_MEMBERS], value;
        unsigned char meta[64] = { 1 };
        struct ring_item item;
        int r;

        switch (what) {
        case 0:
        case 1:
                r = what == 0 ? ring_begin_produce(user->ring, 0, &item) : ring_take(user->ring, 0, &item);
                if (r == RING_OK) {
                        see(user->ring, &item);
                        user->item = item;
                        user->holds = true;
                }
                return r;
        case 2:
                value = next(input, 2);
                return user->holds ? ring_publish(user->ring, &user->item, value, meta, value % 66, value) : RING_OK;
        case 3: return user->holds ? ring_release(user->ring, &user->item, next(input, 1)) : RING_OK;
        case 4: return user->holds ? ring_cancel(user->ring, &user->item) : RING_OK;
        case 5: return ring_wait(user->ring, 0);
        case 6: value = next(input, 1); ring_mark_dead(user->ring, (unsigned)value, 1); return RING_OK;
        case 7:
                value = next(input, 1);
                (void)ring_is_undecided(user->ring, (unsigned)value, 1);
                if (value & 64)
                        return ring_decide(user->ring, (unsigned)value, 1, next(input, 1));
                return ring_reap(user->ring, (unsigned)value, 1, next(input, 1));
        case 8: value = next(input, 1); return ring_reaped(user->ring, (unsigned)value, 1);
        case 9: (void)ring_is_broken(user->ring, &user->item); return RING_OK;
        case 10: ring_stats(user->ring, &stats); must(stats.depth <= channel.geometry.n_slots); return RING_OK;
        case 11: (void)ring_reader_fences(user->ring, fences); return RING_OK;
        case 12: return ring_leave(user->ring);
        default: ring_page_admit(channel.page, (unsigned)next(input, 1), 1, what & 1 ? RING_PRODUCER : RING_CONSUMER); return RING_OK;
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        struct input input = { data, n };
        uint64_t shape = next(&input, 1);

        channel.geometry = (struct ring_geometry){ .mode = shape & 1 ? RING_BROADCAST : RING_QUEUE,
                                                   .policy = shape & 2 ? RING_DROP_OLDEST : RING_BLOCK,
                                                   .n_slots = 1 + (shape >> 2 & 3),
                                                   .meta_bytes = 64,
                                                   .slot_bytes = SLOT_BYTES };
        channel.bytes = ring_page_bytes(&channel.geometry);
        channel.page = aligned_alloc(4096, channel.bytes);
        must(channel.page);
        memset(channel.page, 0, channel.bytes);
        ring_page_init(channel.page, &channel.geometry);
        for (unsigned i = 0; i < N_USERS; i++) {
                ring_page_admit(channel.page, i, 1, i & 1 ? RING_CONSUMER : RING_PRODUCER);
                attach(i);
        }
        while (input.n > 0) {
                uint8_t command = (uint8_t)next(&input, 1);
                unsigned member = command >> 6;
                if (command & 0x20) {
                        write_over(&input);
                        continue;
                }
                if (command & 0x10 || !channel.users[member].ring) {
                        attach(member);
                        continue;
                }
                int r = call(&channel.users[member], command & 0xf, &input);
                must(r <= RING_CORRUPT);
        }
        for (unsigned i = 0; i < N_USERS; i++) {
                ring_free(channel.users[i].ring);
                channel.users[i].ring = NULL;
                channel.users[i].holds = false;
        }
        free(channel.page);
        return 0;
}
