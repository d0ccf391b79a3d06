/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of events. Loop thread; allocates nothing but the ring itself. */
#include "events.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "registry.h"

int events_init(struct events *events, size_t capacity, int64_t next) {
        struct event *ring = calloc(capacity ? capacity : 1, sizeof(*ring));

        if (!ring)
                return -ENOMEM;
        *events = (struct events){ .ring = ring, .capacity = capacity, .next = next, .oldest = next };
        return 0;
}

static struct event *events_slot(const struct events *events, int64_t sequence) {
        return &events->ring[(size_t)sequence % events->capacity];
}

static void event_forget(struct event *event) {
        for (size_t i = 0; i < event->n_held; i++)
                rcstr_unref(event->held[i]);
        event->n_held = 0;
}

static void events_forget_until(struct events *events, int64_t sequence) {
        for (; events->oldest < sequence; events->oldest++)
                event_forget(events_slot(events, events->oldest));
}

void events_deinit(struct events *events) {
        events_forget_until(events, events->next);
        free(events->ring);
        *events = (struct events){ 0 };
}

int events_resize(struct events *events, size_t capacity) {
        struct events resized = *events;

        if (capacity == events->capacity)
                return 0;
        resized.ring = calloc(capacity ? capacity : 1, sizeof(*resized.ring));
        if (!resized.ring)
                return -ENOMEM;
        resized.capacity = capacity;

        if (events->next - events->oldest > (int64_t)capacity)
                events_forget_until(events, events->next - (int64_t)capacity);
        resized.oldest = events->oldest;
        for (int64_t i = resized.oldest; i < resized.next; i++) {
                struct event *event = events_slot(&resized, i);

                *event = *events_slot(events, i);
                event->buffer.mode = event->mode_text;
        }
        free(events->ring);
        *events = resized;
        return 0;
}

static void event_hold(struct event *event, struct rcstr *s) {
        if (s)
                event->held[event->n_held++] = rcstr_ref(s);
}

static void event_tell_buffer(struct event *event, const struct buffer *buffer) {
        event->has_buffer = true;
        buffer_describe(buffer, &event->buffer);
        memcpy(event->mode_text, buffer->mode_text, sizeof(event->mode_text));
        event->buffer.mode = event->mode_text;
        event->buffer.channel = NULL; /* the ledger's, and it changes */
}

static void event_tell_lease(struct event *event, const struct lease *lease) {
        event->has_lease = true;
        lease_describe(lease, &event->lease);
        event->holder = (struct principal){
                .uid = lease->holder->uid,
                .gid = lease->holder->gid,
                .container = lease->holder->container,
                .unplaced = lease->holder->unplaced,
        };
        event_hold(event, lease->id);
        event_hold(event, lease->session);
        event_hold(event, lease->label);
        event_hold(event, lease->holder->command);
        event_hold(event, lease->holder->container);
}

static void event_concern(struct event *event, const struct buffer *buffer) {
        event->owner = buffer->owner;
        event->mode = buffer->mode;
        event_hold(event, buffer->id);
        event_hold(event, buffer->name);
        event_hold(event, buffer->meta);
        event_hold(event, buffer->owner.container);
        event_hold(event, buffer->charge.device->uuid);
}

/* No number is given twice, also after a restart. */
static void events_count(struct events *events) {
        if (events->state)
                state_set_number(events->state, STATE_NEXT_EVENT, (uint64_t)events->next);
}

void events_add(struct events *events, const char *kind, const struct buffer *buffer, const struct lease *lease,
                int64_t time_usec) {
        struct event *event;

        if (events->capacity == 0) {
                events->oldest = ++events->next;
                events_count(events);
                return;
        }
        if (events->next - events->oldest == (int64_t)events->capacity)
                events_forget_until(events, events->oldest + 1);
        event = events_slot(events, events->next);
        *event = (struct event){
                .sequence = events->next++,
                .time_usec = time_usec,
                .kind = kind,
                .public = strcmp(kind, "degraded") == 0,
        };
        events_count(events);
        if (buffer)
                event_tell_buffer(event, buffer);
        if (lease)
                event_tell_lease(event, lease);
        if (buffer || lease)
                event_concern(event, buffer ? buffer : lease->buffer);
}

int64_t events_oldest(const struct events *events) {
        return events->oldest;
}

const struct event *events_get(const struct events *events, int64_t sequence) {
        if (sequence < events->oldest || sequence >= events->next)
                return NULL;
        return events_slot(events, sequence);
}

bool event_visible(const struct policy *policy, const struct peer *peer, const struct event *event) {
        if (peer->admin || event->public)
                return true;
        if (event->has_lease && !peer->overflow && policy_same(policy, &peer->principal, &event->holder))
                return true;
        return (event->has_lease || event->has_buffer) && policy_may_see(policy, peer, &event->owner, event->mode);
}
