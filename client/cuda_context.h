/* SPDX-License-Identifier: Apache-2.0 */
/* The context that a mapping is made in: the caller's own, or for want of one the device's primary context. */
#ifndef CLIENT_CUDA_CONTEXT_H
#define CLIENT_CUDA_CONTEXT_H

#include "cuda_device.h"

struct cuda_context {
        const struct cuda_device *device;
        CUcontext pushed;  /* NULL: the caller's own is current */
        CUcontext current; /* of cuda_context_enter_this() alone: what it was asked for */
        bool retained;    /* the device's primary context is held */
};

/* Sees to it that a context is current: when there is none, retains the primary one of `device` and pushes it. */
int cuda_context_enter(const struct cuda *cuda, const struct cuda_device *device, struct cuda_context *ret,
                       gpuipc_error *ret_error);

/* The same, and the context is of `device`: another GPU's that is current does not serve. */
int cuda_context_enter_own(const struct cuda *cuda, const struct cuda_device *device, struct cuda_context *ret,
                           gpuipc_error *ret_error);

/* The same, and it is this one, of whichever GPU; `device` of the outcome is unknown. `what` begins the sentence that says what failed. */
int cuda_context_enter_this(const struct cuda *cuda, CUcontext context, const char *what, struct cuda_context *ret,
                            gpuipc_error *ret_error);

/* What was current before is current again. Keeps the primary context held, or lets go of it. */
void cuda_context_leave(const struct cuda *cuda, struct cuda_context *context, bool keep);

/* What a mapping held. */
void cuda_context_release(const struct cuda *cuda, int ordinal);

#endif
