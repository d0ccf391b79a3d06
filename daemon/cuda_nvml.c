/* SPDX-License-Identifier: Apache-2.0 */
/* NVML. The probing thread makes it and its gauges; then its own thread alone calls the library, every two seconds and when asked;
 * pool threads ask and may wait a moment; the loop reads atomics. */
#include "cuda_nvml.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "proto/cleanup.h"
#include "proto/schema.h"
#include "proto/symbols.h"

#define PERIOD_MS 2000 /* others use the GPU too: how old a figure may be */
#define END_MS 1000

/* From the library's public reference: the Toolkit need not have its header. */
typedef int nvml_return;
struct nvml_memory {
        unsigned long long total, free, used;
};

struct cuda_nvml {
        nvml_return (*init)(void);
        nvml_return (*shutdown)(void);
        nvml_return (*find)(const char *uuid, void **device);
        nvml_return (*memory)(void *device, struct nvml_memory *memory);
        nvml_return (*virtualization)(void *device, unsigned *mode);
        nvml_return (*parent)(void *mig, void **device);

        pthread_t thread;
        bool running;
        pthread_mutex_t lock;
        pthread_cond_t asked, answered;
        uint64_t n_asked, n_answered; /* under the lock */
        bool ending, ended;           /* under the lock: it is to end; it is about to return */
        struct cuda_gauge *gauges;    /* complete before the thread begins */
};

static const struct symbol symbols[] = {
        {"nvmlInit_v2", offsetof(struct cuda_nvml, init), false},
        {"nvmlShutdown", offsetof(struct cuda_nvml, shutdown), false},
        {"nvmlDeviceGetHandleByUUID", offsetof(struct cuda_nvml, find), false},
        {"nvmlDeviceGetMemoryInfo", offsetof(struct cuda_nvml, memory), false},
        {"nvmlDeviceGetVirtualizationMode", offsetof(struct cuda_nvml, virtualization), true},
        {"nvmlDeviceGetDeviceHandleFromMigDeviceHandle", offsetof(struct cuda_nvml, parent), true},
};

static void deadline_in(int ms, struct timespec *ret) {
        clock_gettime(CLOCK_MONOTONIC, ret);
        ret->tv_sec += ms / 1000;
        ret->tv_nsec += (long)(ms % 1000) * 1000000;
        if (ret->tv_nsec >= 1000000000) {
                ret->tv_sec++;
                ret->tv_nsec -= 1000000000;
        }
}

static void gauge_read(struct cuda_gauge *gauge) {
        struct nvml_memory memory;

        gauge->free_bytes = gauge->nvml->memory(gauge->handle, &memory) == 0 && memory.free <= (uint64_t)SCHEMA_INT_MAX
                                    ? (int64_t)memory.free
                                    : SCHEMA_UNSET;
}

/* Waits until somebody asks or the figures are old. False: it is over. */
static bool nvml_rest(struct cuda_nvml *nvml, uint64_t *ret_serving) {
        struct timespec until;
        bool ending;

        deadline_in(PERIOD_MS, &until);
        pthread_mutex_lock(&nvml->lock);
        while (!nvml->ending && nvml->n_asked == nvml->n_answered)
                if (pthread_cond_timedwait(&nvml->asked, &nvml->lock, &until) == ETIMEDOUT)
                        break;
        *ret_serving = nvml->n_asked;
        ending = nvml->ending;
        pthread_mutex_unlock(&nvml->lock);
        return !ending;
}

static void *nvml_thread(void *arg) {
        struct cuda_nvml *nvml = arg;
        uint64_t serving;

        while (nvml_rest(nvml, &serving)) {
                for (struct cuda_gauge *gauge = nvml->gauges; gauge; gauge = gauge->next)
                        gauge_read(gauge);
                pthread_mutex_lock(&nvml->lock);
                nvml->n_answered = serving;
                pthread_cond_broadcast(&nvml->answered);
                pthread_mutex_unlock(&nvml->lock);
        }
        (void)nvml->shutdown();
        pthread_mutex_lock(&nvml->lock);
        nvml->ended = true;
        pthread_cond_broadcast(&nvml->answered);
        pthread_mutex_unlock(&nvml->lock);
        return NULL;
}

