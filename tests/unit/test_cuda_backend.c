/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs as the daemon's backend finds and uses them, on the fakes. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_daemon.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"
#include "tests/support/wait.h"

#define UUID(n) "GPU-fa4e0000-0000-4000-8000-00000000000" n
#define MACHINE "device name=\"Fake H200\" total=4G\ndevice total=8G used=1G\n"

static void setup(void) {
        cuda_begin(MACHINE);
}

static struct backend_device_info info_of(int device) {
        struct backend_device_info info;

        backend_cuda.info(devices[device], &info);
        return info;
}

/* ---- what is found ----------------------------------------------------------------------------------------- */

START_TEST(devices_are_described) {
        struct backend_device_info info;

        ck_assert_int_eq(cuda_start(WIPE_AUTO), 2);
        ck_assert_str_eq(backend_cuda_words(), "");
        info = info_of(0);
        ck_assert_str_eq(info.uuid, UUID("0"));
        ck_assert_str_eq(info.name, "Fake H200");
        ck_assert_int_eq(info.kind, DEVICE_CUDA);
        ck_assert_int_eq(info.total_bytes, INT64_C(4) << 30);
        ck_assert_int_eq(info.capacity_bytes, info.total_bytes);
        ck_assert_int_eq(info.zeroed, ZEROED_DRIVER);
        ck_assert_uint_eq(info.n_handles, 2);
        ck_assert_str_eq(info.handles[0], "cuda-fd");
        ck_assert_str_eq(info.handles[1], "cuda-ipc");
        ck_assert(!info.ro_enforced);
        ck_assert_str_eq(info_of(1).uuid, UUID("1"));
        ck_assert_int_eq(info_of(1).total_bytes, INT64_C(8) << 30);
        ck_assert(!cuda_context_made());
} END_TEST

START_TEST(visible_ones_alone) {
        setenv("CUDA_VISIBLE_DEVICES", "1", 1);
        ck_assert_int_eq(cuda_start(WIPE_AUTO), 1);
        ck_assert_str_eq(info_of(0).uuid, UUID("1"));
        ck_assert_int_eq(backend_cuda.free_bytes(devices[0]), (INT64_C(7) << 30) - 4 * (int64_t)MIB);
} END_TEST

START_TEST(parts_of_gpus_bear_names_of_their_own) {
        machine_script("device uuid=MIG-00112233-4455-6677-8899-aabbccddeeff name=\"Fake H200 MIG 1g.18gb\"\n");
        ck_assert_int_eq(cuda_start(WIPE_AUTO), 1);
        ck_assert_str_eq(info_of(0).uuid, "MIG-00112233-4455-6677-8899-aabbccddeeff");
        ck_assert_int_gt(backend_cuda.free_bytes(devices[0]), 0);
} END_TEST

START_TEST(parts_of_gpus_without_nvml) {
        machine_script("device uuid=MIG-00112233-4455-6677-8899-aabbccddeeff name=\"Fake H200 MIG 1g.18gb\"\non nvml* fail=9\n");
        ck_assert_int_eq(cuda_start(WIPE_AUTO), 1);
        ck_assert_str_eq(info_of(0).uuid, "MIG-00112233-4455-6677-8899-aabbccddeeff");
} END_TEST

START_TEST(handles_follow_the_device) {
        static const struct {
                const char *script, *handles;
        } cases[] = {
                {"device vmm=no\n", "cuda-ipc"},
                {"device fd=no\n", "cuda-ipc"},
                {"device integrated=yes\n", "cuda-fd"},
                {"device\non cuMemGetAllocationGranularity fail=1\n", "cuda-ipc"},
        };
        struct backend_device_info info;

        machine_script(cases[_i].script);
        ck_assert_int_eq(cuda_start(WIPE_AUTO), 1);
        info = info_of(0);
        ck_assert_uint_eq(info.n_handles, 1);
        ck_assert_str_eq(info.handles[0], cases[_i].handles);
        ck_assert_int_eq(backend_cuda.round(devices[0], 1, info.handles[0]), 2 * (int64_t)MIB);
} END_TEST

START_TEST(no_device_of_use) {
        machine_script("device vmm=no integrated=yes\n");
        ck_assert_int_eq(cuda_start(WIPE_AUTO), -ENODEV);
        ck_assert_str_eq(backend_cuda_words(), UUID("0") " is left out: it offers no memory that can be shared");
} END_TEST

