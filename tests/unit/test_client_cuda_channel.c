/* SPDX-License-Identifier: Apache-2.0 */
/* Channels on a GPU: streams in order within a member and between members, deaths with fences that are not reached, and GPUs whose streams
 * cannot wait. A gate is a word that a stream waits for, beyond the members' own. (not under valgrind: it knows no pidfds) */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/channel.h"
#include "cuda_channel_place.h"
#include "proto/cleanup.h"
#include "tests/support/suite.h"
#include "tests/support/wait.h"

#define NOTICED_MS 1000 /* a death, with others about that want the processor; tests/gpu measures how soon it is */

/* ---- in order --------------------------------------------------------------------------------------------- */

START_TEST(a_consumers_stream_waits_for_the_producers) {
        begin(RING_QUEUE, RING_BLOCK, 4);
        CUstream writing = stream_new(), reading = stream_new();
        ck_assert_int_eq(gpuipc_channel_is_synchronous(producer), 0);
        ck_assert_int_eq(gpuipc_channel_cuda_device(producer), 0);
        stop_at(producer, writing, 0);
        publish(producer, writing, 0xab);
        take(consumer, reading, &item);
        ck_assert_int_eq(item.meta[0], 0xab);
        ck_assert(is_busy(reading));
        open_gate(producer, 0);
        settle(reading);
        ck_assert_int_eq(((unsigned char *)item.pointer)[255], 0xab);
        ck_assert_int_eq(gpuipc_item_is_broken(consumer, &item), 0);
        good(gpuipc_channel_release(consumer, &item, reading, &fault));
        finish();
} END_TEST

/* Who writes next waits for who reads, of every mode. */
START_TEST(a_producers_stream_waits_for_the_readers) {
        begin(_i ? RING_BROADCAST : RING_QUEUE, RING_BLOCK, 1);
        CUstream writing = stream_new(), reading = stream_new();
        publish(producer, writing, 1);
        take(consumer, reading, &item);
        stop_at(consumer, reading, 0);
        good(gpuipc_channel_release(consumer, &item, reading, &fault));
        good(gpuipc_channel_begin(producer, writing, 0, &item, &fault));
        ck_assert(is_busy(writing));
        open_gate(consumer, 0);
        settle(writing);
        good(gpuipc_channel_cancel(producer, &item, &fault));
        finish();
} END_TEST

/* A value says that all before it are done, whichever streams they were in; by default streams too. */
START_TEST(streams_of_one_member_are_one_after_the_other) {
        begin(RING_QUEUE, RING_BLOCK, 4);
        CUstream one = stream_new(), other = _i ? CU_STREAM_PER_THREAD : stream_new(), first = stream_new(), last = stream_new();
        stop_at(producer, one, 0);
        publish(producer, one, 1);
        publish(producer, other, 2);
        take(consumer, first, &item);
        take(consumer, last, &second);
        for (int i = 0; i < 20; i++) {
                ck_assert(is_busy(other));
                ck_assert(is_busy(first));
                ck_assert(is_busy(last));
        }
        open_gate(producer, 0);
        settle(first);
        settle(last);
        good(gpuipc_channel_release(consumer, &second, last, &fault));
        good(gpuipc_channel_release(consumer, &item, first, &fault));
        settle(last);
        settle(first);
        ck_assert_int_eq(((unsigned char *)second.pointer)[0], 2);
        finish();
} END_TEST

/* An item that nobody read may still be being written when its slot is given again. */
START_TEST(a_dropped_items_writer_is_waited_for) {
        gpuipc_channel *other;

        begin(_i ? RING_BROADCAST : RING_QUEUE, RING_DROP_OLDEST, 1);
        other = house_join(&house, GPUIPC_CHANNEL_PRODUCER);
        CUstream writing = stream_new(), overtaking = stream_new();
        stop_at(producer, writing, 0);
        publish(producer, writing, 1);
        publish(other, overtaking, 2);
        ck_assert(is_busy(overtaking));
        open_gate(producer, 0);
        settle(overtaking);
        take(consumer, overtaking, &item);
        ck_assert_int_eq(item.meta[0], 2);
        settle(overtaking);
        ck_assert_int_eq(((unsigned char *)item.pointer)[100], 2);
        good(gpuipc_channel_release(consumer, &item, overtaking, &fault));
        leave(other);
        finish();
} END_TEST

