/* SPDX-License-Identifier: Apache-2.0 */
/* Memory made ahead, between the beats: who takes it, who waits for it, what takes it away, and every death and failure on the way.
 * After each turn books and spare agree; at the end nothing is left. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "office.h"
#include "proto/cleanup.h"
#include "tests/support/json.h"
#include "tests/support/suite.h"

#define CALL(method, parameters) "{\"method\":\"io.gpuipc.Broker." method "\",\"parameters\":{" parameters "}}"
#define USUAL CALL("Allocate", "\"size\":5000")
#define OTHER CALL("Allocate", "\"size\":9000")
#define CREATE CALL("ChannelCreate", "\"slots\":4,\"slot_bytes\":100,\"role\":\"producer\"")
#define BYTES 8192 /* what USUAL takes */

static struct office office;
static struct caller owner;
static int n_entered; /* calls that came to the backend so far */

/* In place of the C library's: a spare is there for a second, which is not to pass while this process waits for the processor. */
static int64_t slower_by = 20;

int clock_gettime(clockid_t clock, struct timespec *ret) {
        static int64_t first;
        int r = (int)syscall(SYS_clock_gettime, clock, ret);
        int64_t now;

        if (r < 0 || clock != CLOCK_MONOTONIC)
                return r;
        now = ret->tv_sec * INT64_C(1000000000) + ret->tv_nsec;
        first = first ? first : now;
        now = first + (now - first) / slower_by;
        *ret = (struct timespec){ .tv_sec = now / 1000000000, .tv_nsec = now % 1000000000 };
        return 0;
}

static struct spare *spare(void) {
        return &office.place.spare;
}

static void answered(struct caller *caller, const char *call) {
        int n = caller->n_replies;

        caller_call(caller, call);
        turn_until(&office, caller->n_replies > n);
        caller_written(caller);
}

static void furnish_with_one(bool stocked) {
        office_init(&office, INT64_C(256) << 20);
        office_make_ahead(&office, BYTES);
        if (stocked)
                office_stock(&office);
        caller_init(&owner, &office, 1000);
        gate_permit(&office.gate);
        answered(&owner, USUAL);
        ck_assert_int_eq(spare()->state, SPARE_NONE);
}

/* Two buffers were allocated, and the lane is about to make a third: its call stands at the gate. */
static void furnish(bool stocked) {
        furnish_with_one(stocked);
        gate_permit(&office.gate);
        answered(&owner, USUAL);
        turn_until(&office, spare()->state == SPARE_MAKING);
        n_entered = 3;
        gate_wait_entered(&office.gate, n_entered);
}

/* And it is there. */
static void furnish_ready(bool stocked) {
        furnish(stocked);
        gate_permit(&office.gate);
        turn_until(&office, spare()->state == SPARE_READY);
}

static void leave(void) {
        caller_deinit(&owner);
        office_deinit(&office);
}

static void assert_error(const struct caller *caller, const char *name) {
        _cleanup_free_ char *error = json_get(caller->reply, "error");

        ck_assert_msg(error, "%s", caller->reply);
        ck_assert_str_eq(error, name);
}

static void assert_granted(const struct caller *caller) {
        ck_assert_msg(strstr(caller->reply, "\"lease\""), "%s", caller->reply);
}

START_TEST(it_is_taken_without_any_work) {
        struct device *device = &office.place.device;
        int64_t used;

        furnish_ready(false);
        used = device->used_bytes;
        ck_assert_int_eq(used, 2 * BYTES);
        ck_assert_int_eq(device->spare_bytes, BYTES);
        ck_assert_int_eq(office.house.registry.n_buffers, 2);
        caller_call(&owner, USUAL); /* answered before the loop turns */
        ck_assert_int_eq(owner.n_replies, 3);
        assert_granted(&owner);
        caller_written(&owner);
        ck_assert_int_eq(device->used_bytes, used + BYTES);
        ck_assert_int_eq(device->spare_bytes, 0);
        ck_assert_int_eq(gate_n_entered(&office.gate), n_entered);
        turn_until(&office, spare()->state == SPARE_MAKING); /* and another is made */
        leave();
} END_TEST

