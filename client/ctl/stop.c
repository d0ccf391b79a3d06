/* SPDX-License-Identifier: Apache-2.0 */
/* Signals that mean "leave", read through a descriptor. One per process, on its only thread. */
#include <errno.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "stop.h"
#include "verbs.h"

static void leave(int number) {
        (void)number;
        _exit(EXIT_DONE);
}

int stop_init(struct stop *stop) {
        static const int numbers[] = { SIGINT, SIGTERM, SIGHUP };
        struct sigaction action = { .sa_handler = leave }, before;

        *stop = (struct stop){ .fd = -1 };
        (void)sigemptyset(&stop->signals);
        for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
                if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
                        (void)sigaddset(&stop->signals, numbers[i]);
        if (sigprocmask(SIG_BLOCK, &stop->signals, NULL) != 0)
                return -errno;
        stop->fd = signalfd(-1, &stop->signals, SFD_CLOEXEC | SFD_NONBLOCK);
        if (stop->fd < 0)
                return -errno;
        for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
                if (sigismember(&stop->signals, numbers[i]) == 1)
                        (void)sigaction(numbers[i], &action, NULL);
        return 0;
}

void stop_deinit(struct stop *stop) {
        if (stop->fd >= 0)
                (void)close(stop->fd);
        stop->fd = -1;
}

bool stop_wait(const struct stop *stop, int timeout_ms) {
        struct pollfd poll_fd = { stop->fd, POLLIN, 0 };

        return poll(&poll_fd, 1, timeout_ms) > 0;
}

int stop_wait_fd(const struct stop *stop, int fd, short events) {
        struct pollfd poll_fds[] = { { stop->fd, POLLIN, 0 }, { fd, events, 0 } };

        for (;;) {
                int n = poll(poll_fds, 2, -1);

                if (n < 0 && errno != EINTR)
                        return -errno;
                if (n > 0)
                        return poll_fds[0].revents ? -EINTR : 0;
        }
}

void stop_expose(const struct stop *stop) {
        (void)sigprocmask(SIG_UNBLOCK, &stop->signals, NULL);
}

void stop_cover(const struct stop *stop) {
        (void)sigprocmask(SIG_BLOCK, &stop->signals, NULL);
}

void stop_leave(const struct stop *stop) {
        struct signalfd_siginfo info;

        while (read(stop->fd, &info, sizeof(info)) > 0)
                ;
        stop_expose(stop);
}