START_TEST(many_items_around_the_ring) {
        unsigned char *kept;

        begin(_i ? RING_BROADCAST : RING_QUEUE, RING_BLOCK, 3);
        CUstream writing = stream_new(), reading = stream_new();
        ck_assert_int_eq(DRIVER(cuMemHostAlloc)((void **)&kept, 500, 0), 0);
        for (int i = 0; i < 500; i++) {
                publish(producer, writing, (unsigned char)(i * 3));
                take(consumer, reading, &item);
                ck_assert_int_eq(DRIVER(cuMemcpyDtoHAsync)(&kept[i], (CUdeviceptr)(uintptr_t)item.pointer + 255, 1, reading), 0);
                good(gpuipc_channel_release(consumer, &item, reading, &fault));
        }
        settle(reading);
        for (int i = 0; i < 500; i++)
                ck_assert_int_eq(kept[i], (unsigned char)(i * 3));
        ck_assert_int_eq(DRIVER(cuMemFreeHost)(kept), 0);
        finish();
} END_TEST

START_TEST(one_leaves_when_its_streams_are_done) {
        begin(RING_QUEUE, RING_BLOCK, 4);
        CUstream writing = stream_new();
        stop_at(producer, writing, 0);
        publish(producer, writing, 1);
        house.client->timeout_ms = 40;
        ck_assert_int_eq(gpuipc_channel_free(producer, &fault), GPUIPC_ERROR_TIMED_OUT);
        ck_assert_ptr_nonnull(strstr(fault.message, "a stream has not come"));
        house.client->timeout_ms = WAIT_MS;
        ck_assert_int_eq(gpuipc_channel_check(producer, &fault), GPUIPC_OK);
        open_gate(producer, 0);
        finish();
} END_TEST

START_TEST(a_stream_of_another_gpu_is_refused) {
        begin(_i ? RING_BROADCAST : RING_QUEUE, RING_BLOCK, 2);
        CUstream here = stream_new();
        use_gpu(1);
        CUstream there = stream_new();
        publish(producer, here, 1);
        publish(producer, here, 2);
        take(consumer, here, &item);
        good(gpuipc_channel_release(consumer, &item, here, &fault));
        ck_assert_int_eq(gpuipc_channel_begin(producer, there, 0, &item, &fault), GPUIPC_ERROR_INVALID_PARAMETER);
        ck_assert_str_eq(fault.subject, "stream");
        ck_assert_int_eq(gpuipc_channel_take(consumer, there, 0, &item, &fault), GPUIPC_ERROR_INVALID_PARAMETER);
        take(consumer, here, &item); /* nobody else got it */
        ck_assert_int_eq(item.meta[0], 2);
        ck_assert_int_eq(gpuipc_channel_release(consumer, &item, there, &fault), GPUIPC_ERROR_INVALID_PARAMETER);
        good(gpuipc_channel_release(consumer, &item, here, &fault)); /* still in hand */
        publish(producer, here, 3); /* what was begun was cancelled */
        ck_assert_int_eq(gpuipc_channel_publish(producer, &item, 1, NULL, 0, there, &fault), GPUIPC_ERROR_INVALID_PARAMETER);
        take(consumer, here, &item);
        ck_assert_int_eq(item.meta[0], 3);
        good(gpuipc_channel_release(consumer, &item, here, &fault));
        finish();
} END_TEST

static const char *const lies[] = { "fences fd", "fences size" };

START_TEST(grants_of_fences_are_checked) {
        struct house_plan plan = plan_of(RING_QUEUE, RING_BLOCK, 4);

        gpus_start(NULL);
        place(&plan, NULL);
        use_gpu(0);
        house.wrong = lies[_i];
        ck_assert_int_eq(house_try_join(&house, GPUIPC_CHANNEL_CONSUMER, &consumer, &fault), GPUIPC_ERROR_PROTOCOL);
        wait_for(fake_count(house.fake, ".Release\"", "l0", NULL) == 1);
        close_all();
} END_TEST

