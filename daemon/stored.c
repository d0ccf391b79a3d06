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

static int room_check(const char *scope, int64_t limit, int64_t used, int64_t asked, struct failure *failure) {
        return asked <= 0 || asked <= limit - used ? 0 : fail_quota(failure, scope, limit, used, asked);
}

int stored_check(const struct registry *registry, const struct holder *holder, const struct account *account, int64_t n_buffers,
                 struct failure *failure) {
        const struct limits *limits = &registry->limits;
        const struct account *of_holder = account_find(&registry->accounts, holder->uid);
        int64_t n_processes = holder->pidfd >= 0 && !stored_find(registry, holder);
        int r;

        r = room_check("stored_descriptors", limits->stored_descriptors, registry->n_stored, n_buffers + n_processes, failure);
        if (r == 0 && of_holder == account)
                return room_check("stored_per_uid", limits->stored_per_uid, account->stored, n_buffers + n_processes, failure);
        if (r == 0)
                r = room_check("stored_per_uid", limits->stored_per_uid, account->stored, n_buffers, failure);
        if (r == 0)
                r = room_check("stored_per_uid", limits->stored_per_uid, of_holder ? of_holder->stored : 0, n_processes, failure);
        return r;
}

int stored_count(struct stored *stored, const struct holder *holder) {
        if (stored->parcel == 0)
                return 0;
        stored->account = account_get(&stored->registry->accounts, holder->uid);
        if (!stored->account)
                return -ENOMEM;
        stored->account->stored++;
        stored->registry->n_stored++;
        return 0;
}

static void stored_uncount(struct stored *stored) {
        if (!stored->account)
                return;
        stored->account->stored--;
        stored->registry->n_stored--;
        account_unref(&stored->registry->accounts, stored->account);
        stored->account = NULL;
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
        r = stored_count(stored, holder);
        if (r == 0)
                r = map_put(&registry->stored, &stored->key, sizeof(stored->key), stored);
        if (r < 0) {
                stored_uncount(stored);
                state_give(registry->state, STATE_PROCESS, stored->slot);
                free(stored);
                return r;
        }
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
        stored_uncount(stored);
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
