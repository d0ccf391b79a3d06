/* SPDX-License-Identifier: Apache-2.0 */
/* The language of the false GPUs' script: faults, waits, changes while a program runs, mistakes; the log. */
#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_machine.h"
#include "proto/cleanup.h"
#include "tests/support/child.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"
#include "tests/support/wait.h"

#define TWO_MIB (2 * MIB)

static struct fds before;

static void setup(void) {
        before = fds_of(0);
        machine_start("");
        ck_assert(machine_load());
        ck_assert_int_eq(gpu.cuInit(0), CUDA_SUCCESS);
}

static void teardown(void) {
        struct fds after = fds_of(0);

        machine_end();
        fds_assert_same(&before, &after, "this process");
        fds_deinit(&before);
        fds_deinit(&after);
}

static CUresult create(int ordinal) {
        CUmemGenericAllocationHandle handle;
        CUresult result = vmm_create(TWO_MIB, ordinal, &handle);
        if (result == CUDA_SUCCESS)
                ck_assert_int_eq(gpu.cuMemRelease(handle), CUDA_SUCCESS);
        return result;
}

START_TEST(every_call_fails_until_told_otherwise) {
        machine_script("on cuMemCreate fail=999\n");
        ck_assert_int_eq(create(0), 999);
        ck_assert_int_eq(create(0), 999);
        ck_assert_int_eq(machine_used(0), 4);
        machine_script("on cuMemCre* fail=2 # a pattern\n");
        ck_assert_int_eq(create(0), 2);
        machine_script("");
        ck_assert_int_eq(create(0), 0);
} END_TEST

START_TEST(the_nth_call_fails) {
        machine_script("on cuMemCreate nth=2 fail=2\n");
        ck_assert_int_eq(create(0), 0);
        ck_assert_int_eq(create(0), 2);
        ck_assert_int_eq(create(0), 0);
        machine_script("on cuMemCreate from=2 fail=700\non cuMemCreate nth=1 fail=801\n");
        ck_assert_int_eq(create(0), 801);
        ck_assert_int_eq(create(0), 700);
        /* A line that stays keeps its count, a new one begins. */
        machine_script("on cuMemCreate nth=3 fail=7\n");
        ck_assert_int_eq(create(0), 0);
        ck_assert_int_eq(create(0), 0);
        machine_script("on cuMemCreate nth=2 fail=8\non cuMemCreate nth=3 fail=7\n");
        ck_assert_int_eq(create(0), 7);
        ck_assert_int_eq(create(0), 8);
} END_TEST

START_TEST(a_fault_of_one_device) {
        CUcontext context;
        void *pointer;

        machine_script("on cuMemCreate device=1 fail=2\n");
        ck_assert_int_eq(create(0), 0);
        ck_assert_int_eq(create(1), 2);
        machine_script("on cuDevicePrimaryCtxRetain device=GPU-fa4e0000-0000-4000-8000-000000000000 fail=46\n");
        ck_assert_int_eq(gpu.cuDevicePrimaryCtxRetain(&context, 1), 0);
        ck_assert_int_eq(gpu.cuDevicePrimaryCtxRetain(&context, 0), 46);
        machine_script("on cudaMalloc device=1 fail=2\non nvmlDeviceGetMemoryInfo device=1 fail=15\n");
        ck_assert_int_eq(gpu.cudaMalloc(&pointer, 1), 0);
        ck_assert_int_eq(gpu.cudaSetDevice(1), 0);
        ck_assert_int_eq(gpu.cudaMalloc(&pointer, 1), 2);
        ck_assert_int_ge(machine_used(0), 0);
        ck_assert_int_eq(machine_used(1), -1);
        machine_script("on cuMemAlloc_v2 fail=719\n");
        ck_assert_int_eq(gpu.cudaMalloc(&pointer, 1), 719);
} END_TEST

START_TEST(a_fault_of_one_program) {
        machine_script("on cuMemCreate exe=another fail=2\n");
        ck_assert_int_eq(create(0), 0);
        char script[128], path[256];
        ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
        ck_assert_int_gt(n, 0);
        path[n] = '\0';
        snprintf(script, sizeof(script), "on cuMemCreate exe=%.60s fail=2\n", strrchr(path, '/') + 1);
        machine_script(script);
        ck_assert_int_eq(create(0), 2);
} END_TEST