/* The slots' memory, the fences', and what the fences need beside it. The lease goes back. */
START_TEST(one_that_cannot_map_is_told) {
        static const char *const refusals[] = { "on cuMemMap nth=1 fail=2", "on cuMemMap nth=2 fail=2",
                                                "on cuStreamCreateWithPriority nth=1 fail=2" };
        struct house_plan plan = plan_of(RING_BROADCAST, RING_BLOCK, 4);

        gpus_start(NULL);
        place(&plan, NULL);
        use_gpu(0);
        for (size_t i = 0; i < ELEMENTSOF(refusals); i++) {
                gpus_script(refusals[i]);
                ck_assert_int_eq(house_try_join(&house, GPUIPC_CHANNEL_CONSUMER, &consumer, &fault), GPUIPC_ERROR_MAP);
                wait_for(fake_count(house.fake, ".Release\"", NULL) == i + 1);
        }
        gpus_script(NULL);
        consumer = house_join(&house, GPUIPC_CHANNEL_CONSUMER);
        leave(consumer);
        close_all();
} END_TEST

/* ---- deaths ----------------------------------------------------------------------------------------------- */

static int peer_stream(gpuipc_channel *channel, CUstream *ret_stream) {
        CUcontext context;

        return DRIVER(cuDevicePrimaryCtxRetain)(&context, 0) || DRIVER(cuCtxSetCurrent)(context) ||
               DRIVER(cuStreamCreate)(ret_stream, CU_STREAM_NON_BLOCKING) ||
               DRIVER(cuStreamWaitValue64)(*ret_stream, gate_of(channel, 5), 1, CU_STREAM_WAIT_VALUE_GEQ);
}

/* Publishes two items that its stream will never have written, begins a third, and waits for its end. */
static int never_writes(gpuipc_channel *channel, int talk_fd) {
        gpuipc_item own;
        CUstream stream;

        if (peer_stream(channel, &stream) != 0)
                return 1;
        for (int i = 0; i < 3; i++)
                if (gpuipc_channel_begin(channel, stream, WAIT_MS, &own, NULL) ||
                    (i < 2 && gpuipc_channel_publish(channel, &own, 16, NULL, 0, stream, NULL)))
                        return 2;
        (void)talk_say(talk_fd, 'w');
        return talk_hear(talk_fd, 'n');
}

/* Takes two items, and its stream will never have read the one that it lets go. */
static int never_reads(gpuipc_channel *channel, int talk_fd) {
        gpuipc_item own[2];
        CUstream stream;

        if (peer_stream(channel, &stream) != 0)
                return 1;
        for (int i = 0; i < 2; i++)
                if (gpuipc_channel_take(channel, stream, WAIT_MS, &own[i], NULL))
                        return 2;
        if (gpuipc_channel_release(channel, &own[0], stream, NULL))
                return 3;
        (void)talk_say(talk_fd, 'w');
        return talk_hear(talk_fd, 'n');
}

/* Publishes an item, takes away the context that was to write it, and leaves as if nothing were. */
static int takes_its_context_away(gpuipc_channel *channel, int talk_fd) {
        gpuipc_item own;
        CUstream stream;

        if (peer_stream(channel, &stream) != 0)
                return 1;
        if (gpuipc_channel_begin(channel, stream, WAIT_MS, &own, NULL) ||
            gpuipc_channel_publish(channel, &own, 16, NULL, 0, stream, NULL))
                return 2;
        (void)talk_say(talk_fd, 'w');
        if (talk_hear(talk_fd, 'n') != 0 || DRIVER(cuDevicePrimaryCtxReset)(0) != 0)
                return 3;
        return 0;
}

static void begin_with(struct house_peer *peer, gpuipc_channel_role role, house_script *script, uint32_t n_slots) {
        struct house_plan plan = plan_of(RING_QUEUE, RING_BLOCK, n_slots);

        gpus_start(NULL);
        *peer = house_fork(role, script);
        place(&plan, NULL);
}

