/* SPDX-License-Identifier: Apache-2.0 */
/* Fences on the fakes. A peer is forked before this process has CUDA or a thread, connects anew to the same desk, and uses no checks. */
#include "cuda_fence_place.h"

#include <check.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define WIDE (UINT64_C(1) << 32)

/* Shared with the peer, which is there before the desk is. */
struct order {
        char path[96];
        enum peer peer;
};

static void context_use_primary(void) {
        CUcontext context;

        ck_assert_int_eq(DRIVER(cuInit)(0), 0);
        ck_assert_int_eq(DRIVER(cuDevicePrimaryCtxRetain)(&context, 0), 0);
        ck_assert_int_eq(DRIVER(cuCtxSetCurrent)(context), 0);
}

CUstream place_stream(bool blocking) {
        CUstream stream;
        ck_assert_int_eq(DRIVER(cuStreamCreate)(&stream, blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING), 0);
        return stream;
}

CUdeviceptr place_at(const struct place *place, size_t offset) {
        return (CUdeviceptr)(uintptr_t)place->pointer + offset;
}

uint64_t place_value(gpuipc_fence *fence) {
        uint64_t value;
        gpuipc_error error;

        ck_assert_msg(gpuipc_fence_query(fence, &value, &error) == GPUIPC_OK, "%s", error.message);
        return value;
}

void place_poke(const struct place *place, size_t offset, uint64_t value) {
        ck_assert_int_eq(pwrite(place->owner.fd, &value, sizeof(value), (off_t)offset), sizeof(value));
}

/* ---- the peer --------------------------------------------------------------------------------------------- */

struct there {
        gpuipc_client *client;
        gpuipc_buffer *buffer;
        void *pointer;
        gpuipc_fence *produced, *consumed;
        CUstream stream;
};

static int there_open(struct there *there, const char *path) {
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_error error = { .message = "no context" };
        CUcontext context;

        options.socket_path = path;
        if (DRIVER(cuInit)(0) || DRIVER(cuDevicePrimaryCtxRetain)(&context, 0) || DRIVER(cuCtxSetCurrent)(context) ||
            gpuipc_connect(&options, &there->client, &error) || gpuipc_open_id(there->client, "b1", NULL, &there->buffer, &error) ||
            gpuipc_buffer_map(there->buffer, &there->pointer, &error) ||
            gpuipc_fence_new(there->buffer, 0, &there->produced, &error) ||
            gpuipc_fence_new(there->buffer, 8, &there->consumed, &error) ||
            DRIVER(cuStreamCreate)(&there->stream, CU_STREAM_NON_BLOCKING)) {
                fprintf(stderr, "the peer: %s\n", error.message);
                return 1;
        }
        return 0;
}

static int there_produce(const struct there *there) {
        CUdeviceptr slot = (CUdeviceptr)(uintptr_t)there->pointer + PEER_SLOT;

        for (uint64_t i = 1; i <= PEER_ROUNDS; i++)
                if (gpuipc_fence_wait_stream(there->consumed, there->stream, i - 1, 0, NULL) ||
                    DRIVER(cuMemsetD8Async)(slot, (unsigned char)i, 8, there->stream) ||
                    gpuipc_fence_signal_stream(there->produced, there->stream, WIDE + i, NULL))
                        return 1;
        return DRIVER(cuStreamSynchronize)(there->stream);
}

static int there_wait(const struct there *there, int talk_fd) {
        if (gpuipc_fence_wait_stream(there->produced, there->stream, 1, 0, NULL) ||
            gpuipc_fence_signal_stream(there->consumed, there->stream, 1, NULL) ||
            DRIVER(cuStreamQuery)(there->stream) != CUDA_ERROR_NOT_READY || talk_say(talk_fd, 'w') != 0)
                return 1;
        return DRIVER(cuStreamSynchronize)(there->stream);
}

