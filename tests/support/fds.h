/* SPDX-License-Identifier: Apache-2.0 */
/* Open descriptors of a process, counted and named. Fails the test (Check) on any surprise. */
#ifndef SUPPORT_FDS_H
#define SUPPORT_FDS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Descriptors of a process as text, one "number → what" a line, in order of number; heap. pid 0: this process. */
struct fds {
        size_t n;
        char *text;
};

struct fds fds_of(pid_t pid);
void fds_deinit(struct fds *fds);
size_t fds_count(pid_t pid);

/* Whether one of them is such ("pidfd"). */
bool fds_have(pid_t pid, const char *what);

/* Both are this process's. Fails and prints both lists when their numbers differ, and go on to: another thread of it may just be closing
 * what it had for a moment. */
void fds_assert_same(const struct fds *before, struct fds *after, const char *whose);

/* Waits until the process has `least` to `most`; fails and prints its list otherwise. */
void fds_wait_count(pid_t pid, size_t least, size_t most, const char *whose);

/* Around a piece of a test: this process must own as many descriptors after it as before. */
#define check_fd_count_begin() struct fds _fds_before = fds_of(0)
#define check_fd_count_end()                                                                                 \
        do {                                                                                                 \
                struct fds _fds_after = fds_of(0);                                                           \
                fds_assert_same(&_fds_before, &_fds_after, "this process");                                  \
                fds_deinit(&_fds_before);                                                                    \
                fds_deinit(&_fds_after);                                                                     \
        } while (0)

#endif
