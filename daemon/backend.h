/* SPDX-License-Identifier: Apache-2.0 */
/* Where memory comes from: one vtable per kind. `probe` runs once at start; the rest on a pool thread, by the device's lanes,
 * one call at a time per lane (allocating and closing are two lanes). Calls may block. Nothing here touches the ledger. */
#ifndef DAEMON_BACKEND_H
#define DAEMON_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/schema.h"

struct annex;
struct backend_device; /* the backend's own state of a device */

/* Who sees to it that new memory reads zero where the driver may not: a helper, always the helper, nobody. */
enum wipe_choice { WIPE_AUTO, WIPE_ALWAYS, WIPE_NEVER };

/* One buffer's memory: the first member of the backend's own struct; allocated by the backend, freed by close. A lane prepares a
 * descriptor while the loop may look for it. */
struct backing {
        _Atomic int fds[2]; /* by enum access; -1: not prepared. May be one and the same descriptor */
        const char *ipc;    /* a classic CUDA handle in base64; owned; NULL for handles that are descriptors */
        int64_t offset;     /* where the buffer starts in what the handle maps, bytes */
        struct annex *annex; /* of a channel: what else belongs to it, owned and closed by backing_close(); NULL: nothing */
};

#define BACKEND_MORE 1000000 /* a step of a long call is done; call again (equal to JOB_MORE) */

/* What a driver said, for the log and the error. */
struct backend_detail {
        char text[200];
        int64_t free_bytes; /* with -ENOMEM: what is free; SCHEMA_UNSET when unknown */
};

/* A device found. Strings belong to the backend and live as long as it does. */
struct backend_device_info {
        const char *uuid, *name;
        int kind; /* enum device_kind */
        int64_t total_bytes;
        int64_t capacity_bytes; /* default for what may be brokered */
        int zeroed;             /* enum zeroed */
        const char *zeroed_why; /* for people; NULL: it goes without saying */
        const char *const *handles;
        size_t n_handles;
        bool ro_enforced;
};

struct backend {
        const char *name; /* "host" */
        const char *ahead; /* the handle kind whose making takes so long that some is made ahead; NULL: none */

        /* Number of devices found, or -errno. The array and the devices stay the backend's and live as long as the process. */
        int (*probe)(const struct backend *backend, struct backend_device ***ret_devices);
        void (*info)(const struct backend_device *device, struct backend_device_info *ret);

        /* What `size` bytes take: rounded up to the device's granularity; 0 when that overflows. Loop thread, cheap. */
        int64_t (*round)(const struct backend_device *device, int64_t size, const char *handle);

        /* Bytes free on the device now, SCHEMA_UNSET when unknown. Loop thread, cheap. */
        int64_t (*free_bytes)(const struct backend_device *device);

        /* Makes `allocated` bytes that read zero, in steps: *backing is NULL at first and kept by the caller between steps. 0
         * done, BACKEND_MORE, or -errno (-ENOMEM: the device has not that much); then *backing is NULL again. */
        int (*allocate)(struct backend_device *device, int64_t size, int64_t allocated, const char *handle,
                        struct backing **backing, struct backend_detail *detail);

        /* Takes up memory that an earlier daemon made, from its descriptor (taken, also on failure). Main thread, at start. 0, or -EBADMSG
         * when it is not what the record says, in words. */
        int (*adopt)(struct backend_device *device, int fd_take, int64_t size, const char *handle, struct backing **ret,
                     struct backend_detail *detail);

        /* A descriptor of its own for one lease, where backing_prepared() says that the backing's own does not serve: the caller owns
         * *ret_fd. 0 or -errno. */
        int (*open)(struct backing *backing, enum access access, int *ret_fd, struct backend_detail *detail);

        /* Refuses writable handles from now on, as far as the kind can. Again: no harm. 0 or -errno. */
        int (*seal)(struct backing *backing, struct backend_detail *detail);

        /* Gives the memory back, half-made or whole: descriptors closed, struct freed. Cannot fail. */
        void (*close)(struct backing *backing);

        /* Whether the last that was heard of the device is an error that will meet every call, and which. Loop thread, cheap. NULL:
         * never so. */
        bool (*sick)(struct backend_device *device, struct backend_detail *ret_why);

        /* Tries whether a sick device works again: 0, and sick() says no. Pool thread. NULL where sick is. */
        int (*check)(struct backend_device *device, struct backend_detail *detail);
};

/* The descriptor to lend for an access, -1 when not prepared. Loop thread; owned by the backing. */
int backing_fd(const struct backing *backing, enum access access);
bool backing_prepared(const struct backing *backing, enum access access);

/* How many descriptors a buffer uses; a channel some more, see channel_n_descriptors(). */
#define BACKING_DESCRIPTORS 1

extern const struct backend backend_host;

#endif
