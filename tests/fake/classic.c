/* SPDX-License-Identifier: Apache-2.0 */
/* Classic allocations and the handles that share them. Under the driver's lock. Both end with their context. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"
#include "proto/cleanup.h"

#define PART_ALIGNMENT 512
#define HANDLE_MAGIC 0x6b637066

/* What the 64 bytes of a handle hold. */
struct ipc_handle {
        uint32_t magic;
        int32_t pid; /* the exporter's, as its own namespace numbers it */
        uint64_t id, owner_id;
        int64_t size, owner_size;
        int32_t device, owner_device;
        uint32_t offset; /* of the allocation within its piece */
        uint32_t nothing;
};
_Static_assert(sizeof(struct ipc_handle) <= sizeof(CUipcMemHandle), "a handle has 64 bytes");

/* A new piece, or another process's, at addresses of its own. */
static int range_make(struct range *range, int *fd) {
        int r = addresses_take(range->size, GRANULARITY, 0, &range->start);
        if (r < 0)
                return r;
        r = addresses_map(range->start, range->size, *fd, PROT_READ | PROT_WRITE);
        if (r < 0)
                addresses_give(range->start, range->size);
        return r;
}

static void range_end(struct range *range) {
        if (range->kind == RANGE_CLASSIC)
                range->tag->freed = 1;
        addresses_give(range->start, range->size);
        range_remove(range);
}

static int piece_add(enum range_kind kind, int *fd, struct tag *tag, struct range **ret) {
        struct range range = {
                .kind = kind, .size = tag->name.size, .tag = tag, .context = context_current(), .refs = 1
        };
        int r = range_make(&range, fd);

        if (r == 0) {
                r = range_add(&range, ret);
                if (r < 0)
                        addresses_give(range.start, range.size);
        }
        fd_closep(fd);
        if (r < 0)
                books_drop(tag);
        return r;
}

