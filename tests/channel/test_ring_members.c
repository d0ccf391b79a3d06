/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of a ring whose members die, leave, or write where they have no business. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/deadline.h"
#include "pair.h"
#include "tests/support/suite.h"

/* ---- deaths ----------------------------------------------------------------------------------------------- */

START_TEST(only_a_dead_mark_lets_others_finish) {
        struct ring *other;

        pair_open(RING_QUEUE, RING_BLOCK, 1);
        other = stage_join(&stage, RING_PRODUCER);
        ck_assert_int_eq(ring_begin_produce(producer, 0, &item), RING_OK);
        for (int i = 0; i < 5; i++) {
                ck_assert_int_eq(ring_take(consumer, clock_usec() + 1000, &(struct ring_item){ 0 }), RING_TIMED_OUT);
                ck_assert_int_eq(ring_begin_produce(other, 0, &(struct ring_item){ 0 }), RING_TIMED_OUT);
                ck_assert_int_eq(ring_reap(other, ring_me(producer), 1, RING_FENCE_MAX), RING_BUSY);
                ck_assert_int_eq(ring_reaped(other, ring_me(producer), 1), RING_BUSY);
                /* Not another generation's death, nor that of a stranger; one who left may still finish. */
                ring_mark_dead(other, ring_me(producer), (uint32_t)i * 2);
                ring_mark_dead(other, 40, 0);
                if (i == 2)
                        ring_page_mark_left(stage.page, ring_me(producer), 1);
                if (i == 3)
                        ring_page_mark_ending(stage.page, ring_me(producer), 1);
        }
        ck_assert_int_eq(ring_begin_produce(producer, 0, &(struct ring_item){ 0 }), RING_GONE);
        if (_i == 0) {
                ck_assert_int_eq(ring_publish(producer, &item, 3, &(uint64_t){ 3 }, 8, 0), RING_OK);
                ck_assert_uint_eq(get(consumer), 3);
        } else {
                ring_mark_dead(other, ring_me(producer), 1);
                ck_assert_int_eq(ring_take(consumer, 0, &item), RING_BROKEN);
                ck_assert_int_eq(ring_take(consumer, 0, &item), RING_TIMED_OUT);
        }
        put(other, 4);
        ck_assert_uint_eq(get(consumer), 4);
        ring_free(other);
        pair_close();
}
END_TEST

START_TEST(a_dead_consumers_slot_comes_back) {
        struct ring *other;

        pair_open(_i ? RING_BROADCAST : RING_QUEUE, RING_BLOCK, 1);
        other = stage_join(&stage, RING_CONSUMER);
        put(producer, 1);
        if (_i)
                ck_assert_uint_eq(get(other), 1);
        ck_assert_uint_eq(take(consumer, &item), 1);
        ck_assert_int_eq(ring_begin_produce(producer, 0, &item), RING_TIMED_OUT);
        ring_page_mark_ending(stage.page, ring_me(consumer), 1);
        ck_assert_int_eq(ring_begin_produce(producer, 0, &(struct ring_item){ 0 }), RING_TIMED_OUT); /* it may read yet */
        ring_mark_dead(producer, ring_me(consumer), 1);
        put(producer, 2);
        ck_assert_uint_eq(get(other), 2);
        ck_assert_int_eq(ring_release(consumer, &item, 0), RING_GONE);
        ring_free(other);
        pair_close();
}
END_TEST

