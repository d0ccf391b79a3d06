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

/* classic.c */
void classic_end_context(const struct context *context); /* all that was allocated or opened in it */

/* virtual.c */
int allocation_device(CUmemGenericAllocationHandle handle); /* -1 */

#endif
