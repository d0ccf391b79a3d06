/* SPDX-License-Identifier: Apache-2.0 */
/* Lines between memory of a GPU. A process has one context and one stream for all of its lines, so that what it sends comes after what it
 * received; the driver's library is found when the first line is joined, after the processes have parted. One thread. */
#include "line.h"

#include <stdio.h>
#include <string.h>

#ifdef HAVE_CUDA

#include <cuda.h>

#include "proto/cleanup.h"
#include "proto/symbols.h"

#define WAIT_MS 30000 /* for the other side, which is there */

/* clang-format off: rows of a table */
#define FUNCTIONS(X)                                                                                         \
        X(cuInit) X(cuGetErrorName) X(cuDeviceGet) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) X(cuStreamCreate)                  \
        X(cuStreamSynchronize) X(cuMemAlloc) X(cuMemFree) X(cuMemHostAlloc) X(cuMemFreeHost) X(cuMemsetD8Async)                      \
        X(cuMemcpyDtoDAsync) X(cuMemcpyDtoHAsync) X(cuMemcpyHtoDAsync)
/* clang-format on */

static struct gpu {
#define MEMBER(function) __typeof__(&function) function;
        FUNCTIONS(MEMBER)
#undef MEMBER
        CUstream stream; /* NULL: not opened yet */
} gpu;

#define SYMBOL_(name) { #name, offsetof(struct gpu, name), false },
#define SYMBOL(function) SYMBOL_(function)
static const struct symbol symbols[] = { FUNCTIONS(SYMBOL) };

