/* SPDX-License-Identifier: Apache-2.0 */
/* Copies in and out of memory on a GPU: whose context they run in, what they touch, what they refuse. */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cuda_gpus.h"
#include "tests/support/suite.h"

static const char *const kinds[] = { "cuda-fd", "cuda-ipc" };

static CUcontext current(void) {
        CUcontext context;
        ck_assert_int_eq(DRIVER(cuCtxGetCurrent)(&context), 0);
        return context;
}

static CUcontext make_context(int ordinal) {
        CUcontext context;
        ck_assert_int_eq(DRIVER(cuInit)(0), 0);
        ck_assert_int_eq(DRIVER(cuCtxCreate)(&context, NULL, 0, ordinal), 0);
        return context;
}

static void setup_desk(struct desk *desk, const struct owner *owner) {
        desk->fd = owner->fd;
        desk->ipc = owner->ipc[0] ? owner->ipc : NULL;
        desk_open(desk);
}

/* Primary contexts that are held, the owner's among them. */
static size_t held(void) {
        return gpus_calls("cuDevicePrimaryCtxRetain", 0) - gpus_calls("cuDevicePrimaryCtxRelease_v2", 0);
}

/* Both kinds; with no context, one of the same GPU, one of another. */
START_TEST(in_and_out) {
        const char *kind = kinds[_i % 2];
        struct desk desk = { .kind = kind, .size = 2 * MIB };
        gpuipc_buffer *buffer;
        CUcontext mine = NULL;
        size_t held_before;
        void *pointer;
        char bytes[64];

        gpus_start(NULL);
        struct owner owner = owner_start(kind, 0, 2 * MIB);
        held_before = held();
        setup_desk(&desk, &owner);
        ck_assert_int_eq(DRIVER(cuInit)(0), 0);
        if (_i / 2 > 0)
                mine = make_context(_i / 2 - 1);
        buffer = desk_map(&desk, GPUIPC_RW, &pointer);
        ck_assert_int_eq(gpuipc_buffer_read(buffer, 1000, bytes, sizeof(bytes), NULL), GPUIPC_OK);
        for (size_t i = 0; i < sizeof(bytes); i++)
                ck_assert_uint_eq((unsigned char)bytes[i], owner_byte(1000 + i));
        ck_assert_uint_eq(gpus_calls("cuStreamSynchronize", 0), 0);
        ck_assert_int_eq(gpuipc_buffer_write(buffer, 2 * MIB - 5, "hello", 5, NULL), GPUIPC_OK);
        ck_assert_uint_eq(gpus_calls("cuStreamSynchronize", 0), 1); /* else it may still be on its way */
        ck_assert_int_eq(memcmp((char *)pointer + 2 * MIB - 5, "hello", 5), 0);
        ck_assert_uint_eq((unsigned char)((char *)pointer)[2 * MIB - 6], owner_byte((size_t)(2 * MIB - 6)));
        ck_assert_ptr_eq(current(), mine);
        ck_assert_int_eq(gpuipc_release(buffer, NULL), GPUIPC_OK);
        ck_assert_uint_eq(held(), held_before);
        ck_assert_uint_eq(gpus_calls("cuCtxPushCurrent_v2", 0), gpus_calls("cuCtxPopCurrent_v2", 0));
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

/* Mapped for one GPU, copied by a thread that has since turned to another. */
START_TEST(turned_to_another_gpu) {
        struct desk desk = { .size = 2 * MIB };
        gpuipc_buffer *buffer;
        CUcontext mine;
        void *pointer;
        char byte;

        gpus_start(NULL);
        struct owner owner = owner_start("cuda-fd", 0, 2 * MIB);
        setup_desk(&desk, &owner);
        ck_assert_int_eq(DRIVER(cuInit)(0), 0);
        buffer = desk_map(&desk, GPUIPC_RO, &pointer);
        mine = make_context(1);
        ck_assert_int_eq(gpuipc_buffer_read(buffer, 0, &byte, 1, NULL), GPUIPC_OK);
        ck_assert_uint_eq((unsigned char)byte, owner_byte(0));
        ck_assert_ptr_eq(current(), mine);
        ck_assert_int_eq(gpuipc_release(buffer, NULL), GPUIPC_OK);
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

static void check_refused(int r, const gpuipc_error *error, const char *parameter) {
        ck_assert_int_eq(r, GPUIPC_ERROR_INVALID_PARAMETER);
        ck_assert_str_eq(error->subject, parameter);
}

START_TEST(what_is_refused) {
        struct desk desk = { .size = MIB, .allocated = 2 * MIB };
        gpuipc_buffer *rw, *ro;
        gpuipc_error error;
        void *pointer;
        char bytes[8];

        gpus_start(NULL);
        struct owner owner = owner_start("cuda-fd", 0, 2 * MIB);
        setup_desk(&desk, &owner);
        rw = desk_map(&desk, GPUIPC_RW, &pointer);
        ro = desk_map(&desk, GPUIPC_RO, &pointer);
        check_refused(gpuipc_buffer_read(NULL, 0, bytes, 1, &error), &error, "buffer");
        check_refused(gpuipc_buffer_write(ro, 0, bytes, 1, &error), &error, "buffer");
        check_refused(gpuipc_buffer_read(rw, -1, bytes, 1, &error), &error, "offset");
        check_refused(gpuipc_buffer_read(rw, MIB + 1, bytes, 0, &error), &error, "offset");
        check_refused(gpuipc_buffer_read(rw, MIB - 7, bytes, 8, &error), &error, "n");
        check_refused(gpuipc_buffer_write(rw, 1, bytes, SIZE_MAX, &error), &error, "n");
        check_refused(gpuipc_buffer_write(rw, 0, NULL, 1, &error), &error, "from");
        check_refused(gpuipc_buffer_read(rw, 0, NULL, 1, &error), &error, "to");
        ck_assert_uint_eq(gpus_calls("cuMemcpyDtoH_v2", -1) + gpus_calls("cuMemcpyHtoD_v2", -1), 0);
        ck_assert_int_eq(gpuipc_buffer_read(rw, MIB, NULL, 0, &error), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_buffer_read(rw, MIB - 8, bytes, 8, &error), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_release(rw, NULL), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_release(ro, NULL), GPUIPC_OK);
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

static const char *const failures[] = { "cuMemcpyHtoD_v2", "cuStreamSynchronize", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2" };

/* The driver's word and the call are told, nothing stays held, and the next try goes well. */
START_TEST(a_driver_that_refuses) {
        struct desk desk = { .size = 2 * MIB };
        gpuipc_buffer *buffer;
        gpuipc_error error;
        char script[128];
        void *pointer;

        gpus_start(NULL);
        struct owner owner = owner_start("cuda-fd", 0, 2 * MIB);
        setup_desk(&desk, &owner);
        buffer = desk_map(&desk, GPUIPC_RW, &pointer);
        (void)snprintf(script, sizeof(script), "on %s fail=999 nth=1", failures[_i]);
        gpus_script(script);
        ck_assert_int_eq(gpuipc_buffer_write(buffer, 0, "x", 1, &error), GPUIPC_ERROR_MAP);
        ck_assert_ptr_nonnull(strstr(error.message, "CUDA_ERROR_UNKNOWN"));
        ck_assert_ptr_null(current());
        ck_assert_uint_eq(gpus_calls("cuCtxPushCurrent_v2", 0), gpus_calls("cuCtxPopCurrent_v2", 0));
        ck_assert_int_eq(gpuipc_buffer_write(buffer, 0, "x", 1, &error), GPUIPC_OK);
        ck_assert_int_eq(*(char *)pointer, 'x');
        ck_assert_int_eq(gpuipc_release(buffer, NULL), GPUIPC_OK);
        ck_assert_uint_eq(held(), 0);
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

int main(void) {
        Suite *suite = suite_create("client_cuda_copy");
        TCase *tcase = tcase_create("copies");

        tcase_set_timeout(tcase, 60);
        tcase_add_loop_test(tcase, in_and_out, 0, 6);
        tcase_add_test(tcase, turned_to_another_gpu);
        tcase_add_test(tcase, what_is_refused);
        tcase_add_loop_test(tcase, a_driver_that_refuses, 0, (int)(sizeof(failures) / sizeof(failures[0])));
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