START_TEST(other_sizes_leave_it) {
        furnish_ready(false);
        gate_permit(&office.gate);
        answered(&owner, OTHER);
        ck_assert_int_eq(gate_n_entered(&office.gate), n_entered + 1);
        ck_assert_int_eq(spare()->state, SPARE_READY);
        gate_permit(&office.gate);
        gate_permit(&office.gate);
        answered(&owner, CREATE);
        ck_assert_int_eq(spare()->state, SPARE_READY);
        answered(&owner, USUAL);
        ck_assert_int_eq(spare()->state == SPARE_READY, false);
        leave();
} END_TEST

/* A size that comes once leaves it; one that comes twice has its own made instead, and does not wait a second for that. */
START_TEST(another_pace_takes_its_place) {
        furnish_ready(false);
        office_make_ahead(&office, (int64_t)2 * BYTES);
        gate_open(&office.gate);
        answered(&owner, OTHER);
        ck_assert_int_eq(spare()->bytes, BYTES);
        answered(&owner, OTHER);
        ck_assert(spare()->state != SPARE_READY || spare()->bytes > BYTES);
        turn_until(&office, spare()->state == SPARE_READY && spare()->bytes > BYTES);
        leave();
} END_TEST

/* Who comes while it is made has it as soon as it is there, past those who want something else. */
START_TEST(who_waits_meanwhile_takes_it) {
        struct caller first, second, third;

        furnish(false);
        caller_init(&first, &office, 1001);
        caller_init(&second, &office, 1002);
        caller_init(&third, &office, 1003);
        caller_call(&first, OTHER);
        caller_call(&second, USUAL);
        caller_call(&third, USUAL);
        gate_permit(&office.gate);
        turn_until(&office, second.n_replies == 1);
        assert_granted(&second);
        gate_wait_entered(&office.gate, n_entered + 1);
        ck_assert_int_eq(gate_n_entered(&office.gate), n_entered + 1); /* the first's */
        ck_assert_int_eq(first.n_replies + third.n_replies, 0);
        gate_open(&office.gate);
        turn_until(&office, first.n_replies == 1 && third.n_replies == 1);
        caller_deinit(&first);
        caller_deinit(&second);
        caller_deinit(&third);
        leave();
} END_TEST

enum death { LEAVES, EXITS, EXITS_THEN_LEAVES, N_DEATHS };

static void die(struct caller *caller, int death) {
        if (death != LEAVES)
                caller_exit(caller);
        if (death != EXITS)
                caller_leave(caller);
}

START_TEST(who_waits_dies) {
        struct caller caller;

        furnish(false);
        caller_init(&caller, &office, 1001);
        caller_call(&caller, USUAL);
        die(&caller, _i);
        gate_permit(&office.gate);
        turn_until(&office, spare()->state == SPARE_READY || caller.n_replies == 1);
        if (_i == EXITS)
                assert_error(&caller, "io.gpuipc.Broker.AccessDenied");
        caller_deinit(&caller);
        leave();
} END_TEST

/* Its descriptor is on the way to the store. */
START_TEST(who_took_it_dies) {
        struct caller caller;

        furnish_ready(true);
        turn_until(&office, store_settled(office.store));
        gate_shut(&office.shelf.gate);
        caller_init(&caller, &office, 1001);
        caller_call(&caller, USUAL);
        ck_assert_int_eq(caller.n_replies, 0);
        ck_assert_int_ne(spare()->state, SPARE_READY);
        die(&caller, _i);
        gate_open(&office.shelf.gate);
        gate_open(&office.gate);
        turn_until(&office, office.house.registry.n_buffers == 2);
        if (_i == EXITS)
                assert_error(&caller, "io.gpuipc.Broker.AccessDenied");
        caller_deinit(&caller);
        leave();
} END_TEST

