/* SPDX-License-Identifier: Apache-2.0 */
/* Classic allocations and handles of the false GPUs, by driver and runtime; NVML. Children that use CUDA are started before this
 * process does. */
#include <check.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fake_machine.h"
#include "proto/cleanup.h"
#include "tests/support/child.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"

#define TWO_MIB (2 * MIB)
#define LAZY cudaIpcMemLazyEnablePeerAccess

static struct fds before;

static void setup(void) {
        before = fds_of(0);
        machine_start("device total=4G\ndevice total=8G\n");
}

static void teardown(void) {
        struct fds after = fds_of(0);

        machine_end();
        fds_assert_same(&before, &after, "this process");
        fds_deinit(&before);
        fds_deinit(&after);
}

static unsigned char *bytes(CUdeviceptr pointer) {
        return (unsigned char *)(uintptr_t)pointer;
}

static int hear_handle(int talk_fd, CUipcMemHandle *ret) {
        return recv(talk_fd, ret, sizeof(*ret), MSG_WAITALL) == (ssize_t)sizeof(*ret) ? 0 : -1;
}

static void say_handle(const struct child *child, const void *handle) {
        ck_assert_int_eq(send(child->talk_fd, handle, sizeof(CUipcMemHandle), MSG_NOSIGNAL), (ssize_t)sizeof(CUipcMemHandle));
}

/* Opens a handle twice, and keeps one until told. */
static int open_twice(int talk_fd, void *data) {
        CUdeviceptr first, second;
        CUipcMemHandle handle;

        (void)data;
        TRY(machine_load() && hear_handle(talk_fd, &handle) == 0);
        TRY(gpu.cuInit(0) == CUDA_SUCCESS);
        TRY(gpu.cuIpcOpenMemHandle_v2(&first, handle, 1) == CUDA_ERROR_INVALID_CONTEXT);
        TRY(context_use(0) == CUDA_SUCCESS);
        TRY(gpu.cuIpcOpenMemHandle_v2(&first, handle, 0) == CUDA_ERROR_INVALID_VALUE);
        TRY(gpu.cuIpcOpenMemHandle_v2(&first, handle, 1) == CUDA_SUCCESS);
        TRY(gpu.cuIpcOpenMemHandle_v2(&second, handle, 1) == CUDA_SUCCESS && first == second);
        TRY(bytes(first)[9] == 0x99);
        bytes(first)[8] = 0x88;
        TRY(gpu.cuIpcCloseMemHandle(first) == CUDA_SUCCESS);
        TRY(talk_say(talk_fd, 'o') == 0 && talk_hear(talk_fd, 'f') == 0);
        TRY(bytes(first)[9] == 0x99);
        TRY(gpu.cuIpcOpenMemHandle_v2(&second, handle, 1) == CUDA_SUCCESS && first == second);
        TRY(gpu.cuIpcCloseMemHandle(first) == CUDA_SUCCESS && gpu.cuIpcCloseMemHandle(first) == CUDA_SUCCESS);
        TRY(gpu.cuIpcCloseMemHandle(first) == CUDA_ERROR_INVALID_VALUE);
        TRY(talk_say(talk_fd, 'c') == 0 && talk_hear(talk_fd, 'q') == 0);
        TRY(gpu.cuIpcOpenMemHandle_v2(&second, handle, 1) == CUDA_ERROR_INVALID_VALUE);
        return 0;
}

START_TEST(a_handle_shares_memory) {
        struct child child = child_start(NULL, open_twice, NULL);
        CUipcMemHandle handle;
        CUdeviceptr pointer;

        ck_assert(machine_load());
        ck_assert_int_eq(gpu.cuInit(0), CUDA_SUCCESS);
        ck_assert_int_eq(context_use(1), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuMemAlloc_v2(&pointer, 3 * MIB), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuMemsetD8_v2(pointer, 0x99, 10), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuIpcGetMemHandle(&handle, pointer), CUDA_SUCCESS);
        say_handle(&child, &handle);
        child_hear(&child, 'o');
        ck_assert_uint_eq(bytes(pointer)[8], 0x88);
        ck_assert_int_eq(machine_used(1), 4 + 523 + 4 + 4);
        ck_assert_int_eq(gpu.cuMemFree_v2(pointer), CUDA_SUCCESS);
        ck_assert_int_eq(machine_used(1), 4 + 523 + 4 + 4);
        child_say(&child, 'f');
        child_hear(&child, 'c');
        ck_assert_int_eq(machine_used(1), 4 + 523 + 4);
        child_say(&child, 'q');
        child_expect_exit(&child, 0);
} END_TEST

