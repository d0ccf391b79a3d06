/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of the library: a machine with fake GPUs, memory on them that belongs to another process, and a daemon that grants it. Fails
 * the test (Check) when it cannot be set up. A test's process is its own: CUDA is initialised once in each. */
#ifndef UNIT_CUDA_GPUS_H
#define UNIT_CUDA_GPUS_H

#include <stddef.h>
#include <stdint.h>

#include <cuda.h>

#include "include/gpuipc.h"
#include "tests/support/child.h"
#include "tests/support/fake_server.h"

#define GPUS_UUID(n) "GPU-fa4e0000-0000-4000-8000-00000000000" n
#define MIB (INT64_C(1) << 20)

/* ---- the machine ------------------------------------------------------------------------------------------ */

/* Two GPUs and these further statements. The fake driver is the one that everyone in this process finds. */
void gpus_start(const char *script);
void gpus_script(const char *script);
void gpus_stop(void);

/* A function of the driver's, for the test's own use. */
#define DRIVER(function) ((__typeof__(&function))gpus_function(GPUS_NAME_(function)))
#define GPUS_NAME_(function) GPUS_TEXT_(function)
#define GPUS_TEXT_(function) #function
void *gpus_function(const char *name);

/* Calls so far, of any process, of that entry point ("cuMemMap"), with that result; −1: with any. */
size_t gpus_calls(const char *entry, int result);
size_t gpus_all_calls(void);

/* Calls of it that were made to wait. */
size_t gpus_waits(const char *entry);

/* The entry points called since there were so many calls, each once. How many there are. */
#define GPUS_ENTRIES_MAX 64
size_t gpus_entries(size_t since, char ret_names[GPUS_ENTRIES_MAX][64]);

/* Where memory of the GPUs is mapped in this process. */
size_t address_ranges(void);

/* ---- somebody else's memory ------------------------------------------------------------------------------- */

struct owner {
        struct child child;
        int fd;       /* of memory with a descriptor; -1 */
        char ipc[96]; /* of a classic one, in base64; "" */
};

/* Made by a process of its own, before this one initialises CUDA; byte i is owner_byte(i). */
struct owner owner_start(const char *kind, int device, int64_t size);
void owner_stop(struct owner *owner);
unsigned char owner_byte(size_t i);

/* n bytes in base64. */
void owner_encode(const void *data, size_t n, char *ret_text);

/* ---- a daemon that grants it ------------------------------------------------------------------------------ */

/* What is said of the memory. Changed only while no call is under way. */
struct desk {
        const char *id, *kind, *uuid, *ipc; /* NULL: "b1", "cuda-fd", the first GPU, none */
        int fd;                             /* -1: none */
        int64_t size, allocated, offset, created_usec;
        char asked[512]; /* the last Allocate, as it came */
        struct fake *fake;
        gpuipc_client *client;
};

void desk_open(struct desk *desk);
void desk_close(struct desk *desk);

/* Opened and mapped; the error is printed when that fails. */
gpuipc_buffer *desk_map(struct desk *desk, gpuipc_access access, void **ret_pointer);

/* Opened, and not mapped; nothing is left of the attempt but the message. */
int desk_fail(struct desk *desk, gpuipc_access access, gpuipc_error *ret_error);

#endif
