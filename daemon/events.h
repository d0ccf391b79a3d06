/* SPDX-License-Identifier: Apache-2.0 */
/* The last events, each with the facts as they were. Sequences start at 1 and have no gaps. Pure. */
#ifndef DAEMON_EVENTS_H
#define DAEMON_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy.h"
#include "proto/schema.h"
#include "state.h"

struct buffer;
struct lease;

struct event {
        int64_t sequence, time_usec;
        const char *kind; /* static */
        bool has_buffer, has_lease;
        struct buffer_info buffer; /* strings are kept alive by `held` */
        struct lease_info lease;
        struct principal owner;  /* of the buffer, for the question who may see it */
        struct principal holder; /* of the lease, likewise */
        mode_t mode;
        bool public; /* everyone may see it (degraded) */
        char mode_text[8];
        struct rcstr *held[16];
        size_t n_held;
};

struct events {
        struct event *ring;
        size_t capacity;
        int64_t next;   /* sequence of the next event */
        struct state *state; /* told of `next`; borrowed, may be NULL */
        int64_t oldest; /* remembered; equals `next` when there is none */
};

/* -ENOMEM. `next` is the sequence the first event will get. */
int events_init(struct events *events, size_t capacity, int64_t next);
void events_deinit(struct events *events);

/* -ENOMEM, nothing changed. Keeps the newest. */
int events_resize(struct events *events, size_t capacity);

/* Remembers an event; cannot fail. buffer and lease may be NULL; a lease with a buffer must be one on that buffer. An event of
 * kind "degraded" is public. */
void events_add(struct events *events, const char *kind, const struct buffer *buffer, const struct lease *lease,
                int64_t time_usec);

/* The oldest sequence still remembered; equals `next` when there is none. */
int64_t events_oldest(const struct events *events);

/* The event of that sequence, NULL when it is not (or no longer) there. Valid until the next events_add(). */
const struct event *events_get(const struct events *events, int64_t sequence);

/* Whether a peer may see it: administrators everything; others what is about their own leases or about buffers they may
 * see. */
bool event_visible(const struct policy *policy, const struct peer *peer, const struct event *event);

#endif
