/* SPDX-License-Identifier: Apache-2.0 */
/* Pools on a machine with two GPUs: which one is asked for, in whose context a block is mapped, and what the driver is called for. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_gpus.h"
#include "tests/support/suite.h"

static size_t held(void) {
        return gpus_calls("cuDevicePrimaryCtxRetain", 0) - gpus_calls("cuDevicePrimaryCtxRelease_v2", 0);
}

static CUcontext current(void) {
        CUcontext context;
        ck_assert_int_eq(DRIVER(cuCtxGetCurrent)(&context), 0);
        return context;
}

static gpuipc_pool *pool_of(struct desk *desk) {
        gpuipc_pool *pool;
        gpuipc_error error;

        ck_assert_msg(gpuipc_pool_new(desk->client, NULL, &pool, &error) == GPUIPC_OK, "%s", error.message);
        return pool;
}

/* Memory of the second GPU; what is visible, and its ordinal then. */
static const struct sight {
        const char *visible;
        int ordinal, others; /* the other's ordinal; -1: hidden */
} sights[] = { { NULL, 1, 0 }, { "1", 0, -1 }, { "1,0", 0, 1 } };

/* With no context, and with the other GPU's: the block is mapped for the GPU that was asked for. */
START_TEST(for_the_gpu_that_is_asked_for) {
        const struct sight *sight = &sights[_i / 2];
        struct desk desk = { .size = 2 * MIB, .uuid = GPUS_UUID("1") };
        gpuipc_pool_block block = GPUIPC_POOL_BLOCK_INIT;
        CUcontext mine = NULL;
        gpuipc_error error = { 0 };
        gpuipc_pool *pool;
        size_t held_before;
        char *pointer;

        gpus_start(NULL);
        struct owner owner = owner_start("cuda-fd", 1, 2 * MIB);
        desk.fd = owner.fd;
        if (sight->visible)
                setenv("CUDA_VISIBLE_DEVICES", sight->visible, 1);
        desk_open(&desk);
        pool = pool_of(&desk);
        ck_assert_int_eq(DRIVER(cuInit)(0), 0);
        if (_i % 2 == 1 && sight->others >= 0)
                ck_assert_int_eq(DRIVER(cuCtxCreate)(&mine, NULL, 0, sight->others), 0);
        held_before = held();
        pointer = gpuipc_pool_alloc_function(pool)(2 * MIB, sight->ordinal, NULL);
        (void)gpuipc_pool_failures(pool, &error);
        ck_assert_msg(pointer != NULL, "%s", error.message);
        ck_assert_ptr_nonnull(strstr(desk.asked, "\"device\":\"" GPUS_UUID("1") "\""));
        ck_assert_uint_eq((unsigned char)pointer[9], owner_byte(9));
        ck_assert_int_eq(gpuipc_pool_find(pointer + 5, &block, NULL), GPUIPC_OK);
        ck_assert_int_eq(block.cuda_device, sight->ordinal);
        ck_assert_str_eq(block.buffer, "b1");
        ck_assert_ptr_eq(current(), mine);
        ck_assert_uint_eq(held(), held_before + 1);
        ck_assert_uint_eq(gpus_calls("cuDeviceCanAccessPeer", 0), 0);
        gpuipc_pool_free_function(pool)(pointer, 0, 0, NULL);
        ck_assert_ptr_eq(current(), mine);
        ck_assert_uint_eq(held(), held_before);
        ck_assert_uint_eq(gpus_calls("cuCtxSynchronize", 0), 1);
        ck_assert_uint_eq(gpus_calls("cuMemUnmap", 0), 1);
        gpuipc_pool_free(pool);
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

/* Nothing stays of what failed, and the next goes well. */
START_TEST(a_driver_that_refuses) {
        static const char *const calls[] = { "cuDevicePrimaryCtxRetain", "cuMemMap", "cuMemImportFromShareableHandle" };
        struct desk desk = { .size = 2 * MIB };
        gpuipc_error error;
        gpuipc_pool *pool;
        char script[128];
        void *pointer;

        gpus_start(NULL);
        struct owner owner = owner_start("cuda-fd", 0, 2 * MIB);
        desk.fd = owner.fd;
        desk_open(&desk);
        pool = pool_of(&desk);
        (void)snprintf(script, sizeof(script), "on %s fail=999 nth=1", calls[_i]);
        gpus_script(script);
        ck_assert_ptr_null(gpuipc_pool_alloc_function(pool)(2 * MIB, 0, NULL));
        ck_assert_int_eq(gpuipc_pool_failures(pool, &error), 1);
        ck_assert_msg(error.status == GPUIPC_ERROR_MAP && strstr(error.message, calls[_i]), "%s", error.message);
        ck_assert_uint_eq(held(), 0);
        ck_assert_ptr_null(gpuipc_pool_alloc_function(pool)(2 * MIB, 2, NULL));
        ck_assert_int_eq(gpuipc_pool_failures(pool, &error), 2);
        ck_assert_msg(error.status == GPUIPC_ERROR_NO_SUCH_DEVICE && strstr(error.message, "GPU 2"), "%s", error.message);
        pointer = gpuipc_pool_alloc_function(pool)(2 * MIB, 0, NULL);
        ck_assert_ptr_nonnull(pointer);
        gpuipc_pool_free_function(pool)(pointer, 0, 0, NULL);
        ck_assert_uint_eq(held(), 0);
        gpuipc_pool_free(pool);
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

int main(void) {
        Suite *suite = suite_create("client_cuda_pool");
        TCase *tcase = tcase_create("pools");

        tcase_set_timeout(tcase, 60);
        tcase_add_loop_test(tcase, for_the_gpu_that_is_asked_for, 0, 2 * (int)(sizeof(sights) / sizeof(sights[0])));
        tcase_add_loop_test(tcase, a_driver_that_refuses, 0, 3);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
