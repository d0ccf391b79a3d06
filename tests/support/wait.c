/* SPDX-License-Identifier: Apache-2.0 */
/* Deadlines and polling for tests. */
#include "wait.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int64_t now_usec(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int64_t now_ms(void) {
        return now_usec() / 1000;
}

int64_t deadline_in(int64_t ms) {
        const char *slower = getenv("GPUIPC_TEST_SLOWER");
        int factor = slower ? atoi(slower) : 1;
        return now_ms() + ms * (factor > 0 ? factor : 1);
}

int slower_ms(int ms) {
        return (int)(deadline_in(ms) - now_ms());
}

int deadline_left(int64_t deadline) {
        int64_t left = deadline - now_ms();
        return left < 0 ? 0 : (int)left;
}

void wait_pause(unsigned *pause_usec) {
        *pause_usec = *pause_usec ? *pause_usec * 2 : 100;
        if (*pause_usec > 5000)
                *pause_usec = 5000;
        usleep(*pause_usec);
}

bool wait_until(bool (*predicate)(void *data), void *data, int64_t ms) {
        int64_t deadline = deadline_in(ms);
        unsigned pause_usec = 0;
        while (!predicate(data)) {
                if (now_ms() >= deadline)
                        return false;
                wait_pause(&pause_usec);
        }
        return true;
}

bool wait_readable(int fd, int64_t ms) {
        int64_t deadline = deadline_in(ms);
        struct pollfd poller = { .fd = fd, .events = POLLIN };
        int n;
        do
                n = poll(&poller, 1, deadline_left(deadline));
        while (n < 0 && errno == EINTR);
        return n > 0;
}
