/* SPDX-License-Identifier: Apache-2.0 */
/* The library's own streams. Any thread enters. Made whole at once, since what a driver makes later may wait for streams that are stuck;
 * never works in a default stream, and never calls the driver under the list's lock. */
#include "cuda_side.h"

#include <stdlib.h>

#include "cuda_context.h"
#include "error.h"
#include "proto/cleanup.h"

static struct cuda_side *sides; /* under process_lock() */

/* ---- making ----------------------------------------------------------------------------------------------- */

/* In its context. */
static void side_clear(struct cuda_side *side) {
        const struct cuda_driver *driver = &side->cuda->driver;

        if (side->stream)
                (void)driver->cuStreamDestroy(side->stream);
        if (side->word)
                (void)driver->cuMemFreeHost(side->word);
}

static void side_free(struct cuda_side *side) {
        (void)pthread_mutex_destroy(&side->lock);
        free(side);
}

static int cannot(const struct cuda *cuda, CUresult result, const char *call, gpuipc_error *ret_error) {
        return cuda_driver_refused(&cuda->driver, result, "The fence cannot be made", call, DOCTOR_DRIVER_REFUSES, "", ret_error);
}

static CUresult side_ask(struct cuda_side *side) {
        const struct cuda_driver *driver = &side->cuda->driver;
        int memops = 0, flush = 0;
        CUresult result = driver->cuDeviceGetAttribute(&memops, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
                                                       side->device->ordinal);

        /* A driver that does not know the attribute has not the operations either. */
        if (result == CUDA_ERROR_INVALID_VALUE)
                memops = 0;
        else if (result != CUDA_SUCCESS)
                return result;
        side->memops = memops && driver->cuStreamWaitValue64 && driver->cuStreamWriteValue64;
        result = driver->cuDeviceGetAttribute(&flush, CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, side->device->ordinal);
        if (result != CUDA_SUCCESS)
                return result;
        side->flush = flush;
        return CUDA_SUCCESS;
}

static int side_fill(struct cuda_side *side, gpuipc_error *ret_error) {
        const struct cuda_driver *driver = &side->cuda->driver;
        int least = 0, greatest = 0;
        CUresult result = side_ask(side);

        if (result != CUDA_SUCCESS)
                return cannot(side->cuda, result, "cuDeviceGetAttribute()", ret_error);
        result = driver->cuCtxGetStreamPriorityRange(&least, &greatest);
        if (result != CUDA_SUCCESS)
                return cannot(side->cuda, result, "cuCtxGetStreamPriorityRange()", ret_error);
        result = driver->cuStreamCreateWithPriority(&side->stream, CU_STREAM_NON_BLOCKING, greatest);
        if (result != CUDA_SUCCESS) {
                side->stream = NULL;
                return cannot(side->cuda, result, "cuStreamCreateWithPriority()", ret_error);
        }
        result = driver->cuMemHostAlloc((void **)&side->word, sizeof(*side->word), 0);
        if (result != CUDA_SUCCESS) {
                side->word = NULL;
                return cannot(side->cuda, result, "cuMemHostAlloc()", ret_error);
        }
        return GPUIPC_OK;
}

/* A new one of the current context. */
static int side_new(const struct cuda *cuda, const struct cuda_context *context, CUcontext current, struct cuda_side **ret,
                    gpuipc_error *ret_error) {
        struct cuda_side *side = calloc(1, sizeof(*side));
        int r;

        if (!side)
                return error_no_memory(ret_error);
        *side = (struct cuda_side){ .refs = 1, .mark = process_mark(), .cuda = cuda, .device = context->device, .context = current,
                                    .retained = context->retained, .lock = PTHREAD_MUTEX_INITIALIZER };
        r = side_fill(side, ret_error);
        if (r != GPUIPC_OK) {
                side_clear(side);
                side_free(side);
                return r;
        }
        *ret = side;
        return GPUIPC_OK;
}

/* Under the lock: with a reference more. What a forked child inherited is none of its own. */
static struct cuda_side *find_locked(CUcontext context) {
        for (struct cuda_side *side = sides; side; side = side->next)
                if (side->context == context && process_is(side->mark)) {
                        side->refs++;
                        return side;
                }
        return NULL;
}

static struct cuda_side *find(CUcontext context) {
        struct cuda_side *found;

        process_lock();
        found = find_locked(context);
        process_unlock();
        return found;
}

/* That which is found, where another thread was quicker. */
static struct cuda_side *side_enlist(struct cuda_side *fresh) {
        struct cuda_side *found;

        process_lock();
        found = find_locked(fresh->context);
        if (!found) {
                fresh->next = sides;
                sides = fresh;
        }
        process_unlock();
        return found;
}

