/* SPDX-License-Identifier: Apache-2.0 */
/* The books: what each uid and each device has promised and given. A buffer carries its charge as a member. Pure. */
#ifndef DAEMON_QUOTA_H
#define DAEMON_QUOTA_H

#include <stdint.h>
#include <sys/types.h>

#include "limits.h"
#include "list.h"
#include "map.h"
#include "proto/schema.h"
#include "rcstr.h"
#include "waitq.h"

/* One uid's books; exists while somebody holds a reference, as everything in them does. */
struct account {
        uid_t uid;
        unsigned refs;
        int64_t used_bytes;     /* committed buffers, draining included */
        int64_t reserved_bytes; /* promised to requests under way */
        int64_t clients, names, waits;
        int64_t leases;         /* all, reserved ones included */
        int64_t draining;       /* of those, draining ones */
        int64_t stored;         /* descriptors in the store: buffers charged to it, and its processes */
        struct waitq waitq;     /* requests waiting for this uid's quota */
        uint64_t round;         /* of the loop: in which its sessions took */
        uint64_t turn_usec;     /* so much time */
};

struct accounts {
        struct map by_uid;
};

/* One memory device's books. */
struct device {
        struct list by_registry;
        struct rcstr *uuid, *name;
        int kind;               /* enum device_kind */
        int64_t total_bytes;    /* the hardware's; SCHEMA_UNSET when unknown */
        int64_t capacity_bytes; /* what may be brokered, before keep_free_bytes */
        int64_t used_bytes;     /* committed buffers, draining included */
        int64_t draining_bytes; /* of those, in state draining */
        int64_t reserved_bytes;
        int64_t spare_bytes;    /* made ahead for the next Allocate: nobody's, and gone when anybody needs it */
        int zeroed;             /* enum zeroed */
        bool degraded;
        const char *const *handles;
        size_t n_handles;
        struct waitq waitq;     /* requests waiting for this device's memory */
        void *workplace;        /* the lanes and backend that belong to it; not the ledger's business */
};

/* What one buffer costs whom. */
struct charge {
        struct account *account; /* NULL when nothing is charged; holds a reference */
        struct device *device;
        int64_t bytes;
        bool reserved;           /* promised, not yet committed */
        bool draining;           /* counted in device->draining_bytes */
        int64_t stored;          /* descriptors, counted in account->stored */
};

void accounts_deinit(struct accounts *accounts);

/* The uid's books, made when there are none; a reference. NULL: out of memory. */
struct account *account_get(struct accounts *accounts, uid_t uid);
struct account *account_ref(struct account *account);

/* What its sessions took of this round so far. */
uint64_t account_turn_usec(struct account *account, uint64_t round);
void account_unref(struct accounts *accounts, struct account *account);

/* The uid's books if there are any; borrowed. */
struct account *account_find(const struct accounts *accounts, uid_t uid);

/* Bytes still to be had from a device, its keep_free_bytes left aside; never negative. */
int64_t device_room_bytes(const struct device *device, const struct limits *limits);

/* Reserves. 0; VERDICT_QUOTA_EXCEEDED (scope bytes_per_uid) or VERDICT_OUT_OF_MEMORY with the numbers. *ret_never is always
 * written: whether no amount of waiting could help. What can never be had is told before what cannot be had now. */
int charge_reserve(struct charge *charge, struct account *account, struct device *device,
                   int64_t bytes, const struct limits *limits, bool *ret_never, struct failure *failure);
void charge_commit(struct charge *charge);

/* A committed charge, over any limit: what is already there. */
void charge_restore(struct charge *charge, struct account *account, struct device *device, int64_t bytes);
void charge_set_draining(struct charge *charge, bool draining);

/* How many places in the store it has. */
void charge_set_stored(struct charge *charge, int64_t stored);

/* Moves a committed charge to another uid, over its limit if need be. Cannot fail; a reserved or empty charge stays. */
void charge_move(struct charge *charge, struct accounts *accounts, struct account *account);

/* Gives everything back; harmless on an empty charge. */
void charge_drop(struct charge *charge, struct accounts *accounts);

#endif
