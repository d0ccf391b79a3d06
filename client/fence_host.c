/* SPDX-License-Identifier: Apache-2.0 */
/* Fences in host memory: an atomic word, and a futex on its lower half, which is shared by whoever maps the memory. Any thread enters.
 * Never sleeps for long at a time: a store that wakes nobody, or that changes the upper half alone, must be seen too. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "deadline.h"
#include "doctor_codes.h"
#include "error.h"
#include "fence.h"
#ifdef HAVE_CUDA
#include "cuda_stream.h"
#endif

#define REST_USEC 20000

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the lower half of a word comes first");

static _Atomic uint64_t *word_of(const gpuipc_fence *fence) {
        return fence->word;
}

static int host_open(gpuipc_fence *fence, gpuipc_error *ret_error) {
        (void)ret_error;
        fence->synchronous = true;
        return GPUIPC_OK;
}

static void host_close(gpuipc_fence *fence) {
        (void)fence;
}

/* Whoever sees the value sees what was written before it. */
static int host_load(const gpuipc_fence *fence, uint64_t *ret_value, gpuipc_error *ret_error) {
        (void)ret_error;
        *ret_value = atomic_load_explicit(word_of(fence), memory_order_acquire);
        return GPUIPC_OK;
}

static int host_store(const gpuipc_fence *fence, uint64_t value, gpuipc_error *ret_error) {
        (void)ret_error;
        atomic_store_explicit(word_of(fence), value, memory_order_release);
        (void)syscall(SYS_futex, fence->word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
        return GPUIPC_OK;
}

static void host_rest(const gpuipc_fence *fence, uint64_t seen, int64_t deadline, unsigned *pause_usec) {
        int64_t left = deadline == DEADLINE_NONE ? REST_USEC : deadline - clock_usec();
        struct timespec timeout = usec_to_timespec(left < REST_USEC ? left : REST_USEC);

        (void)pause_usec;
        (void)syscall(SYS_futex, fence->word, FUTEX_WAIT, (uint32_t)seen, &timeout, NULL, 0);
}

/* Work of a stream reaches host memory once the stream is waited for. */
static int host_stream_signal(gpuipc_fence *fence, void *stream, uint64_t value, gpuipc_error *ret_error) {
        int r = GPUIPC_OK;

        if (stream) {
#ifdef HAVE_CUDA
                r = cuda_stream_settle(stream, NULL, ret_error);
#else
                r = error_set(ret_error, GPUIPC_ERROR_MAP, 0, "stream",
                              "The fence cannot be signalled by a stream: this library was built without CUDA. [%s]",
                              doctor_code_id(DOCTOR_WITHOUT_CUDA));
#endif
        }
        return r == GPUIPC_OK ? host_store(fence, value, ret_error) : r;
}

const struct fence_kind fence_host = { .open = host_open, .close = host_close, .load = host_load, .store = host_store,
                                       .rest = host_rest, .stream_signal = host_stream_signal };