/* 0, or -1 with the line's words. */
static int check(struct line *line, CUresult result, const char *call) {
        const char *name = NULL;

        if (result == CUDA_SUCCESS)
                return 0;
        if (gpu.cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
                name = "an unknown error";
        (void)snprintf(line->why, sizeof(line->why), "%s says %s (%d)", call, name, (int)result);
        return -1;
}
#define TRY(line, function, ...) check((line), gpu.function(__VA_ARGS__), #function "()")

static int gpu_load(struct line *line) {
        static const char *const sonames[] = { "libcuda.so.1", NULL };
        char why[200];

        if (gpu.cuInit)
                return 0;
        if (symbols_load(sonames, symbols, ELEMENTSOF(symbols), &gpu, why, sizeof(why)) == 0)
                return TRY(line, cuInit, 0);
        (void)snprintf(line->why, sizeof(line->why), "the driver's library cannot be used (%s): gpuipcctl doctor says more", why);
        return -1;
}

/* In the context that the library has mapped the channel for. */
static int gpu_open(struct line *line, int ordinal) {
        CUcontext context;
        CUdevice device;

        if (gpu.stream)
                return 0;
        if (gpu_load(line) < 0 || TRY(line, cuDeviceGet, &device, ordinal) < 0 ||
            TRY(line, cuDevicePrimaryCtxRetain, &context, device) < 0 || TRY(line, cuCtxSetCurrent, context) < 0)
                return -1;
        return TRY(line, cuStreamCreate, &gpu.stream, CU_STREAM_NON_BLOCKING);
}

static int own_bytes(struct line *line) {
        CUdeviceptr at = 0;
        int r = TRY(line, cuMemAlloc, &at, line->item_bytes);

        line->device_bytes = at;
        return r;
}

static void own_leave(struct line *line) {
        if (line->device_bytes != 0)
                (void)gpu.cuMemFree((CUdeviceptr)line->device_bytes);
        line->device_bytes = 0;
}

static int gpu_settle(struct line *line) {
        return TRY(line, cuStreamSynchronize, gpu.stream);
}

/* ---- a channel -------------------------------------------------------------------------------------------- */

static int channel_join(struct line *line, int me) {
        int r = line_channel_join(line, me);

        if (r == 0 && gpuipc_channel_cuda_device(line->channel) < 0) {
                (void)snprintf(line->why, sizeof(line->why), "%s is no GPU", gpuipc_channel_device(line->channel));
                r = -1;
        }
        if (r == 0)
                r = gpu_open(line, gpuipc_channel_cuda_device(line->channel));
        return r == 0 ? own_bytes(line) : r;
}

static int channel_send(struct line *line, const void *bytes) {
        gpuipc_error error;
        gpuipc_item item;
        uint64_t number;

        (void)memcpy(&number, bytes, sizeof(number));
        if (gpuipc_channel_begin(line->channel, gpu.stream, WAIT_MS, &item, &error) != GPUIPC_OK)
                return line_refused(line, &error);
        if (TRY(line, cuMemsetD8Async, (CUdeviceptr)(uintptr_t)item.pointer, (unsigned char)number, line->item_bytes, gpu.stream) < 0)
                return -1;
        if (gpuipc_channel_publish(line->channel, &item, (int64_t)line->item_bytes, &number, sizeof(number), gpu.stream, &error) !=
            GPUIPC_OK)
                return line_refused(line, &error);
        return 0;
}

static int channel_receive(struct line *line, uint64_t *ret_first) {
        gpuipc_error error;
        gpuipc_item item;

        if (gpuipc_channel_take(line->channel, gpu.stream, WAIT_MS, &item, &error) != GPUIPC_OK)
                return line_refused(line, &error);
        if (item.broken || item.n_meta != (int32_t)sizeof(*ret_first)) {
                (void)snprintf(line->why, sizeof(line->why), "the sender died");
                return -1;
        }
        (void)memcpy(ret_first, item.meta, sizeof(*ret_first));
        if (TRY(line, cuMemcpyDtoDAsync, (CUdeviceptr)line->device_bytes, (CUdeviceptr)(uintptr_t)item.pointer, line->item_bytes,
                gpu.stream) < 0)
                return -1;
        return gpuipc_channel_release(line->channel, &item, gpu.stream, &error) == GPUIPC_OK ? 0 : line_refused(line, &error);
}

static void channel_leave(struct line *line) {
        own_leave(line);
        line_channel_leave(line);
}

/* ---- a pipe ----------------------------------------------------------------------------------------------- */

/* The driver's own number of the GPU is asked of the daemon's memory there. */
static int find_device(struct line *line, int *ret_ordinal) {
        gpuipc_connect_options connect = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_allocate_options options = GPUIPC_ALLOCATE_OPTIONS_INIT;
        gpuipc_client *client = NULL;
        gpuipc_buffer *buffer = NULL;
        gpuipc_error error;
        void *pointer;
        int r;

        connect.socket_path = line->socket_path;
        options.device = line->device;
        options.handle = "cuda-fd";
        options.label = "gpuipcctl bench";
        r = gpuipc_connect(&connect, &client, &error);
        if (r == GPUIPC_OK)
                r = gpuipc_allocate(client, (int64_t)line->item_bytes, &options, &buffer, &error);
        if (r == GPUIPC_OK)
                r = gpuipc_buffer_map(buffer, &pointer, &error);
        if (r == GPUIPC_OK)
                *ret_ordinal = gpuipc_buffer_cuda_device(buffer);
        if (buffer)
                (void)gpuipc_release(buffer, NULL);
        gpuipc_client_free(client);
        return r == GPUIPC_OK ? 0 : line_refused(line, &error);
}

/* Bytes go through memory of the driver's, which a GPU copies from and to at once. */
static int pin_own(struct line *line) {
        void *pinned = NULL;

        if (TRY(line, cuMemHostAlloc, &pinned, line->item_bytes, 0) < 0)
                return -1;
        line->aside = line->own;
        line->own = pinned;
        return 0;
}

static int pipe_join(struct line *line, int me) {
        int ordinal = 0, r = line_pipe.join(line, me);

        if (r == 0)
                r = find_device(line, &ordinal);
        if (r == 0)
                r = gpu_open(line, ordinal);
        if (r == 0)
                r = own_bytes(line);
        return r == 0 ? pin_own(line) : r;
}

static int pipe_send(struct line *line, const void *bytes) {
        uint64_t number;

        (void)memcpy(&number, bytes, sizeof(number));
        if (TRY(line, cuMemsetD8Async, (CUdeviceptr)line->device_bytes, (unsigned char)number, line->item_bytes, gpu.stream) < 0 ||
            TRY(line, cuMemcpyDtoHAsync, line->own, (CUdeviceptr)line->device_bytes, line->item_bytes, gpu.stream) < 0 ||
            gpu_settle(line) < 0)
                return -1;
        (void)memcpy(line->own, &number, sizeof(number));
        return line_pipe.send(line, line->own);
}

/* The last item's bytes are on the GPU before the next one's take their place. */
static int pipe_receive(struct line *line, uint64_t *ret_first) {
        if (gpu_settle(line) < 0 || line_pipe.receive(line, ret_first) < 0)
                return -1;
        return TRY(line, cuMemcpyHtoDAsync, (CUdeviceptr)line->device_bytes, line->own, line->item_bytes, gpu.stream);
}

static void pipe_leave(struct line *line) {
        own_leave(line);
        if (line->aside) {
                (void)gpu.cuMemFreeHost(line->own);
                line->own = line->aside;
                line->aside = NULL;
        }
        line_pipe.leave(line);
}

/* line_pipe's own is no constant that could stand here. */
static int pipe_make(struct line *line) {
        return line_pipe.make(line);
}

static const struct line_kind gpu_channel = { "channel", 1, line_channel_make, channel_join, channel_send, channel_receive, gpu_settle,
                                              channel_leave };
static const struct line_kind gpu_broadcast = { "channel", 2, line_channel_make, channel_join, channel_send, channel_receive, gpu_settle,
                                                channel_leave };
static const struct line_kind gpu_pipe = { "pipe", 1, pipe_make, pipe_join, pipe_send, pipe_receive, gpu_settle, pipe_leave };

const struct line_kind *const line_gpu_single[] = { &gpu_channel, &gpu_pipe, NULL };
const struct line_kind *const line_gpu_several[] = { &gpu_broadcast, NULL };

#else

const struct line_kind *const line_gpu_single[] = { NULL };
const struct line_kind *const line_gpu_several[] = { NULL };

#endif