START_TEST(a_delay) {
        machine_script("on cuMemCreate delay=60\n");
        int64_t begin = now_ms();
        ck_assert_int_eq(create(0), 0);
        ck_assert_int_ge(now_ms() - begin, 60);
} END_TEST

static void touch(const char *name) {
        int fd = open(machine_file(name), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        ck_assert_int_ge(fd, 0);
        close(fd);
}

static void *create_on_first(void *data) {
        *(_Atomic int *)data = (int)create(0);
        return NULL;
}

static void script_with(const char *before_path, const char *name, const char *after) {
        char script[400];
        snprintf(script, sizeof(script), "%s%s%s\n", before_path, machine_file(name), after);
        machine_script(script);
}

static pthread_t start_waiting(_Atomic int *result) {
        pthread_t thread;

        *result = -1;
        ck_assert_int_eq(pthread_create(&thread, NULL, create_on_first, (void *)result), 0);
        wait_for(machine_logged("cuMemCreate 0 waits") > 0);
        return thread;
}

START_TEST(a_hang_until_a_file_is_there) {
        _Atomic int result;

        script_with("on cuMemCreate device=0 hang-until=", "go", " fail=999");
        pthread_t thread = start_waiting(&result);
        ck_assert_int_eq(create(1), 0);
        ck_assert_int_ge(machine_used(0), 0);
        ck_assert_int_eq(result, -1);
        touch("go");
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        ck_assert_int_eq(result, 999);
        ck_assert_int_eq(machine_logged("cuMemCreate 0 999"), 1);
} END_TEST

START_TEST(a_hang_while_a_file_is_there) {
        _Atomic int result;

        ck_assert_int_eq(create(0), 0);
        touch("stop");
        script_with("on cuMemCreate device=0 hang-while=", "stop", "");
        pthread_t thread = start_waiting(&result);
        ck_assert_int_eq(result, -1);
        ck_assert_int_eq(unlink(machine_file("stop")), 0);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        ck_assert_int_eq(result, 0);
} END_TEST

static void *create_on_second(void *data) {
        *(_Atomic int *)data = (int)create(1);
        return NULL;
}

START_TEST(a_hang_that_holds_all_devices) {
        _Atomic int first, second = -1;
        pthread_t other;

        script_with("on cuMemCreate device=0 global=yes hang-until=", "go", "");
        pthread_t thread = start_waiting(&first);
        ck_assert_int_eq(pthread_create(&other, NULL, create_on_second, (void *)&second), 0);
        unsigned pause_usec = 0;
        for (int i = 0; i < 30; i++) {
                wait_pause(&pause_usec);
                ck_assert_int_ge(machine_used(1), 0); /* another library */
                ck_assert_int_eq(machine_logged("cuMemCreate 1"), 0);
        }
        ck_assert_int_eq(second, -1);
        touch("go");
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        ck_assert_int_eq(pthread_join(other, NULL), 0);
        ck_assert_int_eq(first, 0);
        ck_assert_int_eq(second, 0);
} END_TEST

START_TEST(the_log_has_every_call) {
        char line[160];

        ck_assert_int_eq(create(1), 0);
        snprintf(line, sizeof(line), "%d test_fake_script cuMemCreate 1 0\n", getpid());
        ck_assert_int_eq(machine_logged(line), 1);
        snprintf(line, sizeof(line), "%d test_fake_script cuInit - 0\n", getpid());
        ck_assert_int_eq(machine_logged(line), 1);
        machine_script("log no\n");
        ck_assert_int_eq(create(1), 0);
        ck_assert_int_eq(machine_logged("cuMemCreate 1 0\n"), 1);
} END_TEST

START_TEST(figures_can_be_changed) {
        int fd, n;

        machine_script("driver 12020\nruntime 12080\ncloexec yes\ndevice total=1G used=1020M\ndevice\n");
        ck_assert_int_eq(gpu.cuDriverGetVersion(&n), 0);
        ck_assert_int_eq(n, 12020);
        ck_assert_int_eq(gpu.cudaRuntimeGetVersion(&n), cudaSuccess);
        ck_assert_int_eq(n, 12080);
        ck_assert_int_eq(create(0), CUDA_ERROR_OUT_OF_MEMORY);
        ck_assert_int_eq(vmm_export(TWO_MIB, 1, &fd), 0);
        ck_assert_int_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
        close(fd);
} END_TEST

/* Whether a call ends the process when the script is this. */
static bool is_fatal(const char *script) {
        int status, n;

        machine_script(script);
        pid_t pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0) {
                fclose(stderr);
                gpu.cuDriverGetVersion(&n);
                _exit(0);
        }
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

START_TEST(mistakes_are_fatal) {
        static const char *const wrong[] = {
                "nonsense 1", "on cuMemCrate fail=2", "on cuMemCreate", "on cuMemCreate fail", "on cuMemCreate fail=x",
                "on cuMemCreate device=2 fail=1", "on cuMemCreate device=GPU-no fail=1", "device total=1X", "device scrub=maybe",
                "device colour=red", "state", "log maybe", "device attribute=5", "devices 17"
        };

        for (size_t i = 0; i < ELEMENTSOF(wrong); i++)
                ck_assert_msg(is_fatal(wrong[i]), "\"%s\" is taken", wrong[i]);
        ck_assert(!is_fatal("# nothing\n\n  \n"));
} END_TEST

/* What a library exports by a name of its interface must be known to the script, unless it cannot fail. */
START_TEST(all_entry_points_are_known) {
        static const char *const infallible[] = { "cuFakeDevice", "cudaGetErrorName", "cudaGetErrorString", "cudaGetLastError",
                                                  "cudaPeekAtLastError", "nvmlErrorString" };
        static char script[1 << 14];
        char command[700], name[100];
        const char *build = getenv("GPUIPC_BUILD");
        size_t n = 0, n_names = 0;

        build = build ? build : "build";
        snprintf(command, sizeof(command), "nm -D --defined-only %s/fake/libcuda.so.1 %s/fake/libcudart.so.13 %s/fake/libnvidia-ml.so.1 | "
                 "sed -n 's/.* T //p'", build, build, build);
        FILE *names = popen(command, "re");
        ck_assert_ptr_nonnull(names);
        while (fscanf(names, "%99s", name) == 1) {
                bool known = false;
                for (size_t i = 0; i < ELEMENTSOF(infallible); i++)
                        known = known || strcmp(name, infallible[i]) == 0;
                if (!known)
                        n += (size_t)snprintf(script + n, sizeof(script) - n, "on %s nth=9 fail=1\n", name);
                n_names++;
        }
        ck_assert_int_eq(pclose(names), 0);
        ck_assert_uint_ge(n_names, 90);
        ck_assert(!is_fatal(script));
} END_TEST

static int run_inline(int talk_fd, void *data) {
        char path[256] = "";

        (void)talk_fd;
        setenv("GPUIPC_FAKE_CUDA", data, 1);
        TRY(readlink("/proc/self/exe", path, sizeof(path) - 1) > 0); /* valgrind runs it by its own name only */
        TRY(execl(path, path, "inline", NULL) == 0);
        return 1;
}

static int inline_main(void) {
        int n;

        TRY(machine_load() && gpu.cuInit(0) == CUDA_SUCCESS);
        TRY(gpu.cuDeviceGetCount(&n) == 999);
        TRY(machine_used(2) == 4 + 1024);
        return 0;
}

START_TEST(statements_in_the_variable) {
        char statements[400];

        snprintf(statements, sizeof(statements), "device; device; device used=1G; state %s; on cuDeviceGetCount fail=999",
                 machine_file("state"));
        struct child child = child_start(NULL, run_inline, statements);
        child_expect_exit(&child, 0);
} END_TEST

int main(int n_arguments, char **arguments) {
        const TTest *const tests[] = { every_call_fails_until_told_otherwise, the_nth_call_fails, a_fault_of_one_device,
                                       a_fault_of_one_program, a_delay, a_hang_until_a_file_is_there,
                                       a_hang_while_a_file_is_there, a_hang_that_holds_all_devices, the_log_has_every_call,
                                       figures_can_be_changed, mistakes_are_fatal, all_entry_points_are_known,
                                       statements_in_the_variable };

        if (n_arguments == 2 && strcmp(arguments[1], "inline") == 0)
                return inline_main();
        Suite *suite = suite_create("fake_script");
        TCase *tcase = tcase_create("script");
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_set_timeout(tcase, 30);
        for (size_t i = 0; i < ELEMENTSOF(tests); i++)
                tcase_add_test(tcase, tests[i]);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
