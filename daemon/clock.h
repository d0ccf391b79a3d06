/* SPDX-License-Identifier: Apache-2.0 */
/* The two clocks, in microseconds: realtime for what people read, monotonic for what waits. */
#ifndef DAEMON_CLOCK_H
#define DAEMON_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_usec(clockid_t clock) {
        struct timespec now;

        clock_gettime(clock, &now);
        return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static inline int64_t clock_real_usec(void) {
        return (int64_t)clock_usec(CLOCK_REALTIME);
}

static inline uint64_t clock_monotonic_usec(void) {
        return clock_usec(CLOCK_MONOTONIC);
}

#endif
