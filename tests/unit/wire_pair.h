/* SPDX-License-Identifier: Apache-2.0 */
/* Two wires, one socket pair, and what tests ask of them. All fail the test on what they did not expect. */
#ifndef UNIT_WIRE_PAIR_H
#define UNIT_WIRE_PAIR_H

#include "proto/wire.h"

struct pair {
        struct wire a, b;
};

void pair_init(struct pair *pair, size_t max_message);
void pair_deinit(struct pair *pair);

/* Switches a socket option on; the result of setsockopt(). */
int option_on(int fd, int option);

/* Queues a message without descriptors. */
void put(struct wire *wire, const char *text);

/* Sends bytes past the wire. */
void send_raw(int fd, const char *data, size_t n);

/* The next message is complete and is this one; it is overwritten then, as its owner may. */
void expect_next(struct wire *wire, const char *expected);

/* No message is complete. */
void expect_none(struct wire *wire);

/* Reads once; the next message is this one. */
void expect_fill(struct wire *wire, const char *expected);

#endif
