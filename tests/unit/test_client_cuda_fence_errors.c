/* SPDX-License-Identifier: Apache-2.0 */
/* Fences on GPUs where something is not as it should be: every call of the driver's fails in turn, streams are of other contexts and of
 * other GPUs, the word is another GPU's. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_fence_place.h"
#include "tests/support/suite.h"

static struct place place;
static gpuipc_error error;

static CUcontext current(void) {
        CUcontext context;
        ck_assert_int_eq(DRIVER(cuCtxGetCurrent)(&context), 0);
        return context;
}

static CUcontext make_context(int ordinal) {
        CUcontext context;
        ck_assert_int_eq(DRIVER(cuCtxCreate)(&context, NULL, 0, ordinal), 0);
        return context;
}

static void use(CUcontext context) {
        ck_assert_int_eq(DRIVER(cuCtxSetCurrent)(context), 0);
}

/* ---- every call ------------------------------------------------------------------------------------------- */

enum act { ACT_NEW, ACT_SIGNAL, ACT_QUERY, ACT_WAIT, ACT_SIGNAL_STREAM, ACT_WAIT_STREAM, N_ACTS };

static int act(enum act what, CUstream stream) {
        uint64_t value;

        switch (what) {
        case ACT_NEW: return gpuipc_fence_new(place.buffer, 0, &place.produced, &error);
        case ACT_SIGNAL: return gpuipc_fence_signal(place.produced, 5, &error);
        case ACT_QUERY: return gpuipc_fence_query(place.produced, &value, &error);
        case ACT_WAIT: return gpuipc_fence_wait(place.produced, 0, 0, &error);
        case ACT_SIGNAL_STREAM: return gpuipc_fence_signal_stream(place.produced, stream, 6, &error);
        default: return gpuipc_fence_wait_stream(place.produced, stream, 0, 0, &error);
        }
}

/* The first fence of a context takes the most calls. */
static void prepare(enum act what) {
        if (what != ACT_NEW)
                return;
        gpuipc_fence_free(place.produced);
        gpuipc_fence_free(place.consumed);
        place.produced = place.consumed = NULL;
}

/* What is given back cannot be given back twice; and of whose GPU the current context is, is no matter where that cannot be told. */
static bool may_fail_in_silence(enum act what, const char *entry) {
        return strcmp(entry, "cuCtxPopCurrent_v2") == 0 || strcmp(entry, "cuDevicePrimaryCtxRelease_v2") == 0 ||
               (what == ACT_NEW && strcmp(entry, "cuCtxGetDevice") == 0);
}

static void fail_one(enum act what, CUstream stream, const char *entry, const char *devices) {
        CUcontext before = current();
        size_t failed_before = gpus_calls(entry, 999);
        char script[256], words[80];

        if (may_fail_in_silence(what, entry))
                return;
        prepare(what);
        (void)snprintf(script, sizeof(script), "%s\non %s fail=999 nth=1", devices, entry);
        gpus_script(script);
        ck_assert_msg(act(what, stream) == GPUIPC_ERROR_MAP, "%d went well without %s", what, entry);
        ck_assert_uint_eq(gpus_calls(entry, 999), failed_before + 1);
        (void)snprintf(words, sizeof(words), "%.*s", (int)strcspn(entry, "_"), entry);
        ck_assert_msg(strstr(error.message, words) && strstr(error.message, "CUDA_ERROR_UNKNOWN (999)"), "%s: %s", entry, error.message);
        ck_assert_str_eq(error.code, "G015");
        gpus_script(devices);
        ck_assert_ptr_eq(current(), before);
        ck_assert_msg(act(what, stream) == GPUIPC_OK, "%s: %s", entry, error.message);
}

/* With the operations and without; in a context of the test's, and in none. */
START_TEST(every_call_fails) {
        const char *devices = _i & 1 ? "device memops=no\ndevice" : "device\ndevice";
        char entries[GPUS_ENTRIES_MAX][64];

        place_start(&place, devices, "cuda-fd", GPUIPC_RW);
        CUstream stream = place_stream(false);
        if (_i & 2) {
                use(NULL);
                prepare(ACT_NEW);
                ck_assert_int_eq(act(ACT_NEW, stream), GPUIPC_OK);
        }
        for (enum act what = 0; what < N_ACTS; what++) {
                prepare(what);
                size_t since = gpus_all_calls();
                ck_assert_msg(act(what, stream) == GPUIPC_OK, "%s", error.message);
                size_t n = gpus_entries(since, entries);
                ck_assert(n > 0 || (what == ACT_WAIT_STREAM && _i & 1));
                for (size_t i = 0; i < n; i++)
                        fail_one(what, stream, entries[i], devices);
        }
        place_stop(&place);
} END_TEST

