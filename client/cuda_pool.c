/* SPDX-License-Identifier: Apache-2.0 */
/* Pools on a GPU: ordinals to UUIDs, and whose context a block is mapped in. Any thread enters. The caller's current context is as before
 * afterwards; never calls the driver in a forked child. */
#include "cuda_context.h"
#include "error.h"
#include "pool.h"

static int no_such_device(int ordinal, size_t n, gpuipc_error *ret_error) {
        return error_set(ret_error, GPUIPC_ERROR_NO_SUCH_DEVICE, 0, "device",
                         "This process has no GPU %d: it sees %zu, counted from 0 as CUDA_VISIBLE_DEVICES has them.", ordinal, n);
}

int pool_cuda_enter(int ordinal, struct pool_place *ret_place, gpuipc_error *ret_error) {
        const struct cuda_device *device;
        struct cuda_context context;
        const struct cuda *cuda;
        int r = cuda_get(&cuda, ret_error);

        if (r != GPUIPC_OK)
                return r;
        device = cuda_device_at(cuda, ordinal);
        if (!device)
                return no_such_device(ordinal, cuda->n_devices, ret_error);
        r = cuda_context_enter_own(cuda, device, &context, ret_error);
        if (r != GPUIPC_OK)
                return r;
        *ret_place = (struct pool_place){ .ordinal = ordinal, .device = device->name, .retained = context.retained,
                                          .entered = true, .pushed = context.pushed };
        return GPUIPC_OK;
}

void pool_cuda_leave(struct pool_place *place, bool keep) {
        struct cuda_context context = { .pushed = place->pushed, .retained = place->retained };
        const struct cuda *cuda;

        if (!place->entered || cuda_get(&cuda, NULL) != GPUIPC_OK)
                return;
        context.device = cuda_device_at(cuda, place->ordinal);
        cuda_context_leave(cuda, &context, keep);
        place->retained = context.retained;
        place->entered = false;
}

void pool_cuda_settle(int ordinal) {
        struct pool_place place;
        const struct cuda *cuda;

        if (cuda_get(&cuda, NULL) != GPUIPC_OK || pool_cuda_enter(ordinal, &place, NULL) != GPUIPC_OK)
                return;
        (void)cuda->driver.cuCtxSynchronize();
        pool_cuda_leave(&place, false);
}

void pool_cuda_release(int ordinal) {
        const struct cuda *cuda;

        if (cuda_get(&cuda, NULL) == GPUIPC_OK)
                cuda_context_release(cuda, ordinal);
}
