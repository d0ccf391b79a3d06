/* SPDX-License-Identifier: Apache-2.0 */
/* A session's output: replies on their way, the memory they lend, and the deadline for a client that does not read. Loop thread. */
#ifndef DAEMON_OUTBOX_H
#define DAEMON_OUTBOX_H

#include "alarm.h"
#include "house.h"
#include "lending.h"
#include "proto/wire.h"

struct outbox {
        struct house *house;
        struct wire *wire; /* borrowed */
        uint64_t n_written, n_written_then; /* bytes that left; when the alarm was set */
        struct alarm *alarm, *retry;
        bool held;                   /* the next message lends a descriptor and the client has to read first */
        void (*on_stuck)(void *arg); /* nothing left for limits.unread_ms; from the loop */
        void (*on_retry)(void *arg); /* it is held: flush again; from the loop */
        void *arg;
};

void outbox_init(struct outbox *outbox, struct house *house, struct wire *wire, void (*on_stuck)(void *arg),
                 void (*on_retry)(void *arg), void *arg);

/* Drops what is queued, giving back what it lends. Harmless on zeroed memory. */
void outbox_deinit(struct outbox *outbox);

/* Queues a message with what it lends (NULL: nothing), whose pin and fresh descriptor go with it. -ENOMEM: not queued, pin and descriptor
 * are the caller's still. */
int outbox_put(struct outbox *outbox, const struct bytes *message, const struct lending *lending);

/* Writes what it can and sees to the deadline. 0 when all is out, -EAGAIN when the client has to read first (with `held`, polling does not
 * tell when it has), another -errno when it is gone. */
int outbox_flush(struct outbox *outbox);

/* Whether so much is unread that nothing more should be made for this client. */
bool outbox_full(const struct outbox *outbox);

#endif