/* The attributes say yes, and the driver no. */
START_TEST(refused_after_all) {
        place_start(&place, NULL, "cuda-fd", GPUIPC_RW);
        CUstream stream = place_stream(false);
        gpus_script("on cuStream*Value64_v2 fail=801");
        ck_assert_int_eq(gpuipc_fence_wait_stream(place.produced, stream, 1, 0, &error), GPUIPC_ERROR_MAP);
        ck_assert_str_eq(error.code, "G031");
        ck_assert_ptr_nonnull(strstr(error.message, "The stream cannot wait for the fence: cuStreamWaitValue64()"));
        ck_assert_ptr_nonnull(strstr(error.message, "MPS"));
        ck_assert_int_eq(gpuipc_fence_signal_stream(place.produced, stream, 1, &error), GPUIPC_ERROR_MAP);
        ck_assert_str_eq(error.code, "G031");
        ck_assert_ptr_nonnull(strstr(error.message, "The fence cannot be signalled by the stream: cuStreamWriteValue64()"));
        gpus_script("");
        place_stop(&place);
} END_TEST

/* A context that is lost tells its own cause. */
START_TEST(a_lost_context) {
        place_start(&place, NULL, "cuda-fd", GPUIPC_RW);
        gpus_script("on cuStreamSynchronize fail=700");
        ck_assert_int_eq(gpuipc_fence_signal(place.produced, 1, &error), GPUIPC_ERROR_MAP);
        ck_assert_str_eq(error.code, "G013");
        ck_assert_ptr_nonnull(strstr(error.message, "The fence cannot be signalled: cuStreamSynchronize()"));
        gpus_script("");
        place_stop(&place);
} END_TEST

/* ---- whose stream ----------------------------------------------------------------------------------------- */

static void to_and_fro(CUstream stream, uint64_t value) {
        CUcontext before = current();

        ck_assert_msg(gpuipc_fence_signal_stream(place.produced, stream, value, &error) == GPUIPC_OK, "%s", error.message);
        ck_assert_msg(gpuipc_fence_wait_stream(place.produced, stream, value, 0, &error) == GPUIPC_OK, "%s", error.message);
        ck_assert_int_eq(gpuipc_fence_wait(place.produced, value, 10000, &error), GPUIPC_OK);
        ck_assert_ptr_eq(current(), before);
}

/* A stream is its own context's, whichever is current; so is the library's. */
START_TEST(contexts_of_the_same_gpu) {
        place_start(&place, NULL, "cuda-fd", GPUIPC_RW);
        CUcontext primary = current(), mine = make_context(0);
        CUstream of_mine = place_stream(false);
        use(primary);
        CUstream of_primary = place_stream(false);
        to_and_fro(of_mine, 1);
        to_and_fro(of_primary, 2);
        use(mine);
        to_and_fro(of_primary, 3);
        to_and_fro(NULL, 4);
        use(NULL);
        to_and_fro(of_mine, 5);
        to_and_fro(of_primary, 6);
        to_and_fro(NULL, 7);
        to_and_fro(CU_STREAM_PER_THREAD, 8);

        /* Made where another context is current: by a stream in that. */
        use(mine);
        gpuipc_fence *in_mine;
        size_t made = gpus_calls("cuStreamCreateWithPriority", 0);
        ck_assert_int_eq(gpuipc_fence_new(place.buffer, 0, &in_mine, &error), GPUIPC_OK);
        ck_assert_uint_eq(gpus_calls("cuStreamCreateWithPriority", 0), made + 1);
        use(NULL);
        ck_assert_int_eq(gpuipc_fence_signal(in_mine, 9, &error), GPUIPC_OK);
        ck_assert_uint_eq(place_value(place.produced), 9);
        ck_assert_ptr_null(current());
        gpuipc_fence_free(in_mine);
        place_stop(&place);
} END_TEST

static void check_refused(int r) {
        ck_assert_int_eq(r, GPUIPC_ERROR_INVALID_PARAMETER);
        ck_assert_str_eq(error.subject, "stream");
        ck_assert_ptr_nonnull(strstr(error.message, "one of " GPUS_UUID("1")));
        ck_assert_ptr_nonnull(strstr(error.message, "mapped for " GPUS_UUID("0")));
}

