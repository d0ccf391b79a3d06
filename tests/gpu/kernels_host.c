/* SPDX-License-Identifier: Apache-2.0 */
/* The same without a GPU: what the fakes map is this process's memory. One thread enters. */
#include "kernels.h"

#include <setjmp.h>
#include <signal.h>
#include <time.h>

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

int kernels_event_make(unsigned char ret_handle[64]) {
        (void)ret_handle;
        return KERNELS_NOT_THERE;
}

int kernels_event_open(const unsigned char handle[64]) {
        (void)handle;
        return KERNELS_NOT_THERE;
}
