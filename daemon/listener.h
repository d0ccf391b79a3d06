/* SPDX-License-Identifier: Apache-2.0 */
/* A listening socket: made here or handed over by the service manager. Loop thread only. */
#ifndef DAEMON_LISTENER_H
#define DAEMON_LISTENER_H

#include <sys/un.h>

#include "hall.h"

/* The end of the name under which a socket is made; the longest path leaves room for it in an address. */
#define LISTENER_MAKING ".new"
#define LISTENER_PATH_MAX (sizeof(((struct sockaddr_un *)NULL)->sun_path) - sizeof(LISTENER_MAKING))

struct listener {
        struct hall *hall;
        uv_poll_t poll;
        int fd;      /* owned; -1 when there is none */
        char *path;  /* owned, removed at the end; NULL when the socket was handed over */
        dev_t device; /* of the path, to tell whether it is still ours */
        ino_t inode;
        bool admin;
        bool polling;
        struct alarm *pause; /* out of descriptors: tried again when it rings */
        uint64_t told_usec;  /* when that was last said; 0: never */
};

/* Makes the socket so that it answers from the moment its path exists: bound and listening under another name, then renamed. Its
 * directory is made when missing. A socket that another daemon answers at is left alone: -EADDRINUSE; so is what is no socket: -EEXIST.
 * `group` (may be NULL) owns the socket if it exists. */
int listener_open(struct listener *listener, struct hall *hall, const char *path, bool admin, mode_t mode, const char *group);

/* Takes a socket from the service manager, which listens already; also on failure. -ENOTSOCK when it is no such socket. */
int listener_take(struct listener *listener, struct hall *hall, int fd_take, bool admin);

/* Begins accepting. */
int listener_start(struct listener *listener);

/* Stops accepting, closes, removes the path if it is still this socket's. Harmless on one that was never opened (fd -1). */
void listener_close(struct listener *listener);

#endif
