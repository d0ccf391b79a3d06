/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory management: allocations with a descriptor, address ranges, and mappings of one into the other. Under the
 * driver's lock. An allocation is held by its handle's descriptor; a mapping holds it by itself. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"
#include "proto/cleanup.h"

struct allocation {
        struct allocation *next;
        int fd;
        struct tag *tag;
        bool imported;
        unsigned refs;
};

struct reservation {
        struct reservation *next;
        CUdeviceptr start;
        int64_t size;
};

static struct allocation *allocations;
static struct reservation *reservations;

static bool whole_pieces(size_t size) {
        return size > 0 && size % (size_t)GRANULARITY == 0 && size < (size_t)1 << 46;
}

static struct allocation *allocation_of(CUmemGenericAllocationHandle handle) {
        struct allocation *allocation = allocations;

        while (allocation && (uintptr_t)allocation != handle)
                allocation = allocation->next;
        return allocation;
}

int allocation_device(CUmemGenericAllocationHandle handle) {
        struct allocation *allocation = allocation_of(handle);
        return allocation ? allocation->tag->name.device : -1;
}

static CUresult check_prop(const CUmemAllocationProp *prop) {
        if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
                return CUDA_ERROR_INVALID_VALUE;
        int device = process_device(prop->location.id);
        if (device < 0)
                return CUDA_ERROR_INVALID_DEVICE;
        if (prop->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
                return CUDA_ERROR_NOT_SUPPORTED;
        if (!device_script(device)->vmm || (prop->requestedHandleTypes && !device_script(device)->fd))
                return CUDA_ERROR_NOT_SUPPORTED;
        return CUDA_SUCCESS;
}

static int prop_device(const CUmemAllocationProp *prop) {
        return prop ? process_device(prop->location.id) : -1;
}

static CUresult granularity(size_t *ret, const CUmemAllocationProp *prop) {
        CUresult result = check_prop(prop);

        if (!ret)
                return CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS)
                *ret = (size_t)GRANULARITY;
        return result;
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *ret, const CUmemAllocationProp *prop,
                                              CUmemAllocationGranularity_flags option) {
        (void)option;
        return DRIVER_CALL(prop_device(prop), granularity(ret, prop));
}

static CUresult allocation_add(int *fd, struct tag *tag, bool imported, CUmemGenericAllocationHandle *ret) {
        struct allocation *allocation = malloc(sizeof(*allocation));
        if (!allocation)
                return CUDA_ERROR_OUT_OF_MEMORY;
        *allocation =
                (struct allocation){ .next = allocations, .fd = take_fd(fd), .tag = tag, .imported = imported, .refs = 1 };
        allocations = allocation;
        *ret = (uintptr_t)allocation;
        return CUDA_SUCCESS;
}

static CUresult create(CUmemGenericAllocationHandle *ret, size_t size, const CUmemAllocationProp *prop, unsigned long long flags) {
        _cleanup_fd_ int fd = -1;
        struct tag *tag;
        CUresult result = check_prop(prop);

        if (!ret || flags || !whole_pieces(size))
                return CUDA_ERROR_INVALID_VALUE;
        if (result != CUDA_SUCCESS)
                return result;
        int r = books_new(process_device(prop->location.id), PIECE_VMM, (int64_t)size, &fd, &tag);
        if (r < 0)
                return result_of(r);
        tag->handle_types = (int32_t)prop->requestedHandleTypes;
        result = allocation_add(&fd, tag, false, ret);
        if (result != CUDA_SUCCESS) {
                fd_closep(&fd);
                books_drop(tag);
        }
        return result;
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                            unsigned long long flags) {
        return DRIVER_CALL(prop_device(prop), create(handle, size, prop, flags));
}

static CUresult release(CUmemGenericAllocationHandle handle) {
        struct allocation **link = &allocations, *allocation = allocation_of(handle);

        if (!allocation)
                return CUDA_ERROR_INVALID_VALUE;
        if (--allocation->refs > 0)
                return CUDA_SUCCESS;
        while (*link != allocation)
                link = &(*link)->next;
        *link = allocation->next;
        close(allocation->fd);
        books_drop(allocation->tag);
        free(allocation);
        return CUDA_SUCCESS;
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
        return DRIVER_CALL(allocation_device(handle), release(handle));
}

