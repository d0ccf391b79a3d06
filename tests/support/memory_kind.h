/* SPDX-License-Identifier: Apache-2.0 */
/* Which kind of memory a test runs on: the twin of backend.py. The same assertions hold on all kinds; what differs is here. */
#ifndef SUPPORT_MEMORY_KIND_H
#define SUPPORT_MEMORY_KIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* $GPUIPC_TEST_BACKEND: "host" (the default), "fake-fd", "fake-ipc", "cuda-fd", "cuda-ipc"; ends the process for any other. */
const char *memory_kind(void);

bool memory_is_host(void);
bool memory_is_classic(void); /* handles without descriptors, which cannot be lent read-only */
bool memory_is_real(void);    /* a real GPU's */

const char *memory_backend(void); /* what the daemon's --backend is given */
const char *memory_handle(void);  /* "memfd", "cuda-fd", "cuda-ipc" */
int64_t memory_page(void);        /* what the smallest buffer takes */

/* Copies to and from mapped memory, of the host's or a GPU's, and single bytes. Any thread, and children too: what cannot be done
 * ends the process by a signal, having said why. */
void memory_write(void *memory, int64_t at, const void *bytes, size_t n);
void memory_read(const void *memory, int64_t at, void *ret_bytes, size_t n);
void memory_set(void *memory, int64_t at, unsigned char byte);
unsigned char memory_get(const void *memory, int64_t at);

#endif
