/* SPDX-License-Identifier: Apache-2.0 */
/* What streams do besides copying: waiting for a word of device memory and writing one, across processes, and calling the program.
 * Under the driver's lock, but for the program's own functions. */
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "driver.h"

#define BATCH_MAX 256

static void *address(CUdeviceptr pointer) {
        return (void *)(uintptr_t)pointer;
}

/* Little-endian: the first half is the one that changes first. */
static uint64_t word_read(const struct work *work) {
        return work->n == 8 ? atomic_load((_Atomic uint64_t *)address(work->from)) : atomic_load((_Atomic uint32_t *)address(work->from));
}

static bool satisfied(const struct work *work, uint64_t word) {
        uint64_t mask = work->n == 8 ? UINT64_MAX : UINT32_MAX;

        switch (work->flags & 3) {
        case CU_STREAM_WAIT_VALUE_GEQ:
                return work->n == 8 ? (int64_t)(word - work->value) >= 0 : (int32_t)((uint32_t)word - (uint32_t)work->value) >= 0;
        case CU_STREAM_WAIT_VALUE_EQ: return word == (work->value & mask);
        case CU_STREAM_WAIT_VALUE_AND: return (word & work->value & mask) != 0;
        default: return (~(word | work->value) & mask) != 0;
        }
}

static CUresult run_wait(struct work *work) {
        int device = stream_context(work->stream)->device;

        if (!range_allows(work->from, work->n, device, ACCESS_READ))
                return CUDA_ERROR_ILLEGAL_ADDRESS;
        uint64_t word = word_read(work);
        work->waits = address(work->from);
        work->seen = (uint32_t)word;
        if (!satisfied(work, word))
                return CUDA_ERROR_NOT_READY;
        if (work->flags & CU_STREAM_WAIT_VALUE_FLUSH)
                call_note("flush", device);
        return CUDA_SUCCESS;
}

static CUresult run_write(struct work *work) {
        if (!range_allows(work->to, work->n, stream_context(work->stream)->device, ACCESS_WRITE))
                return CUDA_ERROR_ILLEGAL_ADDRESS;
        if (work->n == 8)
                atomic_store((_Atomic uint64_t *)address(work->to), work->value);
        else
                atomic_store((_Atomic uint32_t *)address(work->to), (uint32_t)work->value);
        (void)syscall(SYS_futex, address(work->to), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
        return CUDA_SUCCESS;
}

static CUresult check_flags(int device, unsigned flags) {
        if (flags & ~(unsigned)(CU_STREAM_WAIT_VALUE_FLUSH | 3))
                return CUDA_ERROR_INVALID_VALUE;
        if (flags & CU_STREAM_WAIT_VALUE_FLUSH && !device_attribute(device, CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES))
                return CUDA_ERROR_NOT_SUPPORTED;
        if ((flags & 3) == CU_STREAM_WAIT_VALUE_NOR && !device_attribute(device, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR))
                return CUDA_ERROR_NOT_SUPPORTED;
        return CUDA_SUCCESS;
}

static CUresult push(CUstream handle, struct work *work) {
        struct stream *stream;
        CUresult result = stream_find(handle, &stream);
        bool writes = work->run == run_write;
        CUdeviceptr at = writes ? work->to : work->from;

        if (result != CUDA_SUCCESS)
                return result;
        int device = stream_context(stream)->device;
        if (work->n == 8 ? !device_attribute(device, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) : !device_script(device)->memops)
                return CUDA_ERROR_NOT_SUPPORTED;
        if (writes && work->flags & ~(unsigned)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)
                return CUDA_ERROR_INVALID_VALUE;
        if (!writes && (result = check_flags(device, work->flags)) != CUDA_SUCCESS)
                return result;
        if (at % work->n || !range_allows(at, work->n, device, writes ? ACCESS_WRITE : ACCESS_READ))
                return CUDA_ERROR_INVALID_VALUE;
        return stream_push(stream, work);
}

static CUresult wait_value(CUstream stream, CUdeviceptr at, size_t n, uint64_t value, unsigned flags) {
        struct work work = { .run = run_wait, .from = at, .n = n, .value = value, .flags = flags };
        return push(stream, &work);
}

static CUresult write_value(CUstream stream, CUdeviceptr at, size_t n, uint64_t value, unsigned flags) {
        struct work work = { .run = run_write, .to = at, .n = n, .value = value, .flags = flags };
        return push(stream, &work);
}

EXPORT CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) {
        return DRIVER_CALL(stream_device(stream), wait_value(stream, addr, 4, value, flags));
}

EXPORT CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags) {
        return DRIVER_CALL(stream_device(stream), wait_value(stream, addr, 8, value, flags));
}

EXPORT CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) {
        return DRIVER_CALL(stream_device(stream), write_value(stream, addr, 4, value, flags));
}

EXPORT CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags) {
        return DRIVER_CALL(stream_device(stream), write_value(stream, addr, 8, value, flags));
}

/* In this order, up to the first that is refused. */
static CUresult batch(CUstream stream, unsigned n, const CUstreamBatchMemOpParams *params, unsigned flags) {
        if (!params || n == 0 || n > BATCH_MAX || flags)
                return CUDA_ERROR_INVALID_VALUE;
        for (unsigned i = 0; i < n; i++) {
                const CUstreamBatchMemOpParams *each = &params[i];
                CUresult result = CUDA_ERROR_INVALID_VALUE;

                switch (each->operation) {
                case CU_STREAM_MEM_OP_WAIT_VALUE_32:
                        result = wait_value(stream, each->waitValue.address, 4, each->waitValue.value, each->waitValue.flags);
                        break;
                case CU_STREAM_MEM_OP_WAIT_VALUE_64:
                        result = wait_value(stream, each->waitValue.address, 8, each->waitValue.value64, each->waitValue.flags);
                        break;
                case CU_STREAM_MEM_OP_WRITE_VALUE_32:
                        result = write_value(stream, each->writeValue.address, 4, each->writeValue.value, each->writeValue.flags);
                        break;
                case CU_STREAM_MEM_OP_WRITE_VALUE_64:
                        result = write_value(stream, each->writeValue.address, 8, each->writeValue.value64, each->writeValue.flags);
                        break;
                default: break;
                }
                if (result != CUDA_SUCCESS)
                        return result;
        }
        return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *paramArray, unsigned int flags) {
        return DRIVER_CALL(stream_device(stream), batch(stream, count, paramArray, flags));
}

static CUresult run_call(struct work *work) {
        CUhostFn call = work->call;
        void *data = work->data;

        stream_calling(work->stream, true);
        driver_unlock();
        call(data);
        driver_lock();
        stream_calling(work->stream, false);
        return CUDA_SUCCESS;
}

static CUresult launch(CUstream handle, CUhostFn call, void *data) {
        struct work work = { .run = run_call, .call = call, .data = data };
        struct stream *stream;
        CUresult result = stream_find(handle, &stream);

        if (result != CUDA_SUCCESS || !call)
                return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
        return stream_push(stream, &work);
}

EXPORT CUresult cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *data) {
        return DRIVER_CALL(stream_device(stream), launch(stream, fn, data));
}
