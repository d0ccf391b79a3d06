/* SPDX-License-Identifier: Apache-2.0 */
/* The program's streams, given as void *. */
#ifndef CLIENT_CUDA_STREAM_H
#define CLIENT_CUDA_STREAM_H

#include "cuda_context.h"
#include "include/gpuipc.h"

/* Makes the stream's context current; `otherwise` (may be NULL) where it is a default stream and none is current. To be left with
 * cuda_context_leave(). `what` begins the sentence that says what failed. GPUIPC_ERROR_MAP. */
int cuda_stream_enter(const struct cuda *cuda, CUstream stream, CUcontext otherwise, const char *what, struct cuda_context *ret,
                      gpuipc_error *ret_error);

/* Waits until all that the stream was given is done, in whatever context; `otherwise` as above. GPUIPC_ERROR_MAP. */
int cuda_stream_settle(void *stream, CUcontext otherwise, gpuipc_error *ret_error);

#endif
