/* SPDX-License-Identifier: Apache-2.0 */
/* The same without a GPU: what the fakes map is this process's memory. One thread enters. */
#include "kernels.h"

#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include <cuda.h>

int kernels_fill(void *memory, size_t bytes, uint64_t seed) {
        uint64_t *words = memory;

        for (size_t i = 0; i < bytes / 8; i++)
                words[i] = KERNELS_WORD(seed, i);
        return 0;
}

int kernels_differ(const void *memory, size_t bytes, uint64_t seed, size_t first, uint64_t *ret_words) {
        const uint64_t *words = memory;

        *ret_words = 0;
        for (size_t i = 0; i < bytes / 8; i++)
                *ret_words += words[i] != KERNELS_WORD(seed, i + first);
        return 0;
}

int kernels_nonzero(const void *memory, size_t bytes, uint64_t *ret_words) {
        const uint64_t *words = memory;

        *ret_words = 0;
        for (size_t i = 0; i < bytes / 8; i++)
                *ret_words += words[i] != 0;
        return 0;
}

static sigjmp_buf out;

static void faulted(int signal_number) {
        (void)signal_number;
        siglongjmp(out, 1);
}

int kernels_poke(void *memory) {
        struct sigaction action = { .sa_handler = faulted }, before;
        volatile uint64_t *word = memory;
        volatile int r = 0;

        sigaction(SIGSEGV, &action, &before);
        if (sigsetjmp(out, 1) == 0)
                *word = ~*word;
        else
                r = KERNELS_ILLEGAL_ADDRESS;
        sigaction(SIGSEGV, &before, NULL);
        return r;
}

int kernels_read_rate(const void *memory, size_t bytes, double *ret_rate) {
        struct timespec from, to;
        uint64_t words;

        clock_gettime(CLOCK_MONOTONIC, &from);
        (void)kernels_nonzero(memory, bytes, &words);
        clock_gettime(CLOCK_MONOTONIC, &to);
        *ret_rate = (double)bytes / ((double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9);
        return 0;
}

/* ---- streams of the fakes, which call this program ---------------------------------------------------------- */

struct job {
        uint64_t *slot;
        size_t bytes;
        uint64_t seed;
};

static _Atomic uint64_t slots_bad;

int kernels_stream_make(void **ret_stream) {
        return (int)cuStreamCreate((CUstream *)ret_stream, CU_STREAM_NON_BLOCKING);
}

int kernels_stream_busy(void *stream, int *ret_busy) {
        CUresult result = cuStreamQuery(stream);

        *ret_busy = result == CUDA_ERROR_NOT_READY;
        return result == CUDA_ERROR_NOT_READY ? 0 : (int)result;
}

int kernels_stream_settle(void *stream) {
        return (int)cuStreamSynchronize(stream);
}

int kernels_slots_begin(void) {
        slots_bad = 0;
        return 0;
}

static void CUDA_CB fill_job(void *data) {
        struct job *job = data;

        (void)kernels_fill(job->slot, job->bytes, job->seed);
        free(job);
}

static void CUDA_CB check_job(void *data) {
        struct job *job = data;
        uint64_t words;

        (void)kernels_differ(job->slot, job->bytes, job->seed, 0, &words);
        slots_bad += words;
        free(job);
}

static void CUDA_CB delay_job(void *data) {
        struct job *job = data;
        struct timespec time = { .tv_sec = (time_t)(job->seed / 1000000), .tv_nsec = (long)(job->seed % 1000000 * 1000) };

        (void)nanosleep(&time, NULL);
        free(job);
}

static int launch(void *stream, CUhostFn run, const void *slot, size_t bytes, uint64_t seed) {
        struct job *job = malloc(sizeof(*job));

        if (!job)
                return CUDA_ERROR_OUT_OF_MEMORY;
        *job = (struct job){ .slot = (uint64_t *)(uintptr_t)slot, .bytes = bytes, .seed = seed };
        return (int)cuLaunchHostFunc(stream, run, job);
}

int kernels_stream_delay(void *stream, uint64_t usec) {
        return launch(stream, delay_job, NULL, 0, usec);
}

int kernels_slot_fill(void *stream, void *slot, size_t bytes, uint64_t seed) {
        return launch(stream, fill_job, slot, bytes, seed);
}

int kernels_slot_check(void *stream, const void *slot, size_t bytes, uint64_t seed) {
        return launch(stream, check_job, slot, bytes, seed);
}

int kernels_slots_end(uint64_t *ret_words) {
        *ret_words = slots_bad;
        return 0;
}

int kernels_event_make(unsigned char ret_handle[64]) {
        (void)ret_handle;
        return KERNELS_NOT_THERE;
}

int kernels_event_open(const unsigned char handle[64]) {
        (void)handle;
        return KERNELS_NOT_THERE;
}