START_TEST(each_question_refused) {
        static const struct {
                const char *script, *words;
                int result;
        } cases[] = {
                {"devices 0\n", "cuInit: CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected", -ENODEV},
                {"on cuInit fail=999\n", "cuInit: CUDA_ERROR_UNKNOWN (999): unknown error", -EIO},
                {"on cuDriverGetVersion fail=1\n", "cuDriverGetVersion: CUDA_ERROR_INVALID_VALUE (1): invalid argument", -EINVAL},
                {"on cuDeviceGetCount fail=3\n", "cuDeviceGetCount: CUDA_ERROR_NOT_INITIALIZED (3): initialization error", -EIO},
                {"on cuDeviceGetUuid_v2 fail=101\n",
                 "GPU 0 is left out: cuDeviceGetUuid: CUDA_ERROR_INVALID_DEVICE (101): invalid device ordinal; GPU 1 is left out: "
                 "cuDeviceGetUuid: CUDA_ERROR_INVALID_DEVICE (101): invalid device ordinal", -ENODEV},
                {MACHINE "on cuDeviceTotalMem_v2 device=0 fail=46\n",
                 "GPU 0 is left out: cuDeviceTotalMem: CUDA_ERROR_DEVICE_UNAVAILABLE (46): CUDA-capable device(s) is/are busy or "
                 "unavailable", 1},
                {MACHINE "on cuDeviceGetName device=1 fail=46\n",
                 "GPU 1 is left out: cuDeviceGetName: CUDA_ERROR_DEVICE_UNAVAILABLE (46): CUDA-capable device(s) is/are busy or "
                 "unavailable", 1},
                {MACHINE "on cuDeviceGet device=1 fail=101\n",
                 "GPU 1 is left out: cuDeviceGet: CUDA_ERROR_INVALID_DEVICE (101): invalid device ordinal", 1},
        };

        machine_script(cases[_i].script);
        ck_assert_int_eq(cuda_start(WIPE_AUTO), cases[_i].result);
        ck_assert_str_eq(backend_cuda_words(), cases[_i].words);
        if (_i == 5)
                ck_assert_str_eq(info_of(0).uuid, UUID("1"));
} END_TEST

/* The process that asks goes on, and is told that it must not wait for its threads. */
START_TEST(a_driver_that_does_not_answer) {
        char script[400], path[300];
        int64_t began = now_ms();

        snprintf(path, sizeof(path), "%s", machine_file("hang"));
        snprintf(script, sizeof(script), "on cuInit hang-while=%s\n", path);
        ck_assert_int_eq(close(creat(path, 0600)), 0);
        machine_script(script);
        backend_cuda_set(WIPE_AUTO, 100);
        ck_assert_int_eq(backend_cuda.probe(&backend_cuda, &devices), -ETIMEDOUT);
        ck_assert_int_ge(now_ms() - began, 100);
        ck_assert_str_eq(backend_cuda_words(), "the driver does not answer within 100 ms");
        ck_assert(!backend_cuda_end());
        ck_assert_int_eq(unlink(path), 0);
        wait_for(machine_logged(" cuInit - 0\n") == 1);
        wait_for(machine_logged(" nvmlShutdown ") == 1);
} END_TEST

START_TEST(sizes_are_rounded) {
        ck_assert_int_eq(cuda_start(WIPE_AUTO), 2);
        ck_assert_int_eq(backend_cuda.round(devices[0], 1, "cuda-fd"), 2 * (int64_t)MIB);
        ck_assert_int_eq(backend_cuda.round(devices[0], 2 * (int64_t)MIB, "cuda-fd"), 2 * (int64_t)MIB);
        ck_assert_int_eq(backend_cuda.round(devices[0], 2 * (int64_t)MIB + 1, "cuda-ipc"), 4 * (int64_t)MIB);
        ck_assert_int_eq(backend_cuda.round(devices[0], 0, "cuda-fd"), 0);
        ck_assert_int_eq(backend_cuda.round(devices[0], -1, "cuda-fd"), 0);
        ck_assert_int_eq(backend_cuda.round(devices[0], SCHEMA_INT_MAX, "cuda-fd"), 0);
        ck_assert_int_eq(backend_cuda.round(devices[0], INT64_MAX, "cuda-ipc"), 0);
} END_TEST

/* ---- memory with a descriptor ------------------------------------------------------------------------------ */

