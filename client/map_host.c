/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory behind a memfd. Any thread enters. Never trusts the size it was told: a mapping longer than its file, or
 * of a file that can shrink, would kill the process at some later access. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "error.h"
#include "fence.h"
#include "map.h"
#include "proto/cleanup.h"

static int cannot(gpuipc_error *ret_error, int system_errno, const char *why) {
        return error_set(ret_error, GPUIPC_ERROR_MAP, system_errno, NULL, "The buffer cannot be mapped: %s%s%s.", why,
                         system_errno ? ": " : "", system_errno ? strerrordesc_np(system_errno) : "");
}

static int check(const struct map_request *request, gpuipc_error *ret_error) {
        struct stat st;
        int seals;

        if (request->fd < 0)
                return cannot(ret_error, 0, "its handle has no descriptor");
        if (fstat(request->fd, &st) < 0)
                return cannot(ret_error, errno, "its descriptor cannot be looked at");
        if (!S_ISREG(st.st_mode))
                return cannot(ret_error, 0, "its descriptor is not a file in memory");
        if (st.st_size < request->offset || st.st_size - request->offset < request->size)
                return cannot(ret_error, 0, "its file is smaller than the daemon says");
        seals = fcntl(request->fd, F_GET_SEALS);
        if (seals < 0 || !(seals & F_SEAL_SHRINK))
                return cannot(ret_error, 0, "its file is not sealed against shrinking");
        return GPUIPC_OK;
}

static int host_map(const struct map_request *request, struct mapping *mapping, gpuipc_error *ret_error) {
        int64_t page = sysconf(_SC_PAGESIZE), lead = request->offset % page;
        int protection = request->access == GPUIPC_RO ? PROT_READ : PROT_READ | PROT_WRITE;
        int r = check(request, ret_error);
        void *base;

        if (r != GPUIPC_OK)
                return r;
        if ((uint64_t)request->size > SIZE_MAX - (uint64_t)lead)
                return cannot(ret_error, ENOMEM, "it is larger than this process's memory can be");
        base = mmap(NULL, (size_t)(request->size + lead), protection, MAP_SHARED, request->fd, request->offset - lead);
        if (base == MAP_FAILED)
                return cannot(ret_error, errno, errno == ENOMEM ? "no room for it (check ulimit -v and "
                                                                  "vm.max_map_count)" : "mmap() failed");
        mapping->base = base;
        mapping->n_base = (size_t)(request->size + lead);
        mapping->pointer = (char *)base + lead;
        return GPUIPC_OK;
}

static int host_copy(const struct mapping *mapping, const struct map_copy *copy, gpuipc_error *ret_error) {
        char *at = (char *)mapping->pointer + copy->offset;

        (void)ret_error;
        (void)memcpy(copy->to_buffer ? at : copy->memory, copy->to_buffer ? copy->memory : at, copy->n);
        return GPUIPC_OK;
}

static void host_unmap(struct mapping *mapping) {
        (void)munmap(mapping->base, mapping->n_base);
}

const struct map_kind map_host = { .name = "memfd", .map = host_map, .copy = host_copy, .unmap = host_unmap,
                                   .fences = &fence_host };