/* A block that has room for a small part, else a new one; a large allocation is a block's only part. */
static int block_for(int64_t size, struct range **ret) {
        _cleanup_fd_ int fd = -1;
        struct tag *tag;

        for (struct range *range = ranges; range; range = range->next)
                if (range->kind == RANGE_CLASSIC && range->context == context_current() && range->size - range->taken >= size) {
                        *ret = range;
                        return 0;
                }
        int64_t rounded = (size + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
        int r = books_new(context_device(), PIECE_CLASSIC, rounded, &fd, &tag);
        return r < 0 ? r : piece_add(RANGE_CLASSIC, &fd, tag, ret);
}

static CUresult allocate(CUdeviceptr *ret, size_t size) {
        struct range *block;

        if (!context_current())
                return context_error();
        if (!ret || size == 0)
                return CUDA_ERROR_INVALID_VALUE;
        if (size >= (size_t)1 << 46)
                return CUDA_ERROR_OUT_OF_MEMORY;
        struct part *part = malloc(sizeof(*part));
        int64_t n = ((int64_t)size + PART_ALIGNMENT - 1) / PART_ALIGNMENT * PART_ALIGNMENT;
        if (n >= GRANULARITY)
                n = (n + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
        int r = part ? block_for(n, &block) : -ENOMEM;
        if (r < 0) {
                free(part);
                return result_of(r);
        }
        *part = (struct part){ .next = block->parts, .start = block->start + (CUdeviceptr)block->taken, .size = n };
        block->parts = part;
        block->taken += n;
        *ret = part->start;
        return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize) {
        return DRIVER_CALL(context_device(), allocate(dptr, bytesize));
}

/* Waits for the GPU, as the driver does. */
static CUresult deallocate(CUdeviceptr pointer) {
        if (!context_current())
                return context_error();
        CUresult result = streams_drain(context_current());
        struct range *block = range_find(pointer);
        if (result != CUDA_SUCCESS)
                return result;
        if (!block || block->kind != RANGE_CLASSIC)
                return CUDA_ERROR_INVALID_VALUE;
        for (struct part **link = &block->parts; *link; link = &(*link)->next) {
                struct part *part = *link;
                if (part->start != pointer)
                        continue;
                *link = part->next;
                free(part);
                if (!block->parts)
                        range_end(block);
                return CUDA_SUCCESS;
        }
        return CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr dptr) {
        return DRIVER_CALL(range_device(dptr), deallocate(dptr));
}

static CUresult info(size_t *ret_free, size_t *ret_total) {
        if (!context_current())
                return context_error();
        if (!ret_free || !ret_total)
                return CUDA_ERROR_INVALID_VALUE;
        int64_t free_bytes = books_free_bytes(context_device());
        if (free_bytes < 0)
                return CUDA_ERROR_OPERATING_SYSTEM;
        *ret_free = (size_t)free_bytes;
        *ret_total = (size_t)device_script(context_device())->total_bytes;
        return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
        return DRIVER_CALL(context_device(), info(free_bytes, total));
}

static CUresult address_range(CUdeviceptr *ret_base, size_t *ret_size, CUdeviceptr pointer) {
        const struct range *range = range_find(pointer);
        const struct part *part = range && range->kind == RANGE_CLASSIC ? range_part(range, pointer) : NULL;

        if (!range || (range->kind == RANGE_CLASSIC && !part))
                return CUDA_ERROR_NOT_FOUND;
        if (ret_base)
                *ret_base = part ? part->start : range->start;
        if (ret_size)
                *ret_size = (size_t)(part ? part->size : range->size);
        return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr dptr) {
        return DRIVER_CALL(range_device(dptr), address_range(base, size, dptr));
}

static CUresult get_handle(CUipcMemHandle *ret, CUdeviceptr pointer) {
        const struct range *range = range_find(pointer);
        const struct part *part = range && range->kind == RANGE_CLASSIC ? range_part(range, pointer) : NULL;
        const struct tag *owner = process_tag();

        if (!ret || !part)
                return CUDA_ERROR_INVALID_VALUE;
        struct ipc_handle handle = { .magic = HANDLE_MAGIC,
                                     .pid = getpid(),
                                     .id = range->tag->name.id,
                                     .size = range->tag->name.size,
                                     .device = range->tag->name.device,
                                     .owner_id = owner->name.id,
                                     .owner_size = owner->name.size,
                                     .owner_device = owner->name.device,
                                     .offset = (uint32_t)(part->start - range->start) };
        memset(ret, 0, sizeof(*ret));
        memcpy(ret->reserved, &handle, sizeof(handle));
        return CUDA_SUCCESS;
}

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr dptr) {
        return DRIVER_CALL(range_device(dptr), get_handle(handle, dptr));
}

static struct range *range_opened(uint64_t id) {
        for (struct range *range = ranges; range; range = range->next)
                if (range->kind == RANGE_IMPORTED && range->tag->name.id == id)
                        return range;
        return NULL;
}

static bool handle_plausible(const struct ipc_handle *handle) {
        return handle->magic == HANDLE_MAGIC && handle->device >= 0 && handle->device < MACHINE_DEVICES &&
               handle->owner_device >= 0 && handle->owner_device < MACHINE_DEVICES && handle->offset < handle->size;
}

static int handle_device(const CUipcMemHandle *wire) {
        struct ipc_handle handle;

        memcpy(&handle, wire->reserved, sizeof(handle));
        return handle_plausible(&handle) ? handle.device : -1;
}

/* Opens a handle that is not open here yet. */
static CUresult open_new(const struct ipc_handle *handle, struct range **ret) {
        struct piece_name owner = { .device = handle->owner_device, .size = handle->owner_size, .id = handle->owner_id };
        struct piece_name name = { .device = handle->device, .size = handle->size, .id = handle->id };
        _cleanup_fd_ int fd = -1;
        struct tag *tag;

        if (!books_alive(&owner))
                return CUDA_ERROR_INVALID_VALUE;
        int r = books_open(&name, &fd, &tag);
        if (r < 0)
                return r == -ENOENT ? CUDA_ERROR_INVALID_VALUE : result_of(r);
        if (tag->freed) {
                fd_closep(&fd);
                books_drop(tag);
                return CUDA_ERROR_INVALID_VALUE;
        }
        return result_of(piece_add(RANGE_IMPORTED, &fd, tag, ret));
}

static CUresult open_handle(CUdeviceptr *ret, const CUipcMemHandle *wire, unsigned flags) {
        struct ipc_handle handle;
        CUresult result;

        memcpy(&handle, wire->reserved, sizeof(handle));
        if (!context_current())
                return context_error();
        if (!ret || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || !handle_plausible(&handle))
                return CUDA_ERROR_INVALID_VALUE;
        if (handle.pid == getpid())
                return CUDA_ERROR_INVALID_CONTEXT; /* the driver takes it for one of its own process's */
        if (!device_reaches(context_device(), handle.device))
                return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
        struct range *range = range_opened(handle.id);
        if (range)
                range->refs++;
        else if ((result = open_new(&handle, &range)) != CUDA_SUCCESS)
                return result;
        *ret = range->start + handle.offset;
        return CUDA_SUCCESS;
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int flags) {
        return DRIVER_CALL(handle_device(&handle), open_handle(pdptr, &handle, flags));
}

EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int flags) {
        return DRIVER_CALL(handle_device(&handle), open_handle(pdptr, &handle, flags));
}

static CUresult close_handle(CUdeviceptr pointer) {
        struct range *range = range_find(pointer);

        if (!range || range->kind != RANGE_IMPORTED)
                return CUDA_ERROR_INVALID_VALUE;
        if (--range->refs == 0)
                range_end(range);
        return CUDA_SUCCESS;
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr dptr) {
        return DRIVER_CALL(range_device(dptr), close_handle(dptr));
}

void classic_end_context(const struct context *context) {
        for (struct range *range = ranges, *next; range; range = next) {
                next = range->next;
                if (range->context == context)
                        range_end(range);
        }
}
