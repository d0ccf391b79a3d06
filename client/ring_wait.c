/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for another member, and waking. Any thread enters. A waiter announces itself in a mask, looks again, then sleeps;
 * whoever changes something looks at the mask afterwards, so one of the two sees the other. While nobody waits there is no
 * system call. */

#include "deadline.h"
#include "ring_inner.h"

#define ATTEMPTS_MAX (1 << 20) /* in a row, each undone by somebody: nobody is that unlucky, so somebody scribbles */
#define LOOKS 16 /* between two looks at the clock */
#define LONGEST 4
#define CREDIT 32

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

/* Waits of late were so short that looking may be enough, and it was. One that sleeps takes longer than one that looks, up to twice. */
static bool pays(struct ring *ring, int64_t most) {
        return most > 0 && atomic_load_explicit(&ring->wait_usec, memory_order_relaxed) <= 2 * most &&
               atomic_load_explicit(&ring->credit, memory_order_relaxed) >= 0;
}

static int attempt_patiently(struct ring *ring, ring_attempt *attempt, struct ring_spot *spot, int64_t until) {
        int r = RING_UNREADY;

        do {
                for (int i = 0; i < LOOKS && is_waiting(r); i++) {
                        relax();
                        r = attempt_firmly(ring, attempt, spot);
                }
        } while (is_waiting(r) && clock_usec() < until);
        return r;
}

/* A quarter of the average is the last wait's, and one long pause counts for so little that it changes nothing.
 * Where looking was not enough, and then a short sleep was, it may have kept the processor from whom it waited for; so it must be right
 * many times more often than wrong. Threads may overwrite each other's notes: they are only a guess. */
static void note_wait(struct ring *ring, int64_t most, int64_t usec, bool looked, bool slept) {
        int64_t average = atomic_load_explicit(&ring->wait_usec, memory_order_relaxed);
        int credit = atomic_load_explicit(&ring->credit, memory_order_relaxed);

        if (looked && slept && usec < LONGEST * most)
                credit -= CREDIT;
        else if (credit < CREDIT)
                credit++;
        if (usec > LONGEST * most)
                usec = LONGEST * most;
        atomic_store_explicit(&ring->wait_usec, average + (usec - average) / 4, memory_order_relaxed);
        atomic_store_explicit(&ring->credit, credit, memory_order_relaxed);
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
        int64_t most = atomic_load_explicit(&ring->spin_usec, memory_order_relaxed), started;
        int r = attempt_firmly(ring, attempt, spot);
        bool looks, sleeps;

        if (!is_waiting(r))
                return r;
        started = clock_usec();
        if (started >= deadline)
                return RING_TIMED_OUT;
        looks = pays(ring, most);
        if (looks)
                r = attempt_patiently(ring, attempt, spot, deadline - started < most ? deadline : started + most);
        sleeps = is_waiting(r);
        if (sleeps)
                r = attempt_asleep(ring, attempt, event, deadline, spot);
        if (most > 0)
                note_wait(ring, most, clock_usec() - started, looks, sleeps);
        return r;
}

/* A dead member's bit stays until its number is given again. */
bool ring_lives_one_of(struct ring *ring, uint64_t members) {
        for (; members; members &= members - 1) {
                enum ring_life life = ring_member_life(ring_load(&ring->page->members[__builtin_ctzll(members)].word));
                if (ring_has_process(life))
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
