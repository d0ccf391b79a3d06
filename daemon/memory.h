/* SPDX-License-Identifier: Apache-2.0 */
/* The machine's memory and what of it this process may use. Reads /proc and /sys; keeps nothing open. */
#ifndef DAEMON_MEMORY_H
#define DAEMON_MEMORY_H

#include <stdint.h>

/* Bytes of RAM; SCHEMA_UNSET when the kernel does not tell. */
int64_t memory_total_bytes(void);

/* Bytes that can be had without swapping; SCHEMA_UNSET when the kernel does not tell. */
int64_t memory_available_bytes(void);

/* The tightest memory limit of this process's cgroup and those above it, version 1 or 2, as seen under `root` ("" for the
 * machine); INT64_MAX without a limit. */
int64_t memory_limit_bytes(const char *root);

/* The smaller of RAM and the limit; SCHEMA_UNSET when neither is known. */
int64_t memory_usable_bytes(void);

#endif
