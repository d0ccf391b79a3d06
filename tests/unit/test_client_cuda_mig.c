/* SPDX-License-Identifier: Apache-2.0 */
/* A slice of a GPU (MIG): its memory is mapped, seen or hidden, and the library calls it by the slice's own UUID, as the daemon does. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_gpus.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"

#define SLICE "MIG-00112233-4455-6677-8899-aabbccddeeff"
#define NAMED "device uuid=" SLICE " name=\"Fake H200 MIG 1g.18gb\" "

static struct desk desk;
static struct owner owner;
static struct fds before;

/* Memory on the machine's `device`, of that name; what this process sees of its GPUs (NULL: all). */
static void begin(const char *script, int device, const char *uuid, const char *visible) {
        gpus_start(script);
        owner = owner_start("cuda-fd", device, 2 * MIB);
        before = fds_of(0);
        desk = (struct desk){ .size = 2 * MIB, .uuid = uuid, .fd = owner.fd };
        if (visible)
                ck_assert_int_eq(setenv("CUDA_VISIBLE_DEVICES", visible, 1), 0);
        desk_open(&desk);
}

static void end(void) {
        struct fds after;

        ck_assert_uint_eq(address_ranges(), 0);
        ck_assert_uint_eq(gpus_calls("cuMemMap", 0), gpus_calls("cuMemUnmap", 0));
        ck_assert_uint_eq(gpus_calls("cuDevicePrimaryCtxRetain", 0), gpus_calls("cuDevicePrimaryCtxRelease_v2", 0));
        desk_close(&desk);
        after = fds_of(0);
        fds_assert_same(&before, &after, "this process");
        fds_deinit(&before);
        fds_deinit(&after);
        owner_stop(&owner);
        gpus_stop();
}

/* The slice's physical number is 1. */
static const struct {
        const char *visible;
        int ordinal, peer;
} views[] = {
        { NULL, 1, 0 },
        { SLICE, 0, 0 },
        { "MIG-0011", 0, 0 },
        { "1", 0, 0 },
        { SLICE ",0", 0, 0 },
        { "0," SLICE, 1, 0 },
        { "0", 0, 1 },
};

START_TEST(is_mapped) {
        unsigned char *pointer;
        gpuipc_buffer *buffer;

        begin("device\n" NAMED, 1, SLICE, views[_i].visible);
        buffer = desk_map(&desk, GPUIPC_RW, (void **)&pointer);
        ck_assert_str_eq(gpuipc_buffer_device(buffer), SLICE);
        ck_assert_int_eq(gpuipc_buffer_cuda_device(buffer), views[_i].ordinal);
        ck_assert_int_eq(gpuipc_buffer_is_peer(buffer), views[_i].peer);
        for (size_t i = 0; i < 2 * MIB; i += 4093)
                ck_assert_uint_eq(pointer[i], owner_byte(i));
        ck_assert_int_eq(gpuipc_release(buffer, NULL), GPUIPC_OK);
        end();
}
END_TEST

static void check_says(const gpuipc_error *error, const char *words) {
        ck_assert_msg(strstr(error->message, words) != NULL, "'%s' is not in: %s", words, error->message);
}

/* Nothing outside a slice reaches its memory; who tries is told which slice it is. */
START_TEST(hidden_and_out_of_reach) {
        gpuipc_error error;

        begin("device\n" NAMED "peer=no", 1, SLICE, "0");
        ck_assert_int_eq(desk_fail(&desk, GPUIPC_RW, &error), GPUIPC_ERROR_HANDLE_UNSUPPORTED);
        check_says(&error, "The memory is on " SLICE " (hidden from this process), and " GPUS_UUID("0") ", which this thread uses");
        check_says(&error, "[G008]");
        ck_assert_str_eq(error.subject, SLICE);
        end();
}
END_TEST

/* Nor does a slice reach what lies outside it. */
START_TEST(reaches_nothing_else) {
        gpuipc_error error;

        begin("device\n" NAMED "peer=no", 0, GPUS_UUID("0"), SLICE);
        ck_assert_int_eq(desk_fail(&desk, GPUIPC_RW, &error), GPUIPC_ERROR_HANDLE_UNSUPPORTED);
        check_says(&error, "and " SLICE ", which this thread uses, cannot reach it");
        end();
}
END_TEST

/* A pool asks the daemon for the slice by the library's name for it. */
START_TEST(is_asked_for) {
        gpuipc_error error = { 0 };
        unsigned char *pointer;
        gpuipc_pool *pool;

        begin("device\n" NAMED, 1, SLICE, SLICE);
        ck_assert_int_eq(gpuipc_pool_new(desk.client, NULL, &pool, &error), GPUIPC_OK);
        pointer = gpuipc_pool_alloc_function(pool)(2 * MIB, 0, NULL);
        (void)gpuipc_pool_failures(pool, &error);
        ck_assert_msg(pointer != NULL, "%s", error.message);
        ck_assert_msg(strstr(desk.asked, "\"device\":\"" SLICE "\"") != NULL, "%s", desk.asked);
        ck_assert_uint_eq(pointer[9], owner_byte(9));
        gpuipc_pool_free_function(pool)(pointer, 0, 0, NULL);
        gpuipc_pool_free(pool);
        end();
}
END_TEST

/* What the driver calls a GPU is all that tells a slice: with another name it is none. */
START_TEST(a_whole_gpu_is_none) {
        gpuipc_error error;

        begin("device\ndevice uuid=" SLICE " name=\"Fake MIG-less H200\" peer=no", 0, GPUS_UUID("0"), "1");
        ck_assert_int_eq(desk_fail(&desk, GPUIPC_RW, &error), GPUIPC_ERROR_HANDLE_UNSUPPORTED);
        check_says(&error, "and GPU-00112233-4455-6677-8899-aabbccddeeff, which this thread uses");
        end();
}
END_TEST

int main(void) {
        Suite *suite = suite_create("client_cuda_mig");
        TCase *tcase = tcase_create("slices");

        tcase_add_loop_test(tcase, is_mapped, 0, (int)(sizeof(views) / sizeof(views[0])));
        tcase_add_test(tcase, hidden_and_out_of_reach);
        tcase_add_test(tcase, reaches_nothing_else);
        tcase_add_test(tcase, is_asked_for);
        tcase_add_test(tcase, a_whole_gpu_is_none);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
