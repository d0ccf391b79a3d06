/* SPDX-License-Identifier: Apache-2.0 */
/* Fences in memory of a GPU: streams that wait and signal in one process and between two, streams that are stuck, deaths, GPUs without
 * the operations, and GPUs other than the word's. */
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_fence_place.h"
#include "tests/support/fake_server.h"
#include "tests/support/suite.h"
#include "tests/support/wait.h"

#define WIDE (UINT64_C(1) << 32)

static const char *const kinds[] = { "cuda-fd", "cuda-ipc" };
static struct place place;
static gpuipc_error error;

static void settle(CUstream stream) {
        ck_assert_int_eq(DRIVER(cuStreamSynchronize)(stream), 0);
}

static int state_of(CUstream stream) {
        return DRIVER(cuStreamQuery)(stream);
}

static void signal_in(CUstream stream, gpuipc_fence *fence, uint64_t value) {
        ck_assert_msg(gpuipc_fence_signal_stream(fence, stream, value, &error) == GPUIPC_OK, "%s", error.message);
}

static void wait_in(CUstream stream, gpuipc_fence *fence, uint64_t value) {
        ck_assert_msg(gpuipc_fence_wait_stream(fence, stream, value, 0, &error) == GPUIPC_OK, "%s", error.message);
}

/* ---- in one process --------------------------------------------------------------------------------------- */

/* Two streams; the signal first, the wait first; values beyond 32 bits; one past what is waited for. */
START_TEST(two_streams) {
        place_start(&place, NULL, kinds[_i], GPUIPC_RW);
        CUstream producer = place_stream(false), consumer = place_stream(false);
        uint64_t *words = place.pointer;
        ck_assert_int_eq(gpuipc_fence_is_synchronous(place.produced), 0);
        for (uint64_t i = 1; i <= 20; i++) {
                uint64_t value = i < 10 ? i : WIDE * i;
                if (i % 2) {
                        signal_in(producer, place.produced, value);
                        wait_in(consumer, place.produced, value - i % 3);
                        settle(consumer);
                        settle(producer);
                } else {
                        wait_in(consumer, place.produced, value);
                        ck_assert_int_eq(DRIVER(cuMemcpyDtoDAsync)(place_at(&place, 32), place_at(&place, 40), 8, consumer), 0);
                        ck_assert_int_eq(state_of(consumer), CUDA_ERROR_NOT_READY);
                        ck_assert_int_eq(DRIVER(cuMemsetD8Async)(place_at(&place, 40), (unsigned char)i, 8, producer), 0);
                        signal_in(producer, place.produced, value);
                        settle(consumer);
                        ck_assert_uint_eq(words[4], i * UINT64_C(0x0101010101010101));
                }
                ck_assert_uint_eq(place_value(place.produced), value);
        }
        place_stop(&place);
} END_TEST

START_TEST(on_the_processor) {
        place_start(&place, NULL, kinds[_i], GPUIPC_RW);
        CUstream stream = place_stream(false);
        int64_t started = now_ms();

        ck_assert_int_eq(gpuipc_fence_wait(place.produced, 1, 0, &error), GPUIPC_ERROR_TIMED_OUT);
        ck_assert_int_eq(gpuipc_fence_wait(place.produced, 1, 60, &error), GPUIPC_ERROR_TIMED_OUT);
        ck_assert_int_ge(now_ms() - started, 60);
        ck_assert_uint_lt(gpus_calls("cuMemcpyDtoHAsync_v2", 0), 16 + 16 + 60); /* it looks less and less often */
        ck_assert_int_eq(gpuipc_fence_signal(place.produced, WIDE + 1, &error), GPUIPC_OK);
        ck_assert_uint_eq(place_value(place.produced), WIDE + 1);
        wait_in(stream, place.produced, WIDE + 1);
        settle(stream);
        wait_in(stream, place.produced, WIDE + 2);
        signal_in(stream, place.consumed, 5);
        ck_assert_uint_eq(place_value(place.consumed), 0);
        ck_assert_int_eq(gpuipc_fence_signal(place.produced, WIDE + 2, &error), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_fence_wait(place.consumed, 5, WAIT_MS, &error), GPUIPC_OK);
        place_stop(&place);
} END_TEST