int cuda_nvml_new(struct cuda_nvml **ret, char *ret_why, size_t n_why) {
        static const char *const sonames[] = {"libnvidia-ml.so.1", NULL};
        _cleanup_free_ struct cuda_nvml *nvml = calloc(1, sizeof(*nvml));
        pthread_condattr_t attributes;
        int r;

        if (!nvml)
                return -ENOMEM;
        r = symbols_load(sonames, symbols, ELEMENTSOF(symbols), nvml, ret_why, n_why);
        if (r < 0)
                return r;
        r = nvml->init();
        if (r != 0) {
                snprintf(ret_why, n_why, "nvmlInit_v2: error %d", r);
                return -EIO;
        }
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(&nvml->asked, &attributes);
        pthread_cond_init(&nvml->answered, &attributes);
        pthread_condattr_destroy(&attributes);
        pthread_mutex_init(&nvml->lock, NULL);
        *ret = take_ptr(nvml);
        return 0;
}

/* False: not in time. */
static bool nvml_stop(struct cuda_nvml *nvml) {
        struct timespec until;
        bool ended;

        deadline_in(END_MS, &until);
        pthread_mutex_lock(&nvml->lock);
        nvml->ending = true;
        pthread_cond_signal(&nvml->asked);
        while (!nvml->ended)
                if (pthread_cond_timedwait(&nvml->answered, &nvml->lock, &until) == ETIMEDOUT)
                        break;
        ended = nvml->ended;
        pthread_mutex_unlock(&nvml->lock);
        if (ended)
                pthread_join(nvml->thread, NULL);
        return ended;
}

bool cuda_nvml_free(struct cuda_nvml *nvml) {
        if (nvml->running && !nvml_stop(nvml))
                return false;
        for (struct cuda_gauge *gauge = nvml->gauges; gauge; gauge = gauge->next) {
                gauge->nvml = NULL;
                gauge->free_bytes = SCHEMA_UNSET;
        }
        pthread_cond_destroy(&nvml->asked);
        pthread_cond_destroy(&nvml->answered);
        pthread_mutex_destroy(&nvml->lock);
        free(nvml);
        return true;
}

int cuda_nvml_start(struct cuda_nvml *nvml) {
        int r = pthread_create(&nvml->thread, NULL, nvml_thread, nvml);

        nvml->running = r == 0;
        return -r;
}

void cuda_gauge_init(struct cuda_gauge *gauge, struct cuda_nvml *nvml, const char *uuid) {
        *gauge = (struct cuda_gauge){.free_bytes = SCHEMA_UNSET};
        if (!nvml || nvml->find(uuid, &gauge->handle) != 0)
                return;
        gauge->nvml = nvml;
        gauge->next = nvml->gauges;
        nvml->gauges = gauge;
        gauge_read(gauge);
}

static uint64_t nvml_ask(struct cuda_nvml *nvml) {
        uint64_t n = ++nvml->n_asked;

        pthread_cond_signal(&nvml->asked);
        return n;
}

void cuda_nvml_refresh(struct cuda_nvml *nvml) {
        if (!nvml || !nvml->running)
                return;
        pthread_mutex_lock(&nvml->lock);
        (void)nvml_ask(nvml);
        pthread_mutex_unlock(&nvml->lock);
}

int64_t cuda_gauge_ask(struct cuda_gauge *gauge, int ms) {
        struct cuda_nvml *nvml = gauge->nvml;
        struct timespec until;
        uint64_t mine;

        if (!nvml || !nvml->running)
                return gauge->free_bytes;
        deadline_in(ms, &until);
        pthread_mutex_lock(&nvml->lock);
        mine = nvml_ask(nvml);
        while (nvml->n_answered < mine)
                if (pthread_cond_timedwait(&nvml->answered, &nvml->lock, &until) == ETIMEDOUT)
                        break;
        pthread_mutex_unlock(&nvml->lock);
        return gauge->free_bytes;
}

enum cuda_virtualization cuda_gauge_virtualization(const struct cuda_gauge *gauge) {
        const struct cuda_nvml *nvml = gauge->nvml;
        void *device = gauge->handle;
        unsigned mode;

        if (!nvml || !nvml->virtualization)
                return CUDA_VIRTUALIZATION_UNKNOWN;
        if (nvml->virtualization(device, &mode) != 0) {
                /* A part of a GPU is asked for by the whole. */
                if (!nvml->parent || nvml->parent(gauge->handle, &device) != 0 || nvml->virtualization(device, &mode) != 0)
                        return CUDA_VIRTUALIZATION_UNKNOWN;
        }
        return mode <= CUDA_VIRTUALIZATION_HOST_VSGA ? (enum cuda_virtualization)mode : CUDA_VIRTUALIZATION_UNKNOWN;
}

bool cuda_nvml_knows(struct cuda_nvml *nvml, const char *uuid) {
        void *device;

        return nvml && nvml->find(uuid, &device) == 0;
}
