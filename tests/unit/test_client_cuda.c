/* SPDX-License-Identifier: Apache-2.0 */
/* Memory behind a descriptor on a GPU: for whom it is mapped, what is left behind, who shares what. */
#include <check.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_gpus.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"

static void check_bytes(const void *pointer, size_t offset, size_t n) {
        const unsigned char *bytes = pointer;
        size_t i = 0;

        while (i < n && bytes[i] == owner_byte(offset + i))
                i++;
        ck_assert_msg(i == n, "byte %zu", offset + i);
}

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

/* What the driver handed out to this process, and to the owners, has come back. */
static void check_all_given_back(void) {
        ck_assert_uint_eq(address_ranges(), 0);
        ck_assert_uint_eq(gpus_calls("cuMemAddressReserve", 0), gpus_calls("cuMemAddressFree", 0));
        ck_assert_uint_eq(gpus_calls("cuMemMap", 0), gpus_calls("cuMemUnmap", 0));
        ck_assert_uint_eq(gpus_calls("cuMemImportFromShareableHandle", 0) + gpus_calls("cuMemCreate", 0),
                          gpus_calls("cuMemRelease", 0));
        ck_assert_uint_eq(gpus_calls("cuDevicePrimaryCtxRetain", 0), gpus_calls("cuDevicePrimaryCtxRelease_v2", 0));
        ck_assert_uint_eq(gpus_calls("cuCtxPushCurrent_v2", 0), gpus_calls("cuCtxPopCurrent_v2", 0));
        ck_assert_uint_eq(gpus_calls("cuCtxSynchronize", -1) + gpus_calls("cuStreamSynchronize", -1), 0);
}

/* ---- for whom --------------------------------------------------------------------------------------------- */

