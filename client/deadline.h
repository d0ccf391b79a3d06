/* SPDX-License-Identifier: Apache-2.0 */
/* Points in time by which something must have happened: microseconds of the monotonic clock. */
#ifndef CLIENT_DEADLINE_H
#define CLIENT_DEADLINE_H

#include <stdint.h>
#include <time.h>

#define DEADLINE_NONE INT64_MAX
#define DEADLINE_MS_MAX INT64_C(1000000000000) /* thirty years: what fits without overflow */

static inline int64_t clock_usec(void) {
        struct timespec t;
        (void)clock_gettime(CLOCK_MONOTONIC, &t);
        return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* `ms` from now; negative is without end. */
static inline int64_t deadline_after_ms(int64_t ms) {
        if (ms < 0 || ms > DEADLINE_MS_MAX)
                return DEADLINE_NONE;
        return clock_usec() + ms * 1000;
}

/* The same deadline, `ms` later; negative adds nothing. */
static inline int64_t deadline_extend_ms(int64_t deadline, int64_t ms) {
        if (deadline == DEADLINE_NONE || ms > DEADLINE_MS_MAX)
                return DEADLINE_NONE;
        return ms > 0 ? deadline + ms * 1000 : deadline;
}

static inline struct timespec usec_to_timespec(int64_t usec) {
        if (usec < 0)
                usec = 0;
        return (struct timespec){ .tv_sec = usec / 1000000, .tv_nsec = usec % 1000000 * 1000 };
}

#endif
