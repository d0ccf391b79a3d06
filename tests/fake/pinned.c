/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that the driver gives, which it copies to and from without a detour. Under the driver's lock. It is its context's, but
 * stays until it is freed or the process ends. */
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#define PAGE 4096

struct pinned_piece {
        struct pinned_piece *next;
        void *memory;
        size_t n;
};

static struct pinned_piece *pieces;

bool pinned(CUdeviceptr pointer) {
        for (const struct pinned_piece *piece = pieces; piece; piece = piece->next)
                if (pointer >= (uintptr_t)piece->memory && pointer - (uintptr_t)piece->memory < piece->n)
                        return true;
        return false;
}

static CUresult allocate(void **ret, size_t n) {
        if (!context_current())
                return context_error();
        if (!ret || n == 0)
                return CUDA_ERROR_INVALID_VALUE;
        struct pinned_piece *piece = malloc(sizeof(*piece));
        void *memory = piece ? aligned_alloc(PAGE, (n + PAGE - 1) / PAGE * PAGE) : NULL;
        if (!memory) {
                free(piece);
                return CUDA_ERROR_OUT_OF_MEMORY;
        }
        *piece = (struct pinned_piece){ .next = pieces, .memory = memory, .n = n };
        pieces = piece;
        *ret = memset(memory, 0, n);
        return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int flags) {
        (void)flags;
        return DRIVER_CALL(context_device(), allocate(pp, bytesize));
}

EXPORT CUresult cuMemAllocHost_v2(void **pp, size_t bytesize) {
        return DRIVER_CALL(context_device(), allocate(pp, bytesize));
}

static CUresult give_back(const void *memory) {
        for (struct pinned_piece **link = &pieces; *link; link = &(*link)->next)
                if ((*link)->memory == memory) {
                        struct pinned_piece *piece = *link;
                        *link = piece->next;
                        free(piece->memory);
                        free(piece);
                        return CUDA_SUCCESS;
                }
        return CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemFreeHost(void *p) {
        return DRIVER_CALL(context_device(), give_back(p));
}
