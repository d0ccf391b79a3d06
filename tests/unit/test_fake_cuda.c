/* SPDX-License-Identifier: Apache-2.0 */
/* The false GPUs behave as real ones do: each case of tests/fake/README.md, between processes where it says so. A process
 * that called cuInit has no children that may use CUDA, so children are started first. */
#include <check.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake_machine.h"
#include "proto/cleanup.h"
#include "tests/support/child.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"

#define TWO_MIB (2 * MIB)
#define RW CU_MEM_ACCESS_FLAGS_PROT_READWRITE
#define RO CU_MEM_ACCESS_FLAGS_PROT_READ
#define MACHINE "device name=\"Fake H200\" total=4G\ndevice total=8G used=1G\n"

static struct fds before;

static void setup(void) {
        before = fds_of(0);
        machine_start(MACHINE);
}

static void teardown(void) {
        struct fds after = fds_of(0);

        machine_end();
        fds_assert_same(&before, &after, "this process");
        fds_deinit(&before);
        fds_deinit(&after);
}

static void start(void) {
        ck_assert(machine_load());
        ck_assert_int_eq(gpu.cuInit(0), CUDA_SUCCESS);
}

static unsigned char *bytes(CUdeviceptr pointer) {
        return (unsigned char *)(uintptr_t)pointer;
}

