/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for another member, and waking. Any thread enters. A waiter announces itself in a mask, looks again, then sleeps;
 * whoever changes something looks at the mask afterwards, so one of the two sees the other. While nobody waits there is no
 * system call. */
#include <sched.h>

#include "deadline.h"
#include "ring_inner.h"

#define ATTEMPTS_MAX (1 << 20) /* in a row, each undone by somebody: nobody is that unlucky, so somebody scribbles */
#define SPINS_MIN 4

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
}

static bool is_waiting(int r) {
        return r == RING_EMPTY || r == RING_UNREADY;
}

static int attempt_once(struct ring *ring, ring_attempt *attempt, struct ring_spot *spot) {
        int r = ring_may_go_on(ring);
        bool closed;

        if (r != RING_OK)
                return r;
        /* First: one who claims looks whether it is closed after the claim, so either it sees that or we see the claim. */
        closed = ring_load(&ring->page->closed) != 0;
        if (closed && ring->role == RING_PRODUCER)
                return RING_CLOSED;
        r = attempt(ring, spot);
        return r == RING_EMPTY && closed ? RING_CLOSED : r;
}

static int attempt_firmly(struct ring *ring, ring_attempt *attempt, struct ring_spot *spot) {
        for (int i = 0; i < ATTEMPTS_MAX; i++) {
                int r = attempt_once(ring, attempt, spot);
                if (r != RING_AGAIN)
                        return r;
        }
        return ring_is_corrupt(ring);
}

/* Looks a while longer before it sleeps; for longer the more often that helped. */
static int attempt_patiently(struct ring *ring, ring_attempt *attempt, struct ring_spot *spot, int r) {
        int spins = atomic_load_explicit(&ring->spins, memory_order_relaxed);
        int most = atomic_load_explicit(&ring->spins_max, memory_order_relaxed);

        for (int i = 0; i < spins && is_waiting(r); i++) {
                relax();
                r = attempt_firmly(ring, attempt, spot);
        }
        spins = is_waiting(r) ? spins / 2 : spins * 2;
        spins = spins < SPINS_MIN ? SPINS_MIN : spins;
        atomic_store_explicit(&ring->spins, spins > most ? most : spins, memory_order_relaxed);
        return r;
}

/* The bit is the member's, so with several threads the first sets and the last clears it. */
static void announce(struct ring *ring, struct ring_event *event, bool waits) {
        unsigned *n = &ring->n_waiting[event == &ring->page->room];
        uint64_t mine = UINT64_C(1) << ring->me;

        (void)pthread_mutex_lock(&ring->mutex);
        if (waits && (*n)++ == 0)
                (void)ring_or(&event->waiting, mine);
        if (!waits && --*n == 0)
                (void)ring_and(&event->waiting, ~mine);
        (void)pthread_mutex_unlock(&ring->mutex);
}

static int attempt_asleep(struct ring *ring, ring_attempt *attempt, struct ring_event *event, int64_t deadline,
                          struct ring_spot *spot) {
        struct timespec until = usec_to_timespec(deadline);
        int r;

        announce(ring, event, true);
        for (;;) {
                uint32_t seen = ring_event_look(&event->count);
                r = RING_UNREADY;
                if (RING_RULE(sleeper_looks_again))
                        r = attempt_firmly(ring, attempt, spot);
                if (!is_waiting(r))
                        break;
                if (clock_usec() >= deadline) {
                        r = RING_TIMED_OUT;
                        break;
                }
                RING_TALLY(&ring->n_sleeps);
                ring_futex_wait(&event->count, seen, deadline == DEADLINE_NONE ? NULL : &until);
                if (!RING_RULE(sleeper_looks_again)) {
                        r = attempt_firmly(ring, attempt, spot);
                        if (!is_waiting(r))
                                break;
                }
        }
        announce(ring, event, false);
        return r;
}

int ring_until(struct ring *ring, ring_attempt *attempt, struct ring_event *event, int64_t deadline, struct ring_spot *spot) {
        int r = attempt_firmly(ring, attempt, spot);

        if (!is_waiting(r))
                return r;
        if (clock_usec() >= deadline)
                return RING_TIMED_OUT;
        r = attempt_patiently(ring, attempt, spot, r);
        return is_waiting(r) ? attempt_asleep(ring, attempt, event, deadline, spot) : r;
}

/* A dead member's bit stays until its number is given again. */
bool ring_lives_one_of(struct ring *ring, uint64_t members) {
        for (; members; members &= members - 1) {
                enum ring_life life = ring_member_life(ring_load(&ring->page->members[__builtin_ctzll(members)].word));
                if (life == RING_ALIVE || life == RING_LEFT)
                        return true;
        }
        return false;
}

void ring_wake(struct ring *ring, struct ring_event *event) {
        uint64_t waiting;

        if (!RING_RULE(changer_wakes))
                return;
        waiting = ring_load(&event->waiting);
        if (!waiting || !ring_lives_one_of(ring, waiting))
                return;
        ring_event_change(&event->count);
        RING_TALLY(&ring->n_wakes);
        ring_futex_wake(&event->count);
}

void ring_wake_both(struct ring *ring) {
        ring_wake(ring, &ring->page->items);
        ring_wake(ring, &ring->page->room);
}
