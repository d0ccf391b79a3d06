/* SPDX-License-Identifier: Apache-2.0 */
/* A buffer on a GPU with two fences in it, and perhaps another process that has it too. Fails the test (Check) when it cannot be had. */
#ifndef UNIT_CUDA_FENCE_PLACE_H
#define UNIT_CUDA_FENCE_PLACE_H

#include <stdbool.h>

#include "cuda_gpus.h"

#define PEER_ROUNDS 200
#define PEER_SLOT 512 /* where the peer writes, in bytes */

struct place {
        struct desk desk;
        struct owner owner;
        gpuipc_buffer *buffer;
        void *pointer;                      /* its first byte, which the processor reaches on these GPUs */
        gpuipc_fence *produced, *consumed;  /* its first two words, 0 */
        bool shared;
};

/* The first GPU's memory, mapped for it, in its primary context, which is current to the test. `kind` is the handle's. */
void place_start(struct place *place, const char *script, const char *kind, gpuipc_access access);
void place_stop(struct place *place);

/* What the other process does with its stream: write slots (by PEER_ROUNDS sets, each byte the round) and have `produced` follow as 2^32
 * and the round, each but the first after `consumed` has followed; or wait for `produced` to be 1, then signal `consumed`. It says 'w' once
 * its stream waits. */
enum peer { PEER_PRODUCES, PEER_WAITS };
void place_start_with_peer(struct place *place, const char *kind, enum peer peer, struct child *ret_child);

/* Of the test's own, in the current context. */
CUstream place_stream(bool blocking);

CUdeviceptr place_at(const struct place *place, size_t offset);
uint64_t place_value(gpuipc_fence *fence);

/* Writes a word through the descriptor of the memory. */
void place_poke(const struct place *place, size_t offset, uint64_t value);

/* The driver that the library will find has no stream memory operations. Before place_start(). */
void place_load_old_driver(void);

#endif
