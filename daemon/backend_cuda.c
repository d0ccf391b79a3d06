/* SPDX-License-Identifier: Apache-2.0 */
/* The GPUs as one backend: which there are, what they can, which way a buffer is made, whether they are well. The loop reads what was
 * found; pool threads allocate and close. The driver's calls are in cuda_vmm.c and cuda_classic.c. */
#include "backend_cuda.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_device.h"
#include "cuda_probe.h"
#include "proto/cleanup.h"

#define FREE_WAIT_MS 100 /* for the figure that a refusal tells */

static struct {
        enum wipe_choice wipe;
        uint64_t probe_ms;
        struct cuda_machine *machine; /* NULL: none, or not probed */
        bool hung; /* the probe's thread is left behind */
        char words[320];
} cuda = {.wipe = WIPE_AUTO, .probe_ms = BACKEND_CUDA_PROBE_MS};

void backend_cuda_set(enum wipe_choice wipe, uint64_t probe_ms) {
        cuda.wipe = wipe;
        cuda.probe_ms = probe_ms;
}

const char *backend_cuda_words(void) {
        return cuda.words;
}

bool backend_cuda_end(void) {
        if (cuda.machine && cuda_machine_free(cuda.machine))
                cuda.machine = NULL;
        return !cuda.machine && !cuda.hung;
}

static int cuda_probe_devices(const struct backend *backend, struct backend_device ***ret_devices) {
        int r;

        (void)backend;
        r = cuda_probe(cuda.wipe, cuda.probe_ms, &cuda.machine, cuda.words, sizeof(cuda.words));
        if (r == -ETIMEDOUT)
                cuda.hung = true;
        if (r < 0)
                return r;
        *ret_devices = cuda.machine->devices;
        return (int)cuda.machine->n_devices;
}

static void cuda_info(const struct backend_device *device, struct backend_device_info *ret) {
        *ret = (struct backend_device_info){
                .uuid = device->uuid,
                .name = device->name,
                .kind = DEVICE_CUDA,
                .total_bytes = device->total_bytes,
                .capacity_bytes = device->total_bytes,
                .zeroed = device->zeroed,
                .zeroed_why = device->zeroed_why,
                .handles = device->handles,
                .n_handles = device->n_handles,
                .ro_enforced = false,
        };
}

static int64_t cuda_round(const struct backend_device *device, int64_t size, const char *handle) {
        int64_t unit = device->granularity;

        if (strcmp(handle, CUDA_IPC) == 0 && unit < CUDA_CLASSIC_BYTES)
                unit = CUDA_CLASSIC_BYTES;
        if (size <= 0 || size > SCHEMA_INT_MAX - unit)
                return 0;
        return (size + unit - 1) / unit * unit;
}

static int64_t cuda_free_bytes(const struct backend_device *device) {
        return device->gauge.free_bytes;
}

static int cuda_allocate(struct backend_device *device, int64_t size, int64_t allocated, const char *handle, struct backing **backing,
                         struct backend_detail *detail) {
        int r;

        (void)size;
        r = strcmp(handle, CUDA_IPC) == 0 ? cuda_classic_allocate(device, allocated, backing, detail)
                                          : cuda_vmm_allocate(device, allocated, backing, detail);
        if (r == -ENOMEM)
                detail->free_bytes = cuda_gauge_ask(&device->gauge, FREE_WAIT_MS);
        else
                cuda_nvml_refresh(device->gauge.nvml);
        return r;
}

/* Whether it is GPU memory, the driver alone could tell, and whoever maps it will hear. */
static int cuda_adopt(struct backend_device *device, int fd_take, int64_t size, const char *handle, struct backing **ret,
                      struct backend_detail *detail) {
        _cleanup_fd_ int fd = fd_take;

        (void)size;
        if (strcmp(handle, CUDA_FD) != 0) {
                snprintf(detail->text, sizeof(detail->text), "memory of kind %s ends with the daemon that made it", handle);
                return -EBADMSG;
        }
        return cuda_vmm_adopt(device, take_fd(&fd), ret);
}

/* One descriptor serves both kinds of access, and a classic handle is there from the start. */
static int cuda_open(struct backing *backing, enum access access, int *ret_fd, struct backend_detail *detail) {
        (void)backing, (void)access, (void)detail;
        *ret_fd = -1;
        return 0;
}

/* The ledger refuses further writers; there is nothing in the memory itself to be set. */
static int cuda_seal(struct backing *backing, struct backend_detail *detail) {
        (void)backing, (void)detail;
        return 0;
}

static void cuda_close(struct backing *base) {
        struct cuda_backing *backing = (struct cuda_backing *)base;
        struct backend_device *device = backing->device;

        if (backing->classic)
                cuda_classic_close(backing);
        else
                cuda_vmm_close(backing);
        cuda_nvml_refresh(device->gauge.nvml);
}

/* ---- health ------------------------------------------------------------------------------------------------ */

int cuda_device_blame(struct backend_device *device, int error, const struct backend_detail *detail) {
        if (error != -EIO)
                return error;
        pthread_mutex_lock(&device->health_lock);
        device->sick = true;
        device->illness = *detail;
        pthread_mutex_unlock(&device->health_lock);
        return error;
}

static bool cuda_sick(struct backend_device *device, struct backend_detail *ret_why) {
        bool sick;

        pthread_mutex_lock(&device->health_lock);
        sick = device->sick;
        if (sick)
                *ret_why = device->illness;
        pthread_mutex_unlock(&device->health_lock);
        return sick;
}

static int cuda_check(struct backend_device *device, struct backend_detail *detail) {
        int r = device->granularity > 0 && strcmp(device->handles[0], CUDA_FD) == 0 ? cuda_vmm_check(device, detail) : 0;

        if (r == 0)
                r = cuda_classic_check(device, detail);
        if (r == 0) {
                pthread_mutex_lock(&device->health_lock);
                device->sick = false;
                pthread_mutex_unlock(&device->health_lock);
        }
        return r;
}

const struct backend backend_cuda = {
        .name = "cuda",
        .ahead = CUDA_FD, /* a classic one would keep a context */
        .probe = cuda_probe_devices,
        .info = cuda_info,
        .round = cuda_round,
        .free_bytes = cuda_free_bytes,
        .allocate = cuda_allocate,
        .adopt = cuda_adopt,
        .open = cuda_open,
        .seal = cuda_seal,
        .close = cuda_close,
        .sick = cuda_sick,
        .check = cuda_check,
};