static CUresult export(int *ret_fd, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags) {
        struct allocation *allocation = allocation_of(handle);

        if (!ret_fd || !allocation || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
                return CUDA_ERROR_INVALID_VALUE;
        if (allocation->imported || !(allocation->tag->handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
                return CUDA_ERROR_INVALID_VALUE;
        int fd = fcntl(allocation->fd, script_get()->cloexec ? F_DUPFD_CLOEXEC : F_DUPFD, 3);
        if (fd < 0)
                return CUDA_ERROR_OPERATING_SYSTEM;
        *ret_fd = fd;
        return CUDA_SUCCESS;
}

EXPORT CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                             unsigned long long flags) {
        return DRIVER_CALL(allocation_device(handle), export(shareable, handle, type, flags));
}

/* The descriptor stays the caller's. */
static CUresult import(CUmemGenericAllocationHandle *ret, int shared_fd, CUmemAllocationHandleType type) {
        struct tag *tag;

        if (!ret || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || books_tag(shared_fd, &tag) < 0)
                return CUDA_ERROR_INVALID_VALUE;
        _cleanup_fd_ int fd = fcntl(shared_fd, F_DUPFD_CLOEXEC, 3);
        CUresult result = fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : allocation_add(&fd, tag, true, ret);
        if (result != CUDA_SUCCESS) {
                fd_closep(&fd);
                books_drop(tag);
        }
        return result;
}

static int fd_device(int fd) {
        struct tag *tag;

        if (books_tag(fd, &tag) < 0)
                return -1;
        int device = tag->name.device;
        munmap(tag, TAG_BYTES);
        return device;
}

EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle, CUmemAllocationHandleType type) {
        int fd = (int)(intptr_t)os_handle;
        return DRIVER_CALL(fd_device(fd), import(handle, fd, type));
}

static CUresult properties(CUmemAllocationProp *ret, CUmemGenericAllocationHandle handle) {
        struct allocation *allocation = allocation_of(handle);

        if (!ret || !allocation)
                return CUDA_ERROR_INVALID_VALUE;
        *ret = (CUmemAllocationProp){ .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .requestedHandleTypes = (CUmemAllocationHandleType)allocation->tag->handle_types,
                                      .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE,
                                                    .id = process_ordinal(allocation->tag->name.device) } };
        return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle) {
        return DRIVER_CALL(allocation_device(handle), properties(prop, handle));
}

static CUresult reserve(CUdeviceptr *ret, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags) {
        if (!ret || flags || !whole_pieces(size) || (alignment & (alignment - 1)))
                return CUDA_ERROR_INVALID_VALUE;
        struct reservation *reservation = malloc(sizeof(*reservation));
        if (!reservation)
                return CUDA_ERROR_OUT_OF_MEMORY;
        *reservation = (struct reservation){ .next = reservations, .size = (int64_t)size };
        int r = addresses_take((int64_t)size, alignment > (size_t)GRANULARITY ? (int64_t)alignment : GRANULARITY, hint,
                               &reservation->start);
        if (r < 0) {
                free(reservation);
                return result_of(r);
        }
        reservations = reservation;
        *ret = reservation->start;
        return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags) {
        return DRIVER_CALL(-1, reserve(ptr, size, alignment, addr, flags));
}

static bool is_mapped(CUdeviceptr start, int64_t size) {
        for (const struct range *range = ranges; range; range = range->next)
                if (range->start < start + (CUdeviceptr)size && start < range->start + (CUdeviceptr)range->size)
                        return true;
        return false;
}

static CUresult unreserve(CUdeviceptr start, size_t size) {
        for (struct reservation **link = &reservations; *link; link = &(*link)->next) {
                struct reservation *reservation = *link;
                if (reservation->start != start || reservation->size != (int64_t)size)
                        continue;
                if (is_mapped(start, (int64_t)size))
                        return CUDA_ERROR_INVALID_VALUE;
                *link = reservation->next;
                addresses_give(start, (int64_t)size);
                free(reservation);
                return CUDA_SUCCESS;
        }
        return CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
        return DRIVER_CALL(-1, unreserve(ptr, size));
}

static bool is_reserved(CUdeviceptr start, size_t size) {
        for (const struct reservation *one = reservations; one; one = one->next)
                if (start >= one->start && start - one->start <= (CUdeviceptr)one->size &&
                    size <= (CUdeviceptr)one->size - (start - one->start))
                        return true;
        return false;
}