START_TEST(it_is_stored_when_it_is_taken) {
        size_t n;

        furnish_ready(true);
        turn_until(&office, store_settled(office.store));
        n = office.shelf.n;
        ck_assert_uint_eq(n, 3); /* two buffers and their process */
        gate_shut(&office.shelf.gate);
        caller_call(&owner, USUAL);
        ck_assert_int_eq(owner.n_replies, 2); /* not before it is stored */
        gate_open(&office.shelf.gate);
        turn_until(&office, owner.n_replies == 3);
        assert_granted(&owner);
        caller_written(&owner);
        turn_until(&office, store_settled(office.store));
        ck_assert_uint_eq(office.shelf.n, n + 1);
        leave();
} END_TEST

/* What is told to the client late, since it was stored first, counts for the spare that was made meanwhile. */
START_TEST(it_counts_from_the_last_answer) {
        uint64_t asked;

        furnish_ready(true);
        turn_until(&office, store_settled(office.store));
        gate_shut(&office.shelf.gate);
        caller_call(&owner, USUAL);
        turn_until(&office, spare()->state == SPARE_MAKING);
        asked = spare()->asked_usec;
        gate_open(&office.shelf.gate);
        turn_until(&office, owner.n_replies == 3);
        caller_written(&owner);
        ck_assert_uint_gt(spare()->asked_usec, asked);
        leave();
} END_TEST

START_TEST(a_failure_is_told_to_nobody) {
        static const int errors[] = {EIO, ENOMEM, EMFILE, EOPNOTSUPP, ETIMEDOUT};

        furnish(false);
        gate_fail(&office.gate, errors[_i]);
        gate_permit(&office.gate);
        turn_until(&office, spare()->state == SPARE_NONE);
        gate_fail(&office.gate, 0);
        for (int i = 0; i < 10; i++)
                (void)office_turn(&office);
        ck_assert_int_eq(gate_n_entered(&office.gate), n_entered); /* it takes two again before it is tried again */
        ck_assert_int_eq(owner.n_replies, 2);
        ck_assert(!office.place.device.degraded);
        gate_permit(&office.gate);
        answered(&owner, USUAL);
        assert_granted(&owner);
        ck_assert_int_eq(spare()->state, SPARE_NONE);
        leave();
} END_TEST

/* Who waits for what fails to be made makes it himself. */
START_TEST(a_failure_leaves_the_work_to_who_waits) {
        struct caller caller;

        furnish(false);
        caller_init(&caller, &office, 1001);
        caller_call(&caller, USUAL);
        gate_fail(&office.gate, EIO);
        gate_permit(&office.gate);
        gate_wait_left(&office.gate, n_entered);
        gate_fail(&office.gate, 0);
        gate_permit(&office.gate);
        turn_until(&office, caller.n_replies == 1);
        assert_granted(&caller);
        ck_assert_int_eq(gate_n_entered(&office.gate), n_entered + 1);
        caller_deinit(&caller);
        leave();
} END_TEST

/* ---- it gives way ------------------------------------------------------------------------------------------ */

START_TEST(a_lack_of_memory_is_tried_again_without_it) {
        static const char *const calls[] = {OTHER, CREATE};
        bool helps = _i % 2 == 0;

        furnish_ready(false);
        gate_fail(&office.gate, ENOMEM);
        caller_call(&owner, calls[_i / 2]);
        gate_permit(&office.gate);
        turn_until(&office, gate_n_entered(&office.gate) == n_entered + 2);
        ck_assert_int_eq(spare()->state, SPARE_NONE); /* closed before the second try began */
        ck_assert_int_eq(office.place.device.spare_bytes, 0);
        ck_assert_int_eq(owner.n_replies, 2);
        gate_fail(&office.gate, helps ? 0 : ENOMEM);
        gate_permit(&office.gate);
        if (helps)
                gate_open(&office.gate);
        turn_until(&office, owner.n_replies == 3);
        caller_written(&owner);
        if (helps)
                assert_granted(&owner);
        else
                assert_error(&owner, "io.gpuipc.Broker.OutOfMemory");
        ck_assert_int_eq(helps || gate_n_entered(&office.gate) == n_entered + 2, true); /* and not a third time */
        gate_fail(&office.gate, 0);
        leave();
} END_TEST

