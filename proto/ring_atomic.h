/* SPDX-License-Identifier: Apache-2.0 */
/* How the words of a ring are touched: the one place where a test can put itself between two steps.
 *
 * Each access goes through a macro that is the plain C11 operation, sequentially consistent. A test that includes the
 * sources may define RING_AT(what, address), called before each access and before each futex call, RING_RULE(name), false
 * for a rule that it takes away to see that something breaks, and RING_FUTEX, the system call's place. */
#ifndef PROTO_RING_ATOMIC_H
#define PROTO_RING_ATOMIC_H

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef RING_AT
#define RING_AT(what, address) ((void)0)
#endif
#ifndef RING_RULE
#define RING_RULE(name) true
#endif
#ifndef RING_FUTEX
/* futex(2) on a page that processes share, so never FUTEX_PRIVATE_FLAG; `until` is absolute, of CLOCK_MONOTONIC. */
#define RING_FUTEX(address, operation, value, until) \
        syscall(SYS_futex, address, operation, value, until, NULL, FUTEX_BITSET_MATCH_ANY)
#endif

#define ring_load(object) (RING_AT("load " #object, object), atomic_load(object))
#define ring_store(object, value) (RING_AT("store " #object, object), atomic_store(object, value))
#define ring_cas(object, expected, value) (RING_AT("cas " #object, object), ring_cas_u64(object, expected, value))
#define ring_or(object, value) (RING_AT("or " #object, object), atomic_fetch_or(object, value))
#define ring_and(object, value) (RING_AT("and " #object, object), atomic_fetch_and(object, value))

/* Beside the protocol: figures, and values that a word of the protocol publishes. */
#define ring_note(object) atomic_load_explicit(object, memory_order_relaxed)
#define ring_write(object, value) atomic_store_explicit(object, value, memory_order_relaxed)
#define ring_count(object, value) ((void)atomic_fetch_add_explicit(object, value, memory_order_relaxed))

/* The count of an event only tells whether it changed between a look and a sleep. */
#ifndef RING_EVENT_LOOK
#define RING_EVENT_LOOK(count) atomic_load(count)
#define RING_EVENT_CHANGE(count) ((void)atomic_fetch_add(count, 1))
#endif

#define ring_event_look(count) (RING_AT("look at " #count, count), RING_EVENT_LOOK(count))
#define ring_event_change(count) (RING_AT("change " #count, count), RING_EVENT_CHANGE(count))

/* Of one process, told by ring_calls(). */
#ifndef RING_TALLY
#define RING_TALLY(object) ((void)atomic_fetch_add_explicit(object, 1, memory_order_relaxed))
#endif

static inline bool ring_cas_u64(_Atomic uint64_t *object, uint64_t expected, uint64_t value) {
        return atomic_compare_exchange_strong(object, &expected, value);
}

/* Sleeps while *word is `seen`, until woken, interrupted or the deadline; NULL is without end. */
static inline void ring_futex_wait(_Atomic uint32_t *word, uint32_t seen, const struct timespec *until) {
        RING_AT("sleep", word);
        (void)RING_FUTEX(word, FUTEX_WAIT_BITSET, seen, until);
}

static inline void ring_futex_wake(_Atomic uint32_t *word) {
        RING_AT("wake", word);
        (void)RING_FUTEX(word, FUTEX_WAKE_BITSET, INT_MAX, NULL);
}

#endif
