/* SPDX-License-Identifier: Apache-2.0 */
/* What NVML tells of GPUs, where it is found: free bytes without a context, and what kind of machine this is. A thread of its own asks
 * for the free bytes, so that nobody waits for NVML who does not mean to. */
#ifndef DAEMON_CUDA_NVML_H
#define DAEMON_CUDA_NVML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cuda_nvml; /* the library, initialised, and the thread */

/* One device's free bytes as last told. */
struct cuda_gauge {
        struct cuda_nvml *nvml; /* NULL: nobody tells */
        void *handle;
        _Atomic int64_t free_bytes; /* SCHEMA_UNSET when unknown */
        struct cuda_gauge *next;
};

enum cuda_virtualization {
        CUDA_VIRTUALIZATION_NONE,
        CUDA_VIRTUALIZATION_PASSTHROUGH,
        CUDA_VIRTUALIZATION_VGPU,
        CUDA_VIRTUALIZATION_HOST_VGPU,
        CUDA_VIRTUALIZATION_HOST_VSGA,
        CUDA_VIRTUALIZATION_UNKNOWN = -1,
};

/* 0, or -errno with the reason in words: its absence is a normal answer. May block. */
int cuda_nvml_new(struct cuda_nvml **ret, char *ret_why, size_t n_why);

/* Ends the thread; gauges tell nothing afterwards. False: NVML does not answer, and all is left as it is, gauges included. */
bool cuda_nvml_free(struct cuda_nvml *nvml);

/* Begins to ask, once all gauges are made. 0 or -errno: the gauges stay as they are. */
int cuda_nvml_start(struct cuda_nvml *nvml);

/* Looks the device up and makes its gauge tell; `nvml` may be NULL. May block. */
void cuda_gauge_init(struct cuda_gauge *gauge, struct cuda_nvml *nvml, const char *uuid);

/* Has the thread ask; returns at once. */
void cuda_nvml_refresh(struct cuda_nvml *nvml);

/* The free bytes of now, waited for up to `ms`; SCHEMA_UNSET when unknown. */
int64_t cuda_gauge_ask(struct cuda_gauge *gauge, int ms);

/* Of the device behind a gauge. May block. */
enum cuda_virtualization cuda_gauge_virtualization(const struct cuda_gauge *gauge);

/* Whether NVML knows a device of that name. May block. */
bool cuda_nvml_knows(struct cuda_nvml *nvml, const char *uuid);

#endif
