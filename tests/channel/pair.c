/* SPDX-License-Identifier: Apache-2.0 */
/* One pair a process. The test's thread. */
#include "pair.h"

struct stage stage;
struct ring *producer, *consumer;
struct ring_item item;

void pair_open(enum ring_mode mode, enum ring_policy policy, uint32_t n_slots) {
        stage_init(&stage, mode, policy, n_slots, 4096);
        producer = stage_join(&stage, RING_PRODUCER);
        consumer = stage_join(&stage, RING_CONSUMER);
}

void pair_close(void) {
        ring_free(producer);
        ring_free(consumer);
        stage_deinit(&stage);
}