START_TEST(a_descriptor_is_all_that_is_kept) {
        struct backing *backing;
        int fd, used;
        char bytes[16];

        ck_assert_int_eq(cuda_start(WIPE_AUTO), 2);
        used = cuda_used(1);
        backing = cuda_make(1, 5000000, "cuda-fd");
        fd = backing_fd(backing, ACCESS_RW);
        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(fd, backing_fd(backing, ACCESS_RO));
        ck_assert(backing_prepared(backing, ACCESS_RO));
        ck_assert_int_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
        ck_assert_ptr_null(backing->ipc);
        ck_assert_int_eq(backing->offset, 0);
        ck_assert_int_eq(pread(fd, bytes, sizeof(bytes), 5000000 - 16), 16);
        ck_assert_int_eq(machine_logged(" cuMemRelease 1 0\n"), 1);
        ck_assert_int_eq(cuda_used(1), used + 6);
        ck_assert_int_eq(backend_cuda.seal(backing, &detail), 0);
        backend_cuda.close(backing);
        ck_assert_int_eq(cuda_used(1), used);
        ck_assert(!cuda_context_made());
} END_TEST

/* Each entry point of the way there, refusing once and for good. */
/* NVML's own thread opens descriptors now and then, as long as it has a device to ask about. */
static void start_without_gauges(enum wipe_choice wipe) {
        machine_script(MACHINE "on nvmlDeviceGetHandleByUUID fail=6\n");
        ck_assert_int_eq(cuda_start(wipe), 2);
        machine_script(MACHINE);
}

START_TEST(each_call_for_a_descriptor_fails) {
        static const char *const entries[] = {"cuMemCreate", "cuMemExportToShareableHandle", "cuMemRelease"};
        static const struct {
                int code, error;
        } codes[] = {{1, -EINVAL}, {2, -ENOMEM}, {46, -EIO}, {214, -EIO}, {304, -EAGAIN}, {719, -EIO},
                     {800, -EPERM}, {801, -EOPNOTSUPP}, {999, -EIO}};
        struct backing *backing;
        char script[200], text[200];
        size_t n_fds;
        int used, error;

        start_without_gauges(WIPE_NEVER);
        n_fds = fds_count(0);
        used = cuda_used(0);
        for (size_t e = 0; e < sizeof(entries) / sizeof(*entries); e++)
                for (size_t c = 0; c < sizeof(codes) / sizeof(*codes); c++) {
                        snprintf(script, sizeof(script), MACHINE "on %s fail=%d\n", entries[e], codes[c].code);
                        machine_script(script);
                        error = e == 2 ? -EIO : codes[c].error;
                        ck_assert_int_eq(cuda_try(0, 1, "cuda-fd", &backing), error);
                        ck_assert_ptr_null(backing);
                        snprintf(text, sizeof(text), "%s: CUDA_ERROR_", entries[e]);
                        ck_assert_msg(strncmp(detail.text, text, strlen(text)) == 0, "%s", detail.text);
                        ck_assert_int_eq(backend_cuda.sick(devices[0], &detail), error == -EIO);
                        ck_assert(!backend_cuda.sick(devices[1], &detail));
                        machine_script(MACHINE);
                        ck_assert_int_eq(backend_cuda.check(devices[0], &detail), 0);
                        ck_assert(!backend_cuda.sick(devices[0], &detail));
                        ck_assert_uint_eq(fds_count(0), n_fds);
                        ck_assert_int_eq(cuda_used(0), used);
                }
        ck_assert(!cuda_context_made());
} END_TEST

START_TEST(a_release_is_tried_again) {
        struct backing *backing;
        int used;

        ck_assert_int_eq(cuda_start(WIPE_AUTO), 2);
        used = cuda_used(0);
        machine_script(MACHINE "on cuMemRelease fail=1\n");
        ck_assert_int_eq(cuda_try(0, 1, "cuda-fd", &backing), -EIO);
        ck_assert_int_eq(cuda_try(0, 1, "cuda-fd", &backing), -EIO);
        ck_assert_int_eq(backend_cuda.check(devices[0], &detail), -EIO);
        ck_assert_int_eq(cuda_used(0), used + 4);
        machine_script(MACHINE);
        ck_assert_int_eq(backend_cuda.check(devices[0], &detail), 0);
        ck_assert_int_eq(cuda_used(0), used);
} END_TEST

