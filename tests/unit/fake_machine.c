/* SPDX-License-Identifier: Apache-2.0 */
/* A directory with a script and a machine's state; the test's thread. The libraries stay loaded: every test is a process. */
#include "fake_machine.h"

#include <check.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/cleanup.h"

struct gpu gpu;

static char directory[200];

const char *machine_file(const char *name) {
        static char path[300];
        snprintf(path, sizeof(path), "%s/%s", directory, name);
        return path;
}

void machine_script(const char *script) {
        char fresh[300];

        snprintf(fresh, sizeof(fresh), "%s", machine_file("fresh"));
        FILE *file = fopen(fresh, "we");
        ck_assert_ptr_nonnull(file);
        ck_assert_int_ge(fputs(script, file), 0);
        ck_assert_int_eq(fclose(file), 0);
        ck_assert_int_eq(rename(fresh, machine_file("script")), 0);
}

void machine_start(const char *script) {
        const char *parent = getenv("TMPDIR");

        snprintf(directory, sizeof(directory), "%s/fake.XXXXXX", parent ? parent : "/tmp");
        ck_assert_ptr_nonnull(mkdtemp(directory));
        ck_assert_int_eq(chmod(directory, 0755), 0);
        machine_script(script);
        setenv("GPUIPC_FAKE_CUDA", machine_file("script"), 1);
        unsetenv("CUDA_VISIBLE_DEVICES");
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *walk) {
        (void)status;
        (void)kind;
        (void)walk;
        return remove(path);
}

void machine_end(void) {
        nftw(directory, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void *open_library(const char *name) {
        const char *build = getenv("GPUIPC_BUILD");
        char path[300];

        snprintf(path, sizeof(path), "%s/fake/%s", build ? build : "build", name);
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!library)
                fprintf(stderr, "%s\n", dlerror());
        return library;
}

static bool find(void *library, const char *name, void *ret_function) {
        void *function = dlsym(library, name);
        if (!function)
                fprintf(stderr, "no %s\n", name);
        memcpy(ret_function, &function, sizeof(function));
        return function;
}

#define FIND(name) found = find(library, #name, &gpu.name) && found;

bool machine_load_runtime_alone(void) {
        bool found = true;
        void *library = open_library("libcudart.so.13");
        if (!library)
                return false;
        RUNTIME_FUNCTIONS(FIND)
        return found;
}

bool machine_load(void) {
        bool found = true;
        void *library = open_library("libcuda.so.1");
        if (!library)
                return false;
        DRIVER_FUNCTIONS(FIND)
        library = open_library("libnvidia-ml.so.1");
        if (!library)
                return false;
        NVML_FUNCTIONS(FIND)
        return machine_load_runtime_alone() && found && gpu.nvmlInit_v2() == NVML_SUCCESS;
}

int machine_logged(const char *text) {
        static char log[1 << 20];
        int n = 0;
        _cleanup_fd_ int fd = open(machine_file("script.state/calls"), O_RDONLY | O_CLOEXEC);
        ssize_t length = fd < 0 ? 0 : read(fd, log, sizeof(log) - 1);

        log[length > 0 ? length : 0] = '\0';
        for (const char *at = log; (at = strstr(at, text)); at++)
                n++;
        return n;
}

int machine_used(unsigned device) {
        nvmlMemory_t memory;
        nvmlDevice_t handle;

        if (gpu.nvmlDeviceGetHandleByIndex_v2(device, &handle) != NVML_SUCCESS ||
            gpu.nvmlDeviceGetMemoryInfo(handle, &memory) != NVML_SUCCESS || memory.used + memory.free != memory.total)
                return -1;
        return (int)(memory.used / MIB);
}

static CUmemAllocationProp prop_of(int ordinal) {
        return (CUmemAllocationProp){ .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                      .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal } };
}

CUresult vmm_create(size_t size, int ordinal, CUmemGenericAllocationHandle *ret) {
        CUmemAllocationProp prop = prop_of(ordinal);
        return gpu.cuMemCreate(ret, size, &prop, 0);
}

CUresult vmm_export(size_t size, int ordinal, int *ret_fd) {
        CUmemGenericAllocationHandle handle;
        CUresult result = vmm_create(size, ordinal, &handle);

        if (result != CUDA_SUCCESS)
                return result;
        result = gpu.cuMemExportToShareableHandle(ret_fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        CUresult released = gpu.cuMemRelease(handle);
        return result != CUDA_SUCCESS ? result : released;
}

CUresult vmm_map(CUmemGenericAllocationHandle handle, size_t size, int ordinal, CUmemAccess_flags access, CUdeviceptr *ret) {
        CUmemAccessDesc desc = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal }, .flags = access };
        CUresult result = gpu.cuMemAddressReserve(ret, size, 0, 0, 0);

        if (result == CUDA_SUCCESS)
                result = gpu.cuMemMap(*ret, size, 0, handle, 0);
        return result != CUDA_SUCCESS ? result : gpu.cuMemSetAccess(*ret, size, &desc, 1);
}

CUresult vmm_import(int fd, size_t size, int ordinal, CUmemAccess_flags access, CUdeviceptr *ret) {
        CUmemGenericAllocationHandle handle;
        CUresult result =
                gpu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

        if (result != CUDA_SUCCESS)
                return result;
        result = vmm_map(handle, size, ordinal, access, ret);
        CUresult released = gpu.cuMemRelease(handle);
        return result != CUDA_SUCCESS ? result : released;
}

CUresult vmm_unmap(CUdeviceptr pointer, size_t size) {
        CUresult result = gpu.cuMemUnmap(pointer, size);
        return result != CUDA_SUCCESS ? result : gpu.cuMemAddressFree(pointer, size);
}

CUresult context_use(int ordinal) {
        CUcontext context;
        CUresult result = gpu.cuDevicePrimaryCtxRetain(&context, ordinal);
        return result != CUDA_SUCCESS ? result : gpu.cuCtxSetCurrent(context);
}

union control {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
};

int send_fd(int talk_fd, int fd) {
        char byte = 'f';
        struct iovec data = { .iov_base = &byte, .iov_len = 1 };
        union control control = { .header = { .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS } };
        struct msghdr message = {
                .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)
        };

        memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
        return sendmsg(talk_fd, &message, MSG_NOSIGNAL) == 1 ? 0 : -errno;
}

int receive_fd(int talk_fd) {
        char byte;
        int fd;
        struct iovec data = { .iov_base = &byte, .iov_len = 1 };
        union control control;
        struct msghdr message = {
                .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)
        };

        if (recvmsg(talk_fd, &message, MSG_CMSG_CLOEXEC) != 1 || message.msg_controllen < sizeof(struct cmsghdr))
                return -1;
        memcpy(&fd, CMSG_DATA(&control.header), sizeof(fd));
        return fd;
}
