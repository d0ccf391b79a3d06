/* SPDX-License-Identifier: Apache-2.0 */
/* Processes in the store, counted by their leases. Loop thread; what must be sent is somebody else's business. */
#include "stored.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "ledger.h"

/* Of processes that cannot be told apart otherwise, the holder itself is the process. */
#define KEY_HOLDER (UINT64_C(1) << 63)

static uint64_t stored_key(const struct holder *holder) {
        return holder->identity ? holder->identity : (uint64_t)(uintptr_t)holder | KEY_HOLDER;
}

static struct stored *stored_find(const struct registry *registry, const struct holder *holder) {
        uint64_t key = stored_key(holder);

        return map_find(&registry->stored, &key, sizeof(key));
}

int stored_check(const struct registry *registry, const struct holder *holder, int64_t n_buffers, struct failure *failure) {
        int64_t limit = registry->limits.stored_descriptors, asked = n_buffers;

        if (holder->pidfd >= 0 && !stored_find(registry, holder))
                asked++;
        return asked <= 0 || asked <= limit - registry->n_stored
                       ? 0
                       : fail_quota(failure, "stored_descriptors", limit, registry->n_stored, asked);
}

int stored_get(struct registry *registry, const struct holder *holder, struct stored **ret) {
        struct stored *stored = stored_find(registry, holder);
        int r;

        if (stored) {
                stored->refs++;
                *ret = stored;
                return 0;
        }
        stored = calloc(1, sizeof(*stored));
        if (!stored)
                return -ENOMEM;
        r = state_reserve(registry->state, STATE_PROCESS, &stored->slot);
        if (r < 0) {
                free(stored);
                return r;
        }
        list_init(&stored->by_leaving);
        stored->registry = registry;
        stored->key = stored_key(holder);
        stored->refs = 1;
        if (holder->pidfd >= 0)
                stored->parcel = state_next_parcel(registry->state, STATE_PROCESS, stored->slot);
        r = map_put(&registry->stored, &stored->key, sizeof(stored->key), stored);
        if (r < 0) {
                state_give(registry->state, STATE_PROCESS, stored->slot);
                free(stored);
                return r;
        }
        registry->n_stored += stored->parcel > 0;
        record_process(registry, stored, holder);
        *ret = stored;
        return 0;
}

static void stored_free(struct stored *stored) {
        if (stored->registry->state)
                state_give(stored->registry->state, STATE_PROCESS, stored->slot);
        free(stored);
}

/* Uncounted at once: what is sent after this errand finds the room it leaves. */
void stored_unref(struct registry *registry, struct stored *stored) {
        if (!stored || --stored->refs > 0)
                return;
        map_take(&registry->stored, &stored->key, sizeof(stored->key));
        registry->n_stored -= stored->parcel > 0;
        if (!registry->state || stored->parcel == 0 || stored->phase == STORED_NEW) {
                stored_free(stored);
                return;
        }
        state_set_word(registry->state, STATE_PROCESS, stored->slot, STATE_DYING);
        list_append(&registry->leaving, &stored->by_leaving);
}

void stored_sent(struct stored *stored, int error) {
        struct registry *registry = stored->registry;

        stored->phase = error < 0 ? STORED_FAILED : STORED_SENT;
        if (error == 0 && registry->state)
                state_set_word(registry->state, STATE_PROCESS, stored->slot, STATE_LIVE);
}

struct stored *registry_take_leaving(struct registry *registry) {
        struct list *link = list_first(&registry->leaving);
        struct stored *stored;

        if (!link)
                return NULL;
        list_remove(link);
        stored = container_of(link, struct stored, by_leaving);
        stored->errand = (struct errand){.what = ERRAND_REMOVE, .n = 1, .parcels = {stored->parcel}};
        return stored;
}

void stored_removed(struct stored *stored) {
        stored_free(stored);
}
