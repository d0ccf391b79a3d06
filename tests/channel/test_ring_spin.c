/* SPDX-License-Identifier: Apache-2.0 */
/* How long a wait looks before it sleeps. One that looks does not sleep earlier, whatever else goes on here; one that does not takes little
 * processor time of its own, however long that lasts. */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "client/deadline.h"
#include "client/ring.h"
#include "pair.h"
#include "tests/support/suite.h"
#include "tests/support/wait.h"

#define MS INT64_C(1000)
#define MANY 1000 /* short waits: more than it takes even if most of them are not short */
#define CREDIT 32 /* short waits after one that looked in vain: see client/ring_wait.c */

struct waiter {
        pthread_t thread;
        clockid_t clock;
        int64_t began_usec;
        struct ring_item item;
        int64_t used_usec; /* of processor time */
        int r;
};

static int64_t usec_of(clockid_t clock) {
        struct timespec t;

        if (clock_gettime(clock, &t) != 0)
                return -1;
        return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void *wait_in_thread(void *data) {
        struct waiter *waiter = data;
        int64_t before = usec_of(CLOCK_THREAD_CPUTIME_ID);

        waiter->r = ring_take(consumer, DEADLINE_NONE, &waiter->item);
        waiter->used_usec = usec_of(CLOCK_THREAD_CPUTIME_ID) - before;
        return NULL;
}

static void start(struct waiter *waiter) {
        waiter->began_usec = clock_usec();
        ck_assert_int_eq(pthread_create(&waiter->thread, NULL, wait_in_thread, waiter), 0);
        ck_assert_int_eq(pthread_getcpuclockid(waiter->thread, &waiter->clock), 0);
}

static void finish(struct waiter *waiter) {
        put(producer, 1);
        ck_assert_int_eq(pthread_join(waiter->thread, NULL), 0);
        ck_assert_int_eq(waiter->r, RING_OK);
        ck_assert_int_eq(ring_release(consumer, &waiter->item, 0), RING_OK);
}

static uint64_t sleeps(void) {
        uint64_t n_sleeps, n_wakes;

        ring_calls(consumer, &n_sleeps, &n_wakes);
        return n_sleeps;
}

#define USED_USEC (5 * MS) /* of processor time at most, by one that sleeps at once */

/* What a wait is like that is over after so long, at the earliest, and not before it sleeps. */
struct outcome {
        int64_t used_usec, slept_after_usec;
};

static struct outcome wait_of(int64_t usec) {
        struct outcome outcome;
        struct waiter waiter;
        uint64_t before = sleeps();

        start(&waiter);
        wait_for(sleeps() > before);
        outcome.slept_after_usec = clock_usec() - waiter.began_usec;
        wait_for(clock_usec() >= waiter.began_usec + usec);
        finish(&waiter);
        outcome.used_usec = waiter.used_usec;
        return outcome;
}

static void expect_looks(int64_t usec, int64_t may_look_usec) {
        ck_assert_int_ge(wait_of(usec).slept_after_usec, may_look_usec);
}

static void expect_sleeps_at_once(int64_t usec) {
        ck_assert_int_lt(wait_of(usec).used_usec, USED_USEC);
}

START_TEST(one_that_looks_makes_no_call_and_causes_none) {
        uint64_t n_sleeps, n_wakes;
        struct waiter waiter;

        pair_open(RING_QUEUE, RING_BLOCK, 4);
        ring_spin(consumer, 600000 * MS);
        start(&waiter);
        wait_for(usec_of(waiter.clock) > 5 * MS); /* it looks by now */
        finish(&waiter);
        ring_calls(producer, &n_sleeps, &n_wakes);
        ck_assert_uint_eq(sleeps() + n_sleeps + n_wakes, 0);
        pair_close();
} END_TEST

START_TEST(one_that_may_not_look_sleeps) {
        pair_open(RING_QUEUE, RING_BLOCK, 4);
        ring_spin(consumer, 0);
        for (int i = 0; i < 10; i++)
                expect_sleeps_at_once(i * MS);
        ck_assert_uint_ge(sleeps(), 10);
        pair_close();
} END_TEST

/* Pauses are no reason to look: nothing would come of it. */
START_TEST(long_waits_are_slept_through) {
        struct outcome outcome;
        int n;

        pair_open(RING_QUEUE, RING_BLOCK, 4);
        ring_spin(consumer, 50 * MS);
        for (int i = 0; i < 6; i++) /* more than four times what it may look, whenever the thread gets to it */
                if (i < 3)
                        expect_looks(300 * MS, 50 * MS);
                else
                        expect_sleeps_at_once(300 * MS);
        /* Short ones again, of which two would do if they were: this thread may be late. */
        for (n = 0; (outcome = wait_of(0)).used_usec < USED_USEC; n++)
                ck_assert_int_lt(n, MANY);
        ck_assert_int_ge(n, 2);
        ck_assert_int_ge(outcome.slept_after_usec, 50 * MS);
        pair_close();
} END_TEST

/* It looked in vain, and was served as soon as it slept: perhaps because it slept. */
START_TEST(looking_in_vain_is_paid_for) {
        pair_open(RING_QUEUE, RING_BLOCK, 4);
        ring_spin(consumer, 300 * MS); /* and a short sleep is one of less than four times that */
        expect_looks(0, 300 * MS);
        for (int i = 0; i < CREDIT; i++)
                expect_sleeps_at_once(0);
        expect_looks(0, 300 * MS);
        pair_close();
} END_TEST

int main(void) {
        Suite *suite = suite_create("ring_spin");
        TCase *tests = tcase_create("spin");

        tcase_set_timeout(tests, 60);
        tcase_add_test(tests, one_that_looks_makes_no_call_and_causes_none);
        tcase_add_test(tests, one_that_may_not_look_sleeps);
        tcase_add_test(tests, long_waits_are_slept_through);
        tcase_add_test(tests, looking_in_vain_is_paid_for);
        suite_add_tcase(suite, tests);
        return suite_run(suite);
}
