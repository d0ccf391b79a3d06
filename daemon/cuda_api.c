/* SPDX-License-Identifier: Apache-2.0 */
/* The libraries found and their errors translated. Any thread that may block; never the loop's, but for reading what was written. */
#include "cuda_api.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/symbols.h"

#define TEXT_OF_(name) #name
#define TEXT_OF(name) TEXT_OF_(name)
#define DRIVER_SYMBOL(function) {TEXT_OF(function), offsetof(struct cuda_api, function), false},
#define RUNTIME_SYMBOL(function) {TEXT_OF(function), offsetof(struct cuda_runtime, function), false},

static const struct symbol driver_symbols[] = {CUDA_DRIVER_FUNCTIONS(DRIVER_SYMBOL)};
static const struct symbol runtime_symbols[] = {CUDA_RUNTIME_FUNCTIONS(RUNTIME_SYMBOL)};

/* Newest first. */
static const struct known_runtime {
        const char *soname;
        int major;
} known_runtimes[] = {
        {"libcudart.so.13", 13},
        {"libcudart.so.12", 12},
};

int cuda_api_load(struct cuda_api *api, char *ret_why, size_t n_why) {
        static const char *const sonames[] = {"libcuda.so.1", NULL};

        *api = (struct cuda_api){0};
        return symbols_load(sonames, driver_symbols, ELEMENTSOF(driver_symbols), api, ret_why, n_why);
}

int cuda_api_init(struct cuda_api *api, struct backend_detail *detail) {
        CUresult result = api->cuInit(0);

        if (result == CUDA_ERROR_NO_DEVICE) {
                cuda_fail(api, detail, result, "cuInit");
                return -ENODEV;
        }
        if (result != CUDA_SUCCESS)
                return cuda_fail(api, detail, result, "cuInit");
        result = api->cuDriverGetVersion(&api->version);
        if (result != CUDA_SUCCESS)
                return cuda_fail(api, detail, result, "cuDriverGetVersion");
        return 0;
}

/* A runtime is served by any driver of its own major version or a later one. */
static bool runtime_fits(const struct known_runtime *known, int driver_version) {
        return known->major <= driver_version / 1000;
}

int cuda_runtime_load(struct cuda_runtime *runtime, int driver_version, char *ret_why, size_t n_why) {
        char why[160] = "none is known for this driver";

        for (size_t i = 0; i < ELEMENTSOF(known_runtimes); i++) {
                const char *const sonames[] = {known_runtimes[i].soname, NULL};

                if (runtime_fits(&known_runtimes[i], driver_version) &&
                    symbols_load(sonames, runtime_symbols, ELEMENTSOF(runtime_symbols), runtime, why, sizeof(why)) == 0)
                        return 0;
        }
        snprintf(ret_why, n_why, "no CUDA runtime library, which makes classic handles, fits a driver for CUDA %d.%d: %s",
                 driver_version / 1000, driver_version % 1000 / 10, why);
        return -EOPNOTSUPP;
}

bool cuda_runtime_found(int driver_version) {
        for (size_t i = 0; i < ELEMENTSOF(known_runtimes); i++) {
                void *library = runtime_fits(&known_runtimes[i], driver_version)
                                        ? dlopen(known_runtimes[i].soname, RTLD_LAZY | RTLD_LOCAL)
                                        : NULL;

                if (!library)
                        continue;
                (void)dlclose(library);
                return true;
        }
        return false;
}

/* The two libraries number their errors alike, as far as both have them. */
int cuda_errno(int code) {
        switch (code) {
        case CUDA_ERROR_OUT_OF_MEMORY:
                return -ENOMEM;
        case CUDA_ERROR_INVALID_VALUE:
        case CUDA_ERROR_INVALID_HANDLE:
                return -EINVAL;
        case CUDA_ERROR_NOT_SUPPORTED:
        case cudaErrorInsufficientDriver:
                return -EOPNOTSUPP;
        case CUDA_ERROR_NOT_PERMITTED:
                return -EPERM;
        case CUDA_ERROR_OPERATING_SYSTEM:
                return -EAGAIN;
        default:
                return -EIO;
        }
}

static int fail(struct backend_detail *detail, const char *call, int code, const char *name, const char *text) {
        snprintf(detail->text, sizeof(detail->text), "%s: %s (%d)%s%s", call, name ? name : "unknown error", code, text ? ": " : "",
                 text ? text : "");
        detail->free_bytes = SCHEMA_UNSET;
        return cuda_errno(code);
}

int cuda_fail(const struct cuda_api *api, struct backend_detail *detail, CUresult result, const char *call) {
        const char *name = NULL, *text = NULL;

        (void)api->cuGetErrorName(result, &name);
        (void)api->cuGetErrorString(result, &text);
        return fail(detail, call, (int)result, name, text);
}

/* The runtime keeps a thread's last error for whoever asks next: it is taken away here. */
int cuda_runtime_fail(const struct cuda_runtime *runtime, struct backend_detail *detail, cudaError_t result, const char *call) {
        (void)runtime->cudaGetLastError();
        return fail(detail, call, (int)result, runtime->cudaGetErrorName(result), runtime->cudaGetErrorString(result));
}

void cuda_uuid_print(const CUuuid *uuid, bool mig, char ret[CUDA_UUID_SIZE]) {
        const unsigned char *b = (const unsigned char *)uuid->bytes;

        snprintf(ret, CUDA_UUID_SIZE, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", mig ? "MIG" : "GPU",
                 b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}
