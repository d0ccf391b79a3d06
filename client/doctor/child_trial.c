/* SPDX-License-Identifier: Apache-2.0 */
/* One buffer of one kind: made, mapped, seen to be zero, written, read back, released, and each timed. Runs in a child, as an application
 * would, through the library. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "child.h"
#include "client/doctor_codes.h"
#include "driver.h"
#include "include/gpuipc.h"
#include "proto/cleanup.h"

#define TRIAL_BYTES ((size_t)2 << 20)

struct trial {
        struct driver driver; /* of a GPU's buffers */
        gpuipc_client *client;
        gpuipc_buffer *buffer;
        void *memory;
        unsigned char *here, *back; /* TRIAL_BYTES each */
        bool gpu;
};

static int64_t now_usec(void) {
        struct timespec t;

        (void)clock_gettime(CLOCK_MONOTONIC, &t);
        return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void tell_time(const char *key, int64_t started) {
        child_tell("usec", "%s %" PRId64, key, now_usec() - started);
}

/* The step that failed, the code if there is one, and the library's words. */
static int failed(const char *step, const gpuipc_error *error) {
        const char *silent = error->status == GPUIPC_ERROR_TIMED_OUT ? doctor_code_id(DOCTOR_DAEMON_SILENT) : "-";

        child_tell("error", "%s %s %s", step, error->code ? error->code : silent, error->message);
        return EXIT_SUCCESS;
}

static int failed_driver(const struct trial *trial, const char *call, int result) {
        char words[200];

        driver_words(&trial->driver, result, words, sizeof(words));
        child_tell("error", "copy - %s says %s", call, words);
        return EXIT_SUCCESS;
}

/* Makes the GPU current that the library mapped for, to copy by. */
static int trial_enter(struct trial *trial) {
        void *context = NULL;
        int device = 0, r;

        if (!trial->gpu)
                return 0;
        child_calls("cuDevicePrimaryCtxRetain()");
        r = trial->driver.cuDeviceGet(&device, gpuipc_buffer_cuda_device(trial->buffer));
        if (r == 0)
                r = trial->driver.cuDevicePrimaryCtxRetain(&context, device);
        return r == 0 ? trial->driver.cuCtxSetCurrent(context) : r;
}

static int trial_write(struct trial *trial) {
        if (trial->gpu)
                return trial->driver.cuMemcpyHtoD((uint64_t)(uintptr_t)trial->memory, trial->here, TRIAL_BYTES);
        memcpy(trial->memory, trial->here, TRIAL_BYTES);
        return 0;
}

static int trial_read(struct trial *trial) {
        if (trial->gpu)
                return trial->driver.cuMemcpyDtoH(trial->back, (uint64_t)(uintptr_t)trial->memory, TRIAL_BYTES);
        memcpy(trial->back, trial->memory, TRIAL_BYTES);
        return 0;
}

static bool is_zero(const unsigned char *bytes) {
        return bytes[0] == 0 && memcmp(bytes, bytes + 1, TRIAL_BYTES - 1) == 0;
}

/* The result of the driver's call that failed, or 0. */
static int trial_copy(struct trial *trial, const char **ret_call) {
        int64_t started;
        int r;

        *ret_call = "cuCtxSetCurrent()";
        r = trial_enter(trial);
        if (r != 0)
                return r;
        *ret_call = "cuMemcpyDtoH()";
        child_calls(trial->gpu ? *ret_call : "reading");
        r = trial_read(trial);
        if (r != 0)
                return r;
        child_tell("zero", "%d", is_zero(trial->back));
        *ret_call = "cuMemcpyHtoD()";
        child_calls(trial->gpu ? *ret_call : "writing");
        started = now_usec();
        r = trial_write(trial);
        if (r != 0)
                return r;
        tell_time("write", started);
        *ret_call = "cuMemcpyDtoH()";
        child_calls(trial->gpu ? *ret_call : "reading");
        started = now_usec();
        r = trial_read(trial);
        if (r != 0)
                return r;
        tell_time("read", started);
        child_tell("same", "%d", memcmp(trial->here, trial->back, TRIAL_BYTES) == 0);
        return 0;
}

static int trial_use(struct trial *trial) {
        gpuipc_error error;
        const char *call;
        int64_t started = now_usec();
        int r;

        child_calls("gpuipc_buffer_map()");
        if (gpuipc_buffer_map(trial->buffer, &trial->memory, &error) != GPUIPC_OK)
                return failed("map", &error);
        tell_time("map", started);
        if (gpuipc_buffer_is_peer(trial->buffer))
                child_tell("peer", "%d", gpuipc_buffer_cuda_device(trial->buffer));
        r = trial_copy(trial, &call);
        if (r != 0)
                return failed_driver(trial, call, r);
        child_calls("gpuipc_release()");
        started = now_usec();
        if (gpuipc_release(trial->buffer, &error) != GPUIPC_OK)
                return failed("release", &error);
        tell_time("release", started);
        return EXIT_SUCCESS;
}

int child_trial(const char *socket, const char *device, const char *handle, int timeout_ms) {
        gpuipc_connect_options connect = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_allocate_options options = GPUIPC_ALLOCATE_OPTIONS_INIT;
        struct trial trial = { .gpu = strcmp(device, "host") != 0 };
        gpuipc_error error;
        char why[200];
        int64_t started;

        trial.here = malloc(TRIAL_BYTES);
        trial.back = malloc(TRIAL_BYTES);
        if (!trial.here || !trial.back)
                return EXIT_FAILURE;
        for (size_t i = 0; i < TRIAL_BYTES; i++)
                trial.here[i] = (unsigned char)(i * 2654435761u >> 13 | 1);
        if (trial.gpu && driver_load(&trial.driver, why, sizeof(why)) < 0) {
                child_tell("error", "map %s %s", doctor_code_id(DOCTOR_NO_DRIVER_LIBRARY), why);
                return EXIT_SUCCESS;
        }
        connect.socket_path = socket;
        connect.timeout_ms = timeout_ms;
        connect.restart_ms = -1;
        child_calls("gpuipc_allocate()");
        if (gpuipc_connect(&connect, &trial.client, &error) != GPUIPC_OK)
                return failed("allocate", &error);
        options.device = device;
        options.handle = handle;
        options.label = "gpuipcctl doctor";
        started = now_usec();
        if (gpuipc_allocate(trial.client, (int64_t)TRIAL_BYTES, &options, &trial.buffer, &error) != GPUIPC_OK)
                return failed("allocate", &error);
        tell_time("allocate", started);
        return trial_use(&trial);
}
