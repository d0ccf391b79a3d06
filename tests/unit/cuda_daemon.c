/* SPDX-License-Identifier: Apache-2.0 */
/* One backend a test, on the fakes, which are loaded by path first, so that their names lead to them afterwards. The test's thread. */
#include "cuda_daemon.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/fds.h"

struct backend_device **devices;
int n_devices;
struct backend_detail detail;

static char params_file[300];
static struct fds before;

void cuda_params(const char *text) {
        FILE *file = fopen(params_file, "we");

        ck_assert_ptr_nonnull(file);
        ck_assert_int_ge(fputs(text, file), 0);
        ck_assert_int_eq(fclose(file), 0);
}

void cuda_begin(const char *script) {
        const char *build = getenv("GPUIPC_BUILD");
        char directory[300];

        before = fds_of(0);
        machine_start(script);
        snprintf(params_file, sizeof(params_file), "%s", machine_file("params"));
        cuda_params("ResmanDebugLevel: 4294967295\nRegistryDwords: \"\"\nRegistryDwordsPerDevice: \"\"\n");
        setenv("GPUIPC_NVIDIA_PARAMS", params_file, 1);
        snprintf(directory, sizeof(directory), "%s/fake", build ? build : "build");
        setenv("LD_LIBRARY_PATH", directory, 1);
        ck_assert(machine_load());
}

int cuda_start(enum wipe_choice wipe) {
        backend_cuda_set(wipe, BACKEND_CUDA_PROBE_MS);
        n_devices = backend_cuda.probe(&backend_cuda, &devices);
        return n_devices;
}

void cuda_finish(void) {
        struct fds after;

        backend_cuda_end();
        machine_end();
        after = fds_of(0);
        fds_assert_same(&before, &after, "this process");
        fds_deinit(&before);
        fds_deinit(&after);
}

int cuda_try(int device, int64_t size, const char *handle, struct backing **ret) {
        int64_t allocated = backend_cuda.round(devices[device], size, handle);

        memset(&detail, 0, sizeof(detail));
        *ret = NULL;
        return backend_cuda.allocate(devices[device], size, allocated, handle, ret, &detail);
}

struct backing *cuda_make(int device, int64_t size, const char *handle) {
        struct backing *backing;
        int r = cuda_try(device, size, handle, &backing);

        ck_assert_msg(r == 0, "%d: %s", r, detail.text);
        ck_assert_ptr_nonnull(backing);
        return backing;
}

bool cuda_context_made(void) {
        return machine_logged(" cuDevicePrimaryCtxRetain ") > 0 || machine_logged(" cuCtxCreate") > 0;
}

int cuda_used(int device) {
        return machine_used((unsigned)device);
}