START_TEST(devices_are_as_the_script_says) {
        static const unsigned char uuid[16] = { 0xfa, 0x4e, 0, 0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 1 };
        char name[64];
        CUuuid got;
        size_t size;
        int n;

        ck_assert(machine_load());
        ck_assert_int_eq(gpu.cuDeviceGetCount(&n), CUDA_ERROR_NOT_INITIALIZED);
        ck_assert_int_eq(gpu.cuDriverGetVersion(&n), CUDA_SUCCESS);
        ck_assert_int_eq(n, 13000);
        ck_assert_int_eq(gpu.cuInit(1), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(gpu.cuInit(0), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuInit(0), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuDeviceGetCount(&n), CUDA_SUCCESS);
        ck_assert_int_eq(n, 2);
        ck_assert_int_eq(gpu.cuDeviceGet(&n, 2), CUDA_ERROR_INVALID_DEVICE);
        ck_assert_int_eq(gpu.cuDeviceGetName(name, sizeof(name), 0), CUDA_SUCCESS);
        ck_assert_str_eq(name, "Fake H200");
        ck_assert_int_eq(gpu.cuDeviceGetUuid_v2(&got, 1), CUDA_SUCCESS);
        ck_assert_mem_eq(got.bytes, uuid, 16);
        ck_assert_int_eq(gpu.cuDeviceTotalMem_v2(&size, 1), CUDA_SUCCESS);
        ck_assert_uint_eq(size, 8192 * MIB);
        ck_assert_int_eq(gpu.cuDeviceGetAttribute(&n, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0), CUDA_SUCCESS);
        ck_assert_int_eq(n, 1);
        ck_assert_int_eq(gpu.cuDeviceGetAttribute(&n, CU_DEVICE_ATTRIBUTE_INTEGRATED, 0), CUDA_SUCCESS);
        ck_assert_int_eq(n, 0);
        ck_assert_int_eq(gpu.cuDeviceGetAttribute(&n, (CUdevice_attribute)0, 0), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(gpu.cuDeviceCanAccessPeer(&n, 0, 1), CUDA_SUCCESS);
        ck_assert_int_eq(n, 1);
        ck_assert_int_eq(gpu.cuDeviceCanAccessPeer(&n, 0, 0), CUDA_SUCCESS);
        ck_assert_int_eq(n, 0);
} END_TEST

START_TEST(attributes_follow_the_script) {
        int n;

        machine_script("device vmm=no integrated=yes memops=no attribute=75:8 uuid=MIG-00112233-4455-6677-8899-aabbccddeeff\n");
        start();
        CUmemGenericAllocationHandle handle;
        ck_assert_int_eq(gpu.cuDeviceGetAttribute(&n, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0), 0);
        ck_assert_int_eq(n, 0);
        ck_assert_int_eq(gpu.cuDeviceGetAttribute(&n, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0), 0);
        ck_assert_int_eq(n, 0);
        ck_assert_int_eq(gpu.cuDeviceGetAttribute(&n, CU_DEVICE_ATTRIBUTE_INTEGRATED, 0), 0);
        ck_assert_int_eq(n, 1);
        ck_assert_int_eq(gpu.cuDeviceGetAttribute(&n, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 0), 0);
        ck_assert_int_eq(n, 0);
        ck_assert_int_eq(gpu.cuDeviceGetAttribute(&n, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0), 0);
        ck_assert_int_eq(n, 8);
        ck_assert_int_eq(vmm_create(TWO_MIB, 0, &handle), CUDA_ERROR_NOT_SUPPORTED);
        CUuuid uuid;
        ck_assert_int_eq(gpu.cuDeviceGetUuid_v2(&uuid, 0), CUDA_SUCCESS);
        ck_assert_uint_eq((unsigned char)uuid.bytes[0], 0);
        ck_assert_uint_eq((unsigned char)uuid.bytes[15], 0xff);
        CUresult (*first)(CUuuid *, CUdevice) = (CUresult(*)(CUuuid *, CUdevice))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuDeviceGetUuid");
        ck_assert_int_eq(first(&uuid, 0), CUDA_SUCCESS);
        ck_assert_uint_eq((unsigned char)uuid.bytes[0], 0xff);
        machine_script("device fd=no\n");
        ck_assert_int_eq(vmm_create(TWO_MIB, 0, &handle), CUDA_ERROR_NOT_SUPPORTED);
} END_TEST

struct view {
        const char *list;
        int expected[3]; /* last byte of the UUIDs, -1 ends */
};

static int check_view(int talk_fd, void *data) {
        const struct view *view = data;
        CUuuid uuid;
        int n, expected = 0;

        (void)talk_fd;
        setenv("CUDA_VISIBLE_DEVICES", view->list, 1);
        while (expected < 3 && view->expected[expected] >= 0)
                expected++;
        TRY(machine_load());
        TRY(gpu.cuInit(0) == (expected ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE));
        if (!expected)
                return 0;
        TRY(gpu.cuDeviceGetCount(&n) == CUDA_SUCCESS && n == expected);
        for (int i = 0; i < n; i++)
                TRY(gpu.cuDeviceGetUuid_v2(&uuid, i) == CUDA_SUCCESS && uuid.bytes[15] == view->expected[i]);
        return 0;
}

START_TEST(visible_devices_are_obeyed) {
        static struct view views[] = { { "0,1", { 0, 1, -1 } },
                                       { "1,0", { 1, 0, -1 } },
                                       { "1", { 1, -1 } },
                                       { " 1", { 1, -1 } },
                                       { "0,7,1", { 0, -1 } },
                                       { "-1", { -1 } },
                                       { "", { -1 } },
                                       { "0,0", { -1 } },
                                       { "none", { -1 } },
                                       { "GPU-fa4e0000-0000-4000-8000-000000000001", { 1, -1 } },
                                       { "GPU-fa4e0000-0000-4000-8000-000000000001,0", { 1, 0, -1 } },
                                       { "GPU-fa4e", { -1 } } };

        for (size_t i = 0; i < ELEMENTSOF(views); i++) {
                struct child child = child_start(NULL, check_view, &views[i]);
                child_expect_exit(&child, 0);
        }
} END_TEST

START_TEST(a_machine_without_devices) {
        unsigned n;

        machine_script("devices 0\n");
        ck_assert(machine_load());
        ck_assert_int_eq(gpu.cuInit(0), CUDA_ERROR_NO_DEVICE);
        ck_assert_int_eq(gpu.nvmlDeviceGetCount_v2(&n), NVML_SUCCESS);
        ck_assert_uint_eq(n, 0);
        machine_script("device\nstate /proc/1/no\n");
        ck_assert_int_eq(gpu.cuInit(0), CUDA_ERROR_NO_DEVICE);
        ck_assert_int_eq(gpu.nvmlInit_v2(), NVML_ERROR_DRIVER_NOT_LOADED);
        machine_script("device\n");
        ck_assert_int_eq(gpu.cuInit(0), CUDA_SUCCESS);
} END_TEST

static int use_inherited(int talk_fd, void *data) {
        int n;

        (void)talk_fd;
        (void)data;
        TRY(gpu.cuInit(0) == CUDA_ERROR_NOT_INITIALIZED);
        TRY(gpu.cuDeviceGetCount(&n) == CUDA_ERROR_NOT_INITIALIZED);
        TRY(gpu.cudaSetDevice(0) == cudaErrorInitializationError);
        TRY(gpu.cuDriverGetVersion(&n) == CUDA_SUCCESS);
        return 0;
}

START_TEST(a_forked_child_has_no_cuda) {
        start();
        struct child child = child_start(NULL, use_inherited, NULL);
        child_expect_exit(&child, 0);
        if (child_needs_root("fork into a pid namespace"))
                return;
        child = child_start(&(struct child_options){ .namespaces = CLONE_NEWPID }, use_inherited, NULL);
        child_expect_exit(&child, 0);
} END_TEST

static int start_without_proc(int talk_fd, void *data) {
        (void)talk_fd;
        (void)data;
        TRY(machine_load());
        TRY(gpu.cuInit(0) == CUDA_ERROR_OPERATING_SYSTEM);
        return 0;
}

START_TEST(a_foreign_proc_is_noticed) {
        if (child_needs_root("a foreign /proc"))
                return;
        struct child child = child_start(&(struct child_options){ .namespaces = CLONE_NEWPID }, start_without_proc, NULL);
        child_expect_exit(&child, 0);
} END_TEST

/* Maps what it is sent, both ways, and says how that went; then waits to be told to go. */
static int share(int talk_fd, void *data) {
        CUdeviceptr pointer;

        (void)data;
        TRY(machine_load() && gpu.cuInit(0) == CUDA_SUCCESS);
        _cleanup_fd_ int fd = receive_fd(talk_fd);
        TRY(vmm_import(fd, TWO_MIB, 0, RW, &pointer) == CUDA_SUCCESS);
        fd_closep(&fd);
        TRY(bytes(pointer)[5] == 0x55 && bytes(pointer)[TWO_MIB - 1] == 0);
        bytes(pointer)[6] = 0x66;
        TRY(talk_say(talk_fd, 'm') == 0 && talk_hear(talk_fd, 'u') == 0);
        TRY(bytes(pointer)[5] == 0x55);
        TRY(vmm_unmap(pointer, TWO_MIB) == CUDA_SUCCESS);
        TRY(talk_say(talk_fd, 'd') == 0 && talk_hear(talk_fd, 'q') == 0);
        return 0;
}

START_TEST(a_descriptor_shares_memory) {
        struct child child = child_start(NULL, share, NULL);
        CUdeviceptr pointer;
        int fd;

        start();
        ck_assert_int_eq(vmm_export(TWO_MIB, 0, &fd), CUDA_SUCCESS);
        ck_assert_int_eq(fcntl(fd, F_GETFD), 0);
        ck_assert_int_eq(vmm_import(fd, TWO_MIB, 0, RW, &pointer), CUDA_SUCCESS);
        bytes(pointer)[5] = 0x55;
        ck_assert_int_eq(send_fd(child.talk_fd, fd), 0);
        close(fd);
        child_hear(&child, 'm');
        ck_assert_uint_eq(bytes(pointer)[6], 0x66);
        ck_assert_int_eq(machine_used(0), 2 + 4 + 4);
        ck_assert_int_eq(vmm_unmap(pointer, TWO_MIB), CUDA_SUCCESS);
        ck_assert_int_eq(machine_used(0), 2 + 4 + 4);
        child_say(&child, 'u');
        child_hear(&child, 'd');
        ck_assert_int_eq(machine_used(0), 4 + 4);
        child_say(&child, 'q');
        child_expect_exit(&child, 0);
        ck_assert_int_eq(machine_used(0), 4);
        ck_assert_int_eq(machine_logged("cuDevicePrimaryCtxRetain"), 0);
} END_TEST

START_TEST(a_descriptor_underway_holds_memory) {
        int fd, talk[2];

        start();
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, talk), 0);
        ck_assert_int_eq(vmm_export(16 * MIB, 1, &fd), CUDA_SUCCESS);
        ck_assert_int_eq(send_fd(talk[0], fd), 0);
        close(fd);
        ck_assert_int_eq(machine_used(1), 1024 + 4 + 16);
        close(talk[0]);
        fd = receive_fd(talk[1]);
        close(talk[1]);
        ck_assert_int_eq(machine_used(1), 1024 + 4 + 16);
        CUdeviceptr pointer;
        ck_assert_int_eq(vmm_import(fd, 16 * MIB, 1, RO, &pointer), CUDA_SUCCESS);
        close(fd);
        ck_assert_int_eq(machine_used(1), 1024 + 4 + 16);
        ck_assert_int_eq(vmm_unmap(pointer, 16 * MIB), CUDA_SUCCESS);
        ck_assert_int_eq(machine_used(1), 1024 + 4);
} END_TEST