START_TEST(a_full_device_tells_what_is_free) {
        static const char *const handles[] = {"cuda-fd", "cuda-ipc"};
        struct backing *backing;
        int used;

        machine_script("device total=600M\n");
        ck_assert_int_eq(cuda_start(WIPE_AUTO), 1);
        used = cuda_used(0);
        ck_assert_int_eq(cuda_try(0, 1024 * (int64_t)MIB, handles[_i], &backing), -ENOMEM);
        ck_assert_int_eq(detail.free_bytes, (600 - used) * (int64_t)MIB);
        ck_assert_int_eq(cuda_used(0), used);
        ck_assert(!backend_cuda.sick(devices[0], &detail));
} END_TEST

START_TEST(a_sick_device_is_sick_until_it_is_well) {
        struct backing *backing;

        ck_assert_int_eq(cuda_start(WIPE_AUTO), 2);
        machine_script(MACHINE "on cuMemCreate device=0 fail=214\n");
        ck_assert_int_eq(cuda_try(0, 1, "cuda-fd", &backing), -EIO);
        ck_assert(backend_cuda.sick(devices[0], &detail));
        ck_assert_ptr_nonnull(strstr(detail.text, "cuMemCreate: CUDA_ERROR_ECC_UNCORRECTABLE (214)"));
        ck_assert_int_eq(backend_cuda.check(devices[0], &detail), -EIO);
        ck_assert(backend_cuda.sick(devices[0], &detail));
        machine_script(MACHINE "on cuMemCreate device=0 fail=2\n");
        ck_assert_int_eq(backend_cuda.check(devices[0], &detail), 0); /* full is well */
        ck_assert(!backend_cuda.sick(devices[0], &detail));
} END_TEST

/* ---- memory with a classic handle -------------------------------------------------------------------------- */

START_TEST(a_context_comes_with_the_first_and_goes_with_the_last) {
        struct backing *one, *two;
        int used;

        ck_assert_int_eq(cuda_start(WIPE_AUTO), 2);
        ck_assert_int_eq(machine_logged(" cudaMalloc "), 0);
        used = cuda_used(0);
        one = cuda_make(0, 1, "cuda-ipc");
        ck_assert_int_eq(cuda_used(0), used + 523 + 2);
        two = cuda_make(0, 3 * (int64_t)MIB, "cuda-ipc");
        ck_assert_int_eq(cuda_used(0), used + 523 + 6);
        ck_assert_int_eq(backing_fd(one, ACCESS_RW), -1);
        ck_assert(backing_prepared(one, ACCESS_RW));
        ck_assert_uint_eq(strlen(one->ipc), 88);
        ck_assert_str_ne(one->ipc, two->ipc);
        ck_assert_int_eq(one->offset, 0);
        backend_cuda.close(one);
        ck_assert_int_eq(cuda_used(0), used + 523 + 4);
        backend_cuda.close(two);
        ck_assert_int_eq(cuda_used(0), used);
        one = cuda_make(0, 1, "cuda-ipc");
        ck_assert_int_eq(cuda_used(0), used + 523 + 2);
        backend_cuda.close(one);
        ck_assert_int_eq(cuda_used(0), used);
} END_TEST

START_TEST(the_handle_is_what_the_runtime_gave) {
        static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        struct backing *backing;
        unsigned char raw[66];
        cudaIpcMemHandle_t handle;
        void *pointer;

        ck_assert_int_eq(cuda_start(WIPE_AUTO), 2);
        backing = cuda_make(1, 3 * (int64_t)MIB, "cuda-ipc");
        for (int i = 0; i < 22; i++) {
                unsigned bits = 0;

                for (int k = 0; k < 4; k++) {
                        const char *digit = strchr(digits, backing->ipc[4 * i + k]);

                        bits = bits << 6 | (digit ? (unsigned)(digit - digits) : 0);
                }
                raw[3 * i] = (unsigned char)(bits >> 16);
                raw[3 * i + 1] = (unsigned char)(bits >> 8);
                raw[3 * i + 2] = (unsigned char)bits;
        }
        ck_assert_str_eq(backing->ipc + 86, "==");
        /* The driver knows it for this process's own, and refuses it for that alone. */
        memcpy(handle.reserved, raw, sizeof(handle.reserved));
        ck_assert_int_eq(gpu.cudaIpcOpenMemHandle(&pointer, handle, cudaIpcMemLazyEnablePeerAccess), 201);
        handle.reserved[0] ^= 1;
        ck_assert_int_ne(gpu.cudaIpcOpenMemHandle(&pointer, handle, cudaIpcMemLazyEnablePeerAccess), 201);
        backend_cuda.close(backing);
} END_TEST

