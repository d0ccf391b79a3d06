/* SPDX-License-Identifier: Apache-2.0 */
/* The buffers whose keep runs, soonest end first: a binary heap, whose room is reserved when a buffer is. Loop thread. */
#ifndef DAEMON_KEEPS_H
#define DAEMON_KEEPS_H

#include <stddef.h>

struct buffer;

struct keeps {
        struct buffer **heap; /* from 1 on, so that 0 is no place */
        size_t n, n_room;
};

void keeps_deinit(struct keeps *keeps);

/* Makes sure that n buffers fit. -ENOMEM. */
int keeps_reserve(struct keeps *keeps, size_t n);

/* By keep_until_usec, which must not change while it is here. */
void keeps_add(struct keeps *keeps, struct buffer *buffer);
void keeps_remove(struct keeps *keeps, struct buffer *buffer); /* harmless when it is not here */
struct buffer *keeps_first(const struct keeps *keeps);

#endif
