/* SPDX-License-Identifier: Apache-2.0 */
/* Whether new GPU memory reads zero: what the driver is trusted with, and the helper that clears what it is not. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda_daemon.h"
#include "daemon/cuda_zeroed.h"
#include "daemon/wipe.h"
#include "tests/support/suite.h"
#include "tests/support/wait.h"

#define UUID "GPU-fa4e0000-0000-4000-8000-000000000000"
#define DIRTY "device scrub=no\ndevice scrub=no\n"

static void setup(void) {
        const char *program = getenv("GPUIPCD");

        cuda_begin(DIRTY);
        wipe_program = program ? program : "build/gpuipcd";
}

static int zeroed(void) {
        struct backend_device_info info;

        backend_cuda.info(devices[0], &info);
        ck_assert_ptr_nonnull(info.zeroed_why);
        return info.zeroed;
}

/* Bytes of the memory that are not zero. */
static size_t dirty_bytes(int fd, size_t n) {
        static unsigned char bytes[1 << 16];
        size_t n_dirty = 0;

        for (size_t at = 0; at < n; at += sizeof(bytes)) {
                ck_assert_int_eq(pread(fd, bytes, sizeof(bytes), (off_t)at), sizeof(bytes));
                for (size_t i = 0; i < sizeof(bytes); i++)
                        n_dirty += bytes[i] != 0;
        }
        return n_dirty;
}

/* ---- who is trusted ---------------------------------------------------------------------------------------- */

START_TEST(what_the_parameters_say) {
        static const struct {
                const char *text;
                bool doubt;
        } cases[] = {
                {"ResmanDebugLevel: 4294967295\nRegistryDwords: \"\"\n", false},
                {"RegistryDwords: \"RMDisableScrubOnFree=0\"\n", false},
                {"RegistryDwords: \"RMDisableScrubOnFree=1\"\n", true},
                {"RegistryDwords: \"RmMsg=1;rmdisablescrubonfree = 0x1;Other=0\"\n", true},
                {"RegistryDwordsPerDevice: \"pci=0000:01:00.0;RMDisableScrubOnFree=2\"\n", true},
                {"RegistryDwords: \"RMDisableScrubOnFree=0;RMDisableScrubOnFree=1\"\n", true},
                {"RegistryDwords: \"RMDisableScrubOnFree=yes\"\n", true},
                {"RegistryDwords: \"RMDisableScrubOnFreeze=1\"\n", false},
                {"RegistryDwords: \"RMDisableAsyncMemScrub=1\"\n", true},
                {"RegistryDwords: \"RMEnablePMA=1\"\n", false},
                {"RegistryDwords: \"RMEnablePMA=0\"\n", true},
                {"RMDisableScrubOnFree: 1\n", true},
                {"", true},
        };
        char path[300];

        snprintf(path, sizeof(path), "%s", machine_file("params"));
        for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
                cuda_params(cases[i].text);
                ck_assert_msg(!cuda_params_doubt(path) == !cases[i].doubt, "%s", cases[i].text);
        }
        ck_assert_ptr_nonnull(cuda_params_doubt(machine_file("nowhere")));
} END_TEST

START_TEST(what_the_device_says) {
        static const struct {
                const char *script;
                int zeroed;
        } cases[] = {
                {"device\n", ZEROED_DRIVER},
                {"device virtualization=1\n", ZEROED_DRIVER},
                {"device virtualization=2\n", ZEROED_WIPED},
                {"device virtualization=3\n", ZEROED_WIPED},
                {"device virtualization=4\n", ZEROED_WIPED},
                {"device virtualization=9\n", ZEROED_WIPED},
                {"device\non nvmlDeviceGetVirtualizationMode fail=3\n", ZEROED_WIPED},
                {"device\non nvmlInit_v2 fail=9\n", ZEROED_WIPED},
                {"device integrated=yes\n", ZEROED_WIPED},
                {"device attribute=100:1\n", ZEROED_WIPED}, /* memory on the host's page tables */
                {"device attribute=75:7 attribute=76:0\n", ZEROED_WIPED},
                {"device attribute=75:7 attribute=76:5\n", ZEROED_DRIVER},
                {"device\non cuDeviceGetAttribute from=4 fail=1\n", ZEROED_WIPED},
        };

        machine_script(cases[_i].script);
        ck_assert_int_eq(cuda_start(WIPE_AUTO), 1);
        ck_assert_int_eq(zeroed(), cases[_i].zeroed);
        ck_assert(!cuda_context_made());
} END_TEST