static int export_classic(int talk_fd, void *data) {
        CUipcMemHandle handle;
        CUdeviceptr pointer;

        (void)data;
        TRY(machine_load() && gpu.cuInit(0) == CUDA_SUCCESS && context_use(0) == CUDA_SUCCESS);
        TRY(gpu.cuMemAlloc_v2(&pointer, TWO_MIB) == CUDA_SUCCESS && gpu.cuIpcGetMemHandle(&handle, pointer) == CUDA_SUCCESS);
        bytes(pointer)[0] = 0x11;
        TRY(send(talk_fd, &handle, sizeof(handle), MSG_NOSIGNAL) == (ssize_t)sizeof(handle));
        if (data) {
                TRY(talk_hear(talk_fd, 'f') == 0 && gpu.cuMemFree_v2(pointer) == CUDA_SUCCESS);
                TRY(talk_say(talk_fd, 'd') == 0);
        }
        return talk_hear(talk_fd, 'q');
}

START_TEST(a_handle_of_the_dead) {
        struct child child = child_start(NULL, export_classic, NULL);
        CUipcMemHandle handle;
        CUdeviceptr pointer;

        ck_assert(machine_load());
        ck_assert_int_eq(hear_handle(child.talk_fd, &handle), 0);
        ck_assert_int_eq(gpu.cuInit(0), CUDA_SUCCESS);
        ck_assert_int_eq(context_use(0), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuIpcOpenMemHandle_v2(&pointer, handle, 1), CUDA_SUCCESS);
        child_kill(&child);
        ck_assert_uint_eq(bytes(pointer)[0], 0x11);
        ck_assert_int_eq(machine_used(0), 4 + 523 + 2);
        ck_assert_int_eq(gpu.cuIpcCloseMemHandle(pointer), CUDA_SUCCESS);
        ck_assert_int_eq(machine_used(0), 4 + 523);
        ck_assert_int_eq(gpu.cuIpcOpenMemHandle_v2(&pointer, handle, 1), CUDA_ERROR_INVALID_VALUE);
        memset(&handle, 7, sizeof(handle));
        ck_assert_int_eq(gpu.cuIpcOpenMemHandle_v2(&pointer, handle, 1), CUDA_ERROR_INVALID_VALUE);
} END_TEST

static int open_in_vain(int talk_fd, void *data) {
        CUipcMemHandle handle;
        CUdeviceptr pointer;

        (void)data;
        TRY(machine_load() && gpu.cuInit(0) == CUDA_SUCCESS && context_use(0) == CUDA_SUCCESS);
        TRY(hear_handle(talk_fd, &handle) == 0);
        TRY(gpu.cuIpcOpenMemHandle_v2(&pointer, handle, 1) == CUDA_ERROR_INVALID_VALUE);
        return 0;
}

/* Memory that another importer still has is for no new one. */
START_TEST(a_handle_needs_its_owner) {
        struct child frees = child_start(NULL, export_classic, &frees), dies = child_start(NULL, export_classic, NULL);
        struct child openers[2];
        CUipcMemHandle handles[2];
        CUdeviceptr pointers[2];

        for (int i = 0; i < 2; i++)
                openers[i] = child_start(NULL, open_in_vain, NULL);
        ck_assert_int_eq(hear_handle(frees.talk_fd, &handles[0]), 0);
        ck_assert_int_eq(hear_handle(dies.talk_fd, &handles[1]), 0);
        ck_assert(machine_load());
        ck_assert_int_eq(gpu.cuInit(0), CUDA_SUCCESS);
        ck_assert_int_eq(context_use(0), CUDA_SUCCESS);
        for (int i = 0; i < 2; i++)
                ck_assert_int_eq(gpu.cuIpcOpenMemHandle_v2(&pointers[i], handles[i], 1), CUDA_SUCCESS);
        child_say(&frees, 'f');
        child_hear(&frees, 'd');
        child_kill(&dies);
        for (int i = 0; i < 2; i++) {
                say_handle(&openers[i], &handles[i]);
                child_expect_exit(&openers[i], 0);
        }
        child_say(&frees, 'q');
        child_expect_exit(&frees, 0);
} END_TEST