START_TEST(each_call_for_a_classic_handle_fails) {
        static const char *const entries[] = {"cudaSetDevice", "cudaMalloc", "cuMemAlloc_v2", "cudaMemset", "cudaDeviceSynchronize",
                                              "cudaIpcGetMemHandle", "cuMemGetAddressRange_v2", "cuDevicePrimaryCtxRetain"};
        static const int codes[] = {1, 2, 46, 700, 719, 999};
        struct backing *backing, *held = NULL;
        char script[200];
        size_t n_fds;
        int used, r;

        start_without_gauges(WIPE_ALWAYS);
        backend_cuda.close(cuda_make(0, 1, "cuda-ipc"));
        if (_i == 1)
                held = cuda_make(0, 1, "cuda-ipc"); /* so that no end of the context covers for what is left in it */
        n_fds = fds_count(0);
        used = cuda_used(0);
        for (size_t e = 0; e < sizeof(entries) / sizeof(*entries) - (_i == 1); e++) /* the last one makes the context */
                for (size_t c = 0; c < sizeof(codes) / sizeof(*codes); c++) {
                        snprintf(script, sizeof(script), MACHINE "on %s fail=%d nth=1\n", entries[e], codes[c]);
                        machine_script(script);
                        r = cuda_try(0, 1, "cuda-ipc", &backing);
                        ck_assert_msg(r < 0, "%s with %d: %d", entries[e], codes[c], r);
                        ck_assert_ptr_null(backing);
                        ck_assert_int_eq(backend_cuda.sick(devices[0], &detail), codes[c] > 2);
                        machine_script(MACHINE);
                        ck_assert_int_eq(backend_cuda.check(devices[0], &detail), 0);
                        ck_assert_msg(cuda_used(0) == used, "%s with %d leaves %d MiB", entries[e], codes[c], cuda_used(0) - used);
                        ck_assert_uint_eq(fds_count(0), n_fds);
                        backend_cuda.close(cuda_make(0, 1, "cuda-ipc"));
                        ck_assert_int_eq(cuda_used(0), used);
                }
        if (held)
                backend_cuda.close(held);
} END_TEST

START_TEST(freeing_fails) {
        static const char *const entries[] = {"cudaFree", "cudaSetDevice", "cudaDeviceReset"};
        struct backing *one;
        char script[200];
        int used;

        ck_assert_int_eq(cuda_start(WIPE_AUTO), 2);
        used = cuda_used(0);
        one = cuda_make(0, 1, "cuda-ipc");
        snprintf(script, sizeof(script), MACHINE "on %s nth=1 fail=700\n", entries[_i]);
        machine_script(script);
        backend_cuda.close(one);
        ck_assert(backend_cuda.sick(devices[0], &detail));
        ck_assert_int_eq(backend_cuda.check(devices[0], &detail), 0);
        if (_i == 2)
                backend_cuda.close(cuda_make(0, 1, "cuda-ipc")); /* the next last one takes the context along */
        ck_assert_int_eq(cuda_used(0), used);
} END_TEST

START_TEST(a_context_that_is_lost_shows) {
        struct backing *backing;

        ck_assert_int_eq(cuda_start(WIPE_AUTO), 2);
        backing = cuda_make(0, 1, "cuda-ipc");
        machine_script(MACHINE "on cudaMemGetInfo fail=700\n");
        ck_assert_int_eq(backend_cuda.check(devices[0], &detail), -EIO);
        ck_assert_int_eq(backend_cuda.check(devices[1], &detail), 0);
        backend_cuda.close(backing);
        ck_assert_int_eq(backend_cuda.check(devices[0], &detail), 0);
} END_TEST

/* ---- free bytes -------------------------------------------------------------------------------------------- */

START_TEST(free_bytes_follow) {
        struct backing *backing;
        int64_t free_before;
        int fd;

        ck_assert_int_eq(cuda_start(WIPE_AUTO), 2);
        free_before = backend_cuda.free_bytes(devices[0]);
        ck_assert_int_eq(free_before, (4096 - cuda_used(0)) * (int64_t)MIB);
        backing = cuda_make(0, 64 * (int64_t)MIB, "cuda-fd");
        wait_for(backend_cuda.free_bytes(devices[0]) == free_before - 64 * (int64_t)MIB);
        backend_cuda.close(backing);
        wait_for(backend_cuda.free_bytes(devices[0]) == free_before);
        ck_assert_int_eq(vmm_export(32 * MIB, 0, &fd), CUDA_SUCCESS); /* somebody else's, of whom nobody tells */
        wait_for(backend_cuda.free_bytes(devices[0]) == free_before - 32 * (int64_t)MIB);
        close(fd);
} END_TEST

