/* SPDX-License-Identifier: Apache-2.0 */
/* What lies at this process's addresses. Under the driver's lock; keeps no descriptor. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "driver.h"

struct range *ranges;

static void *address(CUdeviceptr pointer) {
        return (void *)(uintptr_t)pointer;
}

struct range *range_find(CUdeviceptr pointer) {
        for (struct range *range = ranges; range; range = range->next)
                if (pointer >= range->start && pointer - range->start < (CUdeviceptr)range->size)
                        return range;
        return NULL;
}

struct part *range_part(const struct range *range, CUdeviceptr pointer) {
        for (struct part *part = range->parts; part; part = part->next)
                if (pointer >= part->start && pointer - part->start < (CUdeviceptr)part->size)
                        return part;
        return NULL;
}

int range_add(const struct range *range, struct range **ret_range) {
        struct range *added = malloc(sizeof(*added));
        if (!added)
                return -ENOMEM;
        *added = *range;
        added->next = ranges;
        ranges = added;
        if (ret_range)
                *ret_range = added;
        return 0;
}

void range_remove(struct range *range) {
        struct range **link = &ranges;

        while (*link != range)
                link = &(*link)->next;
        *link = range->next;
        while (range->parts) {
                struct part *part = range->parts;
                range->parts = part->next;
                free(part);
        }
        if (range->tag)
                books_drop(range->tag);
        free(range);
}

int range_device(CUdeviceptr pointer) {
        const struct range *range = range_find(pointer);
        return range ? range->tag->name.device : -1;
}

bool range_allows(CUdeviceptr pointer, size_t size, int device, int access) {
        while (size > 0) {
                const struct range *range = range_find(pointer);
                if (!range)
                        return false;
                int allowed = range->kind == RANGE_MAPPED ? range->access[device] :
                              device_reaches(device, range->tag->name.device) ? ACCESS_WRITE :
                                                                                ACCESS_NONE;
                if ((allowed & access) != access)
                        return false;
                size_t n = (size_t)((CUdeviceptr)range->size - (pointer - range->start));
                if (n >= size)
                        return true;
                pointer += n;
                size -= n;
        }
        return true;
}

int addresses_take(int64_t size, int64_t alignment, CUdeviceptr hint, CUdeviceptr *ret_start) {
        size_t n = (size_t)(size + alignment);
        char *at = mmap(address(hint), n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        if (at == MAP_FAILED)
                return -errno;
        size_t before = (size_t)(-(uintptr_t)at & (uintptr_t)(alignment - 1));
        if (before > 0)
                munmap(at, before);
        munmap(at + before + size, n - before - (size_t)size);
        *ret_start = (CUdeviceptr)(uintptr_t)(at + before);
        return 0;
}

int addresses_map(CUdeviceptr start, int64_t size, int fd, int protection) {
        void *at = mmap(address(start), (size_t)size, protection, MAP_SHARED | MAP_FIXED, fd, 0);
        if (at == MAP_FAILED)
                return -errno;
        (void)madvise(at, (size_t)size, MADV_DONTFORK);
        return 0;
}

void addresses_clear(CUdeviceptr start, int64_t size) {
        (void)mmap(address(start), (size_t)size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

void addresses_give(CUdeviceptr start, int64_t size) {
        munmap(address(start), (size_t)size);
}
