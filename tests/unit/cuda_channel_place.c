/* SPDX-License-Identifier: Apache-2.0 */
/* One channel a test. The test's thread; children of its, made before CUDA is initialised, use the gates as well. */
#include "cuda_channel_place.h"

#include <check.h>
#include <unistd.h>

#include "client/channel.h"

struct house house;
static struct owner data_owner, fences_owner;
gpuipc_channel *producer, *consumer;
gpuipc_error fault;
gpuipc_item item, second;

/* ---- the place -------------------------------------------------------------------------------------------- */

void use_gpu(int device) {
        CUcontext context;

        ck_assert_int_eq(DRIVER(cuInit)(0), 0);
        ck_assert_int_eq(DRIVER(cuDevicePrimaryCtxRetain)(&context, device), 0);
        ck_assert_int_eq(DRIVER(cuCtxSetCurrent)(context), 0);
}

CUstream stream_new(void) {
        CUstream stream;

        ck_assert_int_eq(DRIVER(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING), 0);
        return stream;
}

struct house_plan plan_of(enum ring_mode mode, enum ring_policy policy, uint32_t n_slots) {
        return (struct house_plan){ .mode = mode, .policy = policy, .n_slots = n_slots, .device = GPUS_UUID("0"), .kind = "cuda-fd" };
}

void place(const struct house_plan *plan, const char *script) {
        struct house_plan own = *plan;
        char zeros[8192] = { 0 };

        if (script)
                gpus_script(script);
        data_owner = owner_start("cuda-fd", 0, 2 * MIB);
        fences_owner = owner_start("cuda-fd", 0, 2 * MIB);
        ck_assert_int_eq(pwrite(fences_owner.fd, zeros, sizeof(zeros), 0), sizeof(zeros));
        own.data_fd = data_owner.fd;
        own.fences_fd = fences_owner.fd;
        house_open(&house, &own);
}

void begin(enum ring_mode mode, enum ring_policy policy, uint32_t n_slots) {
        struct house_plan plan = plan_of(mode, policy, n_slots);

        gpus_start(NULL);
        place(&plan, NULL);
        use_gpu(0);
        producer = house_join(&house, GPUIPC_CHANNEL_PRODUCER);
        consumer = house_join(&house, GPUIPC_CHANNEL_CONSUMER);
}

void leave(gpuipc_channel *channel) {
        ck_assert_msg(gpuipc_channel_free(channel, &fault) == GPUIPC_OK, "%s", fault.message);
}

void close_all(void) {
        house_close(&house);
        owner_stop(&data_owner);
        owner_stop(&fences_owner);
        gpus_stop();
}

void finish(void) {
        leave(producer);
        leave(consumer);
        close_all();
}

/* ---- streams ---------------------------------------------------------------------------------------------- */

CUdeviceptr gate_of(gpuipc_channel *channel, int gate) {
        return (CUdeviceptr)(uintptr_t)channel->fences[0]->word + (CUdeviceptr)(GATES + 8 * gate);
}

void stop_at(gpuipc_channel *channel, CUstream stream, int gate) {
        ck_assert_int_eq(DRIVER(cuStreamWaitValue64)(stream, gate_of(channel, gate), 1, CU_STREAM_WAIT_VALUE_GEQ), 0);
}

void open_gate(gpuipc_channel *channel, int gate) {
        gpuipc_fence *fence;

        ck_assert_int_eq(fence_open(channel->fences[0]->mapping, GATES + 8 * gate, &fence, &fault), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_fence_signal(fence, 1, &fault), GPUIPC_OK);
        gpuipc_fence_free(fence);
}

bool is_busy(CUstream stream) {
        int result = DRIVER(cuStreamQuery)(stream);

        ck_assert_msg(result == 0 || result == CUDA_ERROR_NOT_READY, "%d", result);
        return result != 0;
}

void settle(CUstream stream) {
        ck_assert_int_eq(DRIVER(cuStreamSynchronize)(stream), 0);
}

void good(int status) {
        ck_assert_msg(status == GPUIPC_OK, "%s: %s", gpuipc_status_name((gpuipc_status)status), fault.message);
}

void publish(gpuipc_channel *channel, CUstream stream, unsigned char byte) {
        good(gpuipc_channel_begin(channel, stream, 0, &item, &fault));
        ck_assert_int_eq(DRIVER(cuMemsetD8Async)((CUdeviceptr)(uintptr_t)item.pointer, byte, 256, stream), 0);
        good(gpuipc_channel_publish(channel, &item, 256, &byte, 1, stream, &fault));
}

void take(gpuipc_channel *channel, CUstream stream, gpuipc_item *ret_item) {
        good(gpuipc_channel_take(channel, stream, 0, ret_item, &fault));
}