START_TEST(the_administrator_decides) {
        static const struct {
                enum wipe_choice wipe;
                const char *params;
                int zeroed;
        } cases[] = {
                {WIPE_AUTO, "RegistryDwords: \"\"\n", ZEROED_DRIVER},
                {WIPE_AUTO, "RegistryDwords: \"RMDisableScrubOnFree=1\"\n", ZEROED_WIPED},
                {WIPE_ALWAYS, "RegistryDwords: \"\"\n", ZEROED_WIPED},
                {WIPE_ALWAYS, "RegistryDwords: \"RMDisableScrubOnFree=1\"\n", ZEROED_WIPED},
                {WIPE_NEVER, "RegistryDwords: \"\"\n", ZEROED_DRIVER},
                {WIPE_NEVER, "RegistryDwords: \"RMDisableScrubOnFree=1\"\n", ZEROED_UNKNOWN},
        };

        cuda_params(cases[_i].params);
        ck_assert_int_eq(cuda_start(cases[_i].wipe), 2);
        ck_assert_int_eq(zeroed(), cases[_i].zeroed);
} END_TEST

/* ---- the helper -------------------------------------------------------------------------------------------- */

START_TEST(memory_is_dirty_unless_it_is_wiped) {
        struct backing *backing;

        ck_assert_int_eq(cuda_start(WIPE_NEVER), 2);
        backing = cuda_make(0, 1, "cuda-fd");
        ck_assert_uint_eq(dirty_bytes(backing_fd(backing, ACCESS_RW), 2 * MIB), 2 * MIB);
        backend_cuda.close(backing);
} END_TEST

START_TEST(a_helper_wipes) {
        struct backing *backing, *other;
        int used;

        ck_assert_int_eq(cuda_start(WIPE_ALWAYS), 2);
        used = cuda_used(1);
        other = cuda_make(1, 130 * (int64_t)MIB, "cuda-fd");
        backing = cuda_make(1, 3 * (int64_t)MIB, "cuda-fd");
        ck_assert_uint_eq(dirty_bytes(backing_fd(backing, ACCESS_RW), 4 * MIB), 0);
        ck_assert_uint_eq(dirty_bytes(backing_fd(other, ACCESS_RW), 130 * MIB), 0);
        ck_assert_int_eq(cuda_used(1), used + 134);
        ck_assert_int_eq(machine_logged(" gpuipcd cuDevicePrimaryCtxRetain 1 0\n"), 2);
        ck_assert_int_eq(machine_logged(" cuDevicePrimaryCtxRetain "), 2);
        /* First, last, and one of every 64 MiB. */
        ck_assert_int_eq(machine_logged(" gpuipcd cuMemcpyDtoH_v2 1 0\n"), 2 + 2 + 2);
        backend_cuda.close(backing);
        backend_cuda.close(other);
        ck_assert_int_eq(cuda_used(1), used);
} END_TEST

START_TEST(classic_memory_is_wiped_here) {
        struct backing *backing;

        ck_assert_int_eq(cuda_start(WIPE_ALWAYS), 2);
        backing = cuda_make(0, 3 * (int64_t)MIB, "cuda-ipc");
        ck_assert_int_eq(machine_logged(" cudaMemset 0 0\n"), 1);
        ck_assert_int_eq(machine_logged(" gpuipcd "), 0);
        backend_cuda.close(backing);
} END_TEST

