/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors in order of arrival. One thread at a time; it never opens or duplicates one. */
#include "fdset.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"

void fdset_deinit(struct fdset *set) {
        for (size_t i = 0; i < set->n; i++)
                fd_closep(&set->fds[i]);
        free(set->fds);
        *set = (struct fdset){ 0 };
}

static int fdset_reserve(struct fdset *set, size_t n) {
        size_t capacity = set->capacity > 0 ? set->capacity : 4;
        int *fds;

        if (n <= set->capacity)
                return 0;
        while (capacity < n)
                capacity *= 2;
        fds = reallocarray(set->fds, capacity, sizeof(*fds));
        if (fds == NULL)
                return -ENOMEM;
        set->fds = fds;
        set->capacity = capacity;
        return 0;
}

int fdset_add_take(struct fdset *set, int fd) {
        int r = fdset_reserve(set, set->n + 1);

        if (r < 0)
                return r;
        set->fds[set->n++] = fd;
        return 0;
}

int fdset_take(struct fdset *set, size_t index) {
        if (index >= set->n)
                return -1;
        return take_fd(&set->fds[index]);
}

int fdset_borrow(const struct fdset *set, size_t index) {
        return index < set->n ? set->fds[index] : -1;
}

int fdset_split_take(struct fdset *set, size_t n, struct fdset *ret) {
        int r;

        if (n > set->n)
                return -EPROTO;
        if (n == 0)
                return 0;
        r = fdset_reserve(ret, n);
        if (r < 0)
                return r;
        memcpy(ret->fds, set->fds, n * sizeof(*set->fds));
        ret->n = n;
        set->n -= n;
        memmove(set->fds, set->fds + n, set->n * sizeof(*set->fds));
        return 0;
}
