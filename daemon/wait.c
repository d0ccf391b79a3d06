/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that wait. Loop thread only. Decides nothing about whose turn it is: waitq does. */
#include "wait.h"

#include "clock.h"


/* The time is up. While the request is being worked on, this is only noted. */
static void wait_on_alarm(void *arg) {
        struct request *request = arg;

        request->timed_out = true;
        if (request->state == REQUEST_WAITING)
                request->on_timeout(request);
}

/* Oldest first; a request that was tried in vain goes back to its place. */
static void wait_insert(struct request *request) {
        struct list *waiting = &request->house->waiting, *before = waiting->prev;

        while (before != waiting &&
               container_of(before, struct request, by_house)->waiting_since_usec > request->waiting_since_usec)
                before = before->prev;
        list_append(before->next, &request->by_house);
}

static int wait_start(struct request *request) {
        int r;

        r = registry_wait_begin(request_registry(request), request->client, &request->failure);
        if (r != 0)
                return r;
        request->counted = true;
        request->waiting_since_usec = clock_monotonic_usec();
        return alarm_new(request->house->loop, (uint64_t)request->wait_ms, wait_on_alarm, request, &request->deadline);
}

/* Whose turn it is may change by time alone. */
static void wait_set_pump(struct request *request) {
        uint64_t change = waitq_next_change(request->queue, clock_monotonic_usec());

        if (change < request->house->pump_usec)
                request->house->pump_usec = change;
}

int wait_begin(struct request *request, void (*on_timeout)(void *request)) {
        int r;

        if (request->timed_out)
                return fail_plain(&request->failure, VERDICT_TIMED_OUT);
        if (!request->counted) {
                r = wait_start(request);
                if (r != 0)
                        return r;
        }
        request->on_timeout = on_timeout;
        if (request->waiter.queue != request->queue) {
                waiter_leave(&request->waiter);
                if (request->queue) {
                        waitq_join(request->queue, &request->waiter, request->client->account->uid,
                                   request->waiting_bytes, request->waiting_since_usec);
                        wait_set_pump(request);
                }
        }
        if (request->state != REQUEST_WAITING)
                wait_insert(request);
        request->state = REQUEST_WAITING;
        return 0;
}

void wait_pause(struct request *request) {
        if (request->waiter.queue)
                request_registry(request)->room = true; /* for those behind it */
        waiter_leave(&request->waiter);
        list_remove(&request->by_house);
}

void wait_forget(struct request *request) {
        wait_pause(request);
        alarm_cancel(&request->deadline);
        if (request->counted)
                registry_wait_end(request_registry(request), request->client);
        request->counted = false;
}