START_TEST(a_stream_of_another_gpu) {
        place_start(&place, NULL, "cuda-fd", GPUIPC_RW);
        CUcontext primary = current(), other = make_context(1);
        CUstream stream = place_stream(false), streams[] = { stream, NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD };
        for (size_t i = 0; i < 4; i++) {
                check_refused(gpuipc_fence_wait_stream(place.produced, streams[i], 1, 0, &error));
                check_refused(gpuipc_fence_signal_stream(place.produced, streams[i], 1, &error));
                ck_assert_ptr_eq(current(), other);
        }
        ck_assert_int_eq(gpuipc_fence_signal(place.produced, 1, &error), GPUIPC_OK); /* but this is the library's own stream */
        use(primary);
        check_refused(gpuipc_fence_wait_stream(place.produced, stream, 1, 0, &error));
        ck_assert_ptr_eq(current(), primary);
        place_stop(&place);
} END_TEST

START_TEST(a_stream_that_is_gone) {
        place_start(&place, NULL, "cuda-fd", GPUIPC_RW);
        CUstream stream = place_stream(false);
        ck_assert_int_eq(gpuipc_fence_wait_stream(place.produced, (void *)&place, 1, 0, &error), GPUIPC_ERROR_MAP);
        ck_assert_ptr_nonnull(strstr(error.message, "Is the stream still there?"));
        to_and_fro(stream, 1);
        place_stop(&place);
} END_TEST

/* The word is on one GPU, and the buffer mapped for the other: as the driver allows it. */
START_TEST(over_peer_access) {
        void *pointer;
        gpuipc_fence *fence;

        place_start(&place, NULL, "cuda-fd", GPUIPC_RW);
        CUcontext primary = current();
        (void)make_context(1);
        gpuipc_buffer *buffer = desk_map(&place.desk, GPUIPC_RW, &pointer);
        CUstream here = place_stream(false);
        ck_assert_int_eq(gpuipc_buffer_is_peer(buffer), 1);
        ck_assert_int_eq(gpuipc_fence_new(buffer, 0, &fence, &error), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_fence_signal_stream(fence, here, 3, &error), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_fence_wait(place.produced, 3, 10000, &error), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_fence_wait_stream(fence, here, 4, 0, &error), GPUIPC_OK);
        use(primary);
        ck_assert_int_eq(gpuipc_fence_signal_stream(place.produced, NULL, 4, &error), GPUIPC_OK);
        ck_assert_int_eq(DRIVER(cuStreamSynchronize)(here), 0);
        gpus_script("on cuStream*Value64_v2 fail=801");
        ck_assert_int_eq(gpuipc_fence_wait_stream(fence, here, 4, 0, &error), GPUIPC_ERROR_MAP);
        ck_assert_ptr_nonnull(strstr(error.message, "The fence lies on another GPU"));
        gpus_script("");
        gpuipc_fence_free(fence);
        ck_assert_int_eq(gpuipc_release(buffer, NULL), GPUIPC_OK);
        place_stop(&place);
} END_TEST

/* The primary context is held as long as a fence of it is there, and no longer. */
START_TEST(the_primary_context_is_held) {
        void *pointer;
        gpuipc_fence *fence;

        place_start(&place, NULL, "cuda-fd", GPUIPC_RW);
        use(NULL);
        size_t held = gpus_calls("cuDevicePrimaryCtxRetain", 0) - gpus_calls("cuDevicePrimaryCtxRelease_v2", 0);
        gpuipc_buffer *buffer = desk_map(&place.desk, GPUIPC_RW, &pointer);
        prepare(ACT_NEW);
        ck_assert_int_eq(gpuipc_fence_new(buffer, 0, &fence, &error), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_release(buffer, NULL), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_fence_signal(fence, 3, &error), GPUIPC_OK);
        gpuipc_fence_free(fence);
        ck_assert_uint_eq(gpus_calls("cuDevicePrimaryCtxRetain", 0) - gpus_calls("cuDevicePrimaryCtxRelease_v2", 0), held);
        place_stop(&place);
} END_TEST

int main(void) {
        Suite *suite = suite_create("client_cuda_fence_errors");
        TCase *tcase = tcase_create("fences");

        tcase_set_timeout(tcase, 60);
        tcase_add_loop_test(tcase, every_call_fails, 0, 4);
        tcase_add_test(tcase, refused_after_all);
        tcase_add_test(tcase, a_lost_context);
        tcase_add_test(tcase, contexts_of_the_same_gpu);
        tcase_add_test(tcase, a_stream_of_another_gpu);
        tcase_add_test(tcase, a_stream_that_is_gone);
        tcase_add_test(tcase, over_peer_access);
        tcase_add_test(tcase, the_primary_context_is_held);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