static int be_there(int talk_fd, void *data) {
        const struct order *order = data;
        struct there there = { 0 };
        int r;

        if (talk_hear(talk_fd, 'p') != 0 || there_open(&there, order->path) != 0 || talk_say(talk_fd, 'r') != 0 ||
            talk_hear(talk_fd, 'g') != 0)
                return 1;
        r = order->peer == PEER_PRODUCES ? there_produce(&there) : there_wait(&there, talk_fd);
        gpuipc_fence_free(there.produced);
        gpuipc_fence_free(there.consumed);
        if (gpuipc_release(there.buffer, NULL) != GPUIPC_OK)
                r = 1;
        gpuipc_client_free(there.client);
        return r;
}

/* ---- the place -------------------------------------------------------------------------------------------- */

static void place_prepare(struct place *place, const char *kind) {
        *place = (struct place){ .desk = { .kind = kind, .size = 2 * MIB } };
        place->owner = owner_start(kind, 0, 2 * MIB);
        place->desk.fd = place->owner.fd;
        place->desk.ipc = place->owner.ipc[0] ? place->owner.ipc : NULL;
        desk_open(&place->desk);
}

/* The owner's pattern gives way to zeros. */
static void place_open(struct place *place, gpuipc_access access) {
        gpuipc_error error;

        context_use_primary();
        place->buffer = desk_map(&place->desk, access, &place->pointer);
        if (access == GPUIPC_RW)
                memset(place->pointer, 0, 4096);
        else
                for (size_t offset = 0; offset < 4096; offset += 8)
                        place_poke(place, offset, 0);
        ck_assert_msg(gpuipc_fence_new(place->buffer, 0, &place->produced, &error) == GPUIPC_OK, "%s", error.message);
        ck_assert_msg(gpuipc_fence_new(place->buffer, 8, &place->consumed, &error) == GPUIPC_OK, "%s", error.message);
}

void place_start(struct place *place, const char *script, const char *kind, gpuipc_access access) {
        gpus_start(script);
        place_prepare(place, kind);
        place_open(place, access);
}

void place_start_with_peer(struct place *place, const char *kind, enum peer peer, struct child *ret_child) {
        struct order *order = mmap(NULL, sizeof(*order), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

        ck_assert_ptr_ne(order, MAP_FAILED);
        gpus_start(NULL);
        order->peer = peer;
        *ret_child = child_start(NULL, be_there, order);
        place_prepare(place, kind);
        place->shared = true;
        (void)snprintf(order->path, sizeof(order->path), "%s", place->desk.fake->path);
        child_say(ret_child, 'p');
        child_hear(ret_child, 'r');
        ck_assert_int_eq(munmap(order, sizeof(*order)), 0);
        place_open(place, GPUIPC_RW);
        child_say(ret_child, 'g');
}

/* Nothing is left of the library's own. */
void place_stop(struct place *place) {
        gpuipc_fence_free(place->produced);
        gpuipc_fence_free(place->consumed);
        ck_assert_int_eq(gpuipc_release(place->buffer, NULL), GPUIPC_OK);
        if (!place->shared) {
                ck_assert_uint_eq(gpus_calls("cuStreamDestroy_v2", 0), gpus_calls("cuStreamCreateWithPriority", 0));
                ck_assert_uint_eq(gpus_calls("cuMemFreeHost", 0), gpus_calls("cuMemHostAlloc", 0));
                ck_assert_uint_eq(gpus_calls("cuCtxPushCurrent_v2", 0), gpus_calls("cuCtxPopCurrent_v2", 0));
        }
        desk_close(&place->desk);
        owner_stop(&place->owner);
        gpus_stop();
}

void place_load_old_driver(void) {
        const char *build = getenv("GPUIPC_BUILD");
        char path[512];

        (void)snprintf(path, sizeof(path), "%s/fake/old/libcuda.so.1", build ? build : "build");
        void *old = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        ck_assert_msg(old != NULL, "%s", dlerror());
        ck_assert_ptr_null(dlsym(old, "cuStreamWaitValue64_v2"));
}
