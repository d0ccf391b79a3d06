/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges for Nsight Systems and other NVTX tools, in the domain "gpuipc". Without a tool a range costs one test of a pointer. */
#ifndef CLIENT_TRACE_H
#define CLIENT_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/cleanup.h"

enum trace_range {
        TRACE_ALLOCATE,
        TRACE_OPEN,
        TRACE_MAP,
        TRACE_RELEASE,
        TRACE_FENCE_SIGNAL,
        TRACE_FENCE_WAIT,
        TRACE_PUBLISH,
        TRACE_CHANNEL_WAIT,
        N_TRACE_RANGES,
};

/* Whether a range was begun. `payload` goes with it: bytes, a fence's value, or an item's ticket. */
bool trace_begin(enum trace_range range, int64_t payload);
void trace_end(bool *begun);

/* From here to the end of the scope. */
#define trace_scope(range, payload)                                                                          \
        _cleanup_(trace_end) bool _trace_begun = trace_begin((range), (payload));                            \
        (void)_trace_begun

#endif
