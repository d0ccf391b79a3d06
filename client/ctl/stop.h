/* SPDX-License-Identifier: Apache-2.0 */
/* SIGINT, SIGTERM and SIGHUP as something to wait for, so that what was begun can be undone. A signal that the parent
 * process had ignored (nohup, a shell's background job) stays ignored. */
#ifndef CTL_STOP_H
#define CTL_STOP_H

#include <signal.h>
#include <stdbool.h>

struct stop {
        int fd; /* a signalfd */
        sigset_t signals;
};

/* From here on the signals are blocked and noted. 0 or -errno. */
int stop_init(struct stop *stop);
void stop_deinit(struct stop *stop);
#define _cleanup_stop_ __attribute__((cleanup(stop_deinit)))

/* Waits at most timeout_ms (-1: without end). Whether one of them came; it stays noted. */
bool stop_wait(const struct stop *stop, int timeout_ms);

/* Waits until `fd` is ready for `events` (POLLIN, POLLOUT). 0, -EINTR when one of the signals came, or -errno. */
int stop_wait_fd(const struct stop *stop, int fd, short events);

/* Between the two the signals end the process at once with EXIT_DONE, and the kernel gives back what was held: for
 * calls to a daemon that may not answer. */
void stop_expose(const struct stop *stop);
void stop_cover(const struct stop *stop);

/* Forgets the signals noted so far, and exposes: a second one need not wait for the goodbye to end. */
void stop_leave(const struct stop *stop);

#endif