static int export_and_wait(int talk_fd, void *data) {
        _cleanup_fd_ int fd = -1;

        (void)data;
        TRY(machine_load() && gpu.cuInit(0) == CUDA_SUCCESS);
        TRY(context_use(0) == CUDA_SUCCESS);
        TRY(vmm_export(64 * MIB, 0, &fd) == CUDA_SUCCESS);
        CUdeviceptr pointer;
        TRY(vmm_import(fd, 64 * MIB, 0, RW, &pointer) == CUDA_SUCCESS);
        memset(bytes(pointer), 0x77, 4096);
        TRY(gpu.cuMemAlloc_v2(&pointer, 32 * MIB) == CUDA_SUCCESS);
        TRY(send_fd(talk_fd, fd) == 0);
        return talk_hear(talk_fd, 'q');
}

START_TEST(death_of_the_creator) {
        struct child child = child_start(NULL, export_and_wait, NULL);
        CUdeviceptr pointer;

        start();
        int fd = receive_fd(child.talk_fd);
        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(machine_used(0), 4 + 4 + 523 + 64 + 32);
        child_kill(&child);
        ck_assert_int_eq(machine_used(0), 4 + 64);
        ck_assert_int_eq(vmm_import(fd, 64 * MIB, 0, RO, &pointer), CUDA_SUCCESS);
        ck_assert_uint_eq(bytes(pointer)[4095], 0x77);
        close(fd);
        ck_assert_int_eq(machine_used(0), 4 + 64);
        ck_assert_int_eq(vmm_unmap(pointer, 64 * MIB), CUDA_SUCCESS);
        ck_assert_int_eq(machine_used(0), 4);
} END_TEST

