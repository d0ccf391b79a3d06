/* SPDX-License-Identifier: Apache-2.0 */
/* What lies on each device, over all processes. A piece of device memory is a file in the state directory with one page
 * more, its tag. Who uses it does so through an open file that holds a shared flock: the kernel drops it with the last
 * descriptor and mapping of that open file, in whatever process, so a piece that can be locked alone belongs to nobody. */
#ifndef FAKE_BOOKS_H
#define FAKE_BOOKS_H

#include <stdatomic.h>
#include <stdint.h>

#include "script.h"

#define GRANULARITY (INT64_C(2) << 20)
#define TAG_BYTES 4096

enum piece { PIECE_PRESENCE, PIECE_CONTEXT, PIECE_VMM, PIECE_CLASSIC };

struct piece_name {
        int32_t device;
        int64_t size;
        uint64_t id;
};

/* Shared by all who have the piece. */
struct tag {
        uint64_t magic;
        struct piece_name name;
        int32_t kind;
        int32_t handle_types;  /* of a VMM allocation */
        _Atomic int32_t freed; /* a classic allocation whose owner gave it back */
};

/* Whether the machine is within reach. 0 or -errno. */
int books_reach(void);
bool books_absent(int error); /* of books_reach(): there is no machine, rather than no descriptor left */

/* A new piece: 0, -ENOMEM when the device has not that much, -errno. The tag stays mapped, and holds the piece, until
 * books_drop(); the descriptor does too. ret_fd may be NULL. */
int books_new(int device, enum piece kind, int64_t size, int *ret_fd, struct tag **ret_tag);

/* An open file of one's own on a piece of another process. -ENOENT: nobody has it any more. */
int books_open(const struct piece_name *name, int *ret_fd, struct tag **ret_tag);

/* The tag of the piece that a descriptor is; -EINVAL when it is none. */
int books_tag(int fd, struct tag **ret_tag);

/* Unmaps the tag, whose last user in this process it may be, and forgets the piece if nobody has it. */
void books_drop(struct tag *tag);

/* Whether somebody has the piece. */
bool books_alive(const struct piece_name *name);

/* Bytes free on the device now; -errno. */
int64_t books_free_bytes(int device);

/* The log, to append to; -errno. */
int books_open_log(const struct script *script);

#endif