/* The consumer's stream, which waits for an item that such a producer has published. */
static CUstream stuck_reader(struct house_peer *peer, house_script *script) {
        CUstream reading;

        begin_with(peer, GPUIPC_CHANNEL_PRODUCER, script, 4);
        house_let_in(&house, peer);
        child_hear(&peer->child, 'w');
        use_gpu(0);
        consumer = house_join(&house, GPUIPC_CHANNEL_CONSUMER);
        reading = stream_new();
        take(consumer, reading, &item);
        ck_assert(is_busy(reading));
        return reading;
}

/* Killed once those who are to notice know of it; from then on there is no daemon. */
static int64_t kill_without_daemon(struct house_peer *peer, bool down) {
        if (down) {
                fake_down(house.fake, ECONNREFUSED);
                fake_hang_up_all(house.fake);
        }
        house_peer_kill(peer);
        return now_ms();
}

START_TEST(a_producer_dies_with_an_unfinished_fence) {
        struct house_peer peer;
        int64_t died;

        CUstream reading = stuck_reader(&peer, never_writes);
        died = kill_without_daemon(&peer, _i);
        settle(reading);
        ck_assert_int_le(now_ms() - died, slower_ms(NOTICED_MS));
        ck_assert_int_eq(gpuipc_item_is_broken(consumer, &item), 1);
        good(gpuipc_channel_release(consumer, &item, reading, &fault));
        for (int i = 0; i < 2; i++) { /* one published, one begun */
                good(gpuipc_channel_take(consumer, reading, WAIT_MS, &item, &fault));
                ck_assert_int_eq(item.broken, 1);
                ck_assert_ptr_null(item.pointer);
                ck_assert_int_eq(gpuipc_item_is_broken(consumer, &item), 1);
                good(gpuipc_channel_release(consumer, &item, reading, &fault));
        }
        ck_assert_int_eq(gpuipc_channel_take(consumer, reading, 0, &item, &fault), GPUIPC_ERROR_TIMED_OUT);
        if (_i) {
                ck_assert_int_ne(gpuipc_channel_free(consumer, &fault), GPUIPC_OK);
                close_all();
                return;
        }
        /* The number is given again, and its fence goes on above what was ever waited for. */
        wait_for(ring_page_is_reaped(house.page, 0, 1));
        producer = house_join(&house, GPUIPC_CHANNEL_PRODUCER);
        ck_assert_int_eq(gpuipc_channel_number(producer), 0);
        ck_assert_uint_ge(producer->value, CHANNEL_FENCE_ROOM);
        CUstream writing = stream_new();
        stop_at(producer, writing, 0);
        publish(producer, writing, 9);
        take(consumer, reading, &item);
        ck_assert(is_busy(reading));
        open_gate(producer, 0);
        settle(reading);
        ck_assert_int_eq(gpuipc_item_is_broken(consumer, &item), 0);
        ck_assert_int_eq(((unsigned char *)item.pointer)[1], 9);
        good(gpuipc_channel_release(consumer, &item, reading, &fault));
        finish();
} END_TEST

/* The broker has seen that it runs no more. What it had not written is known to be broken; its slots and whose stream waits for it stay
 * as they are until it has ended. */
START_TEST(one_that_is_ending_is_told_of_at_once) {
        struct house_peer peer;
        gpuipc_item more;
        CUstream reading = stuck_reader(&peer, never_writes);

        ck_assert_int_eq(gpuipc_item_is_broken(consumer, &item), 0);
        ring_page_mark_ending(house.page, 0, 1);
        wait_for(gpuipc_item_is_broken(consumer, &item));
        take(consumer, reading, &more);
        ck_assert_int_eq(more.broken, 0);
        ck_assert_int_eq(gpuipc_item_is_broken(consumer, &more), 1);
        ck_assert_int_eq(gpuipc_channel_take(consumer, reading, 0, &second, &fault), GPUIPC_ERROR_TIMED_OUT); /* begun, not published */
        ck_assert(is_busy(reading));
        house_peer_kill(&peer);
        settle(reading);
        ck_assert_int_eq(gpuipc_item_is_broken(consumer, &item), 1);
        good(gpuipc_channel_release(consumer, &item, reading, &fault));
        good(gpuipc_channel_release(consumer, &more, reading, &fault));
        good(gpuipc_channel_take(consumer, reading, WAIT_MS, &second, &fault));
        ck_assert_int_eq(second.broken, 1);
        wait_for(ring_page_is_reaped(house.page, 0, 1));
        (void)gpuipc_channel_free(consumer, &fault);
        close_all();
} END_TEST

