/* SPDX-License-Identifier: Apache-2.0 */
/* Accounts, devices and charges: additions and subtractions that must balance. Loop thread; silent. */
#include "quota.h"

#include <stdlib.h>

static void account_free(struct account *account) {
        struct waiter *waiter;

        list_for_each(waiter, &account->waitq.waiters, by_queue)
                waiter_leave(waiter);
        free(account);
}

void accounts_deinit(struct accounts *accounts) {
        struct account *account;
        size_t position = 0;

        while ((account = map_next(&accounts->by_uid, &position)))
                account_free(account);
        map_deinit(&accounts->by_uid);
}

struct account *account_find(const struct accounts *accounts, uid_t uid) {
        return map_find(&accounts->by_uid, &uid, sizeof(uid));
}

struct account *account_get(struct accounts *accounts, uid_t uid) {
        struct account *account = account_find(accounts, uid);

        if (account) {
                account->refs++;
                return account;
        }
        account = calloc(1, sizeof(*account));
        if (!account)
                return NULL;
        account->uid = uid;
        account->refs = 1;
        waitq_init(&account->waitq);
        if (map_put(&accounts->by_uid, &account->uid, sizeof(account->uid), account) < 0) {
                free(account);
                return NULL;
        }
        return account;
}

struct account *account_ref(struct account *account) {
        account->refs++;
        return account;
}

uint64_t account_turn_usec(struct account *account, uint64_t round) {
        if (account->round != round)
                account->turn_usec = 0;
        account->round = round;
        return account->turn_usec;
}

void account_unref(struct accounts *accounts, struct account *account) {
        if (!account || --account->refs > 0)
                return;
        map_take(&accounts->by_uid, &account->uid, sizeof(account->uid));
        account_free(account);
}

/* The most one could ever have of it. */
static int64_t device_most_bytes(const struct device *device, const struct limits *limits) {
        return device->capacity_bytes - limits->keep_free_bytes;
}

int64_t device_room_bytes(const struct device *device, const struct limits *limits) {
        int64_t room = device_most_bytes(device, limits) - device->used_bytes - device->reserved_bytes;

        return room > 0 ? room : 0;
}

int charge_reserve(struct charge *charge, struct account *account, struct device *device, int64_t bytes,
                   const struct limits *limits, bool *ret_never, struct failure *failure) {
        int64_t held = account->used_bytes + account->reserved_bytes;
        int64_t room = device_room_bytes(device, limits);
        bool above_quota = bytes > limits->bytes_per_uid;
        bool above_device = bytes > device_most_bytes(device, limits);

        *ret_never = above_quota || above_device;
        if (above_quota || (!above_device && bytes > limits->bytes_per_uid - held))
                return fail_quota(failure, "bytes_per_uid", limits->bytes_per_uid, held, bytes);
        if (bytes > room)
                return fail_memory(failure, rcstr_text(device->uuid), room, bytes);

        account->reserved_bytes += bytes;
        device->reserved_bytes += bytes;
        *charge = (struct charge){
                .account = account_ref(account),
                .device = device,
                .bytes = bytes,
                .reserved = true,
        };
        return 0;
}

void charge_commit(struct charge *charge) {
        if (!charge->account || !charge->reserved)
                return;
        charge->reserved = false;
        charge->account->reserved_bytes -= charge->bytes;
        charge->account->used_bytes += charge->bytes;
        charge->device->reserved_bytes -= charge->bytes;
        charge->device->used_bytes += charge->bytes;
}

void charge_restore(struct charge *charge, struct account *account, struct device *device, int64_t bytes) {
        *charge = (struct charge){.account = account_ref(account), .device = device, .bytes = bytes};
        account->used_bytes += bytes;
        device->used_bytes += bytes;
}

void charge_set_draining(struct charge *charge, bool draining) {
        if (!charge->account || charge->reserved || charge->draining == draining)
                return;
        charge->draining = draining;
        charge->device->draining_bytes += draining ? charge->bytes : -charge->bytes;
}

void charge_set_stored(struct charge *charge, int64_t stored) {
        if (!charge->account)
                return;
        charge->account->stored += stored - charge->stored;
        charge->stored = stored;
}

void charge_move(struct charge *charge, struct accounts *accounts, struct account *account) {
        struct account *from = charge->account;

        if (!from || from == account || charge->reserved)
                return;
        charge->account = account_ref(account);
        account->used_bytes += charge->bytes;
        from->used_bytes -= charge->bytes;
        account->stored += charge->stored;
        from->stored -= charge->stored;
        account_unref(accounts, from);
}

void charge_drop(struct charge *charge, struct accounts *accounts) {
        struct account *account = charge->account;

        if (!account)
                return;
        charge_set_draining(charge, false);
        charge_set_stored(charge, 0);
        if (charge->reserved) {
                account->reserved_bytes -= charge->bytes;
                charge->device->reserved_bytes -= charge->bytes;
        } else {
                account->used_bytes -= charge->bytes;
                charge->device->used_bytes -= charge->bytes;
        }
        *charge = (struct charge){ 0 };
        account_unref(accounts, account);
}
