/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts, and each thread's stack of them. Under the driver's lock; a context's struct is never freed, since threads may
 * still have it on their stacks. */
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#define STACK 16

static struct context primaries[MACHINE_DEVICES];
static struct context *others;
static _Thread_local struct context *stack[STACK];
static _Thread_local int n_stack;

static struct context *top(void) {
        return n_stack > 0 ? stack[n_stack - 1] : NULL;
}

struct context *context_current(void) {
        struct context *context = top();
        return context && context->alive ? context : NULL;
}

int context_device(void) {
        struct context *context = context_current();
        return context ? context->device : -1;
}

CUresult context_error(void) {
        return top() ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult context_start(struct context *context, int device) {
        int r = books_new(device, PIECE_CONTEXT, script_get()->context_bytes, NULL, &context->cost);
        if (r < 0)
                return result_of(r);
        context->device = device;
        context->alive = true;
        context->lost = CUDA_SUCCESS;
        return CUDA_SUCCESS;
}

static void context_end(struct context *context) {
        if (!context->alive)
                return;
        streams_end(context);
        classic_end_context(context);
        context->alive = false;
        books_drop(context->cost);
}

static struct context *context_of(CUcontext handle) {
        struct context *wanted = (struct context *)(void *)handle;

        if (wanted >= primaries && wanted < primaries + MACHINE_DEVICES)
                return wanted;
        for (struct context *context = others; context; context = context->next)
                if (context == wanted)
                        return context;
        return NULL;
}

static CUcontext handle_of(struct context *context) {
        return (CUcontext)(void *)context;
}

static CUresult primary_retain(CUcontext *ret, CUdevice ordinal) {
        int device = process_device(ordinal);

        if (!ret)
                return CUDA_ERROR_INVALID_VALUE;
        if (device < 0)
                return CUDA_ERROR_INVALID_DEVICE;
        struct context *context = &primaries[device];
        if (!context->alive) {
                CUresult result = context_start(context, device);
                if (result != CUDA_SUCCESS)
                        return result;
                context->primary = true;
        }
        context->refs++;
        *ret = handle_of(context);
        return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev) {
        return DRIVER_CALL(process_device(dev), primary_retain(pctx, dev));
}

static CUresult primary_release(CUdevice ordinal) {
        int device = process_device(ordinal);

        if (device < 0)
                return CUDA_ERROR_INVALID_DEVICE;
        if (primaries[device].refs == 0)
                return CUDA_ERROR_INVALID_CONTEXT;
        if (--primaries[device].refs == 0)
                context_end(&primaries[device]);
        return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
        return DRIVER_CALL(process_device(dev), primary_release(dev));
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice dev) {
        return DRIVER_CALL(process_device(dev), primary_release(dev));
}

static CUresult primary_reset(CUdevice ordinal) {
        int device = process_device(ordinal);

        if (device < 0)
                return CUDA_ERROR_INVALID_DEVICE;
        context_end(&primaries[device]);
        primaries[device].refs = 0;
        return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
        return DRIVER_CALL(process_device(dev), primary_reset(dev));
}

EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice dev) {
        return DRIVER_CALL(process_device(dev), primary_reset(dev));
}

static CUresult primary_state(CUdevice ordinal, unsigned *ret_flags, int *ret_active) {
        int device = process_device(ordinal);

        if (device < 0)
                return CUDA_ERROR_INVALID_DEVICE;
        if (!ret_flags || !ret_active)
                return CUDA_ERROR_INVALID_VALUE;
        *ret_flags = 0;
        *ret_active = primaries[device].alive;
        return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active) {
        return DRIVER_CALL(process_device(dev), primary_state(dev, flags, active));
}

static CUresult push(struct context *context) {
        if (!context || !context->alive)
                return context ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
        if (n_stack == STACK)
                return CUDA_ERROR_OUT_OF_MEMORY;
        stack[n_stack++] = context;
        return CUDA_SUCCESS;
}

static CUresult context_create(CUcontext *ret, CUdevice ordinal) {
        int device = process_device(ordinal);

        if (!ret)
                return CUDA_ERROR_INVALID_VALUE;
        if (device < 0)
                return CUDA_ERROR_INVALID_DEVICE;
        struct context *context = calloc(1, sizeof(*context));
        if (!context)
                return CUDA_ERROR_OUT_OF_MEMORY;
        CUresult result = context_start(context, device);
        if (result != CUDA_SUCCESS) {
                free(context);
                return result;
        }
        context->next = others;
        others = context;
        *ret = handle_of(context);
        return push(context);
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev) {
        (void)flags;
        return DRIVER_CALL(process_device(dev), context_create(pctx, dev));
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *params, unsigned int flags, CUdevice dev) {
        (void)params;
        (void)flags;
        return DRIVER_CALL(process_device(dev), context_create(pctx, dev));
}

static CUresult context_destroy(CUcontext handle) {
        struct context *context = context_of(handle);

        if (!context || context->primary || !context->alive)
                return CUDA_ERROR_INVALID_CONTEXT;
        context_end(context);
        if (top() == context)
                n_stack--;
        return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext ctx) {
        return DRIVER_CALL(context_of(ctx) ? context_of(ctx)->device : -1, context_destroy(ctx));
}

static CUresult get_current(CUcontext *ret) {
        if (!ret)
                return CUDA_ERROR_INVALID_VALUE;
        *ret = handle_of(top());
        return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *pctx) {
        return DRIVER_CALL(context_device(), get_current(pctx));
}

static CUresult set_current(CUcontext handle) {
        struct context *context = context_of(handle);

        if (handle && (!context || !context->alive))
                return context ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
        if (n_stack > 0)
                n_stack--;
        return handle ? push(context) : CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext ctx) {
        return DRIVER_CALL(context_of(ctx) ? context_of(ctx)->device : -1, set_current(ctx));
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
        return DRIVER_CALL(context_of(ctx) ? context_of(ctx)->device : -1, push(context_of(ctx)));
}

static CUresult pop(CUcontext *ret) {
        if (n_stack == 0)
                return CUDA_ERROR_INVALID_CONTEXT;
        if (ret)
                *ret = handle_of(top());
        n_stack--;
        return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *pctx) {
        return DRIVER_CALL(context_device(), pop(pctx));
}

/* As on an H200. */
static CUresult priorities(int *ret_least, int *ret_greatest) {
        if (!context_current())
                return context_error();
        if (ret_least)
                *ret_least = 0;
        if (ret_greatest)
                *ret_greatest = -5;
        return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
        return DRIVER_CALL(context_device(), priorities(least, greatest));
}

static CUresult get_device(CUdevice *ret) {
        if (!context_current())
                return context_error();
        if (!ret)
                return CUDA_ERROR_INVALID_VALUE;
        *ret = process_ordinal(context_device());
        return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
        return DRIVER_CALL(context_device(), get_device(device));
}

EXPORT CUresult cuCtxSynchronize(void) {
        return DRIVER_CALL(context_device(), context_current() ? streams_drain(context_current()) : context_error());
}
