/* SPDX-License-Identifier: Apache-2.0 */
/* Fences as the caller sees them: what may be asked of which, and waiting with a deadline. Any thread enters. Never talks to the daemon,
 * and never touches a word that is not inside its buffer. */
#include "fence.h"

#include "buffer.h"
#include "deadline.h"
#include "error.h"
#include "proto/cleanup.h"
#include "trace.h"

#define WORD_BYTES ((int64_t)sizeof(uint64_t))

static const struct fence_kind *kind_of(const gpuipc_fence *fence) {
        return fence->mapping->kind->fences;
}

/* ---- making ----------------------------------------------------------------------------------------------- */

void gpuipc_fence_free(gpuipc_fence *fence) {
        if (!fence)
                return;
        if (fence->side && process_is(fence->mark))
                kind_of(fence)->close(fence);
        mapping_put(fence->mapping);
        free(fence);
}

static void fence_freep(gpuipc_fence **fence) {
        gpuipc_fence_free(*fence);
}

static int offset_check(const gpuipc_buffer *buffer, int64_t offset, gpuipc_error *ret_error) {
        if (offset < 0 || buffer->size < WORD_BYTES || offset > buffer->size - WORD_BYTES)
                return error_parameter(ret_error, "offset", "that of eight bytes inside the buffer (gpuipc_buffer_size())");
        if (offset % WORD_BYTES != 0)
                return error_parameter(ret_error, "offset", "a multiple of 8");
        return GPUIPC_OK;
}

int fence_open(struct mapping *mapping, int64_t offset, gpuipc_fence **ret_fence, gpuipc_error *ret_error) {
        _cleanup_(fence_freep) gpuipc_fence *fence = NULL;
        int r;

        if (((uintptr_t)mapping->pointer + (uintptr_t)offset) % sizeof(uint64_t) != 0)
                return error_parameter(ret_error, "buffer", "one that starts at a multiple of 8 in its handle (gpuipc_buffer_offset())");
        fence = calloc(1, sizeof(*fence));
        if (!fence)
                return error_no_memory(ret_error);
        fence->mark = process_mark();
        fence->mapping = mapping_ref(mapping);
        fence->word = (char *)mapping->pointer + offset;
        r = kind_of(fence)->open(fence, ret_error);
        if (r != GPUIPC_OK)
                return r;
        *ret_fence = take_ptr(fence);
        return GPUIPC_OK;
}

int gpuipc_fence_new(gpuipc_buffer *buffer, int64_t offset, gpuipc_fence **ret_fence, gpuipc_error *ret_error) {
        void *pointer;
        int r;

        if (!buffer)
                return error_parameter(ret_error, "buffer", "one made by gpuipc_allocate() or gpuipc_open_…()");
        if (!ret_fence)
                return error_parameter(ret_error, "ret_fence", "a pointer to where the fence goes");
        r = offset_check(buffer, offset, ret_error);
        if (r == GPUIPC_OK)
                r = gpuipc_buffer_map(buffer, &pointer, ret_error);
        return r == GPUIPC_OK ? fence_open(buffer->mapping, offset, ret_fence, ret_error) : r;
}

int gpuipc_fence_is_synchronous(const gpuipc_fence *fence) {
        return fence->synchronous;
}

/* ---- using ------------------------------------------------------------------------------------------------ */

static int fence_check(const gpuipc_fence *fence, gpuipc_error *ret_error) {
        if (!fence)
                return error_parameter(ret_error, "fence", "one made by gpuipc_fence_new()");
        if (!process_is(fence->mark))
                return error_set(ret_error, GPUIPC_ERROR_FORKED, 0, "fence",
                                 "This fence was made before fork() and belongs to the parent process. Connect and make it anew.");
        return GPUIPC_OK;
}