START_TEST(each_call_of_the_helper_fails) {
        static const char *const entries[] = {"cuInit", "cuDeviceGet", "cuDeviceGetUuid_v2", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent",
                                              "cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
                                              "cuMemsetD8_v2", "cuCtxSynchronize", "cuMemcpyDtoH_v2"};
        static const struct {
                int code, error;
        } codes[] = {{1, -EIO}, {2, -ENOMEM}, {719, -EIO}};
        struct backing *backing;
        char script[200], text[200];
        int used;

        ck_assert_int_eq(cuda_start(WIPE_ALWAYS), 2);
        used = cuda_used(0);
        for (size_t c = 0; c < sizeof(codes) / sizeof(*codes); c++) {
                snprintf(script, sizeof(script), DIRTY "on %s exe=gpuipcd fail=%d\n", entries[_i], codes[c].code);
                machine_script(script);
                ck_assert_int_eq(cuda_try(0, 1, "cuda-fd", &backing), codes[c].error);
                ck_assert_ptr_null(backing);
                snprintf(text, sizeof(text), "wiping new memory: %.*s", (int)strcspn(entries[_i], "_"), entries[_i]);
                ck_assert_msg(strncmp(detail.text, text, strlen(text)) == 0, "%s", detail.text);
                ck_assert_ptr_nonnull(strstr(detail.text, ": CUDA_ERROR_"));
                ck_assert_int_eq(cuda_used(0), used);
                ck_assert(!backend_cuda.sick(devices[0], &detail));
        }
} END_TEST

START_TEST(no_room_for_the_helper) {
        struct backing *backing;

        machine_script("device total=400M scrub=no\n");
        ck_assert_int_eq(cuda_start(WIPE_ALWAYS), 1);
        ck_assert_int_eq(cuda_try(0, 1, "cuda-fd", &backing), -ENOMEM);
        ck_assert_ptr_nonnull(strstr(detail.text, "cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY (2)"));
        ck_assert_int_eq(detail.free_bytes, (400 - cuda_used(0)) * (int64_t)MIB);
} END_TEST

START_TEST(a_device_that_is_gone) {
        int fd;

        ck_assert_int_eq(cuda_start(WIPE_NEVER), 2);
        ck_assert_int_eq(vmm_export(2 * MIB, 0, &fd), CUDA_SUCCESS);
        ck_assert_int_eq(wipe_run(fd, "GPU-00000000-0000-4000-8000-000000000001", 2 * MIB, &detail), -EIO);
        ck_assert_str_eq(detail.text, "wiping new memory: cuInit: CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected");
        close(fd);
} END_TEST

START_TEST(a_helper_that_hangs_is_killed) {
        char script[400], path[300];
        struct backing *backing;
        int64_t began = now_ms();
        int used;

        ck_assert_int_eq(cuda_start(WIPE_ALWAYS), 2);
        used = cuda_used(0);
        snprintf(path, sizeof(path), "%s", machine_file("hang"));
        ck_assert_int_eq(close(creat(path, 0600)), 0);
        snprintf(script, sizeof(script), DIRTY "on cuMemsetD8_v2 exe=gpuipcd hang-while=%s\n", path);
        machine_script(script);
        wipe_deadline_ms = 300;
        ck_assert_int_eq(cuda_try(0, 1, "cuda-fd", &backing), -ETIMEDOUT);
        ck_assert_int_ge(now_ms() - began, 300);
        ck_assert_str_eq(detail.text, "wiping new memory: not done within 300 ms");
        ck_assert_int_eq(cuda_used(0), used);
        ck_assert_int_eq(unlink(path), 0);
} END_TEST

static void write_program(const char *name, const char *text) {
        static char path[300];
        FILE *file;

        snprintf(path, sizeof(path), "%s", machine_file(name));
        file = fopen(path, "we");
        ck_assert_ptr_nonnull(file);
        fputs(text, file);
        fclose(file);
        ck_assert_int_eq(chmod(path, 0755), 0);
        wipe_program = path;
}

