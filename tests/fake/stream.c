/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: a queue each, and a thread that does what is in it once there is something. Under the driver's lock, which a stream leaves
 * while it waits. A stream's struct is never freed, since threads may still wait for it. */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

/* How long a word that some other process may write by any means is left alone. */
#define LOOK_NS 1000000

enum stream_kind { STREAM_MADE, STREAM_LEGACY, STREAM_PER_THREAD };

struct stream {
        struct stream *next;
        enum stream_kind kind;
        struct context *context;
        bool blocking; /* it and the legacy default stream wait for each other */
        bool ended;    /* its handle is no more; what is in it may be */
        bool has_thread;
        bool calling;  /* its first work is a function of the program's, which runs */
        struct work *first, **last;
        uint64_t last_ticket;
};

static struct stream *streams;
static uint64_t tickets;

/* ---- finding ---------------------------------------------------------------------------------------------- */

static struct stream *stream_add(struct context *context, enum stream_kind kind, bool blocking) {
        struct stream *stream = calloc(1, sizeof(*stream));

        if (!stream)
                return NULL;
        *stream = (struct stream){ .next = streams, .kind = kind, .context = context, .blocking = blocking };
        stream->last = &stream->first;
        streams = stream;
        return stream;
}

static struct stream *find_made(CUstream handle) {
        for (struct stream *stream = streams; stream; stream = stream->next)
                if (stream == (void *)handle && stream->kind == STREAM_MADE && !stream->ended)
                        return stream;
        return NULL;
}

static struct stream *find_default(const struct context *context, enum stream_kind kind) {
        for (struct stream *stream = streams; stream; stream = stream->next)
                if (stream->context == context && stream->kind == kind && !stream->ended)
                        return stream;
        return NULL;
}

static bool is_default(CUstream handle) {
        return !handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
}

CUresult stream_find(CUstream handle, struct stream **ret_stream) {
        enum stream_kind kind = handle == CU_STREAM_PER_THREAD ? STREAM_PER_THREAD : STREAM_LEGACY;
        struct stream *stream;

        if (!is_default(handle)) {
                stream = find_made(handle);
                if (!stream)
                        return CUDA_ERROR_INVALID_HANDLE;
        } else if (!context_current()) {
                return context_error();
        } else {
                stream = find_default(context_current(), kind);
                if (!stream)
                        stream = stream_add(context_current(), kind, true);
                if (!stream)
                        return CUDA_ERROR_OUT_OF_MEMORY;
        }
        *ret_stream = stream;
        return stream->context->lost;
}

int stream_device(CUstream handle) {
        struct stream *stream = is_default(handle) ? NULL : find_made(handle);
        return stream ? stream->context->device : is_default(handle) ? context_device() : -1;
}

struct context *stream_context(const struct stream *stream) {
        return stream->context;
}

/* ---- order ------------------------------------------------------------------------------------------------ */

static bool done_until(const struct stream *stream, uint64_t ticket) {
        return !stream->first || stream->first->ticket > ticket;
}

/* The legacy default stream and each blocking one of its context do nothing before what the other was given first. */
static bool others_done(const struct stream *of, uint64_t ticket) {
        for (const struct stream *stream = streams; of->blocking && stream; stream = stream->next)
                if (stream != of && stream->context == of->context && stream->blocking &&
                    (of->kind == STREAM_LEGACY || stream->kind == STREAM_LEGACY) && !done_until(stream, ticket))
                        return false;
        return true;
}

bool stream_reached(const struct stream *stream, uint64_t ticket) {
        return done_until(stream, ticket) && (stream->kind != STREAM_LEGACY || others_done(stream, ticket));
}

uint64_t stream_last(const struct stream *stream) {
        return stream->kind == STREAM_LEGACY ? tickets : stream->last_ticket;
}

/* ---- the thread ------------------------------------------------------------------------------------------- */

static void work_free(struct work *work) {
        free(work->bytes);
        free(work);
}

static void drop_all(struct stream *stream) {
        struct work **link = stream->calling ? &stream->first->next : &stream->first;

        while (*link) {
                struct work *work = *link;
                *link = work->next;
                work_free(work);
        }
        stream->last = link;
}

static void context_lose(struct context *context, CUresult why) {
        context->lost = why;
        for (struct stream *stream = streams; stream; stream = stream->next)
                if (stream->context == context)
                        drop_all(stream);
        driver_wake();
}

static void wait_for_word(const void *word, uint32_t seen) {
        struct timespec timeout = { .tv_nsec = LOOK_NS };

        driver_unlock();
        (void)syscall(SYS_futex, word, FUTEX_WAIT, seen, &timeout, NULL, 0);
        driver_lock();
}