START_TEST(reaping_twice_is_reaping_once) {
        const char *fault;
        struct ring *heir = NULL;
        char *before;

        pair_open(RING_QUEUE, RING_BLOCK, 8);
        put(producer, 1);
        ck_assert_int_eq(ring_begin_produce(producer, 0, &item), RING_OK);
        put(producer, 3);
        ring_mark_dead(consumer, 0, 1);
        ck_assert_int_eq(ring_reap(consumer, 0, 1, RING_FENCE_MAX), RING_OK);
        before = malloc(stage.bytes);
        memcpy(before, stage.page, stage.bytes);
        ((struct ring_page *)before)->items.count = stage.page->items.count + 1;
        ((struct ring_page *)before)->room.count = stage.page->room.count + 1;
        ck_assert_int_eq(ring_reap(consumer, 0, 1, 0), RING_OK);
        ck_assert_int_eq(memcmp(before, stage.page, stage.bytes), 0);
        free(before);
        ck_assert(!ring_page_is_reaped(stage.page, 0, 1));
        ck_assert_int_eq(ring_reaped(consumer, 0, 1), RING_OK);
        ck_assert(ring_page_is_reaped(stage.page, 0, 1));
        ck_assert(!ring_page_is_reaped(stage.page, 0, 2));
        ring_mark_dead(consumer, 0, 1);
        ck_assert(ring_page_is_reaped(stage.page, 0, 1));
        ck_assert_int_eq(ring_attach(stage.fd, 0, 1, &heir, &fault), RING_GONE);
        /* The number again: late news of its last holder does nothing. */
        ring_page_admit(stage.page, 0, 2, RING_PRODUCER);
        ck_assert_int_eq(ring_attach(stage.fd, 0, 2, &heir, &fault), RING_OK);
        ring_mark_dead(consumer, 0, 1);
        ck_assert_int_eq(ring_reap(consumer, 0, 1, 0), RING_GONE);
        put(heir, 4);
        ck_assert_uint_eq(get(consumer), 1);
        ck_assert_int_eq(ring_take(consumer, 0, &item), RING_BROKEN);
        ck_assert_uint_eq(get(consumer), 3);
        ck_assert_uint_eq(get(consumer), 4);
        ring_free(heir);
        pair_close();
}
END_TEST

/* Who began to reap may yet write to the dead member's fence: until then nobody else gets the number, unless it is dead itself. */
START_TEST(a_number_waits_for_all_who_reap_its_holder) {
        struct ring *other;

        pair_open(RING_QUEUE, RING_BLOCK, 4);
        other = stage_join(&stage, RING_CONSUMER);
        ring_mark_dead(consumer, 0, 1);
        ck_assert_int_eq(ring_reap(consumer, 0, 1, 7), RING_OK);
        ck_assert_int_eq(ring_reap(other, 0, 1, 9), RING_OK);
        ck_assert_uint_eq(ring_reached(other, 0, 1), 7);
        ck_assert_int_eq(ring_reaped(consumer, 0, 1), RING_OK);
        ck_assert(!ring_page_is_reaped(stage.page, 0, 1));
        ck_assert_int_eq(ring_reap(consumer, 0, 1, 0), RING_GONE); /* nobody begins any more */
        switch (_i) {
        case 0: ck_assert_int_eq(ring_reaped(other, 0, 1), RING_OK); break;
        case 1: ck_assert_int_eq(ring_leave(other), RING_OK); break;
        case 2: ring_mark_dead(consumer, ring_me(other), 1); break;
        }
        if (_i > 0)
                ck_assert_int_eq(ring_reaped(consumer, 0, 1), RING_OK);
        ck_assert(ring_page_is_reaped(stage.page, 0, 1));
        if (_i == 2) { /* its number's next holder is not taken for it */
                ck_assert_int_eq(ring_reap(consumer, ring_me(other), 1, 0), RING_OK);
                ck_assert_int_eq(ring_reaped(consumer, ring_me(other), 1), RING_OK);
                ring_page_admit(stage.page, ring_me(other), 2, RING_CONSUMER);
                ck_assert_uint_eq(stage.page->members[0].helpers, 0);
        }
        ring_free(other);
        pair_close();
}
END_TEST

/* It lives after all, and leaves while somebody may yet write to its fence. */
START_TEST(one_taken_for_dead_does_not_give_its_number_back) {
        pair_open(RING_QUEUE, RING_BLOCK, 4);
        ring_mark_dead(consumer, 0, 1);
        ck_assert_int_eq(ring_reap(consumer, 0, 1, 7), RING_OK);
        (void)ring_leave(producer);
        ck_assert(!ring_page_is_reaped(stage.page, 0, 1));
        ck_assert_int_eq(ring_reaped(consumer, 0, 1), RING_OK);
        ck_assert(ring_page_is_reaped(stage.page, 0, 1));
        pair_close();
}
END_TEST

