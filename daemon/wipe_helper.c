/* SPDX-License-Identifier: Apache-2.0 */
/* The wiping helper: a process of its own that has a context for as long as it lives. One thread. Knows nothing of the daemon but the
 * descriptor and the numbers it was given; dies with it. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "cuda_api.h"
#include "proto/cleanup.h"
#include "wipe.h"

#define MEMORY_FD 3
#define LOOK_BYTES 4096
#define LOOK_EVERY ((size_t)64 << 20)

static int say(const char *text) {
        ssize_t n = write(STDOUT_FILENO, text, strlen(text));

        (void)n;
        return 1;
}

static int say_failed(const struct cuda_api *api, CUresult result, const char *call) {
        struct backend_detail detail;
        int r = cuda_fail(api, &detail, result, call);

        say(detail.text);
        return r == -ENOMEM ? WIPE_NO_MEMORY : 1;
}

#define CALL(api, function, ...)                                                                                        \
        do {                                                                                                            \
                CUresult result_ = (api)->function(__VA_ARGS__);                                                        \
                if (result_ != CUDA_SUCCESS)                                                                            \
                        return say_failed(api, result_, #function);                                                     \
        } while (0)

/* The one device that is visible has to be the one that was meant. */
static int helper_enter(const struct cuda_api *api, const char *uuid, CUdevice *ret_device) {
        char text[CUDA_UUID_SIZE];
        CUcontext context;
        CUuuid found;

        CALL(api, cuDeviceGet, ret_device, 0);
        CALL(api, cuDeviceGetUuid_v2, &found, *ret_device);
        cuda_uuid_print(&found, false, text);
        if (strcasecmp(text + 4, uuid + 4) != 0)
                return say("another device answers to its name");
        CALL(api, cuDevicePrimaryCtxRetain, &context, *ret_device);
        CALL(api, cuCtxSetCurrent, context);
        return 0;
}

static int helper_map(const struct cuda_api *api, CUdevice device, size_t bytes, CUdeviceptr *ret) {
        CUmemAccessDesc access = {
                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        CUmemGenericAllocationHandle handle;

        CALL(api, cuMemImportFromShareableHandle, &handle, (void *)(uintptr_t)MEMORY_FD, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        CALL(api, cuMemAddressReserve, ret, bytes, 0, 0, 0);
        CALL(api, cuMemMap, *ret, bytes, 0, handle, 0);
        CALL(api, cuMemSetAccess, *ret, bytes, &access, 1);
        return 0;
}

/* Reading all of it back would take longer than all else: a look now and then shows whether the clearing did what it said. */
static int helper_look(const struct cuda_api *api, CUdeviceptr start, size_t bytes) {
        static const unsigned char clear[LOOK_BYTES];
        unsigned char seen[LOOK_BYTES];

        for (size_t at = 0;; at = at + LOOK_EVERY < bytes - LOOK_BYTES ? at + LOOK_EVERY : bytes - LOOK_BYTES) {
                CALL(api, cuMemcpyDtoH, seen, start + at, LOOK_BYTES);
                if (memcmp(seen, clear, LOOK_BYTES) != 0)
                        return say("the memory is not clear afterwards");
                if (at == bytes - LOOK_BYTES)
                        return 0;
        }
}

static int helper_wipe(const char *uuid, size_t bytes) {
        struct cuda_api api;
        char why[160];
        CUdeviceptr start;
        CUdevice device;
        int r;

        if (cuda_api_load(&api, why, sizeof(why)) < 0)
                return say(why);
        CALL(&api, cuInit, 0);
        r = helper_enter(&api, uuid, &device);
        if (r == 0)
                r = helper_map(&api, device, bytes, &start);
        if (r != 0)
                return r;
        CALL(&api, cuMemsetD8, start, 0, bytes);
        CALL(&api, cuCtxSynchronize, );
        return helper_look(&api, start, bytes);
}

int wipe_main(int argc, char *argv[]) {
        char *end = NULL;
        unsigned long long bytes = argc == 4 ? strtoull(argv[3], &end, 10) : 0;

        if (argc != 4 || *end || bytes < LOOK_BYTES || strlen(argv[2]) < 5)
                return say("not started by the daemon");
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (setenv("CUDA_VISIBLE_DEVICES", argv[2], 1) < 0)
                return say("out of memory");
        /* The driver's own clearing up takes longer than the kernel's. */
        _exit(helper_wipe(argv[2], bytes));
}