START_TEST(without_a_context) {
        struct desk desk = { .size = 3 * MIB + 5, .allocated = 4 * MIB };
        void *pointer, *again;
        char got;

        gpus_start(NULL);
        struct owner owner = owner_start("cuda-fd", 0, 4 * MIB);
        ck_assert_int_eq(DRIVER(cuInit)(0), 0);
        check_fd_count_begin();
        desk.fd = owner.fd;
        desk_open(&desk);
        gpuipc_buffer *buffer = desk_map(&desk, GPUIPC_RW, &pointer);
        check_bytes(pointer, 0, (size_t)desk.size);
        ((char *)pointer)[desk.size - 1] = 'x';
        ck_assert_int_eq(pread(owner.fd, &got, 1, desk.size - 1), 1);
        ck_assert_int_eq(got, 'x');
        ck_assert_int_eq(gpuipc_buffer_map(buffer, &again, NULL), GPUIPC_OK);
        ck_assert_ptr_eq(again, pointer);
        ck_assert_int_eq(gpuipc_buffer_is_peer(buffer), 0);
        ck_assert_int_eq(gpuipc_buffer_cuda_device(buffer), 0);
        /* The primary context is held, and not left current. */
        ck_assert_ptr_null(current());
        ck_assert_uint_eq(gpus_calls("cuDevicePrimaryCtxRetain", 0), 1);
        ck_assert_uint_eq(gpus_calls("cuDevicePrimaryCtxRelease_v2", 0), 0);
        ck_assert_uint_eq(gpus_calls("cuMemRelease", 0), 2);
        ck_assert_uint_gt(address_ranges(), 0);
        ck_assert_int_eq(gpuipc_release(buffer, NULL), GPUIPC_OK);
        ck_assert_ptr_null(current());
        check_all_given_back();
        desk_close(&desk);
        check_fd_count_end();
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

START_TEST(in_the_callers_context) {
        struct desk desk = { .size = 2 * MIB };
        CUcontext under, popped;
        void *pointer;

        gpus_start(NULL);
        struct owner owner = owner_start("cuda-fd", 0, 2 * MIB);
        desk.fd = owner.fd;
        desk_open(&desk);
        under = make_context(1);
        CUcontext mine = make_context(0);
        gpuipc_buffer *buffer = desk_map(&desk, GPUIPC_RW, &pointer);
        check_bytes(pointer, 0, (size_t)desk.size);
        ck_assert_int_eq(gpuipc_buffer_is_peer(buffer), 0);
        ck_assert_ptr_eq(current(), mine);
        ck_assert_int_eq(gpuipc_release(buffer, NULL), GPUIPC_OK);
        ck_assert_ptr_eq(current(), mine);
        ck_assert_uint_eq(gpus_calls("cuDevicePrimaryCtxRetain", -1), 0);
        check_all_given_back();
        /* The whole stack is as it was. */
        ck_assert_int_eq(DRIVER(cuCtxPopCurrent)(&popped), 0);
        ck_assert_ptr_eq(popped, mine);
        ck_assert_int_eq(DRIVER(cuCtxPopCurrent)(&popped), 0);
        ck_assert_ptr_eq(popped, under);
        ck_assert_ptr_null(current());
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

static unsigned long long access_of(const void *pointer, int ordinal) {
        CUmemLocation location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal };
        unsigned long long flags = 99;
        ck_assert_int_eq(DRIVER(cuMemGetAccess)(&flags, &location, (CUdeviceptr)(uintptr_t)pointer), 0);
        return flags;
}

START_TEST(another_gpu_is_current) {
        struct desk desk = { .size = 2 * MIB };
        void *pointer;

        gpus_start(NULL);
        struct owner owner = owner_start("cuda-fd", 0, 2 * MIB);
        desk.fd = owner.fd;
        desk_open(&desk);
        CUcontext mine = make_context(1);
        gpuipc_buffer *buffer = desk_map(&desk, GPUIPC_RW, &pointer);
        check_bytes(pointer, 0, (size_t)desk.size);
        ck_assert_int_eq(gpuipc_buffer_is_peer(buffer), 1);
        ck_assert_int_eq(gpuipc_buffer_cuda_device(buffer), 1);
        ck_assert_uint_eq(access_of(pointer, 1), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        ck_assert_ptr_eq(current(), mine);
        ck_assert_int_eq(gpuipc_release(buffer, NULL), GPUIPC_OK);
        check_all_given_back();
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

/* The owner's physical number is 0 in all of them. */
static const struct {
        const char *visible;
        int ordinal, peer;
} views[] = {
        { "0,1", 0, 0 },
        { "1,0", 1, 0 },
        { "0", 0, 0 },
        { "1", 0, 1 },
        { GPUS_UUID("1") "," GPUS_UUID("0"), 1, 0 },
        { "GPU-fa4e0000-0000-4000-8000-000000000001", 0, 1 },
};

START_TEST(whatever_is_visible) {
        struct desk desk = { .size = 2 * MIB };
        void *pointer;

        gpus_start(NULL);
        struct owner owner = owner_start("cuda-fd", 0, 2 * MIB);
        desk.fd = owner.fd;
        ck_assert_int_eq(setenv("CUDA_VISIBLE_DEVICES", views[_i].visible, 1), 0);
        desk_open(&desk);
        gpuipc_buffer *buffer = desk_map(&desk, GPUIPC_RW, &pointer);
        check_bytes(pointer, 0, (size_t)desk.size);
        ck_assert_int_eq(gpuipc_buffer_cuda_device(buffer), views[_i].ordinal);
        ck_assert_int_eq(gpuipc_buffer_is_peer(buffer), views[_i].peer);
        ck_assert_int_eq(gpuipc_release(buffer, NULL), GPUIPC_OK);
        check_all_given_back();
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

/* ---- how -------------------------------------------------------------------------------------------------- */

static sigjmp_buf after_fault;

static void on_fault(int number) {
        siglongjmp(after_fault, number);
}

static int write_faults(volatile char *at) {
        struct sigaction action = { .sa_handler = on_fault }, before;
        int fault;

        ck_assert_int_eq(sigaction(SIGSEGV, &action, &before), 0);
        fault = sigsetjmp(after_fault, 1);
        if (fault == 0)
                *at = 1;
        ck_assert_int_eq(sigaction(SIGSEGV, &before, NULL), 0);
        return fault;
}

START_TEST(read_only) {
        struct desk desk = { .size = 2 * MIB };
        void *read, *write;

        gpus_start(NULL);
        struct owner owner = owner_start("cuda-fd", 0, 2 * MIB);
        desk.fd = owner.fd;
        desk_open(&desk);
        gpuipc_buffer *buffers[2] = { desk_map(&desk, GPUIPC_RO, &read), desk_map(&desk, GPUIPC_RW, &write) };
        ck_assert_ptr_ne(read, write);
        check_bytes(read, 0, (size_t)desk.size);
        ck_assert_uint_eq(access_of(read, 0), CU_MEM_ACCESS_FLAGS_PROT_READ);
        ck_assert_int_eq(write_faults(read), SIGSEGV);
        ck_assert_int_eq(write_faults(write), 0);
        ck_assert_int_eq(*(char *)read, 1);
        ck_assert_int_eq(gpuipc_release(buffers[0], NULL), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_release(buffers[1], NULL), GPUIPC_OK);
        check_all_given_back();
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

START_TEST(from_an_offset) {
        static const struct {
                int64_t offset, size, allocated;
        } parts[] = {
                { 2 * MIB, 2 * MIB, 2 * MIB },
                { 2 * MIB + 256, 1000, 2 * MIB },
                { 100, MIB, 8 * MIB }, /* the whole of it is said to be the buffer's */
                { 6 * MIB, 2 * MIB, 2 * MIB },
                { 8 * MIB - 1, 1, 1 },
        };
        void *pointer;

        gpus_start(NULL);
        struct owner owner = owner_start("cuda-fd", 0, 8 * MIB);
        struct desk desk = { .fd = owner.fd, .size = 1 };
        desk_open(&desk);
        for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
                desk.offset = parts[i].offset;
                desk.size = parts[i].size;
                desk.allocated = parts[i].allocated;
                gpuipc_buffer *buffer = desk_map(&desk, GPUIPC_RW, &pointer);
                check_bytes(pointer, (size_t)desk.offset, (size_t)desk.size);
                ck_assert_int_eq(gpuipc_release(buffer, NULL), GPUIPC_OK);
        }
        check_all_given_back();
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

/* ---- who shares ------------------------------------------------------------------------------------------- */

START_TEST(one_mapping_for_all) {
        struct desk desk = { .size = 2 * MIB };
        gpuipc_buffer *buffers[4];
        void *pointers[4];

        gpus_start(NULL);
        struct owner owner = owner_start("cuda-fd", 0, 2 * MIB);
        desk.fd = owner.fd;
        desk_open(&desk);
        for (int i = 0; i < 3; i++)
                buffers[i] = desk_map(&desk, GPUIPC_RW, &pointers[i]);
        ck_assert_ptr_eq(pointers[0], pointers[1]);
        ck_assert_ptr_eq(pointers[0], pointers[2]);
        ck_assert_uint_eq(gpus_calls("cuMemImportFromShareableHandle", -1), 1);
        ck_assert_uint_eq(gpus_calls("cuDevicePrimaryCtxRetain", -1), 1);
        /* For another GPU it is another mapping. */
        (void)make_context(1);
        buffers[3] = desk_map(&desk, GPUIPC_RW, &pointers[3]);
        ck_assert_ptr_ne(pointers[0], pointers[3]);
        ck_assert_int_eq(gpuipc_buffer_is_peer(buffers[0]), 0);
        ck_assert_int_eq(gpuipc_buffer_is_peer(buffers[3]), 1);
        for (int i = 0; i < 4; i++) {
                check_bytes(pointers[i], 0, (size_t)desk.size);
                ck_assert_int_eq(gpuipc_release(buffers[i], NULL), GPUIPC_OK);
        }
        check_all_given_back();
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

/* Descriptors of memory on a GPU look alike; a daemon started anew begins with the same ids. */
START_TEST(one_id_for_two) {
        gpuipc_buffer *buffers[3];
        void *pointers[3];

        gpus_start(NULL);
        struct owner owners[2] = { owner_start("cuda-fd", 0, 2 * MIB), owner_start("cuda-fd", 0, 2 * MIB) };
        struct desk desk = { .size = 2 * MIB };
        desk_open(&desk);
        ck_assert_int_eq(pwrite(owners[1].fd, "other", 6, 0), 6);
        for (int i = 0; i < 2; i++) {
                desk.fd = owners[i].fd;
                desk.created_usec = 1000 + i;
                buffers[i] = desk_map(&desk, GPUIPC_RW, &pointers[i]);
        }
        check_bytes(pointers[0], 0, (size_t)desk.size);
        ck_assert_str_eq(pointers[1], "other");
        /* Nor does the same descriptor make the same buffer. */
        desk.created_usec = 1000;
        buffers[2] = desk_map(&desk, GPUIPC_RW, &pointers[2]);
        ck_assert_ptr_ne(pointers[2], pointers[1]);
        ck_assert_str_eq(pointers[2], "other");
        for (int i = 0; i < 3; i++)
                ck_assert_int_eq(gpuipc_release(buffers[i], NULL), GPUIPC_OK);
        check_all_given_back();
        desk_close(&desk);
        for (int i = 0; i < 2; i++)
                owner_stop(&owners[i]);
        gpus_stop();
}
END_TEST

/* ---- again and again -------------------------------------------------------------------------------------- */

START_TEST(no_growth) {
        struct desk desk = { .size = 2 * MIB };
        void *pointer;

        gpus_start("log no");
        struct owner owner = owner_start("cuda-fd", 0, 2 * MIB);
        desk.fd = owner.fd;
        desk_open(&desk);
        CUcontext mine = make_context(0);
        check_fd_count_begin();
        for (int i = 0; i < 1000; i++) {
                gpuipc_buffer *buffer = desk_map(&desk, i % 2 ? GPUIPC_RO : GPUIPC_RW, &pointer);
                ck_assert_int_eq(gpuipc_release(buffer, NULL), GPUIPC_OK);
        }
        check_fd_count_end();
        ck_assert_ptr_eq(current(), mine);
        ck_assert_uint_eq(address_ranges(), 0);
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

struct crowd {
        struct desk *desk;
        CUcontext context; /* NULL: none */
        const char *complaint;
};

static const char *complain(const struct crowd *crowd) {

        if (crowd->context && DRIVER(cuCtxPushCurrent)(crowd->context))
                return "the context cannot be made current";
        for (int i = 0; i < 50; i++) {
                gpuipc_open_options options = GPUIPC_OPEN_OPTIONS_INIT;
                gpuipc_buffer *buffer;
                unsigned char *pointer;
                CUcontext now;

                options.access = i % 3 ? GPUIPC_RW : GPUIPC_RO;
                if (gpuipc_open_id(crowd->desk->client, "b1", &options, &buffer, NULL) ||
                    gpuipc_buffer_map(buffer, (void **)&pointer, NULL))
                        return "no mapping";
                if (pointer[i] != owner_byte((size_t)i))
                        return "wrong bytes";
                if (gpuipc_buffer_is_peer(buffer) != (crowd->context != NULL))
                        return "mapped for another GPU";
                if (gpuipc_release(buffer, NULL) || DRIVER(cuCtxGetCurrent)(&now) || now != crowd->context)
                        return "another context is current";
        }
        return NULL;
}

static void *join_in(void *data) {
        struct crowd *crowd = data;
        crowd->complaint = complain(crowd);
        return NULL;
}

START_TEST(many_threads) {
        struct desk desk = { .size = 2 * MIB };
        struct crowd crowds[8];
        pthread_t threads[8];
        CUcontext popped;

        gpus_start(NULL);
        struct owner owner = owner_start("cuda-fd", 0, 2 * MIB);
        desk.fd = owner.fd;
        desk_open(&desk);
        CUcontext other = _i ? make_context(1) : NULL;
        if (other)
                ck_assert_int_eq(DRIVER(cuCtxPopCurrent)(&popped), 0);
        for (int i = 0; i < 8; i++) {
                crowds[i] = (struct crowd){ .desk = &desk, .context = i % 2 ? other : NULL };
                ck_assert_int_eq(pthread_create(&threads[i], NULL, join_in, &crowds[i]), 0);
        }
        for (int i = 0; i < 8; i++) {
                ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
                ck_assert_msg(crowds[i].complaint == NULL, "%s", crowds[i].complaint);
        }
        /* CUDA is initialised by the first of them alone. */
        ck_assert_uint_eq(gpus_calls("cuInit", 0), other ? 3 : 2);
        ck_assert_uint_eq(address_ranges(), 0);
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

int main(void) {
        Suite *suite = suite_create("client_cuda");
        TCase *tcase = tcase_create("cuda-fd");

        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, without_a_context);
        tcase_add_test(tcase, in_the_callers_context);
        tcase_add_test(tcase, another_gpu_is_current);
        tcase_add_loop_test(tcase, whatever_is_visible, 0, (int)(sizeof(views) / sizeof(views[0])));
        tcase_add_test(tcase, read_only);
        tcase_add_test(tcase, from_an_offset);
        tcase_add_test(tcase, one_mapping_for_all);
        tcase_add_test(tcase, one_id_for_two);
        tcase_add_test(tcase, no_growth);
        tcase_add_loop_test(tcase, many_threads, 0, 2);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