/* Items whose fences reach 1 to n, of which the first is released and the second in hand. */
static void publish_and_take(uint64_t n, struct ring_item *ret_released, struct ring_item *ret_in_hand) {
        for (uint64_t value = 1; value <= n; value++) {
                ck_assert_int_eq(ring_begin_produce(producer, 0, &item), RING_OK);
                ck_assert_int_eq(ring_publish(producer, &item, value, &value, sizeof(value), value), RING_OK);
        }
        ck_assert_int_eq(ring_take(consumer, 0, ret_released), RING_OK);
        ck_assert_int_eq(ring_release(consumer, ret_released, 1), RING_OK);
        ck_assert_int_eq(ring_take(consumer, 0, ret_in_hand), RING_OK);
}

START_TEST(an_unfinished_fence_breaks_what_was_published) {
        struct ring_item in_hand, good;
        bool queue = _i == 0;

        pair_open(queue ? RING_QUEUE : RING_BROADCAST, RING_BLOCK, 4);
        publish_and_take(4, &good, &in_hand);
        ck_assert(!ring_is_broken(consumer, &in_hand));
        /* Its fence got to 1: of what is published, 2 is in hand, 3 and 4 are not. */
        ring_mark_dead(consumer, 0, 1);
        ck_assert_int_eq(ring_reap(consumer, 0, 1, 1), RING_OK);
        ck_assert(ring_is_broken(consumer, &in_hand));
        ck_assert(!ring_is_broken(consumer, &good));
        /* A second reaper finds the fence completed by the first. */
        ck_assert_int_eq(ring_reap(consumer, 0, 1, RING_FENCE_MAX), RING_OK);
        ck_assert(ring_is_broken(consumer, &in_hand));
        ck_assert_int_eq(ring_reaped(consumer, 0, 1), RING_OK);
        ck_assert_int_eq(ring_release(consumer, &in_hand, 2), RING_OK);
        ck_assert_int_eq(ring_take(consumer, 0, &item), RING_BROKEN);
        ck_assert_int_eq(ring_take(consumer, 0, &item), RING_BROKEN);
        ck_assert_int_eq(ring_take(consumer, 0, &item), RING_TIMED_OUT);
        for (uint32_t generation = 2; generation < 5; generation++) {
                ring_page_admit(stage.page, 0, generation, RING_PRODUCER);
                ck_assert(ring_is_broken(consumer, &in_hand));
                ck_assert(ring_is_broken(consumer, &good) == (generation > 2));
        }
        pair_close();
}
END_TEST

/* What of its published items counts is said while it is ending; nothing is freed before it is dead. */
START_TEST(one_that_is_ending_is_decided_on_once) {
        struct ring_item in_hand, good;
        struct ring *other;

        pair_open(_i ? RING_BROADCAST : RING_QUEUE, RING_BLOCK, 4);
        other = stage_join(&stage, RING_PRODUCER);
        publish_and_take(3, &good, &in_hand);
        for (int i = 0; i < 2; i++) {
                ck_assert(!ring_is_undecided(consumer, 0, 1));
                ck_assert_int_eq(ring_decide(consumer, 0, 1, 1), RING_BUSY);
                ring_page_mark_left(stage.page, 0, 1);
        }
        ring_page_mark_ending(stage.page, 0, 2);
        ck_assert(!ring_is_undecided(consumer, 0, 1));
        ring_page_mark_ending(stage.page, 0, 1);
        ring_page_mark_left(stage.page, 0, 1); /* late news */
        ck_assert(ring_is_undecided(consumer, 0, 1) && !ring_is_undecided(consumer, 0, 2));
        ck_assert(!ring_is_broken(consumer, &in_hand));
        ck_assert_int_eq(ring_reap(consumer, 0, 1, RING_FENCE_MAX), RING_BUSY);
        ck_assert_int_eq(ring_decide(consumer, 0, 1, 1), RING_OK);
        ck_assert_int_eq(ring_decide(other, 0, 1, 2), RING_OK); /* by now the GPU has done more */
        ck_assert(!ring_is_undecided(consumer, 0, 1));
        ck_assert(ring_is_broken(consumer, &in_hand) && !ring_is_broken(consumer, &good));
        ck_assert_int_eq(ring_reaped(consumer, 0, 1), RING_BUSY);
        ck_assert(!ring_page_is_reaped(stage.page, 0, 1));
        ring_mark_dead(consumer, 0, 1);
        ring_page_mark_ending(stage.page, 0, 1); /* late news */
        ck_assert_int_eq(ring_reap(consumer, 0, 1, 3), RING_OK);
        ck_assert(ring_is_broken(consumer, &in_hand) && !ring_is_broken(consumer, &good));
        ck_assert_int_eq(ring_reaped(consumer, 0, 1), RING_OK);
        ck_assert(ring_page_is_reaped(stage.page, 0, 1));
        ck_assert_int_eq(ring_decide(other, 0, 1, 3), RING_GONE);
        ck_assert_int_eq(ring_release(consumer, &in_hand, 2), RING_OK);
        ck_assert_int_eq(ring_take(consumer, 0, &item), RING_BROKEN);
        ring_free(other);
        pair_close();
}
END_TEST

