/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory with a descriptor (cuda-fd). The device's two lanes enter. Makes no context and maps nothing: the driver's handle is given
 * back at once, and the descriptor is all that keeps the memory. */
#include "cuda_device.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "proto/cleanup.h"
#include "wipe.h"

static CUmemAllocationProp vmm_prop(const struct backend_device *device) {
        return (CUmemAllocationProp){
                .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->ordinal},
        };
}

struct cuda_stray {
        struct cuda_stray *next;
        CUmemGenericAllocationHandle handle;
};

/* What is not taken back holds its memory, so it is kept for another try. A driver that refuses this is sick, whatever it says. */
static int vmm_release(struct backend_device *device, CUmemGenericAllocationHandle handle, struct backend_detail *detail) {
        CUresult result = device->api->cuMemRelease(handle);
        struct cuda_stray *stray;

        if (result == CUDA_SUCCESS)
                return 0;
        (void)cuda_fail(device->api, detail, result, "cuMemRelease");
        stray = malloc(sizeof(*stray));
        if (stray) {
                *stray = (struct cuda_stray){.next = device->strays, .handle = handle};
                device->strays = stray;
        }
        return -EIO;
}

void cuda_vmm_end(struct backend_device *device) {
        while (device->strays) {
                struct cuda_stray *stray = device->strays;

                device->strays = stray->next;
                free(stray);
        }
}

static int vmm_release_strays(struct backend_device *device, struct backend_detail *detail) {
        while (device->strays) {
                struct cuda_stray *stray = device->strays;
                CUresult result = device->api->cuMemRelease(stray->handle);

                if (result != CUDA_SUCCESS) {
                        (void)cuda_fail(device->api, detail, result, "cuMemRelease");
                        return -EIO;
                }
                device->strays = stray->next;
                free(stray);
        }
        return 0;
}

/* New memory as a descriptor and nothing else. */
static int vmm_make(struct backend_device *device, int64_t bytes, int *ret_fd, struct backend_detail *detail) {
        const struct cuda_api *api = device->api;
        CUmemAllocationProp prop = vmm_prop(device);
        CUmemGenericAllocationHandle handle;
        _cleanup_fd_ int fd = -1;
        CUresult result;
        int r;

        result = api->cuMemCreate(&handle, (size_t)bytes, &prop, 0);
        if (result != CUDA_SUCCESS)
                return cuda_fail(api, detail, result, "cuMemCreate");
        result = api->cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        r = vmm_release(device, handle, detail);
        if (result != CUDA_SUCCESS) {
                fd = -1; /* whatever the driver wrote there */
                return cuda_fail(api, detail, result, "cuMemExportToShareableHandle");
        }
        if (r < 0)
                return r;
        if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
                return -errno;
        *ret_fd = take_fd(&fd);
        return 0;
}

int cuda_vmm_allocate(struct backend_device *device, int64_t allocated, struct backing **ret, struct backend_detail *detail) {
        _cleanup_free_ struct cuda_backing *backing = calloc(1, sizeof(*backing));
        _cleanup_fd_ int fd = -1;
        int r;

        if (!backing)
                return -ENOMEM;
        r = cuda_device_blame(device, vmm_make(device, allocated, &fd, detail), detail);
        if (r < 0)
                return r;
        if (device->zeroed == ZEROED_WIPED) {
                r = wipe_run(fd, device->uuid, allocated, detail);
                if (r < 0)
                        return r;
        }
        backing->device = device;
        backing->base.fds[ACCESS_RW] = backing->base.fds[ACCESS_RO] = take_fd(&fd);
        *ret = &take_ptr(backing)->base;
        return 0;
}

int cuda_vmm_adopt(struct backend_device *device, int fd_take, struct backing **ret) {
        struct cuda_backing *backing = calloc(1, sizeof(*backing));

        if (!backing) {
                fd_closep(&fd_take);
                return -ENOMEM;
        }
        backing->device = device;
        backing->base.fds[ACCESS_RW] = backing->base.fds[ACCESS_RO] = fd_take;
        *ret = &backing->base;
        return 0;
}

void cuda_vmm_close(struct cuda_backing *backing) {
        (void)close(backing->base.fds[ACCESS_RW]);
        free(backing);
}

int cuda_vmm_check(struct backend_device *device, struct backend_detail *detail) {
        _cleanup_fd_ int fd = -1;
        int r = vmm_release_strays(device, detail);

        if (r == 0)
                r = vmm_make(device, device->granularity, &fd, detail);
        return r == -ENOMEM ? 0 : r;
}
