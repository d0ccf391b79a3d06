/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver's rooms share: this process's view of the machine, its contexts and its addresses. All of it is guarded by
 * one lock, which DRIVER_CALL() holds around the work of an entry point. Devices are physical numbers; an ordinal is what
 * the program calls them. */
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <stdbool.h>
#include <stdint.h>

#include "books.h"
#include "call.h"

void driver_lock(void);
void driver_unlock(void);
void driver_wait(void); /* under the lock, which others have meanwhile: until driver_wake() */
void driver_wake(void); /* something that is waited for may have come */

#define LOCKED(work)                                                                                         \
        ({                                                                                                   \
                driver_lock();                                                                               \
                __typeof__(work) _value = (work);                                                            \
                driver_unlock();                                                                             \
                _value;                                                                                      \
        })

/* An entry point that needs cuInit. `device` is evaluated under the lock too. */
#define DRIVER_CALL(device, work)                                                                            \
        CALL(LOCKED(device), process_ready() != CUDA_SUCCESS ? process_ready() : LOCKED(work))

/* device.c */
int device_attribute(int device, CUdevice_attribute attribute);

/* process.c */
CUresult process_init(unsigned flags);
CUresult process_ready(void);           /* NOT_INITIALIZED before cuInit, and in a forked child */
int process_n_devices(void);            /* visible */
int process_device(CUdevice ordinal);   /* -1: no such */
int process_ordinal(int device);        /* -2: hidden */
const struct tag *process_tag(void);    /* what says that this process lives */
const struct device_script *device_script(int device);
bool device_reaches(int device, int memory_device); /* itself, or by peer access */
CUresult result_of(int error);          /* of -errno */

/* context.c */
struct context {
        struct context *next;
        int device;
        bool alive, primary;
        unsigned refs; /* of a primary one */
        CUresult lost; /* what ended it: a stream touched what it may not */
        struct tag *cost;
};

struct context *context_current(void); /* NULL: none, or a dead one */
int context_device(void);              /* of the current context; -1 */
CUresult context_error(void);          /* what a call that needs one fails with */

/* memory.c: what lies at this process's addresses */
enum range_kind { RANGE_CLASSIC, RANGE_IMPORTED, RANGE_MAPPED };
enum { ACCESS_NONE, ACCESS_READ = 1, ACCESS_WRITE = 3 };

/* Device memory mapped in one piece. Small classic allocations are several parts of one block. */
struct range {
        struct range *next;
        enum range_kind kind;
        CUdeviceptr start;
        int64_t size;
        struct tag *tag;
        struct context *context; /* its end is theirs; NULL for RANGE_MAPPED */
        CUmemGenericAllocationHandle allocation;
        unsigned refs;                  /* opens of an imported handle */
        int access[MACHINE_DEVICES];    /* of RANGE_MAPPED */
        struct part *parts;             /* of RANGE_CLASSIC */
        int64_t taken;                  /* how far parts were cut */
};

struct stream;

struct part {
        struct part *next;
        CUdeviceptr start;
        int64_t size;
};

extern struct range *ranges;

struct range *range_find(CUdeviceptr pointer);
struct part *range_part(const struct range *range, CUdeviceptr pointer); /* of a classic range */
int range_add(const struct range *range, struct range **ret_range);
void range_remove(struct range *range); /* its addresses are not touched; the tag is dropped if it is its own */
int range_device(CUdeviceptr pointer);  /* -1: not device memory */
bool range_allows(CUdeviceptr pointer, size_t size, int device, int access);

/* Address space aligned to the granularity, without access. 0 or -errno. */
int addresses_take(int64_t size, int64_t alignment, CUdeviceptr hint, CUdeviceptr *ret_start);

/* Maps a piece at addresses taken before; in a forked child there will be nothing. 0 or -errno. */
int addresses_map(CUdeviceptr start, int64_t size, int fd, int protection);
void addresses_clear(CUdeviceptr start, int64_t size); /* stay taken */
void addresses_give(CUdeviceptr start, int64_t size);

/* stream.c */

/* What a stream is to do. `run` is entered under the lock, by the stream's own thread or by one that waits for it: success, or
 * CUDA_ERROR_NOT_READY to be entered again when something was written or woken; anything else ends the context. */
struct work {
        struct work *next;
        uint64_t ticket; /* the order of all work of this process */
        struct stream *stream;
        CUresult (*run)(struct work *work);
        void *bytes;         /* freed with it */
        const void *waits;   /* after NOT_READY: the word in memory that it waits for; NULL: for driver_wake() */
        uint32_t seen;       /* what was there */
        CUdeviceptr to, from;
        size_t n;
        uint64_t value;
        unsigned flags;
        bool to_device, from_device;
        CUhostFn call;
        void *data;
        const struct stream *after; /* for an event: that its work up to `value` is done */
};

/* A handle's stream; CU_STREAM_LEGACY, CU_STREAM_PER_THREAD and 0 are the current context's. */
CUresult stream_find(CUstream handle, struct stream **ret_stream);
int stream_device(CUstream handle); /* -1 */
struct context *stream_context(const struct stream *stream);

/* Enqueues a copy of the work, which is done some time later; `bytes` is taken in any case. */
CUresult stream_push(struct stream *stream, const struct work *work);

/* Waits until all that was in it by now is done. */
CUresult stream_drain(struct stream *stream);

/* Work of the legacy default stream, done when it returns; by this thread itself when nothing is ahead of it. */
CUresult stream_run(const struct work *work);

/* The work of it that runs has left the lock to call the program, or is back. */
void stream_calling(struct stream *stream, bool calling);

/* Whether all its work up to this ticket is done; the last ticket given to it. */
bool stream_reached(const struct stream *stream, uint64_t ticket);
uint64_t stream_last(const struct stream *stream);

CUresult streams_drain(const struct context *context);
void streams_end(const struct context *context); /* what they have left to do is not done */

/* pinned.c */
bool pinned(CUdeviceptr pointer); /* host memory that the driver gave */

/* classic.c */
void classic_end_context(const struct context *context); /* all that was allocated or opened in it */

/* virtual.c */
int allocation_device(CUmemGenericAllocationHandle handle); /* -1 */

#endif