START_TEST(a_consumer_dies_with_an_unfinished_fence) {
        struct house_peer peer;
        int64_t died;

        begin_with(&peer, GPUIPC_CHANNEL_CONSUMER, never_reads, 2);
        use_gpu(0);
        producer = house_join(&house, GPUIPC_CHANNEL_PRODUCER);
        CUstream writing = stream_new();
        publish(producer, writing, 1);
        publish(producer, writing, 2);
        house_let_in_known(&house, &peer, 1);
        child_hear(&peer.child, 'w');
        good(gpuipc_channel_begin(producer, writing, 0, &item, &fault)); /* of the slot that it let go */
        ck_assert(is_busy(writing));
        ck_assert_int_eq(gpuipc_channel_begin(producer, writing, 0, &second, &fault), GPUIPC_ERROR_TIMED_OUT);
        died = kill_without_daemon(&peer, _i);
        settle(writing);
        ck_assert_int_le(now_ms() - died, slower_ms(NOTICED_MS));
        good(gpuipc_channel_begin(producer, writing, WAIT_MS, &second, &fault)); /* of the slot that it had in hand */
        settle(writing);
        good(gpuipc_channel_cancel(producer, &item, &fault));
        good(gpuipc_channel_cancel(producer, &second, &fault));
        (void)gpuipc_channel_free(producer, &fault);
        close_all();
} END_TEST

/* What its stream was to do nobody will do. Whoever waits is not left behind: it is told once the process has ended. */
START_TEST(one_leaves_whose_gpu_has_failed) {
        struct house_peer peer;

        CUstream reading = stuck_reader(&peer, takes_its_context_away);
        child_say(&peer.child, 'n');
        wait_for(!is_busy(reading));
        ck_assert_int_eq(gpuipc_item_is_broken(consumer, &item), 1);
        good(gpuipc_channel_release(consumer, &item, reading, &fault));
        wait_for(ring_page_is_reaped(house.page, 0, 1));
        child_expect_exit(&peer.child, 94); /* leaving told it so */
        leave(consumer);
        close_all();
} END_TEST

/* ---- what it costs ---------------------------------------------------------------------------------------- */

static const char *const counted[] = { "cuStreamGetCtx", "cuCtxGetCurrent", "cuStreamWaitValue64_v2", "cuStreamWriteValue64_v2",
                                       "cuStreamBatchMemOp_v2" };
struct calls {
        size_t of[ELEMENTSOF(counted)], all;
};

static struct calls calls_now(void) {
        struct calls calls = { .all = gpus_all_calls() };

        for (size_t i = 0; i < ELEMENTSOF(counted); i++)
                calls.of[i] = gpus_calls(counted[i], 0);
        return calls;
}

/* Just these, of each so many an item, and no others. */
static void expect_calls(const struct calls *before, size_t items, const size_t per_item[ELEMENTSOF(counted)]) {
        struct calls now = calls_now();
        size_t all = 0;

        for (size_t i = 0; i < ELEMENTSOF(counted); i++) {
                ck_assert_msg(now.of[i] - before->of[i] == items * per_item[i], "%zu of %s for %zu items", now.of[i] - before->of[i],
                              counted[i], items);
                all += per_item[i];
        }
        ck_assert_uint_eq(now.all - before->all, items * all);
}