/* A stream that waits for ever, the default one with all that it holds up, is freed by this process itself. */
START_TEST(a_stuck_stream_is_freed) {
        CUstream streams[] = { NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, NULL };

        place_start(&place, NULL, "cuda-fd", GPUIPC_RW);
        streams[3] = place_stream(false);
        CUstream blocking = place_stream(true);
        wait_in(streams[_i], place.produced, 3);
        signal_in(blocking, place.consumed, 1);
        ck_assert_int_eq(state_of(streams[_i]), CUDA_ERROR_NOT_READY);
        if (_i < 2)
                ck_assert_int_eq(state_of(blocking), CUDA_ERROR_NOT_READY);
        gpuipc_fence *late; /* and fences are made meanwhile */
        ck_assert_int_eq(gpuipc_fence_new(place.buffer, 64, &late, &error), GPUIPC_OK);
        ck_assert_uint_eq(place_value(late), 0);
        ck_assert_int_eq(gpuipc_fence_signal(place.produced, 3, &error), GPUIPC_OK);
        settle(streams[_i]);
        settle(blocking);
        ck_assert_uint_eq(place_value(place.consumed), 1);
        gpuipc_fence_free(late);
        place_stop(&place);
} END_TEST

static void *look_and_signal(void *data) {
        gpuipc_fence *fence = data;
        uint64_t value;

        for (uint64_t i = 1; i <= 50; i++)
                if (gpuipc_fence_query(fence, &value, NULL) || gpuipc_fence_signal(fence, i, NULL) || gpuipc_fence_wait(fence, i, 0, NULL))
                        return data;
        return NULL;
}

/* The copies of several fences go through one word of the library's. */
START_TEST(from_several_threads) {
        gpuipc_fence *fences[4];
        pthread_t threads[4];
        void *failed;

        place_start(&place, _i ? "device memops=no\ndevice" : NULL, "cuda-fd", GPUIPC_RW);
        for (int i = 0; i < 4; i++) {
                ck_assert_int_eq(gpuipc_fence_new(place.buffer, 64 + 8 * i, &fences[i], &error), GPUIPC_OK);
                ck_assert_int_eq(gpuipc_fence_signal(fences[i], (uint64_t)i << 40, &error), GPUIPC_OK);
        }
        ck_assert_uint_eq(gpus_calls("cuStreamCreateWithPriority", 0), 1);
        for (int i = 0; i < 4; i++)
                ck_assert_uint_eq(place_value(fences[i]), (uint64_t)i << 40);
        for (int i = 0; i < 4; i++)
                ck_assert_int_eq(gpuipc_fence_signal(fences[i], 0, &error), GPUIPC_OK);
        for (int i = 0; i < 4; i++)
                ck_assert_int_eq(pthread_create(&threads[i], NULL, look_and_signal, fences[i]), 0);
        for (int i = 0; i < 4; i++) {
                ck_assert_int_eq(pthread_join(threads[i], &failed), 0);
                ck_assert_ptr_null(failed);
                gpuipc_fence_free(fences[i]);
        }
        place_stop(&place);
} END_TEST

START_TEST(read_only) {
        place_start(&place, NULL, "cuda-fd", GPUIPC_RO);
        CUstream stream = place_stream(false);
        ck_assert_int_eq(gpuipc_fence_signal_stream(place.produced, stream, 1, &error), GPUIPC_ERROR_INVALID_PARAMETER);
        ck_assert_ptr_nonnull(strstr(error.message, "opened ro"));
        ck_assert_int_eq(gpuipc_fence_signal(place.produced, 1, &error), GPUIPC_ERROR_INVALID_PARAMETER);
        wait_in(stream, place.produced, 1);
        ck_assert_int_eq(state_of(stream), CUDA_ERROR_NOT_READY);
        place_poke(&place, 0, 1); /* by the owner's descriptor */
        settle(stream);
        ck_assert_int_eq(gpuipc_fence_wait(place.produced, 1, 0, &error), GPUIPC_OK);
        place_stop(&place);
} END_TEST

START_TEST(a_word_out_of_line) {
        struct desk desk = { .size = MIB, .allocated = 2 * MIB, .offset = 4 };
        gpuipc_fence *fence;
        void *pointer;

        gpus_start(NULL);
        struct owner owner = owner_start("cuda-fd", 0, 2 * MIB);
        desk.fd = owner.fd;
        desk_open(&desk);
        gpuipc_buffer *buffer = desk_map(&desk, GPUIPC_RW, &pointer);
        ck_assert_int_eq(gpuipc_fence_new(buffer, 0, &fence, &error), GPUIPC_ERROR_INVALID_PARAMETER);
        ck_assert_str_eq(error.subject, "buffer");
        ck_assert_int_eq(gpuipc_release(buffer, NULL), GPUIPC_OK);
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
} END_TEST

/* Waits flush what other devices wrote where the GPU can. */
START_TEST(remote_writes_are_flushed) {
        place_start(&place, _i ? "device attribute=98:1\ndevice" : NULL, "cuda-fd", GPUIPC_RW);
        CUstream stream = place_stream(false);
        wait_in(stream, place.produced, 0);
        settle(stream);
        ck_assert_uint_eq(gpus_calls("flush", 0), (size_t)_i);
        place_stop(&place);
} END_TEST

