/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of the false GPUs: each case of tests/fake/README.md. A stream that must not go on is seen not to by what stands behind a wait
 * in it; a process that called cuInit has no children that may use CUDA, so children are started first. */
#include <check.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_machine.h"
#include "proto/cleanup.h"
#include "tests/support/child.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"
#include "tests/support/wait.h"

#define TWO_MIB (2 * MIB)
#define RW CU_MEM_ACCESS_FLAGS_PROT_READWRITE
#define RO CU_MEM_ACCESS_FLAGS_PROT_READ
#define WIDE (UINT64_C(1) << 40)

static struct fds before;
static CUdeviceptr memory; /* 2 MiB of the first GPU, whose primary context is current */

static void setup(void) {
        before = fds_of(0);
        machine_start("device\ndevice memops=no\n");
}

static void teardown(void) {
        struct fds after = fds_of(0);

        machine_end();
        fds_assert_same(&before, &after, "this process");
        fds_deinit(&before);
        fds_deinit(&after);
}

static void start(void) {
        ck_assert(machine_load());
        ck_assert_int_eq(gpu.cuInit(0), CUDA_SUCCESS);
        ck_assert_int_eq(context_use(0), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuMemAlloc_v2(&memory, TWO_MIB), CUDA_SUCCESS);
}

static CUstream make(unsigned flags) {
        CUstream stream;
        ck_assert_int_eq(gpu.cuStreamCreate(&stream, flags), CUDA_SUCCESS);
        return stream;
}

static _Atomic uint64_t *word(size_t i) {
        return (_Atomic uint64_t *)(uintptr_t)memory + i;
}

static CUdeviceptr at(size_t i) {
        return memory + 8 * i;
}

