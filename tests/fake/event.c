/* SPDX-License-Identifier: Apache-2.0 */
/* Events within a process: what a stream had been given when it was recorded. Under the driver's lock. They keep no time. */
#include <stdlib.h>

#include "driver.h"

struct event {
        struct event *next;
        struct stream *stream; /* NULL: not recorded yet */
        uint64_t ticket;
};

static struct event *events;

static struct event *event_of(CUevent handle) {
        for (struct event *event = events; event; event = event->next)
                if (event == (void *)handle)
                        return event;
        return NULL;
}

static CUresult create(CUevent *ret, unsigned flags) {
        if (!context_current())
                return context_error();
        if (!ret)
                return CUDA_ERROR_INVALID_VALUE;
        if (flags & CU_EVENT_INTERPROCESS)
                return CUDA_ERROR_NOT_SUPPORTED;
        struct event *event = calloc(1, sizeof(*event));
        if (!event)
                return CUDA_ERROR_OUT_OF_MEMORY;
        event->next = events;
        events = event;
        *ret = (CUevent)(void *)event;
        return CUDA_SUCCESS;
}

EXPORT CUresult cuEventCreate(CUevent *event, unsigned int flags) {
        return DRIVER_CALL(context_device(), create(event, flags));
}

static CUresult destroy(CUevent handle) {
        for (struct event **link = &events; *link; link = &(*link)->next)
                if (*link == (void *)handle) {
                        struct event *event = *link;
                        *link = event->next;
                        free(event);
                        return CUDA_SUCCESS;
                }
        return CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event) {
        return DRIVER_CALL(context_device(), destroy(event));
}

static CUresult record(CUevent handle, CUstream stream_handle) {
        struct event *event = event_of(handle);
        struct stream *stream;
        CUresult result = stream_find(stream_handle, &stream);

        if (result != CUDA_SUCCESS || !event)
                return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_HANDLE;
        event->stream = stream;
        event->ticket = stream_last(stream);
        return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
        return DRIVER_CALL(stream_device(stream), record(event, stream));
}

static CUresult query(CUevent handle) {
        const struct event *event = event_of(handle);

        if (!event)
                return CUDA_ERROR_INVALID_HANDLE;
        if (!event->stream)
                return CUDA_SUCCESS;
        if (stream_context(event->stream)->lost)
                return stream_context(event->stream)->lost;
        return stream_reached(event->stream, event->ticket) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventQuery(CUevent event) {
        return DRIVER_CALL(context_device(), query(event));
}

static CUresult synchronize(CUevent handle) {
        CUresult result;

        while ((result = query(handle)) == CUDA_ERROR_NOT_READY)
                driver_wait();
        return result;
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
        return DRIVER_CALL(context_device(), synchronize(event));
}

static CUresult run_after(struct work *work) {
        return stream_reached(work->after, work->value) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult wait_event(CUstream handle, CUevent event_handle, unsigned flags) {
        const struct event *event = event_of(event_handle);
        struct work work = { .run = run_after };
        struct stream *stream;
        CUresult result = stream_find(handle, &stream);

        if (result != CUDA_SUCCESS || flags)
                return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
        if (!event)
                return CUDA_ERROR_INVALID_HANDLE;
        if (!event->stream || event->stream == stream)
                return CUDA_SUCCESS;
        work.after = event->stream;
        work.value = event->ticket;
        return stream_push(stream, &work);
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
        return DRIVER_CALL(stream_device(stream), wait_event(stream, event, flags));
}
