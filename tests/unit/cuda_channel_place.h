/* SPDX-License-Identifier: Apache-2.0 */
/* A channel on a false GPU, with its streams, and gates in them. Fails the test (Check) when it cannot be had. */
#ifndef UNIT_CUDA_CHANNEL_PLACE_H
#define UNIT_CUDA_CHANNEL_PLACE_H

#include <stdbool.h>

#include "channel_house.h"
#include "cuda_gpus.h"

#define GATES (8 * 128) /* where they begin, in bytes */

extern struct house house;
extern gpuipc_channel *producer, *consumer;
extern gpuipc_error fault;
extern gpuipc_item item, second;

/* Makes the GPU's primary context current. */
void use_gpu(int device);
CUstream stream_new(void);

/* The machine that gpus_start() made, and memory for a channel, all zero; before that, processes that are to be members. */
struct house_plan plan_of(enum ring_mode mode, enum ring_policy policy, uint32_t n_slots);
void place(const struct house_plan *plan, const char *script);

/* All of it, with a producer and a consumer on the first GPU; and without them again. */
void begin(enum ring_mode mode, enum ring_policy policy, uint32_t n_slots);
void leave(gpuipc_channel *channel);
void close_all(void);
void finish(void);

/* A gate is a word that a stream waits for, beyond the members' own. */
CUdeviceptr gate_of(gpuipc_channel *channel, int gate);
void stop_at(gpuipc_channel *channel, CUstream stream, int gate);
void open_gate(gpuipc_channel *channel, int gate);
bool is_busy(CUstream stream);
void settle(CUstream stream);

/* Calls that must succeed, with what the library said in `fault`; each byte of a published slot is written by the stream. */
void good(int status);
void publish(gpuipc_channel *channel, CUstream stream, unsigned char byte);
void take(gpuipc_channel *channel, CUstream stream, gpuipc_item *ret_item);

#endif
