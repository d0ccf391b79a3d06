/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of the library against a real daemon share. Each fails the test (Check) on any surprise. */
#ifndef INTEGRATION_LIBRARY_H
#define INTEGRATION_LIBRARY_H

#include <stdbool.h>
#include <stdint.h>

#include "include/gpuipc.h"
#include "tests/support/memory_kind.h"

#define KIB INT64_C(1024)

gpuipc_client *library_connect(const char *socket_path);
gpuipc_buffer *library_allocate(gpuipc_client *client, int64_t size, const char *name, int64_t keep_ms);
gpuipc_buffer *library_open(gpuipc_client *client, const char *name, gpuipc_access access);

/* The status of an open by name, whose lease is given back at once. Needs no check, so for children too. */
gpuipc_status library_try_open(gpuipc_client *client, const char *name, gpuipc_access access, int64_t wait_ms);

unsigned char *library_map(gpuipc_buffer *buffer);
void library_release(gpuipc_buffer *buffer);

/* Fails unless `status` is `expected`; shows what the error said. */
void library_expect(int status, gpuipc_status expected, const gpuipc_error *error);

/* How many leases or buffers a list shows. */
int library_count_leases(gpuipc_client *client, const char *name);
int library_count_buffers(gpuipc_client *client, const char *name);

/* The client's own session, heap. */
char *library_session(gpuipc_client *client);

/* The least access that the kind of memory under test can be lent for. */
gpuipc_access library_reading(void);

/* Fails unless so many mappings of a broker's memory are there. What is mapped of a GPU, only its driver knows. */
void library_expect_maps(int n);

#endif
