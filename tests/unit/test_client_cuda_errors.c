/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever the driver refuses: told with its own words and a code, nothing left behind, and the next attempt works. */
#include <check.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_gpus.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"
#include "tests/support/wait.h"

static const char *tail(const gpuipc_error *error) {
        size_t n = strlen(error->message);
        return n < 6 ? "" : error->message + n - 6;
}

#define check_error(error, expected, code)                                                                   \
        do {                                                                                                 \
                ck_assert_msg((error).status == (expected), "%s: %s", (error).name, (error).message);        \
                ck_assert_msg(strcmp(tail(&(error)), "[" code "]") == 0, "%s: %s", code, (error).message);   \
        } while (0)

#define check_says(error, words)                                                                             \
        ck_assert_msg(strstr((error).message, (words)) != NULL, "'%s' is not in: %s", (words), (error).message)

/* ---- each entry point ------------------------------------------------------------------------------------- */

static const struct {
        const char *entry, *code;
        const char *told; /* as what; NULL: as the entry's name */
} entries[] = {
        { "cuInit", "G006", NULL },
        { "cuDeviceGetCount", "G003", NULL },
        { "cuDeviceGet", "G015", "cuDeviceGetUuid" },
        { "cuDeviceGetUuid_v2", "G015", "cuDeviceGetUuid" },
        { "cuDeviceGetName", "G015", "cuDeviceGetUuid" },
        { "cuCtxGetCurrent", "G015", "cuCtxGetDevice" },
        { "cuDevicePrimaryCtxRetain", "G015", NULL },
        { "cuCtxPushCurrent_v2", "G015", "cuCtxPushCurrent" },
        { "cuMemGetAllocationGranularity", "G015", NULL },
        { "cuMemImportFromShareableHandle", "G011", NULL },
        { "cuMemGetAllocationPropertiesFromHandle", "G011", NULL },
        { "cuMemAddressReserve", "G015", NULL },
        { "cuMemMap", "G011", NULL },
        { "cuMemSetAccess", "G015", NULL },
};

static void check_nothing_left(void) {
        ck_assert_uint_eq(address_ranges(), 0);
        ck_assert_uint_eq(gpus_calls("cuMemAddressReserve", 0), gpus_calls("cuMemAddressFree", 0));
        ck_assert_uint_eq(gpus_calls("cuMemMap", 0), gpus_calls("cuMemUnmap", 0));
        ck_assert_uint_eq(gpus_calls("cuMemImportFromShareableHandle", 0) + gpus_calls("cuMemCreate", 0),
                          gpus_calls("cuMemRelease", 0));
        ck_assert_uint_eq(gpus_calls("cuDevicePrimaryCtxRetain", 0), gpus_calls("cuDevicePrimaryCtxRelease_v2", 0));
        ck_assert_uint_eq(gpus_calls("cuCtxPushCurrent_v2", 0), gpus_calls("cuCtxPopCurrent_v2", 0));
}

