/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors that arrived with a message, in order of arrival. They are owned by the set until taken. */
#ifndef PROTO_FDSET_H
#define PROTO_FDSET_H

#include <stddef.h>

#define FDSET_MAX 253 /* what the kernel lets one message carry (SCM_MAX_FD) */

struct fdset {
        int *fds; /* -1 where taken */
        size_t n, capacity;
};

/* Closes what was not taken. */
void fdset_deinit(struct fdset *set);

/* Appends; on failure (-ENOMEM) the caller still owns fd. */
int fdset_add_take(struct fdset *set, int fd);

/* The descriptor at index, owned by the caller from now on; -1 when there is none or it was taken. */
int fdset_take(struct fdset *set, size_t index);

/* The descriptor at index, still owned by the set; -1 likewise. */
int fdset_borrow(const struct fdset *set, size_t index);

/* Removes the first n from the set, moving them to `ret` (which must be empty): one reply's share. -EPROTO when
 * there are fewer, -ENOMEM; nothing is moved then. */
int fdset_split_take(struct fdset *set, size_t n, struct fdset *ret);

#endif
