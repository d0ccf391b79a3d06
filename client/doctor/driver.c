/* SPDX-License-Identifier: Apache-2.0 */
/* libcuda.so.1 as a table. Runs in a child. */
#include "driver.h"

#include <stdio.h>

#include "proto/cleanup.h"
#include "proto/symbols.h"

#define ROW(member, symbol) { symbol, offsetof(struct driver, member), false }

int driver_load(struct driver *driver, char *ret_why, size_t n) {
        static const char *const sonames[] = { "libcuda.so.1", NULL };
        static const struct symbol symbols[] = {
                ROW(cuInit, "cuInit"),
                ROW(cuDriverGetVersion, "cuDriverGetVersion"),
                ROW(cuGetErrorName, "cuGetErrorName"),
                ROW(cuGetErrorString, "cuGetErrorString"),
                ROW(cuDeviceGetCount, "cuDeviceGetCount"),
                ROW(cuDeviceGet, "cuDeviceGet"),
                ROW(cuDeviceGetName, "cuDeviceGetName"),
                ROW(cuDeviceGetUuid, "cuDeviceGetUuid_v2"),
                ROW(cuDeviceGetAttribute, "cuDeviceGetAttribute"),
                ROW(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain"),
                ROW(cuCtxSetCurrent, "cuCtxSetCurrent"),
                ROW(cuMemcpyHtoD, "cuMemcpyHtoD_v2"),
                ROW(cuMemcpyDtoH, "cuMemcpyDtoH_v2"),
        };

        return symbols_load(sonames, symbols, ELEMENTSOF(symbols), driver, ret_why, n);
}

void driver_words(const struct driver *driver, int result, char *ret, size_t n) {
        const char *name = NULL, *text = NULL;

        if (driver->cuGetErrorName(result, &name) != 0 || !name)
                name = "an error unknown to the driver";
        if (driver->cuGetErrorString(result, &text) != 0 || !text)
                text = "";
        (void)snprintf(ret, n, "%s (%d)%s%s", name, result, text[0] ? ": " : "", text);
}
