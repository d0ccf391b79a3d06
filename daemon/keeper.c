/* SPDX-License-Identifier: Apache-2.0 */
/* Ties state, store and recovery to the house. Loop thread; decides nothing of single buffers. */
#include "keeper.h"

#include <inttypes.h>

#include "clock.h"
#include "log.h"

/* Of the descriptors allowed, so many are for other things than what lies in the store. */
#define DESCRIPTORS_BESIDE 128
/* The grace time rings later than that if the daemon stood still: who came meanwhile has yet to be heard. */
#define STANDSTILL_USEC 1000000

static void keeper_lower(struct limits *limits, int64_t max, const char *why) {
        if (limits->stored_descriptors <= max)
                return;
        log_warning("StoreMax=%" PRId64 " is more than %s: %" PRId64 " is used instead", limits->stored_descriptors, why, max);
        limits->stored_descriptors = max;
}

int keeper_begin(struct keeper *keeper, const struct config *config, struct limits *limits) {
        int r = handed_take(&keeper->handed);

        if (r == 0)
                r = recovery_begin(&keeper->recovery, &keeper->handed, config);
        if (r < 0 || !keeper->recovery.state)
                return r;
        if (keeper->recovery.stored_max > 0)
                keeper_lower(limits, keeper->recovery.stored_max,
                             "the service manager keeps (FileDescriptorStoreMax= in gpuipcd.service)");
        if (limits->descriptors > 2 * DESCRIPTORS_BESIDE)
                keeper_lower(limits, limits->descriptors - DESCRIPTORS_BESIDE,
                             "the daemon's limit of open files allows (LimitNOFILE= in gpuipcd.service)");
        return 0;
}

static void keeper_on_stuck(void *arg, bool stuck) {
        (void)arg;
        log_line(stuck ? LOG_WARNING : LOG_NOTICE, NULL, NULL, 0,
                 stuck ? "the service manager takes no messages: new buffers and processes wait" : "the service manager answers again");
}

static int keeper_give_grace(struct keeper *keeper);

static void keeper_on_grace(void *arg) {
        struct keeper *keeper = arg;
        struct registry *registry = &keeper->house->registry;
        int64_t n_leases = 0, n_sessions = 0;
        const struct client *client;

        if (clock_monotonic_usec() > keeper->grace_ends_usec + STANDSTILL_USEC && keeper_give_grace(keeper) == 0) {
                log_notice("the daemon stood still: sessions have their time to come back once more");
                return;
        }
        list_for_each(client, &registry->detached, by_registry) {
                n_leases += client->n_leases;
                n_sessions += client->n_leases > 0;
        }
        if (n_sessions > 0)
                log_notice("%" PRId64 " sessions did not come back in time: their %" PRId64
                           " leases end, or drain while their processes live", n_sessions, n_leases);
        registry_end_detached(registry, clock_real_usec(), clock_monotonic_usec());
}

static int keeper_give_grace(struct keeper *keeper) {
        int64_t ms = keeper->house->registry.limits.resume_ms;

        keeper->grace_ends_usec = clock_monotonic_usec() + (uint64_t)ms * 1000;
        return alarm_new(keeper->house->loop, (uint64_t)ms, keeper_on_grace, keeper, &keeper->grace);
}

int keeper_open(struct keeper *keeper, struct house *house, struct lane *lane) {
        int r;

        keeper->house = house;
        house->held = keeper->recovery.held;
        if (!keeper->recovery.state)
                return recovery_run(&keeper->recovery, house, lane);
        r = store_new(house->loop, NULL, keeper_on_stuck, keeper, &keeper->store);
        if (r < 0)
                return r;
        house->store = keeper->store;
        for (size_t i = 0; i < house->n_places; i++)
                house->places[i].store = keeper->store;
        r = recovery_run(&keeper->recovery, house, lane);
        if (r < 0 || list_empty(&house->registry.detached))
                return r;
        return keeper_give_grace(keeper);
}

void keeper_freeze(struct keeper *keeper) {
        if (!keeper->store)
                return;
        alarm_cancel(&keeper->grace);
        registry_freeze(&keeper->house->registry);
        keeper->house->store = NULL;
        for (size_t i = 0; i < keeper->house->n_places; i++)
                keeper->house->places[i].store = NULL;
}

bool keeper_idle(const struct keeper *keeper) {
        return !keeper->store || store_idle(keeper->store);
}

void keeper_stop(struct keeper *keeper) {
        keeper_freeze(keeper);
        if (keeper->store)
                store_stop(keeper->store);
}

void keeper_end(struct keeper *keeper) {
        if (keeper->store)
                store_free(keeper->store);
        keeper->store = NULL;
        recovery_deinit(&keeper->recovery);
        handed_deinit(&keeper->handed);
}
