/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptors that the service manager hands over at start: listening sockets, and what an earlier daemon left in its store. */
#ifndef DAEMON_HANDED_H
#define DAEMON_HANDED_H

#include <stddef.h>

struct handed_item {
        int fd;     /* owned; -1 when taken */
        char *name; /* owned */
};

struct handed {
        struct handed_item *items;
        size_t n;
};

/* Reads $LISTEN_FDS and its like, and takes them out of the environment. 0 or -errno. */
int handed_take(struct handed *ret);

/* Closes what nobody took. Harmless on all zero, and twice. */
void handed_deinit(struct handed *handed);

#endif
