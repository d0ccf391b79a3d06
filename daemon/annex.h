/* SPDX-License-Identifier: Apache-2.0 */
/* What belongs to a channel's memory beside its slots: the fences, in the same device's memory, and the control page, which is host
 * memory on every device. It hangs on the slots' backing and is made, taken up and closed with it, on that one's lanes. */
#ifndef DAEMON_ANNEX_H
#define DAEMON_ANNEX_H

#include "backend.h"
#include "proto/ring_page.h"

#define FENCES_BYTES INT64_C(512) /* 64 members, a word of 64 bits each */

struct annex_spec {
        struct ring_geometry geometry;
        int64_t fences_bytes;  /* as rounded by the device; 0: none */
        int64_t control_bytes; /* as rounded by the host */
};

struct annex {
        struct backing *fences;  /* NULL: none (yet) */
        struct backing *control; /* its read-only descriptor is prepared, for those who only look at the figures */
        struct ring_page *page;  /* its head; the loop stores into it */
        bool short_of_host;      /* making it ended with -ENOMEM, of the host's memory */
};

/* Makes the annex of a backing that is whole, in steps: 0, BACKEND_MORE, or -errno; then the backing is to be closed as it is. */
int annex_allocate(const struct backend *backend, struct backend_device *device, const char *handle, const struct annex_spec *spec,
                   struct backing *backing, struct backend_detail *detail);

/* Whether the words of a control page that an earlier daemon made mean what they mean here. */
bool annex_is_ours(int control_fd);

/* Takes up what an earlier daemon made: descriptors of the fences (-1 where there are none) and of the control page, taken also on
 * failure. Main thread, at start. 0, or -EBADMSG in words; then the backing is to be closed as it is. */
int annex_adopt(const struct backend *backend, struct backend_device *device, const char *handle, const struct annex_spec *spec,
                int fences_take, int control_take, struct backing *backing, struct backend_detail *detail);

/* Gives memory back with all that belongs to it. */
void backing_close(const struct backend *backend, struct backing *backing_take);

#endif