static void wait64(CUstream stream, size_t i, uint64_t value) {
        ck_assert_int_eq(gpu.cuStreamWaitValue64_v2(stream, at(i), value, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
}

static void write64(CUstream stream, size_t i, uint64_t value) {
        ck_assert_int_eq(gpu.cuStreamWriteValue64_v2(stream, at(i), value, CU_STREAM_WRITE_VALUE_DEFAULT), CUDA_SUCCESS);
}

START_TEST(a_wait_holds_its_stream_and_not_the_caller) {
        start();
        CUstream held = make(CU_STREAM_NON_BLOCKING), other = make(CU_STREAM_NON_BLOCKING);
        wait64(held, 0, WIDE);
        write64(held, 1, 7);
        write64(other, 2, 9);
        ck_assert_int_eq(gpu.cuStreamSynchronize(other), CUDA_SUCCESS);
        ck_assert_uint_eq(*word(2), 9);
        ck_assert_int_eq(gpu.cuStreamQuery(held), CUDA_ERROR_NOT_READY);
        ck_assert_int_eq(gpu.cuStreamQuery(other), CUDA_SUCCESS);
        ck_assert_uint_eq(*word(1), 0);
        write64(other, 0, WIDE - 1);
        ck_assert_int_eq(gpu.cuStreamSynchronize(other), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuStreamQuery(held), CUDA_ERROR_NOT_READY);
        write64(other, 0, WIDE + 5);
        ck_assert_int_eq(gpu.cuStreamSynchronize(held), CUDA_SUCCESS);
        ck_assert_uint_eq(*word(1), 7);
        ck_assert_int_eq(gpu.cuStreamDestroy_v2(held), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuStreamDestroy_v2(held), CUDA_ERROR_INVALID_HANDLE);
        ck_assert_int_eq(gpu.cuStreamQuery(held), CUDA_ERROR_INVALID_HANDLE);
} END_TEST

/* The processor's own store, which wakes nobody. */
START_TEST(a_plain_store_is_seen) {
        start();
        CUstream stream = make(0);
        wait64(stream, 0, 3);
        *word(0) = 3;
        ck_assert_int_eq(gpu.cuStreamSynchronize(stream), CUDA_SUCCESS);
} END_TEST

struct comparison {
        unsigned flags;
        uint64_t there, value;
        bool goes_on;
};

static const struct comparison comparisons[] = {
        { CU_STREAM_WAIT_VALUE_GEQ, 5, 5, true },
        { CU_STREAM_WAIT_VALUE_GEQ, 4, 5, false },
        { CU_STREAM_WAIT_VALUE_GEQ, 1, UINT64_MAX, true }, /* cyclic */
        { CU_STREAM_WAIT_VALUE_GEQ, UINT64_MAX, 1, false },
        { CU_STREAM_WAIT_VALUE_GEQ, WIDE, 5, true },
        { CU_STREAM_WAIT_VALUE_EQ, 6, 5, false },
        { CU_STREAM_WAIT_VALUE_EQ, 5, 5, true },
        { CU_STREAM_WAIT_VALUE_AND, 4, 3, false },
        { CU_STREAM_WAIT_VALUE_AND, 5, 4, true },
        { CU_STREAM_WAIT_VALUE_NOR, UINT64_MAX, 0, false },
        { CU_STREAM_WAIT_VALUE_NOR, 3, 4, true },
};

START_TEST(comparisons_are_the_drivers) {
        const struct comparison *one = &comparisons[_i / 2];
        bool wide = _i % 2, goes_on = one->goes_on;

        start();
        CUstream stream = make(CU_STREAM_NON_BLOCKING), other = make(CU_STREAM_NON_BLOCKING);
        *word(0) = one->there;
        if (wide) {
                ck_assert_int_eq(gpu.cuStreamWaitValue64_v2(stream, at(0), one->value, one->flags), CUDA_SUCCESS);
        } else {
                goes_on = one->there == WIDE ? false : goes_on; /* whose lower half is 0 */
                ck_assert_int_eq(gpu.cuStreamWaitValue32_v2(stream, at(0), (uint32_t)one->value, one->flags), CUDA_SUCCESS);
        }
        if (!goes_on) {
                write64(other, 9, 1);
                ck_assert_int_eq(gpu.cuStreamSynchronize(other), CUDA_SUCCESS);
                ck_assert_int_eq(gpu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
                write64(other, 0, one->flags == CU_STREAM_WAIT_VALUE_NOR ? 0 : one->value);
        }
        ck_assert_int_eq(gpu.cuStreamSynchronize(stream), CUDA_SUCCESS);
} END_TEST

START_TEST(half_a_word_is_written) {
        start();
        CUstream stream = make(0);
        *word(0) = UINT64_MAX;
        ck_assert_int_eq(gpu.cuStreamWriteValue32_v2(stream, at(0) + 4, 1, 0), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuStreamSynchronize(stream), CUDA_SUCCESS);
        ck_assert_uint_eq(*word(0), UINT64_C(0x1FFFFFFFF));
} END_TEST

/* The legacy default stream waits for what blocking streams were given first, and they for it; others do not care. */
START_TEST(the_legacy_default_stream) {
        start();
        CUstream blocking = make(0), free_one = make(CU_STREAM_NON_BLOCKING);
        wait64(blocking, 0, 1);
        write64(_i ? CU_STREAM_LEGACY : NULL, 1, 1);
        write64(free_one, 2, 1);
        ck_assert_int_eq(gpu.cuStreamSynchronize(free_one), CUDA_SUCCESS);
        ck_assert_uint_eq(*word(2), 1);
        ck_assert_uint_eq(*word(1), 0);
        ck_assert_int_eq(gpu.cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
        write64(free_one, 0, 1);
        ck_assert_int_eq(gpu.cuStreamSynchronize(NULL), CUDA_SUCCESS);
        ck_assert_uint_eq(*word(1), 1);

        wait64(NULL, 3, 1);
        write64(blocking, 4, 1);
        write64(CU_STREAM_PER_THREAD, 5, 1);
        write64(free_one, 6, 1);
        ck_assert_int_eq(gpu.cuStreamSynchronize(free_one), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuStreamQuery(blocking), CUDA_ERROR_NOT_READY);
        ck_assert_int_eq(gpu.cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
        ck_assert_uint_eq(*word(4) + *word(5), 0);
        write64(free_one, 3, 1);
        ck_assert_int_eq(gpu.cuCtxSynchronize(), CUDA_SUCCESS);
        ck_assert_uint_eq(*word(4) + *word(5), 2);
} END_TEST

/* A copy that is not asynchronous is work of the legacy default stream. */
START_TEST(a_plain_copy_waits_its_turn) {
        uint64_t value = 0;

        start();
        CUstream blocking = make(0);
        wait64(blocking, 0, 1);
        write64(blocking, 1, 11);
        *word(0) = 1;
        ck_assert_int_eq(gpu.cuMemcpyDtoH_v2(&value, at(1), 8), CUDA_SUCCESS);
        ck_assert_uint_eq(value, 11);
} END_TEST

START_TEST(copies_in_stream_order) {
        uint64_t plain = 1, back = 0, *kept;

        start();
        CUstream held = make(CU_STREAM_NON_BLOCKING), other = make(CU_STREAM_NON_BLOCKING);
        ck_assert_int_eq(gpu.cuMemHostAlloc((void **)&kept, 8 * 4, 0), CUDA_SUCCESS);
        kept[0] = 1;
        wait64(held, 0, 1);
        ck_assert_int_eq(gpu.cuMemcpyHtoDAsync_v2(at(1), &plain, 8, held), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuMemcpyHtoDAsync_v2(at(2), &kept[0], 8, held), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuMemcpyDtoDAsync_v2(at(3), at(2), 8, held), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuMemcpyDtoHAsync_v2(&kept[1], at(3), 8, held), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuMemsetD8Async(at(4), 0x5a, 8, held), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuMemsetD32Async(at(5), 0x12345678, 2, held), CUDA_SUCCESS);
        plain = 2;   /* was taken at once */
        kept[0] = 2; /* is read when its turn comes */
        ck_assert_uint_eq(kept[1], 0);
        write64(other, 0, 1);
        ck_assert_int_eq(gpu.cuStreamSynchronize(held), CUDA_SUCCESS);
        ck_assert_uint_eq(*word(1), 1);
        ck_assert_uint_eq(kept[1], 2);
        ck_assert_uint_eq(*word(4), UINT64_C(0x5a5a5a5a5a5a5a5a));
        ck_assert_uint_eq(*word(5), UINT64_C(0x1234567812345678));
        /* Into memory that is not the driver's: there when it returns. */
        ck_assert_int_eq(gpu.cuMemcpyDtoHAsync_v2(&back, at(5), 8, held), CUDA_SUCCESS);
        ck_assert_uint_eq(back, UINT64_C(0x1234567812345678));
        ck_assert_int_eq(gpu.cuMemFreeHost(kept), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuMemFreeHost(kept), CUDA_ERROR_INVALID_VALUE);
} END_TEST

static void CUDA_CB add_one(void *data) {
        ++*(_Atomic int *)data;
}

START_TEST(events_and_calls) {
        _Atomic int called = 0;
        CUevent event;

        start();
        CUstream held = make(CU_STREAM_NON_BLOCKING), after = make(CU_STREAM_NON_BLOCKING), other = make(CU_STREAM_NON_BLOCKING);
        ck_assert_int_eq(gpu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuEventQuery(event), CUDA_SUCCESS);
        wait64(held, 0, 1);
        ck_assert_int_eq(gpu.cuEventRecord(event, held), CUDA_SUCCESS);
        wait64(held, 1, 1);
        ck_assert_int_eq(gpu.cuStreamWaitEvent(after, event, 0), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuLaunchHostFunc(after, add_one, &called), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
        ck_assert_int_eq(gpu.cuStreamQuery(after), CUDA_ERROR_NOT_READY);
        ck_assert_int_eq(called, 0);
        write64(other, 0, 1);
        ck_assert_int_eq(gpu.cuEventSynchronize(event), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuStreamSynchronize(after), CUDA_SUCCESS);
        ck_assert_int_eq(called, 1);
        ck_assert_int_eq(gpu.cuStreamQuery(held), CUDA_ERROR_NOT_READY);
        write64(other, 1, 1);
        ck_assert_int_eq(gpu.cuCtxSynchronize(), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuEventDestroy_v2(event), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
} END_TEST

START_TEST(several_in_one_call) {
        CUstreamBatchMemOpParams both[2] = { 0 };

        start();
        CUstream stream = make(CU_STREAM_NON_BLOCKING), other = make(CU_STREAM_NON_BLOCKING);
        both[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
        both[0].waitValue.address = at(0);
        both[0].waitValue.value64 = WIDE;
        both[0].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
        both[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
        both[1].writeValue.address = at(1);
        both[1].writeValue.value64 = WIDE + 1;
        ck_assert_int_eq(gpu.cuStreamBatchMemOp_v2(stream, 0, both, 0), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(gpu.cuStreamBatchMemOp_v2(stream, 2, both, 1), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(gpu.cuStreamBatchMemOp_v2(stream, 2, both, 0), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
        ck_assert_uint_eq(*word(1), 0);
        write64(other, 0, WIDE);
        ck_assert_int_eq(gpu.cuStreamSynchronize(stream), CUDA_SUCCESS);
        ck_assert_uint_eq(*word(1), WIDE + 1);
        both[1].operation = (CUstreamBatchMemOpType)99;
        ck_assert_int_eq(gpu.cuStreamBatchMemOp_v2(stream, 2, both, 0), CUDA_ERROR_INVALID_VALUE);
        both[1].operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
        both[1].writeValue.address = at(0) + 4;
        ck_assert_int_eq(gpu.cuStreamBatchMemOp_v2(stream, 2, both, 0), CUDA_ERROR_INVALID_VALUE);
} END_TEST

START_TEST(what_is_refused) {
        CUstream none = (CUstream)(void *)&before;
        CUcontext context, mine;
        CUdeviceptr readable;
        int fd, least, greatest;

        start();
        CUstream stream = make(0);
        ck_assert_int_eq(gpu.cuStreamCreate(&stream, 8), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(gpu.cuStreamWaitValue64_v2(none, at(0), 0, 0), CUDA_ERROR_INVALID_HANDLE);
        ck_assert_int_eq(gpu.cuStreamWaitValue64_v2(stream, at(0) + 4, 0, 0), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(gpu.cuStreamWaitValue64_v2(stream, memory + TWO_MIB, 0, 0), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(gpu.cuStreamWaitValue64_v2(stream, (CUdeviceptr)(uintptr_t)&context, 0, 0), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(gpu.cuStreamWaitValue64_v2(stream, at(0), 0, 4), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(gpu.cuStreamWaitValue64_v2(stream, at(0), 0, CU_STREAM_WAIT_VALUE_FLUSH), CUDA_ERROR_NOT_SUPPORTED);
        ck_assert_int_eq(gpu.cuStreamWriteValue64_v2(stream, at(0), 0, 2), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(vmm_export(TWO_MIB, 0, &fd), CUDA_SUCCESS);
        ck_assert_int_eq(vmm_import(fd, TWO_MIB, 0, RO, &readable), CUDA_SUCCESS);
        close(fd);
        ck_assert_int_eq(gpu.cuStreamWriteValue64_v2(stream, readable, 1, 0), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(gpu.cuStreamWaitValue64_v2(stream, readable, 0, 0), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuStreamGetCtx(stream, &context), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuCtxGetCurrent(&mine), CUDA_SUCCESS);
        ck_assert_ptr_eq(context, mine);
        ck_assert_int_eq(gpu.cuCtxGetStreamPriorityRange(&least, &greatest), CUDA_SUCCESS);
        ck_assert_int_lt(greatest, least);
        ck_assert_int_eq(gpu.cuStreamSynchronize(stream), CUDA_SUCCESS);
        ck_assert_int_eq(vmm_unmap(readable, TWO_MIB), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuCtxSetCurrent(NULL), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuStreamCreate(&stream, 0), CUDA_ERROR_INVALID_CONTEXT);
        ck_assert_int_eq(gpu.cuStreamWaitValue64_v2(NULL, at(0), 0, 0), CUDA_ERROR_INVALID_CONTEXT);
        ck_assert_int_eq(gpu.cuStreamWriteValue64_v2(stream, at(0), 1, 0), CUDA_SUCCESS); /* a stream knows its own */
        ck_assert_int_eq(gpu.cuStreamSynchronize(stream), CUDA_SUCCESS);
} END_TEST

START_TEST(a_device_without_the_operations) {
        CUdeviceptr there;

        start();
        ck_assert_int_eq(context_use(1), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuMemAlloc_v2(&there, 8), CUDA_SUCCESS);
        CUstream stream = make(0);
        ck_assert_int_eq(gpu.cuStreamWaitValue64_v2(stream, there, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
        ck_assert_int_eq(gpu.cuStreamWriteValue64_v2(stream, there, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
        ck_assert_int_eq(gpu.cuStreamWaitValue32_v2(stream, there, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
        ck_assert_int_eq(gpu.cuStreamWriteValue32_v2(stream, there, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
        ck_assert_int_eq(gpu.cuMemsetD8Async(there, 3, 8, stream), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuStreamSynchronize(stream), CUDA_SUCCESS);
        ck_assert_int_eq(*(unsigned char *)(uintptr_t)there, 3);
} END_TEST

START_TEST(a_flush_is_noted) {
        machine_script("device attribute=98:1\n");
        start();
        CUstream stream = make(0);
        ck_assert_int_eq(gpu.cuStreamWaitValue64_v2(stream, at(0), 0, 0), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuStreamSynchronize(stream), CUDA_SUCCESS);
        ck_assert_int_eq(machine_logged(" flush 0 0\n"), 0);
        ck_assert_int_eq(gpu.cuStreamWaitValue64_v2(stream, at(0), 0, CU_STREAM_WAIT_VALUE_FLUSH), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuStreamSynchronize(stream), CUDA_SUCCESS);
        ck_assert_int_eq(machine_logged(" flush 0 0\n"), 1);
} END_TEST

/* Memory that is gone when its turn comes. */
START_TEST(what_is_gone_ends_the_context) {
        CUdeviceptr gone;
        int fd;

        start();
        CUstream held = make(CU_STREAM_NON_BLOCKING);
        ck_assert_int_eq(vmm_export(TWO_MIB, 0, &fd), CUDA_SUCCESS);
        ck_assert_int_eq(vmm_import(fd, TWO_MIB, 0, RW, &gone), CUDA_SUCCESS);
        close(fd);
        wait64(held, 0, 1);
        ck_assert_int_eq(_i == 0 ? gpu.cuMemsetD8Async(gone, 1, 8, held) :
                         _i == 1 ? gpu.cuStreamWaitValue64_v2(held, gone, 1, 0) :
                                   gpu.cuStreamWriteValue64_v2(held, gone, 1, 0), CUDA_SUCCESS);
        ck_assert_int_eq(vmm_unmap(gone, TWO_MIB), CUDA_SUCCESS);
        *word(0) = 1;
        ck_assert_int_eq(gpu.cuStreamSynchronize(held), CUDA_ERROR_ILLEGAL_ADDRESS);
        ck_assert_int_eq(gpu.cuStreamQuery(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
        ck_assert_int_eq(gpu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
        ck_assert_int_eq(gpu.cuMemsetD8Async(memory, 1, 8, held), CUDA_ERROR_ILLEGAL_ADDRESS);
} END_TEST

START_TEST(a_context_ends_with_its_streams) {
        CUcontext context;
        CUdeviceptr there;

        start();
        ck_assert_int_eq(gpu.cuCtxCreate_v4(&context, NULL, 0, 0), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuMemAlloc_v2(&there, 8), CUDA_SUCCESS);
        CUstream held = make(0);
        ck_assert_int_eq(gpu.cuStreamWaitValue64_v2(held, there, 1, 0), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuCtxDestroy_v2(context), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuStreamQuery(held), CUDA_ERROR_INVALID_HANDLE);
        CUstream other = make(0);
        write64(other, 1, 1);
        ck_assert_int_eq(gpu.cuStreamSynchronize(other), CUDA_SUCCESS);
} END_TEST

/* Freeing waits for the GPU, and a stream that is destroyed does what it was given. */
START_TEST(nothing_is_cut_short) {
        CUdeviceptr there;

        start();
        ck_assert_int_eq(gpu.cuMemAlloc_v2(&there, 4 * MIB), CUDA_SUCCESS);
        CUstream stream = make(0), other = make(CU_STREAM_NON_BLOCKING);
        wait64(stream, 0, 1);
        ck_assert_int_eq(gpu.cuMemsetD8Async(there, 1, 8, stream), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuMemcpyDtoDAsync_v2(at(1), there, 8, stream), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuStreamDestroy_v2(stream), CUDA_SUCCESS);
        write64(other, 0, 1);
        ck_assert_int_eq(gpu.cuMemFree_v2(there), CUDA_SUCCESS);
        ck_assert_uint_eq(*word(1), UINT64_C(0x0101010101010101));
} END_TEST

static int wait_there(int talk_fd, void *data) {
        const int *rounds = data;
        CUdeviceptr pointer;
        CUstream stream;

        TRY(machine_load() && gpu.cuInit(0) == CUDA_SUCCESS && context_use(0) == CUDA_SUCCESS);
        _cleanup_fd_ int fd = receive_fd(talk_fd);
        TRY(vmm_import(fd, TWO_MIB, 0, RW, &pointer) == CUDA_SUCCESS);
        fd_closep(&fd);
        TRY(gpu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
        for (int i = 1; i <= *rounds; i++) {
                TRY(gpu.cuStreamWaitValue64_v2(stream, pointer, (uint64_t)i, 0) == CUDA_SUCCESS);
                TRY(gpu.cuStreamWriteValue64_v2(stream, pointer + 8, (uint64_t)i, 0) == CUDA_SUCCESS);
        }
        TRY(talk_say(talk_fd, 'w') == 0);
        TRY(gpu.cuStreamSynchronize(stream) == CUDA_SUCCESS);
        return 0;
}

static CUdeviceptr share(struct child *child) {
        CUdeviceptr pointer;
        int fd;

        start();
        ck_assert_int_eq(vmm_export(TWO_MIB, 0, &fd), CUDA_SUCCESS);
        ck_assert_int_eq(send_fd(child->talk_fd, fd), 0);
        ck_assert_int_eq(vmm_import(fd, TWO_MIB, 0, RW, &pointer), CUDA_SUCCESS);
        close(fd);
        child_hear(child, 'w');
        return pointer;
}

START_TEST(to_and_fro_between_processes) {
        int rounds = 500;
        struct child child = child_start(NULL, wait_there, &rounds);
        CUdeviceptr pointer = share(&child);

        CUstream stream = make(0);
        for (int i = 1; i <= rounds; i++) {
                ck_assert_int_eq(gpu.cuStreamWriteValue64_v2(stream, pointer, (uint64_t)i, 0), CUDA_SUCCESS);
                ck_assert_int_eq(gpu.cuStreamWaitValue64_v2(stream, pointer + 8, (uint64_t)i, 0), CUDA_SUCCESS);
        }
        ck_assert_int_eq(gpu.cuStreamSynchronize(stream), CUDA_SUCCESS);
        child_expect_exit(&child, 0);
} END_TEST

START_TEST(death_of_who_waits) {
        int rounds = 1;
        struct child child = child_start(NULL, wait_there, &rounds);
        CUdeviceptr pointer = share(&child);

        ck_assert_int_eq(machine_used(0), 2 * (4 + 523) + 2 + 2);
        child_kill(&child);
        ck_assert_int_eq(machine_used(0), 4 + 523 + 2 + 2);
        ck_assert_uint_eq(*(uint64_t *)(uintptr_t)(pointer + 8), 0);
} END_TEST

int main(void) {
        const TTest *const tests[] = { a_wait_holds_its_stream_and_not_the_caller, a_plain_store_is_seen, half_a_word_is_written,
                                       a_plain_copy_waits_its_turn, copies_in_stream_order, events_and_calls, several_in_one_call,
                                       what_is_refused, a_device_without_the_operations, a_flush_is_noted, a_context_ends_with_its_streams,
                                       nothing_is_cut_short, to_and_fro_between_processes, death_of_who_waits };
        Suite *suite = suite_create("fake_stream");
        TCase *tcase = tcase_create("streams");

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_set_timeout(tcase, 30);
        for (size_t i = 0; i < ELEMENTSOF(tests); i++)
                tcase_add_test(tcase, tests[i]);
        tcase_add_loop_test(tcase, comparisons_are_the_drivers, 0, (int)(2 * ELEMENTSOF(comparisons)));
        tcase_add_loop_test(tcase, the_legacy_default_stream, 0, 2);
        tcase_add_loop_test(tcase, what_is_gone_ends_the_context, 0, 3);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
