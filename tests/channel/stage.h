/* SPDX-License-Identifier: Apache-2.0 */
/* A channel without a broker: a control page and the items' bytes, both shared with children. Fails the test on any error. */
#ifndef CHANNEL_STAGE_H
#define CHANNEL_STAGE_H

#include "client/ring.h"

struct stage {
        struct ring_geometry geometry;
        int fd; /* the control page, sealed */
        struct ring_page *page;
        size_t bytes;
        unsigned char *data;
        unsigned n_members;
};

void stage_init(struct stage *stage, enum ring_mode mode, enum ring_policy policy, uint32_t n_slots, uint64_t slot_bytes);
void stage_deinit(struct stage *stage);

/* Under the next number, generation 1: admitted only, or attached as well. */
unsigned stage_admit(struct stage *stage, enum ring_role role);
struct ring *stage_attach(struct stage *stage, unsigned member);
struct ring *stage_join(struct stage *stage, enum ring_role role);

/* Where an item's bytes are. */
void *stage_bytes(const struct stage *stage, const struct ring_item *item);

/* An item of that size, with its number as metadata, at once; it must be possible. */
void put(struct ring *ring, uint64_t number);
uint64_t take(struct ring *ring, struct ring_item *ret_item);
uint64_t get(struct ring *ring);

#endif
