/* SPDX-License-Identifier: Apache-2.0 */
/* What the agent has a GPU do with memory that is mapped: by kernels (kernels.cu), or by the processor over the memory of the fakes
 * (kernels_host.c). Each waits until it is done and returns a CUDA error number. */
#ifndef GPU_KERNELS_H
#define GPU_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KERNELS_ILLEGAL_ADDRESS 700
#define KERNELS_NOT_THERE 801

/* The word of a pattern at a place: unlike its neighbours, and unlike those of another seed. */
#define KERNELS_WORD(seed, i) (((uint64_t)(i) + 1 + ((uint64_t)(seed) << 40)) * UINT64_C(0x9E3779B97F4A7C15))

int kernels_fill(void *memory, size_t bytes, uint64_t seed);
/* Counts the words unlike the pattern, of which `first` is the first word expected. */
int kernels_differ(const void *memory, size_t bytes, uint64_t seed, size_t first, uint64_t *ret_words);
int kernels_nonzero(const void *memory, size_t bytes, uint64_t *ret_words);

/* Writes one word at the start. */
int kernels_poke(void *memory);

/* Reads all of it several times: bytes a second. */
int kernels_read_rate(const void *memory, size_t bytes, double *ret_rate);

/* A stream of this program's own on the current GPU, which waits for no other. Whether it has something to do; and waiting until not.
 * NULL is the default stream. */
int kernels_stream_make(void **ret_stream);
int kernels_stream_busy(void *stream, int *ret_busy);
int kernels_stream_settle(void *stream);
/* What is given to the stream after this begins so much later. */
int kernels_stream_delay(void *stream, uint64_t usec);

/* What the others do, given to a stream and not waited for: a slot gets a pattern, or its words unlike a pattern are counted, between
 * begin and end. */
int kernels_slots_begin(void);
int kernels_slot_fill(void *stream, void *slot, size_t bytes, uint64_t seed);
int kernels_slot_check(void *stream, const void *slot, size_t bytes, uint64_t seed);
int kernels_slots_end(uint64_t *ret_words);

/* A classic event handle: made here, or opened here. */
int kernels_event_make(unsigned char ret_handle[64]);
int kernels_event_open(const unsigned char handle[64]);

#ifdef __cplusplus
}
#endif

#endif