START_TEST(one_ending_who_had_not_come_has_nothing) {
        pair_open(RING_QUEUE, RING_BLOCK, 1);
        ring_page_admit(stage.page, 9, 1, RING_PRODUCER);
        ring_page_mark_ending(stage.page, 9, 1);
        ck_assert(ring_page_is_reaped(stage.page, 9, 1));
        pair_close();
}
END_TEST

START_TEST(one_who_leaves_leaves_nothing) {
        struct ring *other;
        struct ring_item second;

        pair_open(RING_QUEUE, RING_BLOCK, 2);
        other = stage_join(&stage, RING_CONSUMER);
        put(producer, 1);
        ck_assert_uint_eq(take(other, &item), 1);
        ck_assert_int_eq(ring_begin_produce(producer, 0, &second), RING_OK);
        ck_assert_int_eq(ring_leave(other), RING_OK);
        ck_assert_int_eq(ring_release(other, &item, 0), RING_GONE);
        ck_assert_int_eq(ring_leave(producer), RING_OK);
        ck_assert_int_eq(ring_publish(producer, &second, 0, NULL, 0, 0), RING_GONE);
        ck_assert(ring_page_is_reaped(stage.page, 0, 1) && ring_page_is_reaped(stage.page, 2, 1));
        ck_assert_int_eq(ring_take(consumer, 0, &item), RING_TIMED_OUT);
        ring_free(producer);
        producer = stage_join(&stage, RING_PRODUCER);
        for (uint64_t i = 0; i < 4; i++) {
                put(producer, i);
                ck_assert_uint_eq(get(consumer), i);
        }
        ring_free(other);
        pair_close();
}
END_TEST

START_TEST(one_declared_left_neither_reads_on_nor_holds_others_up) {
        pair_open(RING_BROADCAST, RING_BLOCK, 1);
        put(producer, 1);
        if (_i)
                ck_assert_uint_eq(take(consumer, &item), 1);
        ring_page_mark_left(stage.page, ring_me(consumer), 1);
        if (_i) {
                /* What it reads stays as it is. */
                ck_assert_int_eq(ring_begin_produce(producer, 0, &(struct ring_item){ 0 }), RING_TIMED_OUT);
                ck_assert_int_eq(ring_release(consumer, &item, 0), RING_OK);
        }
        put(producer, 2);
        put(producer, 3);
        ck_assert_int_eq(ring_take(consumer, 0, &item), RING_GONE);
        pair_close();
}
END_TEST

/* ---- a hostile page --------------------------------------------------------------------------------------- */

static struct ring_slot *slot(unsigned index) {
        return (struct ring_slot *)((char *)(stage.page + 1) + index * ring_stride(&stage.geometry));
}

/* Two slots, the first of them published: what is wrong, for whoever comes to take it. */
static void scribble(int how) {
        struct ring_page *page = stage.page;

        switch (how) {
        case 0: slot(0)->word &= ~UINT64_C(7); break;                /* no state */
        case 1: slot(0)->word |= 7; break;                           /* none that there is */
        case 2: slot(0)->word = ring_word(1, 0, RING_READY); break;  /* a ticket of the other slot */
        case 3: slot(0)->word = ring_word(0, 50, RING_CLAIMED); break; /* a member that never was */
        case 4: slot(0)->size = 4097; break;
        case 5: slot(0)->n_meta = 65; break;
        case 6: /* no ticket */
                page->head = page->members[1].cursor = UINT64_MAX & ~UINT64_C(2);
                break;
        case 7: /* a lap ahead of what was ever claimed */
                page->head = 2;
                page->members[1].cursor = ring_cursor(2, RING_IDLE);
                slot(0)->word = ring_word(0, 0, RING_FREE);
                break;
        case 8: /* nowhere, and at a slot of nonsense */
                page->head = 1;
                page->members[1].cursor = ring_cursor(0, RING_NOWHERE);
                slot(1)->word = ring_word(7, 0, (enum ring_state)7);
                break;
        default: ck_abort();
        }
}
#define N_SCRIBBLES 9

