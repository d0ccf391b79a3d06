/* SPDX-License-Identifier: Apache-2.0 */
/* Memory on a GPU is copied by the driver, found at run time, in the first GPU's primary context, which is then the thread's current one.
 * Any thread enters. */
#include "memory_kind.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *memory_kind(void) {
        static const char *const kinds[] = { "host", "fake-fd", "fake-ipc", "cuda-fd", "cuda-ipc" };
        const char *named = getenv("GPUIPC_TEST_BACKEND");

        if (!named)
                return kinds[0];
        for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
                if (strcmp(kinds[i], named) == 0)
                        return kinds[i];
        fprintf(stderr, "GPUIPC_TEST_BACKEND=%s: no such kind of memory\n", named);
        abort();
}

bool memory_is_host(void) {
        return strcmp(memory_kind(), "host") == 0;
}

bool memory_is_classic(void) {
        return strstr(memory_kind(), "-ipc") != NULL;
}

bool memory_is_real(void) {
        return strncmp(memory_kind(), "cuda", 4) == 0;
}

const char *memory_backend(void) {
        return memory_is_host() ? "host" : "cuda";
}

const char *memory_handle(void) {
        return memory_is_host() ? "memfd" : memory_is_classic() ? "cuda-ipc" : "cuda-fd";
}

int64_t memory_page(void) {
        return memory_is_host() ? 4096 : INT64_C(2) << 20;
}

/* ---- copies ------------------------------------------------------------------------------------------------ */

static struct {
        int (*cuInit)(unsigned flags);
        int (*cuDevicePrimaryCtxRetain)(void **context, int device);
        int (*cuCtxGetCurrent)(void **context);
        int (*cuCtxSetCurrent)(void *context);
        int (*cuMemcpyHtoD)(uint64_t to, const void *from, size_t n);
        int (*cuMemcpyDtoH)(void *to, uint64_t from, size_t n);
        int (*cuStreamSynchronize)(void *stream);
} driver;
static pthread_once_t driver_once = PTHREAD_ONCE_INIT;

static void check(int result, const char *call) {
        if (result == 0)
                return;
        fprintf(stderr, "%s: %d\n", call, result);
        abort();
}

static void find(void *library, const char *name, void *ret) {
        void *found = dlsym(library, name);

        check(found == NULL, name);
        memcpy(ret, &found, sizeof(found));
}

static void driver_load(void) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

        check(library == NULL, "libcuda.so.1");
        find(library, "cuInit", &driver.cuInit);
        find(library, "cuDevicePrimaryCtxRetain", &driver.cuDevicePrimaryCtxRetain);
        find(library, "cuCtxGetCurrent", &driver.cuCtxGetCurrent);
        find(library, "cuCtxSetCurrent", &driver.cuCtxSetCurrent);
        find(library, "cuMemcpyHtoD_v2", &driver.cuMemcpyHtoD);
        find(library, "cuMemcpyDtoH_v2", &driver.cuMemcpyDtoH);
        find(library, "cuStreamSynchronize", &driver.cuStreamSynchronize);
        check(driver.cuInit(0), "cuInit");
}

static void driver_enter(void) {
        void *context = NULL;

        (void)pthread_once(&driver_once, driver_load);
        check(driver.cuCtxGetCurrent(&context), "cuCtxGetCurrent");
        if (context)
                return;
        check(driver.cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
        check(driver.cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

void memory_write(void *memory, int64_t at, const void *bytes, size_t n) {
        if (memory_is_host()) {
                memcpy((char *)memory + at, bytes, n);
                return;
        }
        driver_enter();
        check(driver.cuMemcpyHtoD((uint64_t)(uintptr_t)memory + (uint64_t)at, bytes, n), "cuMemcpyHtoD");
        /* The copy may return with its last part under way, and another process is told that all is there. */
        check(driver.cuStreamSynchronize(NULL), "cuStreamSynchronize");
}

void memory_read(const void *memory, int64_t at, void *ret_bytes, size_t n) {
        if (memory_is_host()) {
                memcpy(ret_bytes, (const char *)memory + at, n);
                return;
        }
        driver_enter();
        check(driver.cuMemcpyDtoH(ret_bytes, (uint64_t)(uintptr_t)memory + (uint64_t)at, n), "cuMemcpyDtoH");
}

void memory_set(void *memory, int64_t at, unsigned char byte) {
        memory_write(memory, at, &byte, 1);
}

unsigned char memory_get(const void *memory, int64_t at) {
        unsigned char byte;

        memory_read(memory, at, &byte, 1);
        return byte;
}
