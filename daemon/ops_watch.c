/* SPDX-License-Identifier: Apache-2.0 */
/* Watch: the events one may see, one a reply, from the ring by its sequence numbers. Loop thread. */
#include "ops.h"

int op_watch_begin(struct request *request) {
        const struct events *events = &request_registry(request)->events;
        int64_t since = request->params.watch.since;

        request->position = since == SCHEMA_UNSET ? events->next - 1 : since;
        return 0;
}

/* Too far behind, or ahead of all there ever was: the numbers of an earlier run of the daemon. */
static int watch_lost(struct request *request, const struct events *events) {
        (void)fail_plain(&request->failure, VERDICT_EVENTS_LOST);
        request->failure.oldest = events_oldest(events);
        return VERDICT_EVENTS_LOST;
}

int op_watch_finish(struct request *request) {
        struct registry *registry = request_registry(request);
        struct event_info *reply = &request->reply.watch.event;
        const struct event *event;

        if (request->position + 1 < events_oldest(&registry->events) || request->position >= registry->events.next)
                return watch_lost(request, &registry->events);
        request->continues = true;
        while ((event = events_get(&registry->events, request->position + 1))) {
                request->position++;
                if (!event_visible(&registry->policy, request_peer(request), event))
                        continue;
                *reply = (struct event_info){
                        .sequence = event->sequence,
                        .time_usec = event->time_usec,
                        .kind = event->kind,
                        .buffer = event->has_buffer ? &event->buffer : NULL,
                        .lease = event->has_lease ? &event->lease : NULL,
                };
                return 0;
        }
        return VERDICT_AGAIN;
}
