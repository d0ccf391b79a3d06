/* SPDX-License-Identifier: Apache-2.0 */
/* What CUDA is like here: the library, its version, its GPUs. Runs in a child and makes no context. */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "child.h"
#include "driver.h"

static void tell_library(const struct driver *driver) {
        char path[PATH_MAX];
        Dl_info info;

        if (dladdr((void *)(uintptr_t)driver->cuInit, &info) && info.dli_fname && realpath(info.dli_fname, path))
                child_tell("library", "%s", path);
}

/* A runtime that is a library of its own; most programs have it inside. */
static void tell_runtime(void) {
        static const char *const sonames[] = { "libcudart.so.14", "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0" };

        for (size_t i = 0; i < sizeof(sonames) / sizeof(sonames[0]); i++) {
                void *library = dlopen(sonames[i], RTLD_NOW | RTLD_LOCAL);
                int (*get)(int *version) = library ? (int (*)(int *))dlsym(library, "cudaRuntimeGetVersion") : NULL;
                int version = 0;

                if (!get)
                        continue;
                child_calls("cudaRuntimeGetVersion()");
                if (get(&version) == 0)
                        child_tell("runtime", "%d %s", version, sonames[i]);
                return;
        }
}

static int attribute(const struct driver *driver, int which, int device) {
        int value = 0;

        return driver->cuDeviceGetAttribute(&value, which, device) == 0 && value;
}

static int tell_device(const struct driver *driver, int ordinal) {
        struct driver_uuid uuid = { { 0 } };
        const unsigned char *b = uuid.bytes;
        char name[96] = "";
        int device = 0, mig, r = driver->cuDeviceGet(&device, ordinal);

        if (r == 0)
                r = driver->cuDeviceGetUuid(&uuid, device);
        if (r == 0)
                r = driver->cuDeviceGetName(name, (int)sizeof(name) - 1, device);
        if (r != 0)
                return r;
        mig = strstr(name, " MIG ") != NULL;
        child_tell("gpu", "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x %d %d %d %d %d %s",
                   mig ? "MIG" : "GPU", b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
                   b[14], b[15], mig, attribute(driver, DRIVER_VMM, device), attribute(driver, DRIVER_FD, device),
                   attribute(driver, DRIVER_MEMOPS, device) || attribute(driver, DRIVER_MEMOPS_V1, device),
                   attribute(driver, DRIVER_INTEGRATED, device), name);
        return 0;
}

static int refused(const struct driver *driver, const char *call, int result) {
        char words[200];

        driver_words(driver, result, words, sizeof(words));
        child_tell("refused", "%d %s says %s", result, call, words);
        return EXIT_SUCCESS;
}

int child_probe(void) {
        struct driver driver = { 0 };
        char why[256] = "";
        int r, n = 0, version = 0;

        child_calls("the loader of libcuda.so.1");
        r = driver_load(&driver, why, sizeof(why));
        if (r < 0) {
                child_tell(r == -ENOSYS ? "old" : "absent", "%s", why);
                return EXIT_SUCCESS;
        }
        tell_library(&driver);
        child_calls("cuInit()");
        r = driver.cuInit(0);
        if (driver.cuDriverGetVersion(&version) == 0)
                child_tell("driver", "%d", version);
        if (r != 0)
                return refused(&driver, "cuInit()", r);
        child_calls("cuDeviceGetCount()");
        r = driver.cuDeviceGetCount(&n);
        child_calls("cuDeviceGet()");
        for (int i = 0; i < n && r == 0; i++)
                r = tell_device(&driver, i);
        if (r != 0)
                return refused(&driver, "cuDeviceGet()", r);
        tell_runtime();
        return EXIT_SUCCESS;
}
