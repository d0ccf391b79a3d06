/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for the thing itself, with a deadline. Deadlines stretch under sanitizers and valgrind. */
#ifndef SUPPORT_WAIT_H
#define SUPPORT_WAIT_H

#include <stdbool.h>
#include <stdint.h>

#define WAIT_MS 10000 /* long enough for anything that is not a fault */

/* Milliseconds of CLOCK_MONOTONIC. */
int64_t now_ms(void);
int64_t now_usec(void);

/* `ms` from now, times $GPUIPC_TEST_SLOWER. */
int64_t deadline_in(int64_t ms);

/* `ms` times that: a timeout of the product's own that must not pass on a slow machine before what it is for has come. */
int slower_ms(int ms);

/* What is left until a deadline, as poll() takes it; at least 0. */
int deadline_left(int64_t deadline);

/* Gives the processor away for `*pause_usec`, which grows from call to call up to 5 ms. */
void wait_pause(unsigned *pause_usec);

/* Whether the predicate came true in time. */
bool wait_until(bool (*predicate)(void *data), void *data, int64_t ms);

/* Fails the test unless `condition` comes true in time; evaluates it again and again. */
#define wait_for(condition)                                                                                  \
        do {                                                                                                 \
                int64_t _deadline = deadline_in(WAIT_MS);                                                    \
                unsigned _pause = 0;                                                                         \
                while (!(condition)) {                                                                       \
                        ck_assert_msg(now_ms() < _deadline, "not within %d ms: %s", WAIT_MS, #condition);    \
                        wait_pause(&_pause);                                                                 \
                }                                                                                            \
        } while (0)

/* Whether poll() found the descriptor readable or hung up in time. */
bool wait_readable(int fd, int64_t ms);

#endif