/* ---- between processes ------------------------------------------------------------------------------------ */

/* What the other writes into the slot is what this one finds there, round after round, with no processor in between. */
START_TEST(between_processes) {
        struct child child;
        uint64_t *kept;

        place_start_with_peer(&place, kinds[_i], PEER_PRODUCES, &child);
        CUstream stream = place_stream(false);
        ck_assert_int_eq(DRIVER(cuMemHostAlloc)((void **)&kept, 8 * PEER_ROUNDS, 0), 0);
        for (uint64_t i = 1; i <= PEER_ROUNDS; i++) {
                wait_in(stream, place.produced, WIDE + i);
                ck_assert_int_eq(DRIVER(cuMemcpyDtoHAsync)(&kept[i - 1], place_at(&place, PEER_SLOT), 8, stream), 0);
                signal_in(stream, place.consumed, i);
        }
        settle(stream);
        for (uint64_t i = 1; i <= PEER_ROUNDS; i++)
                ck_assert_uint_eq(kept[i - 1], (i & 0xff) * UINT64_C(0x0101010101010101));
        ck_assert_int_eq(DRIVER(cuMemFreeHost)(kept), 0);
        child_expect_exit(&child, 0);
        place_stop(&place);
} END_TEST

/* The peer is killed while its stream waits: its context's memory comes back, and the words serve others. */
START_TEST(death_of_a_peer_that_waits) {
        struct child child;
        size_t before, after, total;

        place_start_with_peer(&place, "cuda-fd", PEER_WAITS, &child);
        child_hear(&child, 'w');
        ck_assert_int_eq(DRIVER(cuMemGetInfo)(&before, &total), 0);
        child_kill(&child);
        ck_assert_int_eq(DRIVER(cuMemGetInfo)(&after, &total), 0);
        ck_assert_uint_ge(after - before, 500 * (size_t)MIB);
        ck_assert_uint_eq(place_value(place.consumed), 0);
        CUstream stream = place_stream(false);
        signal_in(stream, place.produced, 1);
        wait_in(stream, place.produced, 1);
        settle(stream);
        place_stop(&place);
} END_TEST

/* The peer dies before it signals what a stream here waits for. */
START_TEST(death_of_a_peer_that_is_waited_for) {
        struct child child;

        place_start_with_peer(&place, "cuda-fd", PEER_WAITS, &child);
        child_hear(&child, 'w');
        CUstream stream = place_stream(false);
        wait_in(stream, place.consumed, 1);
        child_kill(&child);
        ck_assert_int_eq(gpuipc_fence_wait(place.consumed, 1, 20, &error), GPUIPC_ERROR_TIMED_OUT);
        ck_assert_int_eq(state_of(stream), CUDA_ERROR_NOT_READY);
        ck_assert_int_eq(gpuipc_fence_signal(place.consumed, 1, &error), GPUIPC_OK);
        settle(stream);
        place_stop(&place);
} END_TEST

/* ---- without the operations ------------------------------------------------------------------------------- */

static void CUDA_CB hold(void *data) {
        while (!*(atomic_bool *)data)
                ;
}

static void *let_go(void *data) {
        atomic_bool *go = data;

        wait_for(gpus_waits("cuStreamSynchronize") > 0); /* the signal waits for the stream */
        *go = true;
        return NULL;
}

static void *signal_soon(void *data) {
        wait_for(gpus_calls("cuMemcpyDtoHAsync_v2", 0) > 20); /* the wait has looked, and looks on */
        return gpuipc_fence_signal(data, 7, NULL) == GPUIPC_OK ? NULL : data;
}

static void check_order(size_t since, const char *first, const char *then) {
        char entries[GPUS_ENTRIES_MAX][64];
        size_t n = gpus_entries(since, entries), i = 0;

        while (i < n && strcmp(entries[i], first) != 0)
                ck_assert_str_ne(entries[i++], then);
        ck_assert_uint_lt(i, n);
}