/* Somebody else is before it, and it moves up since one of its own uid leaves: the memory is back all the same. */
START_TEST(who_tries_again_moves_up) {
        struct caller caller, stranger, leaver;

        furnish_ready(false);
        caller_init(&caller, &office, 1001);
        caller_init(&stranger, &office, 1002);
        caller_init(&leaver, &office, 1001);
        gate_fail(&office.gate, ENOMEM);
        caller_call(&caller, OTHER);
        gate_wait_entered(&office.gate, n_entered + 1);
        caller_call(&stranger, OTHER);
        caller_call(&leaver, OTHER);
        gate_permit(&office.gate);
        gate_wait_left(&office.gate, n_entered + 1);
        gate_fail(&office.gate, 0);
        turn_until(&office, gate_n_entered(&office.gate) == n_entered + 2); /* the stranger's */
        caller_leave(&leaver);
        gate_permit(&office.gate);
        turn_until(&office, gate_n_entered(&office.gate) == n_entered + 3);
        ck_assert_int_eq(spare()->state, SPARE_NONE);
        gate_open(&office.gate);
        turn_until(&office, caller.n_replies == 1 && stranger.n_replies == 1);
        assert_granted(&caller);
        caller_deinit(&caller);
        caller_deinit(&stranger);
        caller_deinit(&leaver);
        leave();
} END_TEST

START_TEST(without_a_spare_nothing_is_tried_twice) {
        office_init(&office, INT64_C(256) << 20);
        office_make_ahead(&office, BYTES);
        caller_init(&owner, &office, 1000);
        gate_fail(&office.gate, ENOMEM);
        gate_permit(&office.gate);
        answered(&owner, USUAL);
        assert_error(&owner, "io.gpuipc.Broker.OutOfMemory");
        ck_assert_int_eq(gate_n_entered(&office.gate), 1);
        gate_fail(&office.gate, 0);
        leave();
} END_TEST

/* The client is gone when the second try ends; or before it begins. */
START_TEST(who_tries_again_dies) {
        struct caller caller;

        furnish_ready(false);
        caller_init(&caller, &office, 1001);
        gate_fail(&office.gate, ENOMEM);
        caller_call(&caller, OTHER);
        gate_wait_entered(&office.gate, n_entered + 1);
        if (_i == 0)
                die(&caller, LEAVES);
        gate_permit(&office.gate);
        if (_i == 1) {
                turn_until(&office, gate_n_entered(&office.gate) == n_entered + 2);
                die(&caller, LEAVES);
        }
        gate_fail(&office.gate, 0);
        gate_open(&office.gate);
        turn_until(&office, office.house.registry.n_buffers == 2);
        caller_deinit(&caller);
        leave();
} END_TEST

static void lower_max(void) {
        office.house.registry.limits.spare_bytes = BYTES - 1;
}

static void keep_more_free(void) {
        office.house.registry.limits.keep_free_bytes = (INT64_C(256) << 20) - 3 * BYTES;
}

static void degrade(void) {
        registry_set_degraded(&office.house.registry, &office.place.device, true, 1);
}

static void run_short_of_descriptors(void) {
        office.house.registry.limits.descriptors = office.house.registry.n_descriptors + 64; /* which are set aside for sessions */
}

static void stop(void) {
        office.house.stopping = true;
}