START_TEST(a_scribble_costs_the_channel_and_no_more) {
        pair_open(_i & 1 ? RING_BROADCAST : RING_QUEUE, RING_BLOCK, 2);
        put(producer, 1);
        scribble(_i / 2);
        ck_assert_int_eq(ring_take(consumer, 0, &item), RING_CORRUPT);
        ck_assert_int_eq(ring_take(consumer, DEADLINE_NONE, &item), RING_CORRUPT);
        ck_assert_int_eq(ring_leave(consumer), RING_CORRUPT);
        ck_assert_ptr_nonnull(strstr(ring_verdict_sentence(RING_CORRUPT), "corrupt"));
        pair_close();
}
END_TEST

START_TEST(a_scribble_is_seen_by_producers) {
        pair_open(_i & 1 ? RING_BROADCAST : RING_QUEUE, RING_BLOCK, 2);
        put(producer, 1);
        switch (_i / 2) {
        case 0: stage.page->tail = UINT64_MAX; break;
        case 1: stage.page->tail = 3; break; /* a slot would have been passed over */
        case 2: slot(1)->word = ring_word(0, 0, RING_FREE); break;
        default: slot(1)->word = 0; break;
        }
        ck_assert_int_eq(ring_begin_produce(producer, DEADLINE_NONE, &item), RING_CORRUPT);
        pair_close();
}
END_TEST

START_TEST(what_was_in_hand_and_is_not_any_more) {
        pair_open(RING_QUEUE, RING_BLOCK, 2);
        ck_assert_int_eq(ring_begin_produce(producer, 0, &item), RING_OK);
        slot(0)->word = ring_word(0, 9, RING_CLAIMED);
        ck_assert_int_eq(_i ? ring_cancel(producer, &item) : ring_publish(producer, &item, 0, NULL, 0, 0), RING_CORRUPT);
        pair_close();
}
END_TEST

/* An item that its holder made up leads nowhere outside. */
START_TEST(a_foreign_item_is_no_index) {
        pair_open(RING_QUEUE, RING_BLOCK, 2);
        memset(&item, 0xff, sizeof(item));
        ck_assert_int_eq(ring_publish(producer, &item, 1, NULL, 0, 0), RING_CORRUPT);
        ck_assert_int_eq(ring_release(consumer, &item, 1), RING_CORRUPT);
        pair_close();
}
END_TEST

static void add_tests(TCase *tests) {
        tcase_add_loop_test(tests, only_a_dead_mark_lets_others_finish, 0, 2);
        tcase_add_loop_test(tests, a_dead_consumers_slot_comes_back, 0, 2);
        tcase_add_test(tests, reaping_twice_is_reaping_once);
        tcase_add_loop_test(tests, a_number_waits_for_all_who_reap_its_holder, 0, 3);
        tcase_add_test(tests, one_taken_for_dead_does_not_give_its_number_back);
        tcase_add_loop_test(tests, an_unfinished_fence_breaks_what_was_published, 0, 2);
        tcase_add_loop_test(tests, one_that_is_ending_is_decided_on_once, 0, 2);
        tcase_add_test(tests, one_ending_who_had_not_come_has_nothing);
        tcase_add_test(tests, one_who_leaves_leaves_nothing);
        tcase_add_loop_test(tests, one_declared_left_neither_reads_on_nor_holds_others_up, 0, 2);
        tcase_add_loop_test(tests, a_scribble_costs_the_channel_and_no_more, 0, N_SCRIBBLES * 2);
        tcase_add_loop_test(tests, a_scribble_is_seen_by_producers, 0, 8);
        tcase_add_loop_test(tests, what_was_in_hand_and_is_not_any_more, 0, 2);
        tcase_add_test(tests, a_foreign_item_is_no_index);
}

int main(void) {
        Suite *suite = suite_create("ring_members");
        TCase *tests = tcase_create("members");

        tcase_set_timeout(tests, 30);
        add_tests(tests);
        suite_add_tcase(suite, tests);
        return suite_run(suite);
}
