/* SPDX-License-Identifier: Apache-2.0 */
/* Watch: the events one may see, one a reply, from the ring by its sequence numbers. Loop thread. */
#include "ops.h"

int op_watch_begin(struct request *request) {
        const struct events *events = &request_registry(request)->events;
        int64_t since = request->params.watch.since;

        if (since == SCHEMA_UNSET)
                since = events->next - 1;
        else if (since >= events->next)
                return fail_parameter(&request->failure, "since");
        request->position = since;
        return 0;
}

int op_watch_finish(struct request *request) {
        struct registry *registry = request_registry(request);
        struct event_info *reply = &request->reply.watch.event;
        const struct event *event;

        if (request->position + 1 < events_oldest(&registry->events)) {
                fail_plain(&request->failure, VERDICT_EVENTS_LOST);
                request->failure.oldest = events_oldest(&registry->events);
                return VERDICT_EVENTS_LOST;
        }
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