static CUdeviceptr read_only;

static void leave_with_42(int signal) {
        (void)signal;
        _exit(42);
}

static int write_read_only(int talk_fd, void *data) {
        int fd;

        (void)talk_fd;
        (void)data;
        TRY(machine_load() && gpu.cuInit(0) == CUDA_SUCCESS && context_use(0) == CUDA_SUCCESS);
        TRY(vmm_export(TWO_MIB, 0, &fd) == CUDA_SUCCESS && vmm_import(fd, TWO_MIB, 0, RO, &read_only) == CUDA_SUCCESS);
        TRY(bytes(read_only)[0] == 0);
        TRY(gpu.cuMemsetD8_v2(read_only, 1, 1) == CUDA_ERROR_INVALID_VALUE);
        TRY(gpu.cuMemcpyDtoH_v2(&fd, read_only, sizeof(fd)) == CUDA_SUCCESS);
        signal(SIGSEGV, leave_with_42);
        bytes(read_only)[0] = 1;
        return 1;
}

START_TEST(a_write_through_a_read_only_mapping_faults) {
        struct child child = child_start(NULL, write_read_only, NULL);
        child_expect_exit(&child, 42);
} END_TEST

START_TEST(what_vmm_refuses) {
        CUmemGenericAllocationHandle handle, imported;
        CUmemAllocationProp prop;
        CUdeviceptr pointer;
        int fd, other;

        start();
        ck_assert_int_eq(vmm_create(MIB, 0, &handle), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(vmm_create(0, 0, &handle), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(vmm_create(TWO_MIB, 2, &handle), CUDA_ERROR_INVALID_DEVICE);
        ck_assert_int_eq(vmm_create(4096 * MIB, 0, &handle), CUDA_ERROR_OUT_OF_MEMORY);
        ck_assert_int_eq(vmm_create(4092 * MIB, 0, &handle), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuMemRelease(handle), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(vmm_create(7166 * MIB, 1, &handle), CUDA_ERROR_OUT_OF_MEMORY);

        ck_assert_int_eq(vmm_export(TWO_MIB, 0, &fd), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), 0);
        ck_assert_int_eq(gpu.cuMemExportToShareableHandle(&other, imported, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                         CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(gpu.cuMemGetAllocationPropertiesFromHandle(&prop, imported), CUDA_SUCCESS);
        ck_assert_int_eq(prop.location.id, 0);
        ck_assert_int_eq(prop.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        close(fd);
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        ck_assert_int_eq(gpu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                         CUDA_ERROR_INVALID_VALUE);
        close(fd);

        ck_assert_int_eq(gpu.cuMemAddressReserve(&pointer, MIB, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(gpu.cuMemAddressReserve(&pointer, 2 * TWO_MIB, 0, 0, 0), CUDA_SUCCESS);
        ck_assert_uint_eq(pointer % TWO_MIB, 0);
        ck_assert_int_eq(gpu.cuMemMap(pointer, 2 * TWO_MIB, 0, imported, 0), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(gpu.cuMemMap(pointer + TWO_MIB, TWO_MIB, 0, imported, 0), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuMemMap(pointer + TWO_MIB, TWO_MIB, 0, imported, 0), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(gpu.cuMemAddressFree(pointer, 2 * TWO_MIB), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(gpu.cuMemUnmap(pointer, TWO_MIB), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(gpu.cuMemUnmap(pointer + TWO_MIB, TWO_MIB), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuMemAddressFree(pointer, TWO_MIB), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(gpu.cuMemAddressFree(pointer, 2 * TWO_MIB), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuMemRelease(imported), CUDA_SUCCESS);
        ck_assert_int_eq(machine_used(0), 4);
} END_TEST

/* Sees only the other device, and not the owner. */
static int import_hidden(int talk_fd, void *data) {
        CUmemGenericAllocationHandle handle;
        CUmemAllocationProp prop;
        CUdeviceptr pointer;
        unsigned value = 0;

        (void)data;
        setenv("CUDA_VISIBLE_DEVICES", "1", 1);
        TRY(machine_load() && gpu.cuInit(0) == CUDA_SUCCESS && context_use(0) == CUDA_SUCCESS);
        _cleanup_fd_ int fd = receive_fd(talk_fd);
        TRY(gpu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0);
        TRY(gpu.cuMemGetAllocationPropertiesFromHandle(&prop, handle) == CUDA_SUCCESS && prop.location.id == -2);
        TRY(vmm_map(handle, TWO_MIB, 0, RW, &pointer) == CUDA_SUCCESS);
        TRY(gpu.cuMemcpyDtoH_v2(&value, pointer, sizeof(value)) == CUDA_SUCCESS && value == 0x55555555);
        TRY(vmm_unmap(pointer, TWO_MIB) == CUDA_SUCCESS);
        TRY(talk_say(talk_fd, 'n') == 0 && talk_hear(talk_fd, 'p') == 0);
        TRY(vmm_map(handle, TWO_MIB, 0, RW, &pointer) == CUDA_ERROR_INVALID_DEVICE);
        return 0;
}

START_TEST(an_owner_that_is_hidden) {
        struct child child = child_start(NULL, import_hidden, NULL);
        CUdeviceptr pointer;
        int fd;

        start();
        ck_assert_int_eq(vmm_export(TWO_MIB, 0, &fd), CUDA_SUCCESS);
        ck_assert_int_eq(vmm_import(fd, TWO_MIB, 0, RW, &pointer), CUDA_SUCCESS);
        memset(bytes(pointer), 0x55, TWO_MIB);
        ck_assert_int_eq(send_fd(child.talk_fd, fd), 0);
        close(fd);
        child_hear(&child, 'n');
        machine_script("device\ndevice peer=no\n");
        child_say(&child, 'p');
        child_expect_exit(&child, 0);
} END_TEST

START_TEST(access_is_each_devices_own) {
        CUmemAccessDesc desc = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 }, .flags = RO };
        CUdeviceptr pointer;
        unsigned long long flags;
        int fd;

        start();
        ck_assert_int_eq(vmm_export(TWO_MIB, 0, &fd), CUDA_SUCCESS);
        ck_assert_int_eq(vmm_import(fd, TWO_MIB, 1, RW, &pointer), CUDA_SUCCESS);
        close(fd);
        ck_assert_int_eq(gpu.cuMemsetD8_v2(pointer, 1, 1), CUDA_ERROR_INVALID_CONTEXT);
        ck_assert_int_eq(context_use(0), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuMemsetD8_v2(pointer, 1, TWO_MIB), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(context_use(1), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuMemsetD8_v2(pointer, 1, TWO_MIB), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuMemsetD8_v2(pointer, 1, TWO_MIB + 1), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(gpu.cuMemGetAccess(&flags, &desc.location, pointer), CUDA_SUCCESS);
        ck_assert_uint_eq(flags, 0);
        ck_assert_int_eq(gpu.cuMemSetAccess(pointer, TWO_MIB, &desc, 1), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuMemGetAccess(&flags, &desc.location, pointer), CUDA_SUCCESS);
        ck_assert_uint_eq(flags, RO);
        ck_assert_int_eq(gpu.cuMemSetAccess(pointer, MIB, &desc, 1), CUDA_ERROR_INVALID_VALUE);
        desc.location.id = 2;
        ck_assert_int_eq(gpu.cuMemSetAccess(pointer, TWO_MIB, &desc, 1), CUDA_ERROR_INVALID_DEVICE);
        ck_assert_int_eq(vmm_unmap(pointer, TWO_MIB), CUDA_SUCCESS);
} END_TEST

START_TEST(contexts_cost_and_stack) {
        CUcontext primary, own, current;
        unsigned flags;
        CUdevice device;
        int active;

        start();
        ck_assert_int_eq(machine_used(0), 4);
        ck_assert_int_eq(gpu.cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
        ck_assert_int_eq(gpu.cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
        ck_assert_int_eq(gpu.cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
        ck_assert_int_eq(gpu.cuDevicePrimaryCtxRetain(&primary, 0), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuDevicePrimaryCtxRetain(&current, 0), CUDA_SUCCESS);
        ck_assert_ptr_eq(primary, current);
        ck_assert_int_eq(machine_used(0), 4 + 523);
        ck_assert_int_eq(gpu.cuCtxGetCurrent(&current), CUDA_SUCCESS);
        ck_assert_ptr_null(current);
        ck_assert_int_eq(gpu.cuCtxSetCurrent(primary), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuCtxCreate_v4(&own, NULL, 0, 1), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuCtxGetDevice(&device), CUDA_SUCCESS);
        ck_assert_int_eq(device, 1);
        ck_assert_int_eq(gpu.cuCtxPopCurrent_v2(&current), CUDA_SUCCESS);
        ck_assert_ptr_eq(current, own);
        ck_assert_int_eq(gpu.cuCtxGetCurrent(&current), CUDA_SUCCESS);
        ck_assert_ptr_eq(current, primary);
        ck_assert_int_eq(gpu.cuCtxDestroy_v2(own), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuCtxPushCurrent_v2(own), CUDA_ERROR_CONTEXT_IS_DESTROYED);
        ck_assert_int_eq(gpu.cuCtxCreate_v4(&own, NULL, 0, 1), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuCtxDestroy_v2(own), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuCtxGetCurrent(&current), CUDA_SUCCESS);
        ck_assert_ptr_eq(current, primary);
        ck_assert_int_eq(machine_used(1), 1024 + 4);
        ck_assert_int_eq(gpu.cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuDevicePrimaryCtxGetState(0, &flags, &active), CUDA_SUCCESS);
        ck_assert_int_eq(active, 1);
        ck_assert_int_eq(gpu.cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
        ck_assert_int_eq(machine_used(0), 4);
        ck_assert_int_eq(gpu.cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
        machine_script("device total=500M\ndevice\n");
        ck_assert_int_eq(gpu.cuDevicePrimaryCtxRetain(&primary, 0), CUDA_ERROR_OUT_OF_MEMORY);
} END_TEST

START_TEST(new_memory_is_zero_or_dirty) {
        CUmemGenericAllocationHandle handle;
        CUdeviceptr pointer;

        start();
        ck_assert_int_eq(context_use(0), CUDA_SUCCESS);
        for (int dirty = 0; dirty < 2; dirty++) {
                unsigned char expected = dirty ? 0xdb : 0;
                machine_script(dirty ? "device scrub=no\n" : "device\n");
                ck_assert_int_eq(vmm_create(TWO_MIB, 0, &handle), CUDA_SUCCESS);
                ck_assert_int_eq(vmm_map(handle, TWO_MIB, 0, RW, &pointer), CUDA_SUCCESS);
                ck_assert_int_eq(gpu.cuMemRelease(handle), CUDA_SUCCESS);
                ck_assert_uint_eq(bytes(pointer)[0], expected);
                ck_assert_uint_eq(bytes(pointer)[TWO_MIB - 1], expected);
                memset(bytes(pointer), 1, TWO_MIB);
                ck_assert_int_eq(vmm_unmap(pointer, TWO_MIB), CUDA_SUCCESS);
                ck_assert_int_eq(gpu.cuMemAlloc_v2(&pointer, TWO_MIB), CUDA_SUCCESS);
                ck_assert_uint_eq(bytes(pointer)[TWO_MIB - 1], expected);
                memset(bytes(pointer), 1, TWO_MIB);
                ck_assert_int_eq(gpu.cuMemFree_v2(pointer), CUDA_SUCCESS);
        }
} END_TEST

static int share_as_another(int talk_fd, void *data) {
        (void)data;
        TRY(getuid() == 12345 && share(talk_fd, NULL) == 0);
        TRY(machine_used(0) == 4 + 4); /* what root's process closed in silence is gone for this one too */
        return 0;
}

START_TEST(another_users_process) {
        CUdeviceptr pointer;
        int fd;

        if (child_needs_root("another user's process"))
                return;
        ck_assert(machine_load()); /* the libraries may lie where that user does not reach */
        umask(077);                /* the machine is everybody's all the same */
        struct child child = child_start(&(struct child_options){ .uid = 12345, .gid = 12345 }, share_as_another, NULL);
        ck_assert_int_eq(gpu.cuInit(0), CUDA_SUCCESS);
        ck_assert_int_eq(vmm_export(TWO_MIB, 0, &fd), CUDA_SUCCESS);
        ck_assert_int_eq(vmm_import(fd, TWO_MIB, 0, RW, &pointer), CUDA_SUCCESS);
        bytes(pointer)[5] = 0x55;
        ck_assert_int_eq(send_fd(child.talk_fd, fd), 0);
        close(fd);
        child_hear(&child, 'm');
        ck_assert_int_eq(vmm_unmap(pointer, TWO_MIB), CUDA_SUCCESS);
        child_say(&child, 'u');
        child_hear(&child, 'd');
        ck_assert_int_eq(machine_used(0), 4 + 4);
        ck_assert_int_eq(vmm_export(8 * MIB, 0, &fd), CUDA_SUCCESS);
        close(fd);
        child_say(&child, 'q');
        child_expect_exit(&child, 0);
} END_TEST

static int allocate_and_free(int talk_fd, void *data) {
        CUmemGenericAllocationHandle handle;

        (void)talk_fd;
        (void)data;
        TRY(machine_load() && gpu.cuInit(0) == CUDA_SUCCESS);
        for (int i = 0; i < 200; i++) {
                TRY(vmm_create(16 * MIB, 0, &handle) == CUDA_SUCCESS);
                TRY(machine_used(0) >= 4 + 16);
                TRY(gpu.cuMemRelease(handle) == CUDA_SUCCESS);
        }
        TRY(vmm_create(16 * MIB, 0, &handle) == CUDA_SUCCESS); /* left behind */
        return 0;
}

START_TEST(many_processes_at_once) {
        struct child children[4];

        /* Room for each to have one, and not for a second that the books would have forgotten to give back. */
        machine_script("device total=80M\ndevice\n");
        for (size_t i = 0; i < ELEMENTSOF(children); i++)
                children[i] = child_start(NULL, allocate_and_free, NULL);
        for (size_t i = 0; i < ELEMENTSOF(children); i++)
                child_expect_exit(&children[i], 0);
        ck_assert(machine_load());
        ck_assert_int_eq(machine_used(0), 0);
} END_TEST

START_TEST(no_descriptor_left) {
        struct rlimit limit, none;
        CUmemGenericAllocationHandle handle;

        start();
        ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
        none = limit;
        none.rlim_cur = 3;
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
        CUresult result = vmm_create(TWO_MIB, 0, &handle);
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
        ck_assert_int_eq(result, CUDA_ERROR_OPERATING_SYSTEM);
        ck_assert_int_eq(vmm_create(TWO_MIB, 0, &handle), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuMemRelease(handle), CUDA_SUCCESS);
        ck_assert_int_eq(machine_used(0), 4);
} END_TEST

/* Pieces of memory that take the host's. */
static int files_of_device(void) {
        char command[400];
        int n;

        snprintf(command, sizeof(command), "ls '%s' | grep -c '^0'", machine_file("script.state/memory"));
        FILE *output = popen(command, "re");
        ck_assert_ptr_nonnull(output);
        ck_assert_int_eq(fscanf(output, "%d", &n), 1);
        pclose(output);
        return n;
}

START_TEST(memory_is_found_again) {
        CUmemGenericAllocationHandle handle;
        int fd;

        machine_script("device total=24M\n");
        start();
        ck_assert_int_eq(vmm_create(TWO_MIB, 0, &handle), CUDA_SUCCESS);
        ck_assert_int_eq(files_of_device(), 2);
        ck_assert_int_eq(gpu.cuMemRelease(handle), CUDA_SUCCESS);
        ck_assert_int_eq(files_of_device(), 1);
        ck_assert_int_eq(vmm_export(16 * MIB, 0, &fd), CUDA_SUCCESS);
        ck_assert_int_eq(vmm_create(16 * MIB, 0, &handle), CUDA_ERROR_OUT_OF_MEMORY);
        close(fd);
        ck_assert_int_eq(vmm_create(16 * MIB, 0, &handle), CUDA_SUCCESS);
        ck_assert_int_eq(files_of_device(), 2);
        ck_assert_int_eq(gpu.cuMemRelease(handle), CUDA_SUCCESS);
} END_TEST

START_TEST(two_thousand_at_once) {
        static int fds[2000];
        struct rlimit limit;

        ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
        limit.rlim_cur = limit.rlim_max;
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
        start();
        for (size_t i = 0; i < ELEMENTSOF(fds); i++)
                ck_assert_int_eq(vmm_export(TWO_MIB, 1, &fds[i]), CUDA_SUCCESS);
        ck_assert_int_eq(machine_used(1), 1024 + 4 + 2 * 2000);
        for (size_t i = 0; i < ELEMENTSOF(fds); i++)
                close(fds[i]);
        ck_assert_int_eq(machine_used(1), 1024 + 4);
} END_TEST

int main(void) {
        const TTest *const tests[] = { devices_are_as_the_script_says, attributes_follow_the_script,
                                       visible_devices_are_obeyed, a_machine_without_devices, a_forked_child_has_no_cuda,
                                       a_foreign_proc_is_noticed, a_descriptor_shares_memory,
                                       a_descriptor_underway_holds_memory, death_of_the_creator,
                                       a_write_through_a_read_only_mapping_faults, what_vmm_refuses,
                                       an_owner_that_is_hidden, access_is_each_devices_own,
                                       contexts_cost_and_stack, new_memory_is_zero_or_dirty,
                                       another_users_process, many_processes_at_once, no_descriptor_left,
                                       memory_is_found_again, two_thousand_at_once };
        Suite *suite = suite_create("fake_cuda");
        TCase *tcase = tcase_create("driver");

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_set_timeout(tcase, 30);
        for (size_t i = 0; i < ELEMENTSOF(tests); i++)
                tcase_add_test(tcase, tests[i]);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
