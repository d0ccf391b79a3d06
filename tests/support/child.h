/* SPDX-License-Identifier: Apache-2.0 */
/* A process of a test's own: as another user, in other namespaces, talking to the test by single bytes. */
#ifndef SUPPORT_CHILD_H
#define SUPPORT_CHILD_H

#include <sys/types.h>

struct child {
        pid_t pid;
        int pidfd;   /* -1 under valgrind */
        int talk_fd; /* a socket to the child's own talk_fd */
};

struct child_options {
        uid_t uid; /* 0: stays as it is */
        gid_t gid;
        int namespaces; /* CLONE_NEWPID | CLONE_NEWUSER | …; a user namespace maps its 0 to uid and gid */
};

/* Whether this process may become other users and make namespaces; prints the SKIP line when not. */
int child_needs_root(const char *test);

/* Runs main in a child, whose exit status it returns. The child dies with this process. In it no check may be
 * used but plain return values; talk_fd is its end of the socket. */
struct child child_start(const struct child_options *options, int (*main)(int talk_fd, void *data), void *data);

/* Sends, or waits for, one byte. child_hear() fails the test when it is not `expected`; the child uses the talk_
 * functions, which return non-zero on failure. */
void child_say(const struct child *child, char word);
void child_hear(const struct child *child, char expected);
int talk_say(int talk_fd, char word);
int talk_hear(int talk_fd, char expected);

/* Waits for its end, fails the test unless it ended with `status`. */
void child_expect_exit(struct child *child, int status);

/* SIGKILL, and waits. */
void child_kill(struct child *child);

#endif
