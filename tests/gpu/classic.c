/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that know CUDA's runtime and nothing of gpuipc, each one verb:
 *
 *     classic check HEX OFFSET SIZE SEED   opens a classic handle, compares what lies at OFFSET in it with a pattern
 *     classic offer OFFSET SIZE SEED       makes memory, a pattern at OFFSET in it, prints the handle, holds until told to stop
 *     classic small                        two small allocations: the handle of the second and its distance from the first
 *     classic hog LEAVE                    takes all free memory but LEAVE bytes, writes to all of it, holds until killed
 *
 * Ends with 0, or 1 and words on standard error. */
#include <err.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "kernels.h"

#define STEP ((size_t)64 << 20)
#define CHUNK ((size_t)1 << 30)

static void check(cudaError_t result, const char *call) {
        if (result != cudaSuccess)
                errx(1, "%s: %d %s", call, (int)result, cudaGetErrorString(result));
}

static void *room(size_t n) {
        void *found = malloc(n);

        if (!found)
                err(1, NULL);
        return found;
}

static cudaIpcMemHandle_t handle_read(const char *hex) {
        cudaIpcMemHandle_t handle;

        for (size_t i = 0; i < sizeof(handle); i++)
                if (sscanf(hex + 2 * i, "%2hhx", (unsigned char *)&handle + i) != 1)
                        errx(1, "not %zu hexadecimal digits", 2 * sizeof(handle));
        return handle;
}

static void handle_print(const void *memory, size_t more) {
        cudaIpcMemHandle_t handle;

        check(cudaIpcGetMemHandle(&handle, (void *)(uintptr_t)memory), "cudaIpcGetMemHandle");
        printf("ok ");
        for (size_t i = 0; i < sizeof(handle); i++)
                printf("%02x", ((const unsigned char *)&handle)[i]);
        printf(" %zu\n", more);
        fflush(stdout);
}

static void wait_end(void) {
        while (getchar() != EOF)
                continue;
}

static int do_check(const char *hex, size_t offset, size_t size, uint64_t seed) {
        uint64_t *words = room(STEP);
        size_t bad = 0;
        void *base;

        check(cudaIpcOpenMemHandle(&base, handle_read(hex), cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
        for (size_t at = 0; at < size; at += STEP) {
                size_t n = size - at < STEP ? size - at : STEP;

                check(cudaMemcpy(words, (char *)base + offset + at, n, cudaMemcpyDeviceToHost), "cudaMemcpy");
                for (size_t i = 0; i < n / 8; i++)
                        bad += words[i] != KERNELS_WORD(seed, at / 8 + i);
        }
        check(cudaIpcCloseMemHandle(base), "cudaIpcCloseMemHandle");
        free(words);
        printf("ok %zu\n", bad);
        return 0;
}

static int do_offer(size_t offset, size_t size, uint64_t seed) {
        uint64_t *words = room(size);
        void *memory;

        for (size_t i = 0; i < size / 8; i++)
                words[i] = KERNELS_WORD(seed, i);
        check(cudaMalloc(&memory, offset + size), "cudaMalloc");
        check(cudaMemset(memory, 0xEE, offset + size), "cudaMemset");
        check(cudaMemcpy((char *)memory + offset, words, size, cudaMemcpyHostToDevice), "cudaMemcpy");
        check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        free(words);
        handle_print(memory, offset);
        wait_end();
        return 0;
}

static int do_small(void) {
        void *first, *second;
        uint64_t word = KERNELS_WORD(1, 0);

        check(cudaMalloc(&first, 4096), "cudaMalloc");
        check(cudaMalloc(&second, 4096), "cudaMalloc");
        check(cudaMemset(first, 0, 4096), "cudaMemset");
        check(cudaMemcpy(second, &word, sizeof(word), cudaMemcpyHostToDevice), "cudaMemcpy");
        check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        handle_print(second, (size_t)((char *)second - (char *)first));
        wait_end();
        return 0;
}

static int do_hog(size_t leave) {
        size_t free_bytes, total, taken = 0;
        void *memory;

        check(cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo");
        while (free_bytes > leave) {
                size_t n = free_bytes - leave < CHUNK ? free_bytes - leave : CHUNK;

                if (n < 2 << 20 || cudaMalloc(&memory, n) != cudaSuccess)
                        break;
                check(cudaMemset(memory, 0xA5, n), "cudaMemset");
                taken += n;
                check(cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo");
        }
        check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        printf("ok %zu\n", taken);
        fflush(stdout);
        wait_end();
        return 0;
}

static size_t number(const char *word) {
        return (size_t)strtoull(word, NULL, 10);
}

int main(int argc, char **argv) {
        const char *verb = argc > 1 ? argv[1] : "";

        if (strcmp(verb, "check") == 0 && argc == 6)
                return do_check(argv[2], number(argv[3]), number(argv[4]), number(argv[5]));
        if (strcmp(verb, "offer") == 0 && argc == 5)
                return do_offer(number(argv[2]), number(argv[3]), number(argv[4]));
        if (strcmp(verb, "small") == 0 && argc == 2)
                return do_small();
        if (strcmp(verb, "hog") == 0 && argc == 3)
                return do_hog(number(argv[2]));
        errx(2, "usage: classic check HEX OFFSET SIZE SEED | offer OFFSET SIZE SEED | small | hog LEAVE");
}