START_TEST(free_bytes_without_nvml) {
        static const char *const faults[] = {"on nvmlInit_v2 fail=9\n", "on nvmlDeviceGetHandleByUUID fail=6\n",
                                             "on nvmlDeviceGetMemoryInfo fail=15\n"};
        struct backing *backing;
        char script[200];

        snprintf(script, sizeof(script), "device total=64M\n%s", faults[_i]);
        machine_script(script);
        ck_assert_int_eq(cuda_start(WIPE_NEVER), 1);
        ck_assert_int_eq(backend_cuda.free_bytes(devices[0]), SCHEMA_UNSET);
        ck_assert_int_eq(cuda_try(0, 128 * (int64_t)MIB, "cuda-fd", &backing), -ENOMEM);
        ck_assert_int_eq(detail.free_bytes, SCHEMA_UNSET);
        backend_cuda.close(cuda_make(0, 1, "cuda-fd"));
} END_TEST

/* NVML may hang for good: nobody waits for it but who asks what is free, and that not long. */
START_TEST(nvml_that_hangs_is_left_alone) {
        char script[400], path[300];
        struct backing *backing;
        int64_t began;

        snprintf(path, sizeof(path), "%s", machine_file("hang"));
        ck_assert_int_eq(cuda_start(WIPE_AUTO), 2);
        ck_assert_int_eq(close(creat(path, 0600)), 0);
        snprintf(script, sizeof(script), "device total=64M\ndevice\non nvmlDeviceGetMemoryInfo hang-while=%s\n", path);
        machine_script(script);
        backend_cuda.close(cuda_make(0, 1, "cuda-fd"));
        wait_for(machine_logged(" nvmlDeviceGetMemoryInfo 1 waits\n") > 0);
        began = now_ms();
        backend_cuda.close(cuda_make(0, 1, "cuda-fd"));
        ck_assert_int_gt(backend_cuda.free_bytes(devices[0]), 0);
        ck_assert_int_lt(now_ms() - began, slower_ms(5000));
        ck_assert_int_eq(cuda_try(0, INT64_C(5) << 30, "cuda-fd", &backing), -ENOMEM);
        ck_assert(!backend_cuda_end());
        ck_assert_int_eq(unlink(path), 0);
        wait_for(backend_cuda_end());
        ck_assert_int_eq(machine_logged(" nvmlShutdown "), 1);
} END_TEST

/* ---------------------------------------------------------------------------------------------------------- */

int main(void) {
        const TTest *const tests[] = {devices_are_described, visible_ones_alone, parts_of_gpus_bear_names_of_their_own,
                                      parts_of_gpus_without_nvml, no_device_of_use, a_driver_that_does_not_answer, sizes_are_rounded,
                                      a_descriptor_is_all_that_is_kept, each_call_for_a_descriptor_fails, a_release_is_tried_again,
                                      a_sick_device_is_sick_until_it_is_well, a_context_comes_with_the_first_and_goes_with_the_last,
                                      the_handle_is_what_the_runtime_gave, a_context_that_is_lost_shows,
                                      free_bytes_follow, nvml_that_hangs_is_left_alone};
        Suite *suite = suite_create("cuda_backend");
        TCase *tcase = tcase_create("backend");

        tcase_add_checked_fixture(tcase, setup, cuda_finish);
        tcase_set_timeout(tcase, 30);
        for (size_t i = 0; i < sizeof(tests) / sizeof(*tests); i++)
                tcase_add_test(tcase, tests[i]);
        tcase_add_loop_test(tcase, handles_follow_the_device, 0, 4);
        tcase_add_loop_test(tcase, each_question_refused, 0, 8);
        tcase_add_loop_test(tcase, a_full_device_tells_what_is_free, 0, 2);
        tcase_add_loop_test(tcase, each_call_for_a_classic_handle_fails, 0, 2);
        tcase_add_loop_test(tcase, freeing_fails, 0, 3);
        tcase_add_loop_test(tcase, free_bytes_without_nvml, 0, 3);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