START_TEST(a_handle_of_ones_own) {
        CUipcMemHandle handle;
        CUdeviceptr pointer, opened;

        ck_assert(machine_load());
        ck_assert_int_eq(gpu.cuInit(0), CUDA_SUCCESS);
        ck_assert_int_eq(context_use(0), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuMemAlloc_v2(&pointer, TWO_MIB), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuIpcGetMemHandle(&handle, pointer), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuIpcOpenMemHandle_v2(&opened, handle, 1), CUDA_ERROR_INVALID_CONTEXT);
        ck_assert_int_eq(gpu.cuIpcGetMemHandle(&handle, pointer + TWO_MIB), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(gpu.cuMemFree_v2(pointer + 512), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(gpu.cuMemFree_v2(pointer), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuMemFree_v2(pointer), CUDA_ERROR_INVALID_VALUE);
} END_TEST

/* Process 1 of its own pid namespace, with a /proc of it. */
static int export_as_one(int talk_fd, void *data) {
        TRY(mount("none", "/", "none", MS_REC | MS_PRIVATE, "") == 0 && mount("proc", "/proc", "proc", 0, "") == 0);
        TRY(getpid() == 1);
        return export_classic(talk_fd, data);
}

static int open_as_one(int talk_fd, void *data) {
        CUipcMemHandle handle;
        CUdeviceptr pointer;

        (void)data;
        TRY(mount("none", "/", "none", MS_REC | MS_PRIVATE, "") == 0 && mount("proc", "/proc", "proc", 0, "") == 0);
        TRY(machine_load() && gpu.cuInit(0) == CUDA_SUCCESS && context_use(0) == CUDA_SUCCESS);
        TRY(hear_handle(talk_fd, &handle) == 0);
        TRY(gpu.cuIpcOpenMemHandle_v2(&pointer, handle, 1) == CUDA_ERROR_INVALID_CONTEXT);
        return talk_say(talk_fd, 'r');
}

START_TEST(equal_pid_numbers) {
        const struct child_options options = { .namespaces = CLONE_NEWPID | CLONE_NEWNS };
        CUipcMemHandle handle;
        CUdeviceptr pointer;

        if (child_needs_root("pid namespaces"))
                return;
        struct child exporter = child_start(&options, export_as_one, NULL);
        struct child importer = child_start(&options, open_as_one, NULL);
        ck_assert_int_eq(hear_handle(exporter.talk_fd, &handle), 0);
        say_handle(&importer, &handle);
        child_hear(&importer, 'r');
        child_expect_exit(&importer, 0);

        ck_assert(machine_load());
        ck_assert_int_eq(gpu.cuInit(0), CUDA_SUCCESS);
        ck_assert_int_eq(context_use(0), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuIpcOpenMemHandle_v2(&pointer, handle, 1), CUDA_SUCCESS);
        ck_assert_uint_eq(bytes(pointer)[0], 0x11);
        child_say(&exporter, 'q');
        child_expect_exit(&exporter, 0);
} END_TEST

static int open_small(int talk_fd, void *data) {
        cudaIpcMemHandle_t handle;
        unsigned char *at;

        (void)data;
        TRY(machine_load() && hear_handle(talk_fd, (CUipcMemHandle *)(void *)&handle) == 0);
        TRY(gpu.cudaIpcOpenMemHandle((void **)&at, handle, LAZY) == cudaSuccess);
        TRY(at[0] == 2 && at[-1024] == 1); /* a neighbour in the same block */
        TRY(gpu.cudaIpcCloseMemHandle(at) == cudaSuccess);
        return 0;
}

START_TEST(small_ones_share_a_block) {
        struct child child = child_start(NULL, open_small, NULL);
        cudaIpcMemHandle_t handle;
        unsigned char *first, *second;

        ck_assert(machine_load());
        ck_assert_int_eq(gpu.cudaMalloc((void **)&first, 1000), cudaSuccess);
        int used = machine_used(0);
        ck_assert_int_eq(gpu.cudaMalloc((void **)&second, 1000), cudaSuccess);
        ck_assert_int_eq(machine_used(0), used);
        ck_assert_ptr_eq(second, first + 1024);
        *first = 1;
        *second = 2;
        ck_assert_int_eq(gpu.cudaIpcGetMemHandle(&handle, second), cudaSuccess);
        say_handle(&child, &handle);
        child_expect_exit(&child, 0);
        CUdeviceptr base;
        size_t size;
        ck_assert_int_eq(gpu.cuMemGetAddressRange_v2(&base, &size, (uintptr_t)second + 5), CUDA_SUCCESS);
        ck_assert_uint_eq(base, (uintptr_t)second);
        ck_assert_uint_eq(size, 1024);
        ck_assert_int_eq(gpu.cudaFree(first), cudaSuccess);
        ck_assert_int_eq(machine_used(0), used);
        ck_assert_int_eq(gpu.cudaFree(second), cudaSuccess);
        ck_assert_int_eq(machine_used(0), used - 2);
} END_TEST

START_TEST(the_runtime_works_on_the_driver) {
        char to[8] = "", *at;
        int n;

        ck_assert(machine_load());
        ck_assert_int_eq(gpu.cudaGetDeviceCount(&n), cudaSuccess);
        ck_assert_int_eq(n, 2);
        ck_assert_int_eq(machine_used(0), 4);
        ck_assert_int_eq(gpu.cudaSetDevice(2), cudaErrorInvalidDevice);
        ck_assert_int_eq(gpu.cudaPeekAtLastError(), cudaErrorInvalidDevice);
        ck_assert_int_eq(gpu.cudaGetLastError(), cudaErrorInvalidDevice);
        ck_assert_int_eq(gpu.cudaGetLastError(), cudaSuccess);
        ck_assert_int_eq(gpu.cudaSetDevice(1), cudaSuccess);
        ck_assert_int_eq(machine_used(1), 4 + 523);
        ck_assert_int_eq(gpu.cudaGetDevice(&n), cudaSuccess);
        ck_assert_int_eq(n, 1);
        ck_assert_int_eq(gpu.cudaMalloc((void **)&at, 5 * MIB), cudaSuccess);
        ck_assert_int_eq(machine_used(1), 4 + 523 + 6);
        ck_assert_int_eq(gpu.cudaMemcpy(at, "abc", 4, cudaMemcpyHostToDevice), cudaSuccess);
        ck_assert_int_eq(gpu.cudaMemset(at + 1, 'x', 1), cudaSuccess);
        ck_assert_int_eq(gpu.cudaMemcpy(to, at, 4, cudaMemcpyDeviceToHost), cudaSuccess);
        ck_assert_str_eq(to, "axc");
        ck_assert_int_eq(gpu.cudaMemcpy(to, "hi", 3, cudaMemcpyDefault), cudaSuccess);
        ck_assert_int_eq(gpu.cudaMemcpy(to, to, 3, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
        ck_assert_int_eq(gpu.cudaMalloc((void **)&at, (size_t)1 << 40), cudaErrorMemoryAllocation);
        ck_assert_int_eq(gpu.cudaDeviceSynchronize(), cudaSuccess);
        ck_assert_int_eq(gpu.cudaDeviceReset(), cudaSuccess);
        ck_assert_int_eq(machine_used(1), 4);
        ck_assert_int_eq(gpu.cudaFree(NULL), cudaSuccess);
        ck_assert_int_eq(machine_used(1), 4 + 523);
        ck_assert_int_eq(gpu.cudaRuntimeGetVersion(&n), cudaSuccess);
        ck_assert_int_eq(n, 13000);
        ck_assert_str_eq(gpu.cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation");
        ck_assert_str_eq(gpu.cudaGetErrorString(cudaErrorDeviceUninitialized), "invalid device context");
} END_TEST

static void *use_second(void *data) {
        *(cudaError_t *)data = gpu.cudaSetDevice(1);
        return NULL;
}

START_TEST(one_context_for_all_threads) {
        cudaError_t error;
        pthread_t thread;

        ck_assert(machine_load());
        ck_assert_int_eq(gpu.cudaSetDevice(1), cudaSuccess);
        ck_assert_int_eq(pthread_create(&thread, NULL, use_second, &error), 0);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        ck_assert_int_eq(error, cudaSuccess);
        ck_assert_int_eq(machine_used(1), 4 + 523);
        ck_assert_int_eq(gpu.cuDevicePrimaryCtxRelease_v2(1), CUDA_SUCCESS);
        ck_assert_int_eq(machine_used(1), 4);
} END_TEST

START_TEST(a_runtime_without_a_driver) {
        void *pointer;
        int n;

        void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        if (driver) {
                dlclose(driver);
                printf("SKIP a runtime without a driver: there is a driver\n");
                return;
        }
        ck_assert(machine_load_runtime_alone());
        ck_assert_int_eq(gpu.cudaMalloc(&pointer, 1), cudaErrorInsufficientDriver);
        ck_assert_int_eq(gpu.cudaDriverGetVersion(&n), cudaSuccess);
        ck_assert_int_eq(n, 0);
} END_TEST

START_TEST(nvml_sees_all) {
        nvmlMemory_v2_t memory = { .version = sizeof(memory) | 2 << 24 };
        nvmlDevice_t device;
        char text[96];
        unsigned n;

        machine_script("device\ndevice uuid=MIG-00112233-4455-6677-8899-aabbccddeeff name=\"A slice\" total=1G used=256M "
                       "virtualization=2\nsystem 999.1\n");
        setenv("CUDA_VISIBLE_DEVICES", "", 1);
        ck_assert(machine_load());
        ck_assert_int_eq(gpu.nvmlDeviceGetCount_v2(&n), NVML_SUCCESS);
        ck_assert_uint_eq(n, 2);
        ck_assert_int_eq(gpu.nvmlDeviceGetHandleByUUID("MIG-00112233-4455-6677-8899-aabbccddeeff", &device), NVML_SUCCESS);
        ck_assert_int_eq(gpu.nvmlDeviceGetMemoryInfo_v2(device, &memory), NVML_SUCCESS);
        ck_assert_uint_eq(memory.total, 1024 * MIB);
        ck_assert_uint_eq(memory.free, 768 * MIB);
        ck_assert_uint_eq(memory.used, 256 * MIB);
        memory.version = 1;
        ck_assert_int_eq(gpu.nvmlDeviceGetMemoryInfo_v2(device, &memory), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        ck_assert_int_eq(gpu.nvmlDeviceGetUUID(device, text, sizeof(text)), NVML_SUCCESS);
        ck_assert_str_eq(text, "MIG-00112233-4455-6677-8899-aabbccddeeff");
        ck_assert_int_eq(gpu.nvmlDeviceGetUUID(device, text, 10), NVML_ERROR_INSUFFICIENT_SIZE);
        ck_assert_int_eq(gpu.nvmlDeviceGetName(device, text, sizeof(text)), NVML_SUCCESS);
        ck_assert_str_eq(text, "A slice");
        ck_assert_int_eq(gpu.nvmlDeviceGetVirtualizationMode(device, &n), NVML_SUCCESS);
        ck_assert_uint_eq(n, 2);
        ck_assert_int_eq(gpu.nvmlSystemGetDriverVersion(text, sizeof(text)), NVML_SUCCESS);
        ck_assert_str_eq(text, "999.1");
        ck_assert_int_eq(gpu.nvmlDeviceGetHandleByUUID("GPU-1", &device), NVML_ERROR_NOT_FOUND);
        ck_assert_int_eq(gpu.nvmlDeviceGetHandleByIndex_v2(2, &device), NVML_ERROR_INVALID_ARGUMENT);
        ck_assert_str_eq(gpu.nvmlErrorString(NVML_ERROR_NOT_FOUND), "Not Found");
        ck_assert_int_eq(gpu.nvmlShutdown(), NVML_SUCCESS);
        ck_assert_int_eq(gpu.nvmlDeviceGetCount_v2(&n), NVML_ERROR_UNINITIALIZED);
} END_TEST

START_TEST(pointers_know_what_they_are) {
        CUdeviceptr pointer;
        unsigned kind;
        int ordinal, local;

        ck_assert(machine_load());
        ck_assert_int_eq(gpu.cuInit(0), CUDA_SUCCESS);
        ck_assert_int_eq(context_use(1), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuMemAlloc_v2(&pointer, 100), CUDA_SUCCESS);
        ck_assert_int_eq(gpu.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer + 50), CUDA_SUCCESS);
        ck_assert_int_eq(ordinal, 1);
        ck_assert_int_eq(gpu.cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer), CUDA_SUCCESS);
        ck_assert_uint_eq(kind, CU_MEMORYTYPE_DEVICE);
        ck_assert_int_eq(gpu.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (uintptr_t)&local),
                         CUDA_ERROR_INVALID_VALUE);
        size_t free_bytes, total;
        ck_assert_int_eq(gpu.cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
        ck_assert_uint_eq(total - free_bytes, (4 + 523 + 2) * MIB);
} END_TEST

int main(void) {
        const TTest *const tests[] = { a_handle_shares_memory, a_handle_of_the_dead, a_handle_needs_its_owner,
                                       a_handle_of_ones_own, equal_pid_numbers, small_ones_share_a_block,
                                       the_runtime_works_on_the_driver, one_context_for_all_threads, a_runtime_without_a_driver,
                                       nvml_sees_all, pointers_know_what_they_are };
        Suite *suite = suite_create("fake_ipc");
        TCase *tcase = tcase_create("classic");

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_set_timeout(tcase, 30);
        for (size_t i = 0; i < ELEMENTSOF(tests); i++)
                tcase_add_test(tcase, tests[i]);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
