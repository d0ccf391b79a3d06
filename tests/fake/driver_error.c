/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver calls its errors. Any thread; works before cuInit. */
#include "driver.h"
#include "errors.h"

static CUresult tell(CUresult error, bool name, const char **ret) {
        const struct error_text *known = error_find((int)error);

        if (!ret)
                return CUDA_ERROR_INVALID_VALUE;
        *ret = known && known->driver_name ? (name ? known->driver_name : known->text) : NULL;
        return *ret ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char **text) {
        return CALL(-1, tell(error, true, text));
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text) {
        return CALL(-1, tell(error, false, text));
}