int cuda_side_get(const struct cuda *cuda, const struct cuda_device *device, struct cuda_side **ret_side, gpuipc_error *ret_error) {
        struct cuda_context context;
        struct cuda_side *fresh = NULL, *found = NULL;
        CUcontext current = NULL;
        CUresult result;
        int r = cuda_context_enter_own(cuda, device, &context, ret_error);

        if (r != GPUIPC_OK)
                return r;
        result = cuda->driver.cuCtxGetCurrent(&current);
        if (result != CUDA_SUCCESS)
                r = cannot(cuda, result, "cuCtxGetCurrent()", ret_error);
        else
                found = find(current);
        if (r == GPUIPC_OK && !found) {
                r = side_new(cuda, &context, current, &fresh, ret_error);
                found = fresh ? side_enlist(fresh) : NULL;
        }
        if (found && fresh) {
                side_clear(fresh);
                side_free(fresh);
        }
        cuda_context_leave(cuda, &context, fresh && !found);
        if (r == GPUIPC_OK)
                *ret_side = found ? found : fresh;
        return r;
}

void cuda_side_put(struct cuda_side *side) {
        struct cuda_context context;
        bool last;

        process_lock();
        last = --side->refs == 0;
        for (struct cuda_side **link = &sides; last && *link; link = &(*link)->next)
                if (*link == side) {
                        *link = side->next;
                        break;
                }
        process_unlock();
        if (!last)
                return;
        if (cuda_context_enter_this(side->cuda, side->context, "", &context, NULL) == GPUIPC_OK) {
                side_clear(side);
                cuda_context_leave(side->cuda, &context, false);
        }
        if (side->retained)
                cuda_context_release(side->cuda, side->device->ordinal);
        side_free(side);
}

/* ---- using ------------------------------------------------------------------------------------------------ */

struct attempt {
        CUresult result;
        const char *call; /* that gave it */
};

/* Eight aligned bytes are one access of a copy. */
static struct attempt copy_in(struct cuda_side *side, CUdeviceptr at, uint64_t *ret_value) {
        const struct cuda_driver *driver = &side->cuda->driver;
        struct attempt attempt = { driver->cuMemcpyDtoHAsync(side->word, at, sizeof(*side->word), side->stream), "cuMemcpyDtoHAsync()" };

        if (attempt.result == CUDA_SUCCESS)
                attempt = (struct attempt){ driver->cuStreamSynchronize(side->stream), "cuStreamSynchronize()" };
        if (attempt.result == CUDA_SUCCESS)
                *ret_value = *side->word;
        return attempt;
}

static struct attempt copy_out(struct cuda_side *side, CUdeviceptr at, uint64_t value) {
        const struct cuda_driver *driver = &side->cuda->driver;
        struct attempt attempt;

        *side->word = value;
        if (side->memops)
                attempt = (struct attempt){ driver->cuStreamWriteValue64(side->stream, at, value, CU_STREAM_WRITE_VALUE_DEFAULT),
                                            "cuStreamWriteValue64()" };
        else
                attempt = (struct attempt){ driver->cuMemcpyHtoDAsync(at, side->word, sizeof(*side->word), side->stream),
                                            "cuMemcpyHtoDAsync()" };
        if (attempt.result == CUDA_SUCCESS)
                attempt = (struct attempt){ driver->cuStreamSynchronize(side->stream), "cuStreamSynchronize()" };
        return attempt;
}

static int side_do(struct cuda_side *side, CUdeviceptr at, uint64_t value, uint64_t *ret_value, gpuipc_error *ret_error) {
        const char *what = ret_value ? "The fence cannot be read" : "The fence cannot be signalled";
        struct cuda_context context;
        struct attempt attempt;
        int r = cuda_context_enter_this(side->cuda, side->context, what, &context, ret_error);

        if (r != GPUIPC_OK)
                return r;
        (void)pthread_mutex_lock(&side->lock);
        attempt = ret_value ? copy_in(side, at, ret_value) : copy_out(side, at, value);
        (void)pthread_mutex_unlock(&side->lock);
        cuda_context_leave(side->cuda, &context, false);
        if (attempt.result != CUDA_SUCCESS)
                return cuda_driver_refused(&side->cuda->driver, attempt.result, what, attempt.call, DOCTOR_DRIVER_REFUSES, "", ret_error);
        return GPUIPC_OK;
}

int cuda_side_read(struct cuda_side *side, CUdeviceptr at, uint64_t *ret_value, gpuipc_error *ret_error) {
        return side_do(side, at, 0, ret_value, ret_error);
}

int cuda_side_write(struct cuda_side *side, CUdeviceptr at, uint64_t value, gpuipc_error *ret_error) {
        return side_do(side, at, value, NULL, ret_error);
}