static void pass_one(CUstream writing, gpuipc_channel *const *consumers, const CUstream *reading, int n) {
        good(gpuipc_channel_begin(producer, writing, WAIT_MS, &item, &fault));
        good(gpuipc_channel_publish(producer, &item, 8, NULL, 0, writing, &fault));
        for (int i = 0; i < n; i++) {
                good(gpuipc_channel_take(consumers[i], reading[i], WAIT_MS, &item, &fault));
                good(gpuipc_channel_release(consumers[i], &item, reading[i], &fault));
        }
}

/* Of a queue: a wait to begin, a write to publish, the same to take and to release, each with the two calls that tell where the stream
 * is; nothing is asked of the kernel. Of a broadcast, beginning is one call for all who read. */
START_TEST(driver_calls_an_item) {
        static const size_t of_queue[] = { 4, 4, 2, 2, 0 }, of_broadcast[] = { 8, 8, 3, 4, 1 };
        gpuipc_channel_stats stats = GPUIPC_CHANNEL_STATS_INIT;
        gpuipc_channel *consumers[3];
        CUstream writing, reading[3];
        struct calls before;
        int n = _i ? 3 : 1;

        begin(_i ? RING_BROADCAST : RING_QUEUE, RING_BLOCK, 4);
        writing = stream_new();
        for (int i = 0; i < n; i++) {
                consumers[i] = i == 0 ? consumer : house_join(&house, GPUIPC_CHANNEL_CONSUMER);
                reading[i] = stream_new();
        }
        for (int i = 0; i < 4; i++)
                pass_one(writing, consumers, reading, n);
        before = calls_now();
        for (int i = 0; i < 10; i++)
                pass_one(writing, consumers, reading, n);
        expect_calls(&before, 10, _i ? of_broadcast : of_queue);
        good(gpuipc_channel_get_stats(producer, &stats, &fault));
        ck_assert_uint_eq(stats.sleeps + stats.wakes, 0);
        for (int i = 1; i < n; i++)
                leave(consumers[i]);
        finish();
} END_TEST

/* A stream that comes second waits for the first and says so in one call. */
START_TEST(driver_calls_of_another_stream) {
        static const size_t of_other[] = { 2, 2, 0, 0, 2 };
        struct calls before;

        begin(RING_QUEUE, RING_BLOCK, 4);
        CUstream one = stream_new(), other = stream_new();
        for (int i = 0; i < 4; i++) {
                publish(producer, one, 1);
                take(consumer, one, &item);
                good(gpuipc_channel_release(consumer, &item, one, &fault));
        }
        before = calls_now();
        good(gpuipc_channel_begin(producer, other, 0, &item, &fault));
        good(gpuipc_channel_publish(producer, &item, 8, NULL, 0, other, &fault));
        expect_calls(&before, 1, of_other);
        finish();
} END_TEST

/* ---- GPUs without the operations -------------------------------------------------------------------------- */

START_TEST(where_streams_cannot_wait_the_processor_does) {
        struct house_plan plan = plan_of(RING_QUEUE, RING_BLOCK, 2);

        gpus_start("device memops=no\ndevice");
        place(&plan, NULL);
        use_gpu(0);
        producer = house_join(&house, GPUIPC_CHANNEL_PRODUCER);
        consumer = house_join(&house, GPUIPC_CHANNEL_CONSUMER);
        ck_assert_int_eq(gpuipc_channel_is_synchronous(producer), 1);
        CUstream writing = stream_new(), reading = stream_new();
        for (int i = 0; i < 20; i++) {
                publish(producer, writing, (unsigned char)i);
                ck_assert(!is_busy(writing));
                take(consumer, reading, &item);
                ck_assert_int_eq(((unsigned char *)item.pointer)[3], i);
                good(gpuipc_channel_release(consumer, &item, reading, &fault));
        }
        ck_assert_uint_eq(gpus_calls("cuStreamWriteValue64_v2", -1) + gpus_calls("cuStreamWaitValue64_v2", -1), 0);
        finish();
} END_TEST