/* Two seconds ago by the clock that counts. */
static void grow_old(void) {
        spare()->asked_usec -= 2000000;
        pace_forget(&spare()->pace);
}

static struct waiter waiter;

static void wait_for_memory(void) {
        waiter_init(&waiter);
        waitq_join(&office.place.device.waitq, &waiter, 1000, BYTES, clock_monotonic_usec());
}

static void (*const reasons[])(void) = {lower_max, keep_more_free, degrade, run_short_of_descriptors, stop, grow_old, wait_for_memory};

START_TEST(anything_takes_it_away) {
        furnish_ready(false);
        for (int i = 0; i < 10; i++)
                (void)office_turn(&office);
        ck_assert_int_eq(spare()->state, SPARE_READY); /* it stays as long as nothing does */
        reasons[_i]();
        (void)office_turn(&office);
        ck_assert_int_ne(spare()->state, SPARE_READY);
        turn_until(&office, spare()->state == SPARE_NONE);
        for (int i = 0; i < 10; i++)
                (void)office_turn(&office);
        ck_assert_int_eq(spare()->state, SPARE_NONE);
        ck_assert_int_eq(gate_n_entered(&office.gate), n_entered); /* nor is it made again */
        if (reasons[_i] == wait_for_memory)
                waiter_leave(&waiter);
        office.place.device.degraded = false;
        leave();
} END_TEST

static void fill_the_store(void) {
        office.house.registry.limits.stored_descriptors = office.house.registry.n_stored;
}

static void take_the_last_descriptors_but_one(void) {
        office.house.registry.limits.descriptors = office.house.registry.n_descriptors + 64 + 1;
}

static void (*const obstacles[])(void) = {lower_max, keep_more_free, degrade, run_short_of_descriptors, wait_for_memory, fill_the_store,
                                          take_the_last_descriptors_but_one};

/* What stands in its way is there before it is made; when it is gone, one is made. */
START_TEST(none_is_made) {
        struct limits limits;
        int64_t n_stored;

        furnish_with_one(true);
        limits = office.house.registry.limits;
        gate_permit(&office.gate);
        caller_call(&owner, USUAL);
        gate_wait_left(&office.gate, 2);
        n_stored = office.house.registry.n_stored;
        obstacles[_i]();
        turn_until(&office, owner.n_replies == 2);
        caller_written(&owner);
        ck_assert_int_eq(office.house.registry.n_stored, n_stored);
        turn_until(&office, store_settled(office.store));
        for (int i = 0; i < 10; i++)
                (void)office_turn(&office);
        ck_assert_int_eq(spare()->state, SPARE_NONE);
        ck_assert_int_eq(gate_n_entered(&office.gate), 2);
        office.house.registry.limits = limits;
        office.place.device.degraded = false;
        if (obstacles[_i] == wait_for_memory)
                waiter_leave(&waiter);
        turn_until(&office, spare()->state == SPARE_MAKING);
        leave();
} END_TEST

/* The lane has other things to do. */
START_TEST(none_is_made_while_others_wait) {
        struct caller caller;

        furnish_with_one(false);
        caller_init(&caller, &office, 1001);
        caller_call(&owner, USUAL);
        caller_call(&caller, OTHER);
        gate_permit(&office.gate);
        turn_until(&office, owner.n_replies == 2);
        caller_written(&owner);
        gate_wait_entered(&office.gate, 3);
        for (int i = 0; i < 10; i++)
                (void)office_turn(&office);
        ck_assert_int_eq(spare()->state, SPARE_NONE);
        gate_permit(&office.gate);
        turn_until(&office, caller.n_replies == 1);
        turn_until(&office, spare()->state == SPARE_MAKING);
        caller_deinit(&caller);
        leave();
} END_TEST