static int fence_check_signal(const gpuipc_fence *fence, gpuipc_error *ret_error) {
        int r = fence_check(fence, ret_error);

        if (r == GPUIPC_OK && fence->mapping->access == GPUIPC_RO)
                return error_parameter(ret_error, "fence", "of a buffer opened rw: this one was opened ro, and can be waited for only");
        return r;
}

int gpuipc_fence_signal(gpuipc_fence *fence, uint64_t value, gpuipc_error *ret_error) {
        int r = fence_check_signal(fence, ret_error);

        if (r != GPUIPC_OK)
                return r;
        trace_scope(TRACE_FENCE_SIGNAL, (int64_t)value);
        return kind_of(fence)->store(fence, value, ret_error);
}

int gpuipc_fence_signal_stream(gpuipc_fence *fence, void *stream, uint64_t value, gpuipc_error *ret_error) {
        int r = fence_check_signal(fence, ret_error);

        if (r != GPUIPC_OK)
                return r;
        trace_scope(TRACE_FENCE_SIGNAL, (int64_t)value);
        return kind_of(fence)->stream_signal(fence, stream, value, ret_error);
}

int gpuipc_fence_query(gpuipc_fence *fence, uint64_t *ret_value, gpuipc_error *ret_error) {
        int r = fence_check(fence, ret_error);

        if (r == GPUIPC_OK && !ret_value)
                return error_parameter(ret_error, "ret_value", "a pointer to where the value goes");
        return r == GPUIPC_OK ? kind_of(fence)->load(fence, ret_value, ret_error) : r;
}

static int late(uint64_t word, uint64_t value, int timeout_ms, gpuipc_error *ret_error) {
        return error_set(ret_error, GPUIPC_ERROR_TIMED_OUT, 0, "fence",
                         "The fence has not reached %llu within %d ms, it is at %llu. Whoever is to signal it is slow, stuck or gone.",
                         (unsigned long long)value, timeout_ms, (unsigned long long)word);
}

static int wait_here(const gpuipc_fence *fence, uint64_t value, int timeout_ms, gpuipc_error *ret_error) {
        int64_t deadline = deadline_after_ms(timeout_ms);
        unsigned pause_usec = 0;
        uint64_t word;

        for (;;) {
                int r = kind_of(fence)->load(fence, &word, ret_error);

                if (r != GPUIPC_OK || fence_reached(word, value))
                        return r;
                if (timeout_ms == 0 || (deadline != DEADLINE_NONE && clock_usec() >= deadline))
                        return late(word, value, timeout_ms, ret_error);
                kind_of(fence)->rest(fence, word, deadline, &pause_usec);
        }
}

int gpuipc_fence_wait(gpuipc_fence *fence, uint64_t value, int timeout_ms, gpuipc_error *ret_error) {
        int r = fence_check(fence, ret_error);

        if (r != GPUIPC_OK)
                return r;
        trace_scope(TRACE_FENCE_WAIT, (int64_t)value);
        return wait_here(fence, value, timeout_ms, ret_error);
}

int gpuipc_fence_wait_stream(gpuipc_fence *fence, void *stream, uint64_t value, int timeout_ms, gpuipc_error *ret_error) {
        int r = fence_check(fence, ret_error);

        if (r != GPUIPC_OK)
                return r;
        trace_scope(TRACE_FENCE_WAIT, (int64_t)value);
        if (fence->synchronous)
                return wait_here(fence, value, timeout_ms, ret_error);
        return kind_of(fence)->stream_steps(&(struct fence_step){ .fence = fence, .value = value }, 1, stream, ret_error);
}

int fence_steps(const struct fence_step *steps, size_t n, void *stream, gpuipc_error *ret_error) {
        trace_scope(n > 0 && steps[n - 1].signals ? TRACE_FENCE_SIGNAL : TRACE_FENCE_WAIT, n > 0 ? (int64_t)steps[n - 1].value : 0);
        return n > 0 ? kind_of(steps[0].fence)->stream_steps(steps, n, stream, ret_error) : GPUIPC_OK;
}