START_TEST(the_helper_gets_what_it_needs_and_no_more) {
        int fd;

        ck_assert_int_eq(cuda_start(WIPE_NEVER), 2);
        ck_assert_int_eq(vmm_export(2 * MIB, 0, &fd), CUDA_SUCCESS);
        /* 4 is the directory that is being listed. */
        write_program("look", "#!/bin/sh\necho $*\nls /proc/self/fd\nexit 1\n");
        ck_assert_int_eq(wipe_run(fd, UUID, 2 * MIB, &detail), -EIO);
        ck_assert_str_eq(detail.text, "wiping new memory: --wipe-memory " UUID " 2097152\n0\n1\n2\n3\n4\n");
        close(fd);
} END_TEST

START_TEST(ends_of_all_kinds) {
        static const struct {
                const char *program, *words;
                int error;
        } cases[] = {
                {"#!/bin/sh\nexit 0\n", NULL, 0},
                {"#!/bin/sh\nexit 7\n", "wiping new memory: the helper ended with status 7", -EIO},
                {"#!/bin/sh\nkill -9 $$\n", "wiping new memory: the helper was killed by signal 9", -EIO},
                {"#!/bin/sh\nhead -c 100000 /dev/zero | tr '\\0' x\nexit 1\n", NULL, -EIO},
                {"#!/bin/sh\nprintf 'no room'\nexit 3\n", "wiping new memory: no room", -ENOMEM},
        };
        int fd;

        ck_assert_int_eq(cuda_start(WIPE_NEVER), 2);
        ck_assert_int_eq(vmm_export(2 * MIB, 0, &fd), CUDA_SUCCESS);
        for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
                write_program("program", cases[i].program);
                memset(&detail, 0, sizeof(detail));
                ck_assert_int_eq(wipe_run(fd, UUID, 2 * MIB, &detail), cases[i].error);
                if (cases[i].words)
                        ck_assert_msg(strstr(detail.text, cases[i].words), "%s", detail.text);
        }
        close(fd);
} END_TEST

START_TEST(programs_that_do_not_start) {
        int fd;

        if (getenv("GPUIPC_VALGRIND")) {
                printf("SKIP programs_that_do_not_start: valgrind turns a failed posix_spawn into an exit status\n");
                return;
        }
        ck_assert_int_eq(cuda_start(WIPE_NEVER), 2);
        ck_assert_int_eq(vmm_export(2 * MIB, 0, &fd), CUDA_SUCCESS);
        write_program("program", "not a program\n");
        ck_assert_int_eq(wipe_run(fd, UUID, 2 * MIB, &detail), -EIO);
        ck_assert_ptr_nonnull(strstr(detail.text, "Exec format error"));
        wipe_program = "/nowhere/at/all";
        ck_assert_int_eq(wipe_run(fd, UUID, 2 * MIB, &detail), -EIO);
        ck_assert_str_eq(detail.text, "wiping new memory: /nowhere/at/all: No such file or directory");
        close(fd);
} END_TEST

int main(void) {
        const TTest *const tests[] = {what_the_parameters_say, memory_is_dirty_unless_it_is_wiped, a_helper_wipes,
                                      classic_memory_is_wiped_here, no_room_for_the_helper, a_device_that_is_gone,
                                      a_helper_that_hangs_is_killed, the_helper_gets_what_it_needs_and_no_more, ends_of_all_kinds,
                                      programs_that_do_not_start};
        Suite *suite = suite_create("cuda_wipe");
        TCase *tcase = tcase_create("wipe");

        tcase_add_checked_fixture(tcase, setup, cuda_finish);
        tcase_set_timeout(tcase, 30);
        for (size_t i = 0; i < sizeof(tests) / sizeof(*tests); i++)
                tcase_add_test(tcase, tests[i]);
        tcase_add_loop_test(tcase, what_the_device_says, 0, 13);
        tcase_add_loop_test(tcase, the_administrator_decides, 0, 6);
        tcase_add_loop_test(tcase, each_call_of_the_helper_fails, 0, 12);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
