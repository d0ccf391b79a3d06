/* SPDX-License-Identifier: Apache-2.0 */
/* What has to be done between two sleeps of the loop. Loop thread only; bounded, so that polling gets its turn. */
#include "hall.h"

#include "clock.h"
#include "dispatch.h"
#include "session.h"

#define SETTLE_ROUNDS 4

static void hall_retire(struct registry *registry) {
        struct backing *backing;
        struct buffer *buffer;

        while ((buffer = registry_take_retiring(registry, &backing)))
                workplace_close(workplace_of(buffer->charge.device), buffer, backing);
}

static void hall_on_removed(struct errand *errand) {
        stored_removed(container_of(errand, struct stored, errand));
}

/* Processes that hold nothing any more leave the store. */
static void hall_unstore(struct house *house) {
        struct stored *stored;

        while (house->store && (stored = registry_take_leaving(&house->registry))) {
                stored->errand.done = hall_on_removed;
                store_send(house->store, &stored->errand);
        }
}

/* One round; true when it left more to do. */
static bool hall_round(struct hall *hall) {
        struct house *house = hall->house;
        struct registry *registry = &house->registry;
        bool ready, woken;

        hall_retire(registry);
        hall_unstore(house);
        if (registry->room || clock_monotonic_usec() >= house->pump_usec) {
                registry->room = false;
                house->pump_usec = dispatch_pump(house);
        }
        if (registry->events.next != house->news_seen) {
                house->news_seen = registry->events.next;
                dispatch_news(house);
        }
        woken = dispatch_wake(house);
        ready = sessions_run(hall);
        return ready || woken || registry->room || !list_empty(&registry->retiring) || registry->events.next != house->news_seen;
}

static uint64_t hall_review_spares(struct house *house) {
        uint64_t next = UINT64_MAX, now = clock_monotonic_usec();

        for (size_t i = 0; i < house->n_places; i++) {
                uint64_t place_next = spare_review(&house->places[i], house->stopping, now);

                next = place_next < next ? place_next : next;
        }
        return next;
}

bool hall_settle(struct hall *hall, uint64_t *ret_next_usec) {
        struct house *house = hall->house;
        uint64_t keep_usec = registry_expire(&house->registry, clock_real_usec(), clock_monotonic_usec());
        uint64_t spare_usec;
        bool more = true;

        hall->round++;
        list_prepend_all(&hall->ready, &hall->late);
        for (int i = 0; i < SETTLE_ROUNDS && more; i++)
                more = hall_round(hall);
        spare_usec = hall_review_spares(house);
        *ret_next_usec = keep_usec < house->pump_usec ? keep_usec : house->pump_usec;
        if (spare_usec < *ret_next_usec)
                *ret_next_usec = spare_usec;
        return more || !list_empty(&hall->late);
}
