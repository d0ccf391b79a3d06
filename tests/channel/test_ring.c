/* SPDX-License-Identifier: Apache-2.0 */
/* What each call of the ring does, one member's step at a time. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/deadline.h"
#include "pair.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"
#include "tests/support/wait.h"

/* ---- joining ---------------------------------------------------------------------------------------------- */

START_TEST(a_bad_geometry_is_named) {
        const struct ring_geometry good = { .mode = RING_QUEUE, .policy = RING_BLOCK, .n_slots = 3, .meta_bytes = 1, .slot_bytes = 9 };
        struct ring_geometry bad;
#define expect_fault(field, value)                                                                                               \
        do {                                                                                                                     \
                bad = good;                                                                                                      \
                bad.field = value;                                                                                               \
                ck_assert_ptr_nonnull(ring_geometry_fault(&bad));                                                                \
                ck_assert_ptr_nonnull(strstr(ring_geometry_fault(&bad), #field));                                                \
        } while (0)

        ck_assert_ptr_null(ring_geometry_fault(&good));
        expect_fault(mode, 0);
        expect_fault(mode, 3);
        expect_fault(policy, 0);
        expect_fault(policy, 3);
        expect_fault(n_slots, 0);
        expect_fault(n_slots, RING_SLOTS_MAX + 1);
        expect_fault(meta_bytes, RING_META_MAX + 1);
        expect_fault(slot_bytes, 0);
        expect_fault(slot_bytes, RING_SLOT_BYTES_MAX + 1);
}
END_TEST

static void expect_refused(int fd, unsigned member, int expected, const char *word) {
        struct ring *ring = NULL;
        const char *fault = "";

        ck_assert_int_eq(ring_attach(fd, member, 1, &ring, &fault), expected);
        ck_assert_ptr_null(ring);
        ck_assert_msg(expected != -EPROTO || strstr(fault, word), "%s: nothing of %s", fault, word);
}

START_TEST(a_bad_page_is_named) {
        int fd = memfd_create("ring", MFD_CLOEXEC | MFD_ALLOW_SEALING), unsealable = open("/dev/null", O_RDWR | O_CLOEXEC);

        check_fd_count_begin();
        pair_open(RING_QUEUE, RING_BLOCK, 40);
        expect_refused(-1, 0, -EBADF, "");
        expect_refused(unsealable, 0, -EINVAL, "");
        expect_refused(fd, 0, -EPROTO, "sealed");
        ck_assert_int_eq(ftruncate(fd, 4096), 0);
        ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
        expect_refused(fd, 0, -EPROTO, "too short");
        ck_assert_int_eq(ftruncate(fd, (off_t)stage.bytes - 4096), 0);
        expect_refused(fd, 0, -EPROTO, "magic");
        ck_assert_int_gt(pwrite(fd, stage.page, 4096, 0), 0);
        expect_refused(fd, 0, -EPROTO, "n_slots");
        expect_refused(stage.fd, RING_MEMBERS, -EINVAL, "");
        expect_refused(stage.fd, 2, RING_GONE, "");
        stage.page->version++;
        expect_refused(stage.fd, 0, -EPROTO, "version");
        stage.page->version--;
        stage.page->mode = 0;
        expect_refused(stage.fd, 0, -EPROTO, "mode");
        pair_close();
        check_fd_count_end();
        (void)close(fd);
        (void)close(unsealable);
}
END_TEST

/* ---- a queue ---------------------------------------------------------------------------------------------- */

START_TEST(a_queue_keeps_order_over_many_laps) {
        pair_open(RING_QUEUE, RING_BLOCK, 3);
        for (uint64_t i = 0; i < 300; i += 3) {
                for (uint64_t k = 0; k < 3; k++)
                        put(producer, i + k);
                ck_assert_uint_eq(ring_peek_depth(producer), 3);
                ck_assert_int_eq(ring_begin_produce(producer, 0, &item), RING_TIMED_OUT);
                for (uint64_t k = 0; k < 3; k++)
                        ck_assert_uint_eq(get(consumer), i + k);
                ck_assert_int_eq(ring_take(consumer, 0, &item), RING_TIMED_OUT);
                ck_assert_uint_eq(ring_peek_depth(producer), 0);
        }
        pair_close();
}
END_TEST

START_TEST(who_may_do_what) {
        pair_open(RING_QUEUE, RING_BLOCK, 3);
        ck_assert_int_eq(ring_take(producer, 0, &item), -EPERM);
        ck_assert_int_eq(ring_begin_produce(consumer, 0, &item), -EPERM);
        pair_close();
}
END_TEST

START_TEST(what_does_not_fit_stays_in_hand) {
        unsigned char meta[65] = { 0 };

        pair_open(RING_QUEUE, RING_BLOCK, 1);
        ck_assert_int_eq(ring_begin_produce(producer, 0, &item), RING_OK);
        ck_assert_int_eq(ring_publish(producer, &item, 4097, NULL, 0, 0), -EMSGSIZE);
        ck_assert_int_eq(ring_publish(producer, &item, 1, meta, 65, 0), -EMSGSIZE);
        ck_assert_int_eq(ring_publish(producer, &item, 1, NULL, 0, RING_FENCE_MAX + 1), -EMSGSIZE);
        ck_assert_int_eq(ring_publish(producer, &item, 4096, meta, 64, 0), RING_OK);
        ck_assert_int_eq(ring_take(consumer, 0, &item), RING_OK);
        ck_assert_uint_eq(item.size, 4096);
        ck_assert_uint_eq(item.n_meta, 64);
        pair_close();
}
END_TEST

START_TEST(what_is_cancelled_is_not_seen) {
        pair_open(RING_QUEUE, RING_BLOCK, 2);
        for (int i = 0; i < 5; i++) {
                ck_assert_int_eq(ring_begin_produce(producer, 0, &item), RING_OK);
                ck_assert_int_eq(ring_cancel(producer, &item), RING_OK);
        }
        put(producer, 7);
        ck_assert_uint_eq(get(consumer), 7);
        ck_assert_int_eq(ring_take(consumer, 0, &item), RING_TIMED_OUT);
        pair_close();
}
END_TEST

START_TEST(several_may_be_in_hand_and_come_back_in_any_order) {
        struct ring_item first, second;

        pair_open(RING_QUEUE, RING_BLOCK, 2);
        put(producer, 1);
        put(producer, 2);
        ck_assert_int_eq(ring_take(consumer, 0, &first), RING_OK);
        ck_assert_int_eq(ring_take(consumer, 0, &second), RING_OK);
        ck_assert_int_eq(ring_take(consumer, 0, &item), RING_TIMED_OUT);
        ck_assert_int_eq(ring_release(consumer, &second, 0), RING_OK);
        ck_assert_int_eq(ring_begin_produce(producer, 0, &item), RING_TIMED_OUT);
        ck_assert_int_eq(ring_release(consumer, &first, 0), RING_OK);
        put(producer, 3);
        put(producer, 4);
        ck_assert_uint_eq(get(consumer), 3);
        ck_assert_uint_eq(get(consumer), 4);
        pair_close();
}
END_TEST

START_TEST(a_slow_producer_is_not_overtaken) {
        struct ring *other;
        struct ring_item slow;

        pair_open(RING_QUEUE, _i ? RING_DROP_OLDEST : RING_BLOCK, 2);
        other = stage_join(&stage, RING_PRODUCER);
        ck_assert_int_eq(ring_begin_produce(producer, 0, &slow), RING_OK);
        put(other, 2);
        ck_assert_int_eq(ring_take(consumer, 0, &item), RING_TIMED_OUT);
        ck_assert_int_eq(ring_begin_produce(other, 0, &item), RING_TIMED_OUT);
        ck_assert_int_eq(ring_publish(producer, &slow, 1, &(uint64_t){ 1 }, 8, 0), RING_OK);
        ck_assert_uint_eq(get(consumer), 1);
        ck_assert_uint_eq(get(consumer), 2);
        ring_free(other);
        pair_close();
}
END_TEST

START_TEST(the_oldest_is_dropped_and_counted) {
        static struct ring_stats stats;

        pair_open(RING_QUEUE, RING_DROP_OLDEST, 4);
        for (uint64_t i = 0; i < 10; i++)
                put(producer, i);
        ck_assert_uint_eq(take(consumer, &item), 6);
        /* The next one's place is 6's, which is being read. */
        ck_assert_int_eq(ring_begin_produce(producer, 0, &(struct ring_item){ 0 }), RING_TIMED_OUT);
        ck_assert_int_eq(ring_release(consumer, &item, 0), RING_OK);
        put(producer, 10);
        put(producer, 11);
        for (uint64_t i = 8; i < 12; i++)
                ck_assert_uint_eq(get(consumer), i);
        ck_assert_int_eq(ring_take(consumer, 0, &item), RING_TIMED_OUT);
        ring_stats(consumer, &stats);
        ck_assert_uint_eq(stats.members[0].drops, 7);
        pair_close();
}
END_TEST

/* More than a member may try in a row: nobody takes for minutes, and what is given up moves on all the same. */
START_TEST(one_who_comes_late_begins_with_what_is_left) {
        pair_open(RING_QUEUE, _i ? RING_BLOCK : RING_DROP_OLDEST, 3);
        for (uint64_t i = 0; i < (1 << 20) + 100; i++)
                if (_i) {
                        ck_assert_int_eq(ring_begin_produce(producer, 0, &item), RING_OK);
                        ck_assert_int_eq(ring_cancel(producer, &item), RING_OK);
                } else {
                        put(producer, i % 100);
                }
        if (_i)
                put(producer, 98);
        ck_assert_uint_eq(get(consumer), _i ? 98 : ((1 << 20) + 97) % 100);
        pair_close();
}
END_TEST

START_TEST(closed_is_the_end_once_it_is_empty) {
        struct ring_item late;

        pair_open(RING_QUEUE, RING_BLOCK, 4);
        put(producer, 1);
        ck_assert_int_eq(ring_begin_produce(producer, 0, &late), RING_OK);
        ring_close(consumer);
        ck_assert_int_eq(ring_begin_produce(producer, DEADLINE_NONE, &item), RING_CLOSED);
        ck_assert_uint_eq(get(consumer), 1);
        ck_assert_int_eq(ring_take(consumer, 0, &item), RING_TIMED_OUT);
        ck_assert_int_eq(ring_publish(producer, &late, 2, &(uint64_t){ 2 }, 8, 0), RING_OK);
        ck_assert_uint_eq(get(consumer), 2);
        ck_assert_int_eq(ring_take(consumer, DEADLINE_NONE, &item), RING_CLOSED);
        pair_close();
}
END_TEST

START_TEST(fences_go_with_the_items) {
        pair_open(RING_QUEUE, RING_BLOCK, 1);
        ck_assert_int_eq(ring_begin_produce(producer, 0, &item), RING_OK);
        ck_assert_uint_eq(item.produced, 0);
        ck_assert_uint_eq(item.consumed, 0);
        ck_assert_int_eq(ring_publish(producer, &item, 1, NULL, 0, 41), RING_OK);
        ck_assert_int_eq(ring_take(consumer, 0, &item), RING_OK);
        ck_assert_uint_eq(item.producer, ring_me(producer));
        ck_assert_uint_eq(item.produced, 41);
        ck_assert_int_eq(ring_release(consumer, &item, RING_FENCE_MAX + 1), -EMSGSIZE);
        ck_assert_int_eq(ring_release(consumer, &item, RING_FENCE_MAX), RING_OK);
        ck_assert_int_eq(ring_begin_produce(producer, 0, &item), RING_OK);
        ck_assert_uint_eq(item.produced, 41);
        ck_assert_uint_eq(item.consumer, ring_me(consumer));
        ck_assert_uint_eq(item.consumed, RING_FENCE_MAX);
        pair_close();
}
END_TEST

/* ---- a broadcast ------------------------------------------------------------------------------------------ */

START_TEST(everyone_gets_everything) {
        static struct ring_stats stats;
        struct ring *other;
        uint64_t fences[RING_MEMBERS];

        pair_open(RING_BROADCAST, RING_BLOCK, 2);
        put(producer, 1);
        other = stage_join(&stage, RING_CONSUMER);
        put(producer, 2);
        ck_assert_int_eq(ring_begin_produce(producer, 0, &item), RING_TIMED_OUT);
        ck_assert_uint_eq(take(consumer, &item), 1);
        ck_assert_int_eq(ring_take(consumer, 0, &(struct ring_item){ 0 }), RING_BUSY);
        ck_assert_int_eq(ring_begin_produce(producer, 0, &(struct ring_item){ 0 }), RING_TIMED_OUT);
        ck_assert_int_eq(ring_release(consumer, &item, 5), RING_OK);
        put(producer, 3);
        ring_stats(producer, &stats);
        ck_assert_uint_eq(stats.members[1].lag, 2);
        ck_assert_uint_eq(stats.members[2].lag, 2);
        ck_assert_uint_eq(stats.members[0].items, 3);
        ck_assert_uint_eq(stats.members[0].bytes, 6);
        ck_assert_uint_eq(stats.members[1].items, 1);
        ck_assert_uint_eq(stats.depth, 2);
        ck_assert_uint_eq(get(other), 2);
        ck_assert_uint_eq(get(other), 3);
        ck_assert_int_eq(ring_begin_produce(producer, 0, &item), RING_TIMED_OUT);
        ck_assert_uint_eq(get(consumer), 2);
        ck_assert_uint_eq(get(consumer), 3);
        ck_assert_uint_eq(ring_reader_fences(producer, fences), 6);
        ck_assert_int_eq(ring_leave(other), RING_OK);
        ck_assert_uint_eq(ring_reader_fences(producer, fences), 2);
        ring_free(other);
        pair_close();
}
END_TEST

/* Who sees a consumer there may count on its getting what comes from then on. */
START_TEST(who_is_let_in_is_there_once_it_has_joined) {
        bool broadcast = _i;
        static struct ring_stats stats;
        unsigned number, never;
        struct ring *late;

        pair_open(broadcast ? RING_BROADCAST : RING_QUEUE, RING_BLOCK, 2);
        number = stage_admit(&stage, RING_CONSUMER);
        never = stage_admit(&stage, RING_CONSUMER);
        ring_mark_dead(producer, never, 1);
        ring_stats(producer, &stats);
        ck_assert_int_eq(stats.members[number].life, broadcast ? RING_VACANT : RING_ALIVE);
        ck_assert_int_eq(stats.members[never].life, broadcast ? RING_VACANT : RING_REAPED);
        ck_assert_int_eq(stats.members[ring_me(producer)].life, RING_ALIVE);
        ck_assert_int_eq(stats.members[ring_me(consumer)].life, RING_ALIVE);
        put(producer, 1);
        late = stage_attach(&stage, number);
        ring_stats(producer, &stats);
        ck_assert_int_eq(stats.members[number].life, RING_ALIVE);
        ck_assert_uint_eq(get(broadcast ? consumer : late), 1);
        put(producer, 2);
        ck_assert_uint_eq(get(late), 2);
        ring_free(late);
        pair_close();
}
END_TEST

START_TEST(a_laggard_loses_the_oldest_and_is_told_how_many) {
        static struct ring_stats stats;

        pair_open(RING_BROADCAST, RING_DROP_OLDEST, 4);
        for (uint64_t i = 0; i < 10; i++)
                put(producer, i);
        ck_assert_uint_eq(take(consumer, &item), 6);
        /* What it reads is not taken from it. */
        ck_assert_int_eq(ring_begin_produce(producer, 0, &(struct ring_item){ 0 }), RING_TIMED_OUT);
        ck_assert_int_eq(ring_release(consumer, &item, 0), RING_OK);
        for (uint64_t i = 7; i < 10; i++)
                ck_assert_uint_eq(get(consumer), i);
        ck_assert_int_eq(ring_take(consumer, 0, &item), RING_TIMED_OUT);
        ring_stats(producer, &stats);
        ck_assert_uint_eq(stats.members[1].drops, 6);
        pair_close();
}
END_TEST

START_TEST(without_consumers_a_broadcast_goes_on) {
        pair_open(RING_BROADCAST, RING_BLOCK, 2);
        ck_assert_int_eq(ring_leave(consumer), RING_OK);
        ck_assert_int_eq(ring_leave(consumer), RING_GONE);
        ck_assert_int_eq(ring_take(consumer, 0, &item), RING_GONE);
        for (uint64_t i = 0; i < 10; i++)
                put(producer, i);
        pair_close();
}
END_TEST

/* ---- waiting ---------------------------------------------------------------------------------------------- */

struct waiter {
        struct ring *ring;
        int (*call)(struct ring *ring, int64_t deadline, struct ring_item *ret_item);
        struct ring_item item;
        int r;
        pthread_t thread;
};

static void *wait_in_thread(void *data) {
        struct waiter *waiter = data;
        waiter->r = waiter->call(waiter->ring, deadline_after_ms(WAIT_MS), &waiter->item);
        return NULL;
}

static bool sleeps(struct ring *ring) {
        uint64_t n_sleeps, n_wakes;
        ring_calls(ring, &n_sleeps, &n_wakes);
        return n_sleeps > 0;
}

/* Until it has gone to sleep. */
static void start_waiting(struct waiter *waiter) {
        ck_assert_int_eq(pthread_create(&waiter->thread, NULL, wait_in_thread, waiter), 0);
        wait_for(sleeps(waiter->ring));
}

static void expect_woken(struct waiter *waiter, int r) {
        ck_assert_int_eq(pthread_join(waiter->thread, NULL), 0);
        ck_assert_int_eq(waiter->r, r);
}

START_TEST(a_deadline_is_kept) {
        int64_t before = clock_usec();

        pair_open(_i & 1 ? RING_BROADCAST : RING_QUEUE, RING_BLOCK, 1);
        ck_assert_int_eq(ring_take(consumer, before + 20000, &item), RING_TIMED_OUT);
        ck_assert_int_ge(clock_usec(), before + 20000);
        put(producer, 1);
        before = clock_usec();
        ck_assert_int_eq(ring_begin_produce(producer, before + 20000, &item), RING_TIMED_OUT);
        ck_assert_int_ge(clock_usec(), before + 20000);
        pair_close();
}
END_TEST

START_TEST(what_changes_wakes) {
        struct waiter taker = { .call = ring_take }, maker = { .call = ring_begin_produce };
        uint64_t n_sleeps, n_wakes;

        pair_open(_i & 1 ? RING_BROADCAST : RING_QUEUE, RING_BLOCK, 1);
        taker.ring = consumer;
        start_waiting(&taker);
        put(producer, 9);
        expect_woken(&taker, RING_OK);
        ring_calls(producer, &n_sleeps, &n_wakes);
        ck_assert_uint_eq(n_wakes, 1);
        maker.ring = producer;
        start_waiting(&maker);
        ck_assert_int_eq(ring_release(consumer, &taker.item, 0), RING_OK);
        expect_woken(&maker, RING_OK);
        ck_assert_uint_eq(stage.page->items.waiting | stage.page->room.waiting, 0);
        pair_close();
}
END_TEST

START_TEST(end_of_waiting_for_other_reasons) {
        struct waiter taker = { .call = ring_take };

        pair_open(RING_QUEUE, RING_BLOCK, 1);
        taker.ring = consumer;
        start_waiting(&taker);
        if (_i == 0)
                ring_close(producer);
        else
                ring_stop(consumer);
        expect_woken(&taker, RING_CLOSED);
        pair_close();
}
END_TEST

START_TEST(a_death_wakes) {
        struct waiter taker = { .call = ring_take };

        pair_open(_i & 1 ? RING_BROADCAST : RING_QUEUE, RING_BLOCK, 1);
        ck_assert_int_eq(ring_begin_produce(producer, 0, &item), RING_OK);
        taker.ring = consumer;
        start_waiting(&taker);
        ring_mark_dead(consumer, ring_me(producer), 1);
        expect_woken(&taker, RING_BROKEN);
        ck_assert_uint_eq(taker.item.producer, ring_me(producer));
        ck_assert_uint_eq(taker.item.ticket, item.ticket);
        pair_close();
}
END_TEST

START_TEST(readiness_takes_nothing) {
        pair_open(_i & 1 ? RING_BROADCAST : RING_QUEUE, _i & 2 ? RING_DROP_OLDEST : RING_BLOCK, 1);
        ck_assert_int_eq(ring_wait(consumer, 0), RING_TIMED_OUT);
        ck_assert_int_eq(ring_wait(producer, 0), RING_OK);
        put(producer, 5);
        ck_assert_int_eq(ring_wait(producer, 0), _i & 2 ? RING_OK : RING_TIMED_OUT);
        ck_assert_int_eq(ring_wait(consumer, 0), RING_OK);
        ck_assert_int_eq(ring_wait(consumer, 0), RING_OK);
        ck_assert_uint_eq(get(consumer), 5);
        pair_close();
}
END_TEST

/* Several threads use one ring, and sleep most of the time: two slots, five threads. */
#define N_SHARED 20000
static atomic_uint next_number, threads_left;
static atomic_uchar seen[N_SHARED];

static void *produce_shared(void *data) {
        uint64_t number;
        struct ring_item mine;

        (void)data;
        while ((number = atomic_fetch_add(&next_number, 1)) < N_SHARED)
                if (ring_begin_produce(producer, deadline_in(WAIT_MS) * 1000, &mine) != RING_OK ||
                    ring_publish(producer, &mine, 1, &number, sizeof(number), 0) != RING_OK)
                        return (void *)(uintptr_t) "producing";
        if (atomic_fetch_sub(&threads_left, 1) == 1)
                ring_close(producer);
        return NULL;
}

static void *consume_shared(void *data) {
        struct ring_item mine;
        uint64_t number;
        int r;

        (void)data;
        while ((r = ring_take(consumer, deadline_in(WAIT_MS) * 1000, &mine)) == RING_OK) {
                memcpy(&number, mine.meta, sizeof(number));
                if (atomic_fetch_add(&seen[number], 1) != 0 || ring_release(consumer, &mine, 0) != RING_OK)
                        return (void *)(uintptr_t) "consuming";
        }
        return r == RING_CLOSED ? NULL : (void *)(uintptr_t) "waiting";
}

START_TEST(threads_may_share_a_ring) {
        pthread_t threads[5];

        pair_open(RING_QUEUE, RING_BLOCK, 2);
        atomic_store(&threads_left, 2);
        for (int i = 0; i < 5; i++)
                ck_assert_int_eq(pthread_create(&threads[i], NULL, i < 2 ? produce_shared : consume_shared, NULL), 0);
        for (int i = 0; i < 5; i++) {
                void *fault;
                ck_assert_int_eq(pthread_join(threads[i], &fault), 0);
                ck_assert_msg(!fault, "a thread failed at %s", (const char *)fault);
        }
        for (int i = 0; i < N_SHARED; i++)
                ck_assert_uint_eq(seen[i], 1);
        ck_assert_uint_eq(stage.page->items.waiting | stage.page->room.waiting, 0);
        pair_close();
}
END_TEST

/* Every other item is cancelled. */
static void *produce_half(void *data) {
        struct ring_item mine;

        (void)data;
        for (uint64_t i = 0; i < N_SHARED; i++) {
                if (ring_begin_produce(producer, deadline_in(WAIT_MS) * 1000, &mine) != RING_OK ||
                    (i % 2 ? ring_cancel(producer, &mine) : ring_publish(producer, &mine, 1, &i, sizeof(i), 0)) != RING_OK)
                        return (void *)(uintptr_t) "producing";
        }
        ring_close(producer);
        return NULL;
}

/* As one that feeds an event loop. */
static void *look_all_the_time(void *data) {
        int r;

        (void)data;
        do
                r = ring_wait(consumer, 0);
        while (r == RING_OK || r == RING_BUSY || r == RING_TIMED_OUT);
        return r == RING_CLOSED ? NULL : (void *)(uintptr_t) "looking";
}

START_TEST(who_looks_beside_a_reader_makes_no_drops) {
        static struct ring_stats stats;
        void *(*const runs[])(void *) = { produce_half, look_all_the_time, look_all_the_time };
        pthread_t threads[3];
        uint64_t n = 0;

        pair_open(RING_BROADCAST, RING_BLOCK, 8);
        for (int i = 0; i < 3; i++)
                ck_assert_int_eq(pthread_create(&threads[i], NULL, runs[i], NULL), 0);
        for (int r = RING_OK; r != RING_CLOSED; n += r == RING_OK) {
                r = ring_take(consumer, deadline_in(WAIT_MS) * 1000, &item);
                ck_assert(r == RING_OK || r == RING_CLOSED);
                if (r == RING_OK)
                        ck_assert_int_eq(ring_release(consumer, &item, 0), RING_OK);
        }
        for (int i = 0; i < 3; i++) {
                void *fault;
                ck_assert_int_eq(pthread_join(threads[i], &fault), 0);
                ck_assert_msg(!fault, "a thread failed at %s", (const char *)fault);
        }
        ring_stats(consumer, &stats);
        ck_assert_uint_eq(n, N_SHARED / 2);
        ck_assert_uint_eq(stats.members[1].drops, 0);
        pair_close();
}
END_TEST

static bool makes_one;

/* Under seccomp's strict mode any system call but read, write, exit and sigreturn is death. */
static void steady_state(void) {
        (void)prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
        for (uint64_t i = 0; i < 100000; i++) {
                if (ring_begin_produce(producer, DEADLINE_NONE, &item) != RING_OK ||
                    ring_publish(producer, &item, i % 4096, &i, sizeof(i), 0) != RING_OK ||
                    ring_take(consumer, DEADLINE_NONE, &item) != RING_OK || ring_release(consumer, &item, 0) != RING_OK)
                        (void)syscall(SYS_exit, 1);
        }
        if (makes_one)
                (void)syscall(SYS_getpid);
        (void)syscall(SYS_exit, 0);
}

START_TEST(a_steady_flow_makes_no_system_call) {
        if (getenv("GPUIPC_SANITIZER")) {
                printf("SKIP a_steady_flow_makes_no_system_call: a sanitizer makes its own\n");
                return;
        }
        for (int breaks = 0; breaks < 2; breaks++) {
                int status;
                pair_open(_i & 1 ? RING_BROADCAST : RING_QUEUE, _i & 2 ? RING_DROP_OLDEST : RING_BLOCK, 2);
                makes_one = breaks;
                pid_t pid = fork();
                if (pid == 0)
                        steady_state();
                ck_assert_int_eq(waitpid(pid, &status, 0), pid);
                /* The second child makes one, so that the first one's silence means something. */
                ck_assert_int_eq(breaks ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0, 1);
                pair_close();
        }
}
END_TEST

static void add_tests(TCase *tests) {
        tcase_add_test(tests, a_bad_geometry_is_named);
        tcase_add_test(tests, a_bad_page_is_named);
        tcase_add_test(tests, a_queue_keeps_order_over_many_laps);
        tcase_add_test(tests, who_may_do_what);
        tcase_add_test(tests, what_does_not_fit_stays_in_hand);
        tcase_add_test(tests, what_is_cancelled_is_not_seen);
        tcase_add_test(tests, several_may_be_in_hand_and_come_back_in_any_order);
        tcase_add_loop_test(tests, a_slow_producer_is_not_overtaken, 0, 2);
        tcase_add_test(tests, the_oldest_is_dropped_and_counted);
        tcase_add_loop_test(tests, one_who_comes_late_begins_with_what_is_left, 0, 2);
        tcase_add_test(tests, closed_is_the_end_once_it_is_empty);
        tcase_add_test(tests, fences_go_with_the_items);
        tcase_add_test(tests, everyone_gets_everything);
        tcase_add_loop_test(tests, who_is_let_in_is_there_once_it_has_joined, 0, 2);
        tcase_add_test(tests, a_laggard_loses_the_oldest_and_is_told_how_many);
        tcase_add_test(tests, without_consumers_a_broadcast_goes_on);
        tcase_add_loop_test(tests, a_deadline_is_kept, 0, 2);
        tcase_add_loop_test(tests, what_changes_wakes, 0, 2);
        tcase_add_loop_test(tests, end_of_waiting_for_other_reasons, 0, 2);
        tcase_add_loop_test(tests, a_death_wakes, 0, 2);
        tcase_add_loop_test(tests, readiness_takes_nothing, 0, 4);
        tcase_add_test(tests, threads_may_share_a_ring);
        tcase_add_test(tests, who_looks_beside_a_reader_makes_no_drops);
        tcase_add_loop_test(tests, a_steady_flow_makes_no_system_call, 0, 4);
}

int main(void) {
        Suite *suite = suite_create("ring");
        TCase *tests = tcase_create("ring");

        tcase_set_timeout(tests, 30);
        add_tests(tests);
        suite_add_tcase(suite, tests);
        return suite_run(suite);
}
