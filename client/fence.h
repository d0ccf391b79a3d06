/* SPDX-License-Identifier: Apache-2.0 */
/* The fence: a 64-bit word in a mapping that someone waits for, on the processor or in a stream. */
#ifndef CLIENT_FENCE_H
#define CLIENT_FENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "include/gpuipc.h"
#include "map.h"
#include "process.h"

struct cuda_side;

/* Does not change once it is made. */
struct gpuipc_fence {
        struct process_mark mark;
        struct mapping *mapping; /* counted */
        void *word;              /* a host or a device pointer, aligned */
        bool synchronous;
        struct cuda_side *side;  /* counted; NULL on host */
};

/* What a stream is to do with a fence: wait until it has reached the value, or have it reach it. */
struct fence_step {
        gpuipc_fence *fence;
        uint64_t value;
        bool signals;
};
#define FENCE_STEPS_MAX 66 /* all members' of a channel, a writer's, and a signal */

/* One kind of memory. Any thread enters. Values have been checked; the word may be written where `store` or `stream_signal` is called. */
struct fence_kind {
        int (*open)(gpuipc_fence *fence, gpuipc_error *ret_error); /* fills synchronous and side */
        void (*close)(gpuipc_fence *fence);                        /* never in a forked child */
        int (*load)(const gpuipc_fence *fence, uint64_t *ret_value, gpuipc_error *ret_error);
        int (*store)(const gpuipc_fence *fence, uint64_t value, gpuipc_error *ret_error);
        /* A pause, or until something was written: from `seen` on, at most until the deadline. `*pause_usec` is the wait's own, 0 first. */
        void (*rest)(const gpuipc_fence *fence, uint64_t seen, int64_t deadline, unsigned *pause_usec);
        int (*stream_signal)(gpuipc_fence *fence, void *stream, uint64_t value, gpuipc_error *ret_error);
        /* NULL, or not called for synchronous fences. All of one mapping; at most FENCE_STEPS_MAX. */
        int (*stream_steps)(const struct fence_step *steps, size_t n, void *stream, gpuipc_error *ret_error);
};

extern const struct fence_kind fence_host;
extern const struct fence_kind fence_cuda; /* not in a build without CUDA */

/* The word at `offset` of a mapping, inside it and aligned. Takes a reference of its own. */
int fence_open(struct mapping *mapping, int64_t offset, gpuipc_fence **ret_fence, gpuipc_error *ret_error);

/* Gives all of it to the stream, in this order. The fences are of one mapping, and not synchronous. */
int fence_steps(const struct fence_step *steps, size_t n, void *stream, gpuipc_error *ret_error);

static inline bool fence_reached(uint64_t word, uint64_t value) {
        return (int64_t)(word - value) >= 0;
}

#endif