static CUresult map(CUdeviceptr start, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
        struct allocation *allocation = allocation_of(handle);
        struct range range = { .kind = RANGE_MAPPED, .start = start, .size = (int64_t)size, .allocation = handle };

        if (!allocation || offset || flags || !whole_pieces(size) || start % (CUdeviceptr)GRANULARITY ||
            (int64_t)size > allocation->tag->name.size || !is_reserved(start, size) || is_mapped(start, (int64_t)size))
                return CUDA_ERROR_INVALID_VALUE;
        int r = books_tag(allocation->fd, &range.tag);
        if (r < 0)
                return result_of(r);
        r = addresses_map(start, (int64_t)size, allocation->fd, PROT_NONE);
        if (r == 0)
                r = range_add(&range, NULL);
        if (r < 0) {
                addresses_clear(start, (int64_t)size);
                munmap(range.tag, TAG_BYTES);
        }
        return result_of(r);
}

EXPORT CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
        return DRIVER_CALL(allocation_device(handle), map(ptr, size, offset, handle, flags));
}

/* Whether start and size are those of one mapping, or of several side by side. */
static bool whole_mappings(CUdeviceptr start, size_t size) {
        size_t done = 0;

        while (done < size) {
                const struct range *range = range_find(start + done);
                if (!range || range->kind != RANGE_MAPPED || range->start != start + done)
                        return false;
                done += (size_t)range->size;
        }
        return size > 0 && done == size;
}

static CUresult unmap(CUdeviceptr start, size_t size) {
        if (!whole_mappings(start, size))
                return CUDA_ERROR_INVALID_VALUE;
        addresses_clear(start, (int64_t)size);
        for (size_t done = 0; done < size;) {
                struct range *range = range_find(start + done);
                done += (size_t)range->size;
                range_remove(range);
        }
        return CUDA_SUCCESS;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
        return DRIVER_CALL(range_device(ptr), unmap(ptr, size));
}

static void protect(const struct range *range) {
        int access = ACCESS_NONE;

        for (int i = 0; i < MACHINE_DEVICES; i++)
                access |= range->access[i];
        mprotect((void *)(uintptr_t)range->start, (size_t)range->size,
                 access == ACCESS_WRITE ? PROT_READ | PROT_WRITE : access == ACCESS_READ ? PROT_READ : PROT_NONE);
}

static CUresult check_access(CUdeviceptr start, size_t size, const CUmemAccessDesc *desc) {
        int device = desc->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? process_device(desc->location.id) : -1;

        if (desc->flags != (CUmemAccess_flags)ACCESS_NONE && desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
            desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
                return CUDA_ERROR_INVALID_VALUE;
        if (device < 0)
                return CUDA_ERROR_INVALID_DEVICE;
        for (size_t done = 0; done < size;) {
                const struct range *range = range_find(start + done);
                if (!device_reaches(device, range->tag->name.device))
                        return CUDA_ERROR_INVALID_DEVICE;
                done += (size_t)range->size;
        }
        return CUDA_SUCCESS;
}

static CUresult set_access(CUdeviceptr start, size_t size, const CUmemAccessDesc *descs, size_t n) {
        if (!descs || n == 0 || !whole_mappings(start, size))
                return CUDA_ERROR_INVALID_VALUE;
        for (size_t i = 0; i < n; i++) {
                CUresult result = check_access(start, size, &descs[i]);
                if (result != CUDA_SUCCESS)
                        return result;
        }
        for (size_t done = 0; done < size;) {
                struct range *range = range_find(start + done);
                for (size_t i = 0; i < n; i++)
                        range->access[process_device(descs[i].location.id)] = (int)descs[i].flags;
                protect(range);
                done += (size_t)range->size;
        }
        return CUDA_SUCCESS;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count) {
        return DRIVER_CALL(range_device(ptr), set_access(ptr, size, desc, count));
}

static CUresult get_access(unsigned long long *ret, const CUmemLocation *location, CUdeviceptr pointer) {
        const struct range *range = range_find(pointer);

        if (!ret || !location || !range || range->kind != RANGE_MAPPED)
                return CUDA_ERROR_INVALID_VALUE;
        if (process_device(location->id) < 0)
                return CUDA_ERROR_INVALID_DEVICE;
        *ret = (unsigned long long)range->access[process_device(location->id)];
        return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr) {
        return DRIVER_CALL(range_device(ptr), get_access(flags, location, ptr));
}

static CUresult retain(CUmemGenericAllocationHandle *ret, CUdeviceptr pointer) {
        const struct range *range = range_find(pointer);
        struct allocation *allocation = range ? allocation_of(range->allocation) : NULL;

        if (!ret || !allocation)
                return CUDA_ERROR_INVALID_VALUE;
        allocation->refs++;
        *ret = range->allocation;
        return CUDA_SUCCESS;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
        return DRIVER_CALL(range_device((uintptr_t)addr), retain(handle, (uintptr_t)addr));
}