/* One attempt at the first of the queue. */
static void stream_step(struct stream *stream) {
        struct work *work = stream->first;
        CUresult result = work->run(work);

        if (result == CUDA_ERROR_NOT_READY) {
                if (work->waits)
                        wait_for_word(work->waits, work->seen);
                else
                        driver_wait();
                return;
        }
        stream->first = work->next;
        if (!stream->first)
                stream->last = &stream->first;
        work_free(work);
        if (result != CUDA_SUCCESS)
                context_lose(stream->context, result);
        driver_wake();
}

static void *stream_thread(void *data) {
        struct stream *stream = data;

        driver_lock();
        while (stream->first || !stream->ended)
                if (stream->first && others_done(stream, stream->first->ticket))
                        stream_step(stream);
                else
                        driver_wait();
        driver_unlock();
        return NULL;
}

/* The program's signals are not for this thread. */
static bool thread_start(struct stream *stream) {
        sigset_t all, before;
        pthread_t thread;

        if (stream->has_thread)
                return true;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        stream->has_thread = pthread_create(&thread, NULL, stream_thread, stream) == 0;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (stream->has_thread)
                pthread_detach(thread);
        return stream->has_thread;
}

void stream_calling(struct stream *stream, bool calling) {
        stream->calling = calling;
}

/* ---- using ------------------------------------------------------------------------------------------------ */

CUresult stream_push(struct stream *stream, const struct work *work) {
        struct work *own = malloc(sizeof(*own));

        if (!own || !thread_start(stream)) {
                free(own);
                free(work->bytes);
                return CUDA_ERROR_OUT_OF_MEMORY;
        }
        *own = *work;
        own->next = NULL;
        own->stream = stream;
        own->ticket = stream->last_ticket = ++tickets;
        *stream->last = own;
        stream->last = &own->next;
        driver_wake();
        return CUDA_SUCCESS;
}

CUresult stream_drain(struct stream *stream) {
        uint64_t last = tickets;

        while (!stream_reached(stream, last))
                driver_wait();
        return stream->context->alive ? stream->context->lost : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult stream_run(const struct work *work) {
        struct work own = *work;
        CUresult result = stream_find(CU_STREAM_LEGACY, &own.stream);

        if (result != CUDA_SUCCESS)
                return result;
        if (stream_reached(own.stream, tickets))
                return own.run(&own);
        result = stream_push(own.stream, &own);
        return result == CUDA_SUCCESS ? stream_drain(own.stream) : result;
}

CUresult streams_drain(const struct context *context) {
        uint64_t last = tickets;

        for (struct stream *stream = streams; stream;)
                if (stream->context == context && !done_until(stream, last)) {
                        driver_wait();
                        stream = streams;
                } else {
                        stream = stream->next;
                }
        return context->alive ? context->lost : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

void streams_end(const struct context *context) {
        for (struct stream *stream = streams; stream; stream = stream->next)
                if (stream->context == context) {
                        drop_all(stream);
                        stream->ended = true;
                }
        driver_wake();
}

/* ---- entry points ----------------------------------------------------------------------------------------- */

static CUresult create(CUstream *ret, unsigned flags) {
        if (!context_current())
                return context_error();
        if (!ret || flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
                return CUDA_ERROR_INVALID_VALUE;
        if (context_current()->lost)
                return context_current()->lost;
        struct stream *stream = stream_add(context_current(), STREAM_MADE, !(flags & CU_STREAM_NON_BLOCKING));
        if (!stream)
                return CUDA_ERROR_OUT_OF_MEMORY;
        *ret = (CUstream)(void *)stream;
        return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
        return DRIVER_CALL(context_device(), create(stream, flags));
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
        (void)priority; /* nothing that runs is overtaken on a GPU either */
        return DRIVER_CALL(context_device(), create(stream, flags));
}

static CUresult destroy(CUstream handle) {
        struct stream *stream = find_made(handle);

        if (!stream)
                return CUDA_ERROR_INVALID_HANDLE;
        stream->ended = true;
        driver_wake();
        return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
        return DRIVER_CALL(stream_device(stream), destroy(stream));
}

static CUresult synchronize(CUstream handle) {
        struct stream *stream;
        CUresult result = stream_find(handle, &stream);
        return result == CUDA_SUCCESS ? stream_drain(stream) : result;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream) {
        return DRIVER_CALL(stream_device(stream), synchronize(stream));
}

static CUresult query(CUstream handle) {
        struct stream *stream;
        CUresult result = stream_find(handle, &stream);

        if (result != CUDA_SUCCESS)
                return result;
        return stream_reached(stream, tickets) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuStreamQuery(CUstream stream) {
        return DRIVER_CALL(stream_device(stream), query(stream));
}

static CUresult get_context(CUstream handle, CUcontext *ret) {
        struct stream *stream;
        CUresult result = stream_find(handle, &stream);

        if (result == CUDA_SUCCESS && !ret)
                result = CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS)
                *ret = (CUcontext)(void *)stream->context;
        return result;
}

EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext *ctx) {
        return DRIVER_CALL(stream_device(stream), get_context(stream, ctx));
}