/* A thread of a pool, say, that has made no context current. Where streams can wait the same is done in the channel's. */
START_TEST(a_thread_without_a_context_has_the_channels) {
        struct house_plan plan = plan_of(RING_QUEUE, RING_BLOCK, 2);

        gpus_start(_i ? "device memops=no\ndevice" : NULL);
        place(&plan, NULL);
        use_gpu(0);
        producer = house_join(&house, GPUIPC_CHANNEL_PRODUCER);
        consumer = house_join(&house, GPUIPC_CHANNEL_CONSUMER);
        ck_assert_int_eq(DRIVER(cuCtxSetCurrent)(NULL), 0);
        good(gpuipc_channel_begin(producer, NULL, 0, &item, &fault));
        good(gpuipc_channel_publish(producer, &item, 8, NULL, 0, NULL, &fault));
        take(consumer, NULL, &item);
        good(gpuipc_channel_release(consumer, &item, NULL, &fault));
        finish();
} END_TEST

/* The producer's streams can; the consumer computes on another GPU, whose cannot. */
START_TEST(what_comes_late_is_not_lost) {
        struct house_plan plan = plan_of(_i % 2 ? RING_BROADCAST : RING_QUEUE, RING_BLOCK, 4);
        uint64_t ticket;
        int fd = -1;

        gpus_start("device\ndevice memops=no");
        place(&plan, NULL);
        use_gpu(0);
        producer = house_join(&house, GPUIPC_CHANNEL_PRODUCER);
        CUstream writing = stream_new();
        use_gpu(1);
        consumer = house_join(&house, GPUIPC_CHANNEL_CONSUMER);
        CUstream reading = stream_new();
        ck_assert_int_eq(gpuipc_channel_is_synchronous(producer), 0);
        ck_assert_int_eq(gpuipc_channel_is_synchronous(consumer), 1);
        ck_assert_int_eq(gpuipc_channel_is_peer(consumer), 1);
        stop_at(producer, writing, 0);
        good(gpuipc_channel_begin(producer, writing, 0, &item, &fault));
        ticket = item.ticket;
        good(gpuipc_channel_publish(producer, &item, 7, "x", 1, writing, &fault));
        if (_i < 2)
                fd = gpuipc_channel_fd(consumer);
        for (int i = 0; i < 3; i++) {
                ck_assert_int_eq(gpuipc_channel_take(consumer, reading, 30 * (i == 0), &item, &fault), GPUIPC_ERROR_TIMED_OUT);
                channel_feed_look_again(consumer, true); /* another thread's call, which found nothing just before it was late */
                ck_assert(fd < 0 || wait_readable(fd, WAIT_MS));
        }
        ck_assert(wait_readable(gpuipc_channel_fd(consumer), WAIT_MS)); /* also if it is asked for when the item is there */
        open_gate(producer, 0);
        good(gpuipc_channel_take(consumer, reading, WAIT_MS, &item, &fault));
        ck_assert_uint_eq(item.ticket, ticket);
        ck_assert_int_eq(item.size, 7);
        ck_assert_int_eq(item.meta[0], 'x');
        good(gpuipc_channel_release(consumer, &item, reading, &fault));
        finish();
} END_TEST

/* With the consumer on a GPU that has no memory operations: it takes what the producer's stream has come to, and nothing before. */
static void begin_apart(const struct house_plan *plan) {
        gpus_start("device\ndevice memops=no");
        place(plan, NULL);
        use_gpu(1);
        consumer = house_join(&house, GPUIPC_CHANNEL_CONSUMER);
        use_gpu(0);
        producer = house_join(&house, GPUIPC_CHANNEL_PRODUCER);
}

static void *take_in_vain(void *data) {
        gpuipc_item mine;

        (void)data;
        return (void *)(intptr_t)gpuipc_channel_take(consumer, NULL, slower_ms(500), &mine, NULL);
}