/* Meanwhile it is being made. */
START_TEST(anything_takes_it_away_when_it_is_made) {
        furnish(false);
        reasons[_i]();
        for (int i = 0; i < 10; i++)
                (void)office_turn(&office);
        ck_assert_int_eq(spare()->state, SPARE_MAKING);
        gate_permit(&office.gate);
        turn_until(&office, spare()->state == SPARE_NONE);
        ck_assert_int_eq(gate_n_entered(&office.gate), n_entered);
        if (reasons[_i] == wait_for_memory)
                waiter_leave(&waiter);
        office.place.device.degraded = false;
        leave();
} END_TEST

/* None of the limits that new buffers meet counts it. */
START_TEST(it_counts_against_no_limit) {
        struct limits *limits = &office.house.registry.limits;

        furnish_ready(false);
        limits->buffers = 3;
        limits->bytes_per_uid = limits->bytes_per_session = 3 * BYTES;
        office.place.device.capacity_bytes = 12 * BYTES; /* as much as lets it stay, and be taken */
        limits->keep_free_bytes = BYTES;
        (void)office_turn(&office);
        ck_assert_int_eq(spare()->state, SPARE_READY);
        limits->keep_free_bytes = 9 * BYTES; /* the third buffer is the last */
        answered(&owner, USUAL);
        assert_granted(&owner);
        leave();
} END_TEST

/* The timer is told when it grows old, so that a loop with nothing else to do wakes up. */
START_TEST(its_end_is_told_to_the_timer) {
        uint64_t next, asked;

        slower_by = 1;
        furnish_ready(false);
        asked = spare()->asked_usec;
        (void)hall_settle(&office.hall, &next);
        ck_assert_uint_eq(next, asked + PACE_USEC);
        turn_until(&office, spare()->state == SPARE_NONE);
        ck_assert_uint_ge(clock_monotonic_usec(), asked + PACE_USEC);
        (void)hall_settle(&office.hall, &next);
        ck_assert_uint_eq(next, UINT64_MAX);
        leave();
} END_TEST

int main(void) {
        Suite *suite = suite_create("spare");
        TCase *tests = tcase_create("spare");

        tcase_set_timeout(tests, 30);
        tcase_add_test(tests, it_is_taken_without_any_work);
        tcase_add_test(tests, other_sizes_leave_it);
        tcase_add_test(tests, another_pace_takes_its_place);
        tcase_add_test(tests, who_waits_meanwhile_takes_it);
        tcase_add_loop_test(tests, who_waits_dies, 0, N_DEATHS);
        tcase_add_loop_test(tests, who_took_it_dies, 0, N_DEATHS);
        tcase_add_test(tests, it_is_stored_when_it_is_taken);
        tcase_add_test(tests, it_counts_from_the_last_answer);
        tcase_add_loop_test(tests, a_failure_is_told_to_nobody, 0, 5);
        tcase_add_test(tests, a_failure_leaves_the_work_to_who_waits);
        tcase_add_loop_test(tests, a_lack_of_memory_is_tried_again_without_it, 0, 4);
        tcase_add_test(tests, who_tries_again_moves_up);
        tcase_add_test(tests, without_a_spare_nothing_is_tried_twice);
        tcase_add_loop_test(tests, who_tries_again_dies, 0, 2);
        tcase_add_loop_test(tests, anything_takes_it_away, 0, (int)(sizeof(reasons) / sizeof(reasons[0])));
        tcase_add_loop_test(tests, anything_takes_it_away_when_it_is_made, 0, (int)(sizeof(reasons) / sizeof(reasons[0])));
        tcase_add_loop_test(tests, none_is_made, 0, (int)(sizeof(obstacles) / sizeof(obstacles[0])));
        tcase_add_test(tests, none_is_made_while_others_wait);
        tcase_add_test(tests, it_counts_against_no_limit);
        tcase_add_test(tests, its_end_is_told_to_the_timer);
        suite_add_tcase(suite, tests);
        return suite_run(suite);
}
