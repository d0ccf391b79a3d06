/* SPDX-License-Identifier: Apache-2.0 */
/* What streams are told of items: to wait for those who wrote and read before, and to say that they are done. Any thread enters. Waits for
 * the GPU only where it has no stream memory operations; makes as few calls of the driver's as there are moments to make them at.
 *
 * Each member has one fence, whose values are told to streams in their order. When the stream changes, the new one first waits for what
 * the one before was told, so that the word never says that something is done which is not. A stream given to a channel in host memory is
 * waited for, and where streams cannot wait, values are not used at all: what is published is written, what is released is read. */
#include "channel.h"
#include "deadline.h"
#include "doctor_codes.h"
#include "error.h"
#ifdef HAVE_CUDA
#include "cuda_side.h"
#include "cuda_stream.h"
#endif

_Static_assert(FENCE_STEPS_MAX >= RING_MEMBERS + 2, "a writer, all readers, and a signal");

/* What one call of the channel's has a stream do. */
struct steps {
        struct fence_step each[FENCE_STEPS_MAX];
        size_t n;
};

static bool is_on_gpu(const gpuipc_channel *channel) {
        return channel->fences[0] != NULL;
}

/* 0, 1 and 2 are other streams in other contexts and threads. */
static bool is_default(const void *stream) {
        return (uintptr_t)stream <= 2;
}

static int ms_left(int64_t deadline) {
        int64_t left;

        if (deadline == DEADLINE_NONE)
                return -1;
        left = (deadline - clock_usec() + 999) / 1000;
        return left < 0 ? 0 : left > INT32_MAX ? INT32_MAX : (int)left;
}

/* ---- waiting ---------------------------------------------------------------------------------------------- */

/* For a value of 0 there is nothing to wait for. */
static void wait_for(const gpuipc_channel *channel, struct steps *steps, unsigned member, uint64_t value) {
        if (value > 0)
                steps->each[steps->n++] = (struct fence_step){ .fence = channel->fences[member], .value = value };
}

static int steps_wait(const gpuipc_channel *channel, const struct steps *steps, void *stream, int64_t deadline, gpuipc_error *ret_error) {
        int r = GPUIPC_OK;

        if (!channel->synchronous)
                return fence_steps(steps->each, steps->n, stream, ret_error);
        for (size_t i = 0; r == GPUIPC_OK && i < steps->n; i++)
                r = gpuipc_fence_wait(steps->each[i].fence, steps->each[i].value, ms_left(deadline), ret_error);
        return r;
}

/* Whether what this member's fence was told comes before whatever the stream is given now. */
static bool is_in_order(gpuipc_channel *channel, const void *stream) {
        bool same;

        (void)pthread_mutex_lock(&channel->lock);
        same = !is_default(stream) && stream == channel->stream;
        (void)pthread_mutex_unlock(&channel->lock);
        return same;
}

int channel_fence_slot(gpuipc_channel *channel, void *stream, const struct ring_item *item, int64_t deadline, gpuipc_error *ret_error) {
        uint64_t values[RING_MEMBERS], readers;
        struct steps steps;

        if (!is_on_gpu(channel))
                return GPUIPC_OK;
        steps.n = 0;
        if (item->producer != channel->me || !is_in_order(channel, stream))
                wait_for(channel, &steps, item->producer, item->produced);
        if (channel->geometry.mode == RING_QUEUE)
                wait_for(channel, &steps, item->consumer, item->consumed);
        else
                for (readers = ring_reader_fences(channel->ring, values); readers; readers &= readers - 1) {
                        unsigned member = (unsigned)__builtin_ctzll(readers);
                        wait_for(channel, &steps, member, values[member]);
                }
        return steps_wait(channel, &steps, stream, deadline, ret_error);
}

int channel_fence_item(gpuipc_channel *channel, void *stream, const struct ring_item *item, int64_t deadline, gpuipc_error *ret_error) {
        struct steps steps;

        if (!is_on_gpu(channel))
                return GPUIPC_OK;
        steps.n = 0;
        wait_for(channel, &steps, item->producer, item->produced);
        return steps_wait(channel, &steps, stream, deadline, ret_error);
}

/* ---- done ------------------------------------------------------------------------------------------------- */

/* Waits until a stream is done, where that is all that can be. */
static int settle(const gpuipc_channel *channel, void *stream, gpuipc_error *ret_error) {
#ifdef HAVE_CUDA
        const struct cuda_side *side = is_on_gpu(channel) ? channel->fences[0]->side : NULL;

        if (side || stream)
                return cuda_stream_settle(stream, side ? side->context : NULL, ret_error);
#else
        if (stream)
                return error_set(ret_error, GPUIPC_ERROR_MAP, 0, "stream",
                                 "The item cannot follow the work of a stream: this library was built without CUDA. [%s]",
                                 doctor_code_id(DOCTOR_WITHOUT_CUDA));
#endif
        (void)channel;
        return GPUIPC_OK;
}

int channel_fence_done(gpuipc_channel *channel, void *stream, uint64_t *ret_value, gpuipc_error *ret_error) {
        gpuipc_fence *mine = channel->fences[channel->me];
        struct steps steps;
        uint64_t value;
        int r;

        *ret_value = 0;
        if (!mine || channel->synchronous)
                return settle(channel, stream, ret_error);
        steps.n = 0;
        (void)pthread_mutex_lock(&channel->lock);
        value = channel->value + 1;
        if (stream != channel->stream || is_default(stream))
                wait_for(channel, &steps, channel->me, channel->value);
        steps.each[steps.n++] = (struct fence_step){ .fence = mine, .value = value, .signals = true };
        r = fence_steps(steps.each, steps.n, stream, ret_error);
        if (r == GPUIPC_OK) {
                channel->value = *ret_value = value;
                channel->stream = stream;
                channel->told = true;
        }
        (void)pthread_mutex_unlock(&channel->lock);
        return r;
}