START_TEST(a_gpu_without_the_operations) {
        atomic_bool go = false;
        pthread_t thread;
        size_t since;
        void *failed;

        place_start(&place, "device memops=no\ndevice", kinds[_i], GPUIPC_RW);
        CUstream stream = place_stream(false);
        uint64_t *words = place.pointer;
        ck_assert_int_eq(gpuipc_fence_is_synchronous(place.produced), 1);
        ck_assert_int_eq(DRIVER(cuLaunchHostFunc)(stream, hold, &go), 0);
        ck_assert_int_eq(DRIVER(cuMemsetD8Async)(place_at(&place, 40), 9, 8, stream), 0);
        gpus_script("device memops=no\ndevice\non cuStreamSynchronize delay=1"); /* so that its beginning is logged */
        ck_assert_int_eq(pthread_create(&thread, NULL, let_go, &go), 0);
        since = gpus_all_calls();
        signal_in(stream, place.produced, 6);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        ck_assert_uint_eq(words[5], UINT64_C(0x0909090909090909));
        check_order(since, "cuStreamSynchronize", "cuMemcpyHtoDAsync_v2");
        ck_assert_uint_eq(place_value(place.produced), 6);

        ck_assert_int_eq(gpuipc_fence_wait_stream(place.produced, stream, 7, 30, &error), GPUIPC_ERROR_TIMED_OUT);
        ck_assert_int_eq(pthread_create(&thread, NULL, signal_soon, place.produced), 0);
        ck_assert_int_eq(gpuipc_fence_wait_stream(place.produced, stream, 7, WAIT_MS, &error), GPUIPC_OK);
        ck_assert_int_eq(pthread_join(thread, &failed), 0);
        ck_assert_ptr_null(failed);
        ck_assert_uint_eq(gpus_calls("cuStreamWaitValue64_v2", -1) + gpus_calls("cuStreamWriteValue64_v2", -1), 0);
        place_stop(&place);
} END_TEST

/* A driver that has not even the names, and is good enough otherwise. */
START_TEST(a_driver_without_the_operations) {
        place_load_old_driver();
        place_start(&place, NULL, "cuda-fd", GPUIPC_RW);
        ck_assert_int_eq(gpuipc_fence_is_synchronous(place.produced), 1);
        ck_assert_int_eq(gpuipc_fence_signal(place.produced, 7, &error), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_fence_wait_stream(place.produced, NULL, 7, 0, &error), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_fence_signal_stream(place.produced, NULL, 8, &error), GPUIPC_OK);
        ck_assert_uint_eq(place_value(place.produced), 8);
        ck_assert_uint_eq(gpus_calls("cuStreamWriteValue64_v2", -1), 0);
        place_stop(&place);
} END_TEST

/* A word of host memory, and a stream: what the stream was given is done first. */
START_TEST(host_memory_and_a_stream) {
        struct fake_broker broker;
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_client *client;
        gpuipc_buffer *host;
        gpuipc_fence *fence;

        place_start(&place, NULL, "cuda-fd", GPUIPC_RW);
        fake_broker_init(&broker, 4096);
        struct fake *fake = fake_start(fake_broker_answer, &broker);
        options.socket_path = fake->path;
        ck_assert_int_eq(gpuipc_connect(&options, &client, NULL), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_allocate(client, 4096, NULL, &host, NULL), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_fence_new(host, 0, &fence, &error), GPUIPC_OK);
        CUstream stream = _i ? place_stream(false) : CU_STREAM_LEGACY;
        ck_assert_int_eq(DRIVER(cuMemsetD8Async)(place_at(&place, 40), 9, 8, stream), 0);
        signal_in(stream, fence, 1);
        ck_assert_uint_eq(((uint64_t *)place.pointer)[5], UINT64_C(0x0909090909090909));
        ck_assert_uint_eq(place_value(fence), 1);
        ck_assert_int_eq(DRIVER(cuCtxSetCurrent)(NULL), 0);
        ck_assert_int_eq(gpuipc_fence_signal_stream(fence, stream, 2, &error), _i ? GPUIPC_OK : GPUIPC_ERROR_MAP);
        ck_assert_int_eq(gpuipc_fence_signal_stream(fence, NULL, 3, &error), GPUIPC_OK);
        gpuipc_fence_free(fence);
        ck_assert_int_eq(gpuipc_release(host, NULL), GPUIPC_OK);
        gpuipc_client_free(client);
        fake_stop(fake);
        fake_broker_deinit(&broker);
        place_stop(&place);
} END_TEST

int main(void) {
        Suite *suite = suite_create("client_cuda_fence");
        TCase *tcase = tcase_create("fences");

        tcase_set_timeout(tcase, 60);
        tcase_add_loop_test(tcase, two_streams, 0, 2);
        tcase_add_loop_test(tcase, on_the_processor, 0, 2);
        tcase_add_loop_test(tcase, a_stuck_stream_is_freed, 0, 4);
        tcase_add_loop_test(tcase, from_several_threads, 0, 2);
        tcase_add_test(tcase, read_only);
        tcase_add_test(tcase, a_word_out_of_line);
        tcase_add_loop_test(tcase, remote_writes_are_flushed, 0, 2);
        tcase_add_loop_test(tcase, between_processes, 0, 2);
        tcase_add_test(tcase, death_of_a_peer_that_waits);
        tcase_add_test(tcase, death_of_a_peer_that_is_waited_for);
        tcase_add_loop_test(tcase, a_gpu_without_the_operations, 0, 2);
        tcase_add_test(tcase, a_driver_without_the_operations);
        tcase_add_loop_test(tcase, host_memory_and_a_stream, 0, 2);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
