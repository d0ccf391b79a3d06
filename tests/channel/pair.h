/* SPDX-License-Identifier: Apache-2.0 */
/* A stage with one producer and one consumer, both in this process. */
#ifndef CHANNEL_PAIR_H
#define CHANNEL_PAIR_H

#include "stage.h"

extern struct stage stage;
extern struct ring *producer, *consumer;
extern struct ring_item item; /* for whoever needs one */

void pair_open(enum ring_mode mode, enum ring_policy policy, uint32_t n_slots);
void pair_close(void);

#endif
