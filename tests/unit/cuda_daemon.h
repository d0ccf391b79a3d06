/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of the daemon's CUDA rooms: a machine with fake GPUs, and what the backend finds on it. */
#ifndef UNIT_CUDA_DAEMON_H
#define UNIT_CUDA_DAEMON_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/backend_cuda.h"
#include "fake_machine.h"

extern struct backend_device **devices; /* found by cuda_start() */
extern int n_devices;
extern struct backend_detail detail;    /* of the last call */

/* A machine of that script, libraries and environment of this process and its children; nothing found yet. The driver's
 * parameters are those of a driver that scrubs. */
void cuda_begin(const char *script);
void cuda_params(const char *text);

/* Probes: the number of devices, or -errno. */
int cuda_start(enum wipe_choice wipe);

/* This process must own as many descriptors as at the beginning. */
void cuda_finish(void);

/* One call of the backend's allocate. */
int cuda_try(int device, int64_t size, const char *handle, struct backing **ret);

/* The same, which must succeed. */
struct backing *cuda_make(int device, int64_t size, const char *handle);

/* Whether any process ever made a context. */
bool cuda_context_made(void);

/* MiB in use by anyone, when no answer is under way. */
int cuda_used(int device);

#endif