/* Two threads each had one, and let go of the newer one first. */
START_TEST(what_comes_late_comes_in_order) {
        struct house_plan plan = plan_of(RING_QUEUE, RING_BLOCK, 4);
        gpuipc_channel_stats stats = GPUIPC_CHANNEL_STATS_INIT;
        pthread_t thread;
        void *r;

        begin_apart(&plan);
        CUstream writing = stream_new();
        stop_at(producer, writing, 0);
        publish(producer, writing, 1);
        publish(producer, writing, 2);
        ck_assert_int_eq(pthread_create(&thread, NULL, take_in_vain, NULL), 0);
        do
                good(gpuipc_channel_get_stats(producer, &stats, &fault));
        while (stats.depth == 2);
        ck_assert_int_eq(gpuipc_channel_take(consumer, NULL, 0, &item, &fault), GPUIPC_ERROR_TIMED_OUT);
        ck_assert_int_eq(pthread_join(thread, &r), 0);
        ck_assert_int_eq((intptr_t)r, GPUIPC_ERROR_TIMED_OUT);
        open_gate(producer, 0);
        for (unsigned char i = 1; i <= 2; i++) {
                good(gpuipc_channel_take(consumer, NULL, WAIT_MS, &item, &fault));
                ck_assert_int_eq(item.meta[0], i);
                good(gpuipc_channel_release(consumer, &item, NULL, &fault));
        }
        finish();
} END_TEST

/* Nobody has read it, nor has it been written yet: who begins in its slot has to wait for that. */
START_TEST(what_is_late_goes_with_who_leaves) {
        struct house_plan plan = plan_of(_i ? RING_BROADCAST : RING_QUEUE, RING_BLOCK, 1);

        begin_apart(&plan);
        CUstream writing = stream_new(), other = stream_new();
        stop_at(producer, writing, 0);
        publish(producer, writing, 1);
        ck_assert_int_eq(gpuipc_channel_take(consumer, NULL, 0, &item, &fault), GPUIPC_ERROR_TIMED_OUT);
        ck_assert_int_eq(gpuipc_channel_begin(producer, other, 0, &item, &fault), GPUIPC_ERROR_TIMED_OUT);
        leave(consumer);
        good(gpuipc_channel_begin(producer, other, 0, &item, &fault));
        ck_assert(is_busy(other));
        open_gate(producer, 0);
        settle(other);
        good(gpuipc_channel_cancel(producer, &item, &fault));
        leave(producer);
        close_all();
} END_TEST

int main(void) {
        Suite *suite = suite_create("client_cuda_channel");
        TCase *tests = tcase_create("channel");

        tcase_set_timeout(tests, 60);
        tcase_add_test(tests, a_consumers_stream_waits_for_the_producers);
        tcase_add_loop_test(tests, a_producers_stream_waits_for_the_readers, 0, 2);
        tcase_add_loop_test(tests, streams_of_one_member_are_one_after_the_other, 0, 2);
        tcase_add_loop_test(tests, a_dropped_items_writer_is_waited_for, 0, 2);
        tcase_add_loop_test(tests, many_items_around_the_ring, 0, 2);
        tcase_add_test(tests, one_leaves_when_its_streams_are_done);
        tcase_add_loop_test(tests, a_stream_of_another_gpu_is_refused, 0, 2);
        tcase_add_loop_test(tests, grants_of_fences_are_checked, 0, 2);
        tcase_add_test(tests, one_that_cannot_map_is_told);
        tcase_add_loop_test(tests, a_producer_dies_with_an_unfinished_fence, 0, 2);
        tcase_add_test(tests, one_that_is_ending_is_told_of_at_once);
        tcase_add_loop_test(tests, a_consumer_dies_with_an_unfinished_fence, 0, 2);
        tcase_add_test(tests, one_leaves_whose_gpu_has_failed);
        tcase_add_loop_test(tests, driver_calls_an_item, 0, 2);
        tcase_add_test(tests, driver_calls_of_another_stream);
        tcase_add_test(tests, where_streams_cannot_wait_the_processor_does);
        tcase_add_loop_test(tests, a_thread_without_a_context_has_the_channels, 0, 2);
        tcase_add_loop_test(tests, what_comes_late_is_not_lost, 0, 4);
        tcase_add_test(tests, what_comes_late_comes_in_order);
        tcase_add_loop_test(tests, what_is_late_goes_with_who_leaves, 0, 2);
        suite_add_tcase(suite, tests);
        return suite_run(suite);
}