START_TEST(refused_at) {
        struct desk desk = { .size = 2 * MIB };
        char rule[96], words[64];
        gpuipc_buffer *buffer;
        gpuipc_error error;
        void *pointer;

        gpus_start(NULL);
        struct owner owner = owner_start("cuda-fd", 0, 2 * MIB);
        desk.fd = owner.fd;
        desk_open(&desk);
        /* The owner did its own calls before; the fault is for whoever comes now. */
        (void)snprintf(rule, sizeof(rule), "on %s fail=999", entries[_i].entry);
        gpus_script(rule);
        ck_assert_int_eq(desk_fail(&desk, GPUIPC_RW, &error), GPUIPC_ERROR_MAP);
        ck_assert_msg(strstr(tail(&error), entries[_i].code) != NULL, "%s", error.message);
        (void)snprintf(words, sizeof(words), "%s() says CUDA_ERROR_UNKNOWN (999): ",
                       entries[_i].told ? entries[_i].told : entries[_i].entry);
        check_says(error, words);
        check_nothing_left();
        (void)snprintf(rule, sizeof(rule), "on %s fail=2", entries[_i].entry);
        gpus_script(rule);
        ck_assert_int_eq(desk_fail(&desk, GPUIPC_RW, &error), GPUIPC_ERROR_MAP);
        check_nothing_left();
        if (strcmp(entries[_i].entry, "cuInit") != 0)
                check_error(error, GPUIPC_ERROR_MAP, "G012");
        gpus_script(NULL);
        buffer = desk_map(&desk, GPUIPC_RW, &pointer);
        ck_assert_int_eq(*(unsigned char *)pointer, owner_byte(0));
        ck_assert_int_eq(gpuipc_release(buffer, NULL), GPUIPC_OK);
        check_nothing_left();
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

/* A failure to give back is nobody's to mend; the rest is given back all the same. */
START_TEST(refused_at_release) {
        static const char *const faults[] = { "cuMemUnmap", "cuMemAddressFree", "cuDevicePrimaryCtxRelease_v2", "cuMemRelease" };
        struct desk desk = { .size = 2 * MIB };
        gpuipc_buffer *buffer;
        char rule[96];
        void *pointer;

        gpus_start(NULL);
        struct owner owner = owner_start("cuda-fd", 0, 2 * MIB);
        desk.fd = owner.fd;
        desk_open(&desk);
        (void)snprintf(rule, sizeof(rule), "on %s nth=1 fail=999", faults[_i]);
        gpus_script(rule);
        for (int i = 0; i < 2; i++) {
                buffer = desk_map(&desk, GPUIPC_RW, &pointer);
                ck_assert_int_eq(*(unsigned char *)pointer, owner_byte(0));
                ck_assert_int_eq(gpuipc_release(buffer, NULL), GPUIPC_OK);
        }
        ck_assert_uint_eq(gpus_calls(faults[_i], 999), 1);
        ck_assert_uint_eq(gpus_calls("cuMemUnmap", -1), 2);
        ck_assert_uint_eq(gpus_calls("cuMemAddressFree", -1), 2);
        ck_assert_uint_eq(gpus_calls("cuDevicePrimaryCtxRelease_v2", -1), 2);
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

/* ---- starting --------------------------------------------------------------------------------------------- */

static const struct {
        const char *script, *visible, *code, *words;
} starts[] = {
        { "devices 0", NULL, "G003", "CUDA_ERROR_NO_DEVICE (100)" },
        { "devices 0", NULL, "G003", "--gpus" },
        { "devices 2", "", "G003", "CUDA_VISIBLE_DEVICES is ''" },
        { "devices 2", "7", "G003", "CUDA_VISIBLE_DEVICES is '7'" },
        { "on cuInit fail=304", NULL, "G004", "mount -t proc" },
        { "on cuInit fail=803", NULL, "G005", "LD_LIBRARY_PATH" },
        { "on cuInit fail=804", NULL, "G005", "compat" },
        { "on cuInit fail=802", NULL, "G019", "fabricmanager" },
        { "on cuInit fail=999", NULL, "G006", "/dev/nvidia-uvm" },
        { "on cuMemMap fail=700", NULL, "G013", "start it anew" },
};

START_TEST(does_not_start) {
        struct desk desk = { .size = 2 * MIB };
        gpuipc_error error;

        gpus_start(NULL);
        struct owner owner = owner_start("cuda-fd", 0, 2 * MIB);
        gpus_script(starts[_i].script);
        if (starts[_i].visible)
                ck_assert_int_eq(setenv("CUDA_VISIBLE_DEVICES", starts[_i].visible, 1), 0);
        desk.fd = owner.fd;
        desk_open(&desk);
        for (int i = 0; i < 2; i++) {
                ck_assert_int_eq(desk_fail(&desk, GPUIPC_RW, &error), GPUIPC_ERROR_MAP);
                ck_assert_msg(strstr(tail(&error), starts[_i].code) != NULL, "%s", error.message);
                check_says(error, starts[_i].words);
        }
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

START_TEST(no_driver_library) {
        struct desk desk = { .size = 2 * MIB };
        gpuipc_error error;

        if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
                printf("SKIP no_driver_library: this machine has one\n");
                return;
        }
        desk.fd = fake_memfd(2 * MIB, false);
        desk_open(&desk);
        ck_assert_int_eq(desk_fail(&desk, GPUIPC_RW, &error), GPUIPC_ERROR_MAP);
        check_error(error, GPUIPC_ERROR_MAP, "G001");
        check_says(error, "No such file");
        desk_close(&desk);
        (void)close(desk.fd);
}
END_TEST

/* A function that only newer drivers have is missing: nothing is called, and the function's name is told. */
START_TEST(driver_is_too_old) {
        struct desk desk = { .size = 2 * MIB };
        const char *build = getenv("GPUIPC_BUILD");
        gpuipc_error error;
        char path[512];

        (void)snprintf(path, sizeof(path), "%s/fake/older/libcuda.so.1", build ? build : "build");
        ck_assert_msg(dlopen(path, RTLD_NOW | RTLD_LOCAL) != NULL, "%s", dlerror());
        desk.fd = fake_memfd(2 * MIB, false);
        desk_open(&desk);
        for (int i = 0; i < 2; i++) {
                ck_assert_int_eq(desk_fail(&desk, GPUIPC_RW, &error), GPUIPC_ERROR_MAP);
                check_error(error, GPUIPC_ERROR_MAP, "G002");
                ck_assert_str_eq(error.subject, "libcuda.so.1");
                check_says(error, "cuDeviceGetUuid_v2");
                check_says(error, "470 or newer");
        }
        desk_close(&desk);
        (void)close(desk.fd);
}
END_TEST

/* ---- out of reach ----------------------------------------------------------------------------------------- */

#define NO_PEERS "device peer=no\ndevice\n"

START_TEST(no_peer_access) {
        struct desk desk = { .size = 2 * MIB };
        gpuipc_error error;
        CUcontext context;

        gpus_start(NO_PEERS);
        struct owner owner = owner_start("cuda-fd", 0, 2 * MIB);
        desk.fd = owner.fd;
        if (_i)
                ck_assert_int_eq(setenv("CUDA_VISIBLE_DEVICES", "1", 1), 0);
        desk_open(&desk);
        if (!_i) {
                ck_assert_int_eq(DRIVER(cuInit)(0), 0);
                ck_assert_int_eq(DRIVER(cuCtxCreate)(&context, NULL, 0, 1), 0);
        }
        ck_assert_int_eq(desk_fail(&desk, GPUIPC_RW, &error), GPUIPC_ERROR_HANDLE_UNSUPPORTED);
        check_error(error, GPUIPC_ERROR_HANDLE_UNSUPPORTED, "G008");
        check_says(error, GPUS_UUID("0"));
        check_says(error, GPUS_UUID("1"));
        check_says(error, _i ? "hidden from this process" : "no peer access");
        check_nothing_left();
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

/* ---- not what it is said to be ---------------------------------------------------------------------------- */

START_TEST(lies) {
        struct desk desk = { .size = 2 * MIB };
        gpuipc_error error;

        gpus_start(NULL);
        struct owner owner = owner_start("cuda-fd", 0, 4 * MIB);
        desk_open(&desk);
        /* Smaller than told. */
        desk.fd = owner.fd;
        desk.size = 4 * MIB + 1;
        ck_assert_int_eq(desk_fail(&desk, GPUIPC_RW, &error), GPUIPC_ERROR_MAP);
        check_error(error, GPUIPC_ERROR_MAP, "G011");
        desk.size = 2 * MIB;
        desk.offset = 4 * MIB;
        ck_assert_int_eq(desk_fail(&desk, GPUIPC_RW, &error), GPUIPC_ERROR_MAP);
        check_error(error, GPUIPC_ERROR_MAP, "G011");
        desk.offset = 0;
        /* On another GPU than told. */
        desk.uuid = GPUS_UUID("1");
        ck_assert_int_eq(desk_fail(&desk, GPUIPC_RW, &error), GPUIPC_ERROR_MAP);
        check_says(error, "on another GPU than the daemon says");
        desk.uuid = "GPU-00000000-0000-0000-0000-000000000000";
        ck_assert_int_eq(desk_fail(&desk, GPUIPC_RW, &error), GPUIPC_ERROR_MAP);
        check_says(error, "on another GPU than the daemon says");
        desk.uuid = "nonsense";
        ck_assert_int_eq(desk_fail(&desk, GPUIPC_RW, &error), GPUIPC_ERROR_MAP);
        desk.uuid = NULL;
        /* No memory of a GPU at all, and no descriptor. */
        desk.fd = fake_memfd(2 * MIB, false);
        ck_assert_int_eq(desk_fail(&desk, GPUIPC_RW, &error), GPUIPC_ERROR_MAP);
        check_error(error, GPUIPC_ERROR_MAP, "G011");
        (void)close(desk.fd);
        desk.fd = -1;
        ck_assert_int_eq(desk_fail(&desk, GPUIPC_RW, &error), GPUIPC_ERROR_MAP);
        check_says(error, "no descriptor");
        check_nothing_left();
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

/* ---- after fork ------------------------------------------------------------------------------------------- */

/* In the child: 0, or the line that failed. */
#define must(condition)                                                                                      \
        do {                                                                                                 \
                if (!(condition))                                                                            \
                        return __LINE__;                                                               \
        } while (0)

/* The child's result comes by shared memory and the child ends by SIGKILL: an exit would have valgrind count what the
 * parent's threads, which it has not, own. */
static int run_child(int (*child)(struct desk *desk, gpuipc_buffer *inherited), struct desk *desk, gpuipc_buffer *inherited) {
        int *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        int status, result;
        pid_t pid;

        ck_assert(shared != MAP_FAILED);
        *shared = -1;
        pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0) {
                *shared = child(desk, inherited);
                (void)kill(getpid(), SIGKILL);
                _exit(1);
        }
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "the child ended with %#x", (unsigned)status);
        result = *shared;
        (void)munmap(shared, sizeof(*shared));
        return result;
}

static int map_anew(const struct desk *desk, gpuipc_error *ret_error, unsigned char *ret_byte) {
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_client *client;
        gpuipc_buffer *buffer;
        void *pointer;
        int r;

        options.socket_path = desk->fake->path;
        r = gpuipc_connect(&options, &client, ret_error);
        if (r != GPUIPC_OK)
                return r;
        r = gpuipc_open_id(client, "b1", NULL, &buffer, ret_error);
        if (r == GPUIPC_OK) {
                r = gpuipc_buffer_map(buffer, &pointer, ret_error);
                if (r == GPUIPC_OK)
                        *ret_byte = *(unsigned char *)pointer;
                (void)gpuipc_release(buffer, NULL);
        }
        gpuipc_client_free(client);
        return r;
}

static int child_is_told(struct desk *desk, gpuipc_buffer *inherited) {
        size_t before = gpus_all_calls();
        gpuipc_error error;
        unsigned char byte;

        must(map_anew(desk, &error, &byte) == GPUIPC_ERROR_FORKED);
        must(strcmp(tail(&error), "[G007]") == 0 && strstr(error.message, "spawn"));
        if (inherited) {
                must(gpuipc_release(inherited, NULL) == GPUIPC_ERROR_FORKED);
                must(gpus_all_calls() == before); /* the driver was not asked anything */
        }
        return 0;
}

static int child_maps(struct desk *desk, gpuipc_buffer *inherited) {
        gpuipc_error error;
        unsigned char byte;

        (void)inherited;
        must(map_anew(desk, &error, &byte) == GPUIPC_OK && byte == owner_byte(0));
        return 0;
}

START_TEST(fork_after_mapping) {
        struct desk desk = { .size = 2 * MIB };
        unsigned char *pointer;

        gpus_start(NULL);
        struct owner owner = owner_start("cuda-fd", 0, 2 * MIB);
        desk.fd = owner.fd;
        desk_open(&desk);
        /* Before the parent has used CUDA, a child may. */
        ck_assert_int_eq(run_child(child_maps, &desk, NULL), 0);
        gpuipc_buffer *buffer = desk_map(&desk, GPUIPC_RW, (void **)&pointer);
        ck_assert_int_eq(run_child(child_is_told, &desk, buffer), 0);
        ck_assert_int_eq(pointer[0], owner_byte(0));
        ck_assert_int_eq(gpuipc_release(buffer, NULL), GPUIPC_OK);
        ck_assert_uint_eq(address_ranges(), 0);
        ck_assert_int_eq(run_child(child_is_told, &desk, NULL), 0);
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

/* By somebody else in the process. */
START_TEST(fork_after_init) {
        struct desk desk = { .size = 2 * MIB };

        gpus_start(NULL);
        struct owner owner = owner_start("cuda-fd", 0, 2 * MIB);
        desk.fd = owner.fd;
        desk_open(&desk);
        ck_assert_int_eq(DRIVER(cuInit)(0), 0);
        ck_assert_int_eq(run_child(child_is_told, &desk, NULL), 0);
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

/* A thread is in the middle of it. */
static void *map_slowly(void *data) {
        gpuipc_error error;
        unsigned char byte = 0;

        return map_anew(data, &error, &byte) == GPUIPC_OK && byte == owner_byte(0) ? data : NULL;
}

START_TEST(fork_during_init) {
        struct desk desk = { .size = 2 * MIB };
        char rule[200], gate[128];
        pthread_t thread;
        void *result;

        gpus_start(NULL);
        struct owner owner = owner_start("cuda-fd", 0, 2 * MIB);
        desk.fd = owner.fd;
        desk_open(&desk);
        (void)snprintf(gate, sizeof(gate), "%s/gate", desk.fake->directory);
        (void)snprintf(rule, sizeof(rule), "on cuInit hang-until=%s", gate);
        gpus_script(rule);
        ck_assert_int_eq(pthread_create(&thread, NULL, map_slowly, &desk), 0);
        wait_for(gpus_waits("cuInit") == 1);
        ck_assert_int_eq(run_child(child_is_told, &desk, NULL), 0);
        (void)close(open(gate, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
        ck_assert_int_eq(pthread_join(thread, &result), 0);
        ck_assert_ptr_nonnull(result);
        ck_assert_int_eq(unlink(gate), 0);
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

int main(void) {
        Suite *suite = suite_create("client_cuda_errors");
        TCase *tcase = tcase_create("refused");

        tcase_set_timeout(tcase, 30);
        tcase_add_loop_test(tcase, refused_at, 0, (int)(sizeof(entries) / sizeof(entries[0])));
        tcase_add_loop_test(tcase, refused_at_release, 0, 4);
        tcase_add_loop_test(tcase, does_not_start, 0, (int)(sizeof(starts) / sizeof(starts[0])));
        tcase_add_test(tcase, no_driver_library);
        tcase_add_test(tcase, driver_is_too_old);
        tcase_add_loop_test(tcase, no_peer_access, 0, 2);
        tcase_add_test(tcase, lies);
        suite_add_tcase(suite, tcase);
        tcase = tcase_create("fork");
        tcase_set_timeout(tcase, 30);
        tcase_add_test(tcase, fork_after_mapping);
        tcase_add_test(tcase, fork_after_init);
        tcase_add_test(tcase, fork_during_init);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
