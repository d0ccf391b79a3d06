/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels over mapped memory. One thread enters; the GPU is the current one. */
#include "kernels.h"

#include <cstring>

#include <cuda_runtime.h>

#define BLOCKS 1056 /* 8 for each multiprocessor of an H200 */
#define THREADS 256
#define ROUNDS 8
#define SLOT_BLOCKS 32

__device__ unsigned long long found;

#define EACH_WORD(i, n)                                                                                      \
        for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (size_t)gridDim.x * blockDim.x)

static __global__ void fill(uint64_t *memory, size_t n, uint64_t seed) {
        EACH_WORD(i, n)
                memory[i] = KERNELS_WORD(seed, i);
}

static __global__ void differ(const uint64_t *memory, size_t n, uint64_t seed, size_t first) {
        unsigned long long bad = 0;

        EACH_WORD(i, n)
                bad += memory[i] != KERNELS_WORD(seed, i + first);
        if (bad)
                atomicAdd(&found, bad);
}

static __global__ void nonzero(const uint64_t *memory, size_t n) {
        unsigned long long bad = 0;

        EACH_WORD(i, n)
                bad += memory[i] != 0;
        if (bad)
                atomicAdd(&found, bad);
}

/* Sixteen bytes a thread and turn, as copies are made. */
static __global__ void read_all(const ulonglong2 *memory, size_t n, unsigned long long never) {
        unsigned long long sum = 0;

        EACH_WORD(i, n) {
                ulonglong2 word = memory[i];
                sum += word.x ^ word.y;
        }
        if (sum == never)
                atomicAdd(&found, 1);
}

static __global__ void poke(uint64_t *memory) {
        memory[0] = ~memory[0];
}

static __global__ void delay(unsigned long long nsec) {
        unsigned long long now, from;

        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(from));
        do
                asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        while (now - from < nsec);
}

static int settled(void) {
        cudaError_t result = cudaGetLastError();

        return (int)(result == cudaSuccess ? cudaDeviceSynchronize() : result);
}

static int found_clear(void) {
        unsigned long long none = 0;

        return (int)cudaMemcpyToSymbol(found, &none, sizeof(none));
}

static int found_take(uint64_t *ret_words) {
        unsigned long long words = 0;
        int r = settled();

        if (r == 0)
                r = (int)cudaMemcpyFromSymbol(&words, found, sizeof(words));
        if (r == 0)
                *ret_words = words;
        return r;
}

int kernels_fill(void *memory, size_t bytes, uint64_t seed) {
        fill<<<BLOCKS, THREADS>>>((uint64_t *)memory, bytes / 8, seed);
        return settled();
}

int kernels_differ(const void *memory, size_t bytes, uint64_t seed, size_t first, uint64_t *ret_words) {
        int r = found_clear();

        if (r != 0)
                return r;
        differ<<<BLOCKS, THREADS>>>((const uint64_t *)memory, bytes / 8, seed, first);
        return found_take(ret_words);
}

int kernels_nonzero(const void *memory, size_t bytes, uint64_t *ret_words) {
        int r = found_clear();

        if (r != 0)
                return r;
        nonzero<<<BLOCKS, THREADS>>>((const uint64_t *)memory, bytes / 8);
        return found_take(ret_words);
}

int kernels_poke(void *memory) {
        poke<<<1, 1>>>((uint64_t *)memory);
        return settled();
}

int kernels_read_rate(const void *memory, size_t bytes, double *ret_rate) {
        cudaEvent_t from, to;
        float ms = 0;
        int r;

        if ((r = (int)cudaEventCreate(&from)) != 0 || (r = (int)cudaEventCreate(&to)) != 0)
                return r;
        read_all<<<BLOCKS, THREADS>>>((const ulonglong2 *)memory, bytes / 16, 1);
        cudaEventRecord(from);
        for (int i = 0; i < ROUNDS; i++)
                read_all<<<BLOCKS, THREADS>>>((const ulonglong2 *)memory, bytes / 16, 1);
        cudaEventRecord(to);
        r = settled();
        if (r == 0)
                r = (int)cudaEventElapsedTime(&ms, from, to);
        cudaEventDestroy(from);
        cudaEventDestroy(to);
        if (r == 0)
                *ret_rate = (double)bytes * ROUNDS / (ms / 1e3);
        return r;
}

int kernels_stream_make(void **ret_stream) {
        cudaStream_t stream;
        int r = (int)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);

        if (r == 0)
                *ret_stream = stream;
        return r;
}

int kernels_stream_busy(void *stream, int *ret_busy) {
        cudaError_t result = cudaStreamQuery((cudaStream_t)stream);

        *ret_busy = result == cudaErrorNotReady;
        return result == cudaErrorNotReady ? 0 : (int)result;
}

int kernels_stream_settle(void *stream) {
        return (int)cudaStreamSynchronize((cudaStream_t)stream);
}

int kernels_stream_delay(void *stream, uint64_t usec) {
        delay<<<1, 1, 0, (cudaStream_t)stream>>>(usec * 1000);
        return (int)cudaGetLastError();
}

int kernels_slots_begin(void) {
        return found_clear();
}

int kernels_slot_fill(void *stream, void *slot, size_t bytes, uint64_t seed) {
        fill<<<SLOT_BLOCKS, THREADS, 0, (cudaStream_t)stream>>>((uint64_t *)slot, bytes / 8, seed);
        return (int)cudaGetLastError();
}

int kernels_slot_check(void *stream, const void *slot, size_t bytes, uint64_t seed) {
        differ<<<SLOT_BLOCKS, THREADS, 0, (cudaStream_t)stream>>>((const uint64_t *)slot, bytes / 8, seed, 0);
        return (int)cudaGetLastError();
}

int kernels_slots_end(uint64_t *ret_words) {
        return found_take(ret_words);
}

int kernels_event_make(unsigned char ret_handle[64]) {
        static cudaEvent_t event;
        cudaIpcEventHandle_t handle;
        int r = (int)cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess);

        if (r == 0)
                r = (int)cudaIpcGetEventHandle(&handle, event);
        if (r == 0)
                memcpy(ret_handle, &handle, sizeof(handle));
        return r;
}

int kernels_event_open(const unsigned char bytes[64]) {
        cudaIpcEventHandle_t handle;
        cudaEvent_t event;
        int r;

        memcpy(&handle, bytes, sizeof(handle));
        r = (int)cudaIpcOpenEventHandle(&event, handle);
        return r == 0 ? (int)cudaEventDestroy(event) : r;
}
