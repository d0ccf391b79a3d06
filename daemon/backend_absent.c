/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of devices that are not there: descriptors from the store and nothing else. Pool threads, but for what the vtable leaves to
 * the loop. Calls no driver. */
#include "backend_absent.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

struct backend_device {
        struct backend_device *next; /* all of them, so that none is lost */
        char uuid[];
};

static struct backend_device *devices;

struct backend_device *backend_absent_device(const char *uuid) {
        struct backend_device *device = malloc(sizeof(*device) + strlen(uuid) + 1);

        if (!device)
                return NULL;
        strcpy(device->uuid, uuid);
        device->next = devices;
        devices = device;
        return device;
}

static int absent_probe(const struct backend *backend, struct backend_device ***ret_devices) {
        (void)backend, (void)ret_devices;
        return 0;
}

static void absent_info(const struct backend_device *device, struct backend_device_info *ret) {
        static const char *const handles[] = {"cuda-fd", "memfd"};
        bool host = strcmp(device->uuid, "host") == 0;

        *ret = (struct backend_device_info){
                .uuid = device->uuid,
                .name = host ? "Host memory" : "Absent GPU",
                .kind = host ? DEVICE_HOST : DEVICE_CUDA,
                .total_bytes = SCHEMA_UNSET,
                .zeroed = ZEROED_UNKNOWN,
                .handles = host ? &handles[1] : handles,
                .n_handles = 1,
                .ro_enforced = host,
        };
}

static int64_t absent_round(const struct backend_device *device, int64_t size, const char *handle) {
        (void)device, (void)handle;
        return size;
}

static int64_t absent_free_bytes(const struct backend_device *device) {
        (void)device;
        return SCHEMA_UNSET;
}

static int absent_fail(struct backend_detail *detail) {
        snprintf(detail->text, sizeof(detail->text), "the device is not there");
        detail->free_bytes = SCHEMA_UNSET;
        return -EIO;
}

static int absent_allocate(struct backend_device *device, int64_t size, int64_t allocated, const char *handle,
                           struct backing **backing, struct backend_detail *detail) {
        (void)device, (void)size, (void)allocated, (void)handle, (void)backing;
        return absent_fail(detail);
}

/* Of host memory a read-only descriptor would have to be made, which this backend does not. */
static int absent_adopt(struct backend_device *device, int fd_take, int64_t size, const char *handle, struct backing **ret,
                        struct backend_detail *detail) {
        struct backing *backing = calloc(1, sizeof(*backing));

        (void)size, (void)detail, (void)handle;
        if (!backing) {
                fd_closep(&fd_take);
                return -ENOMEM;
        }
        backing->fds[ACCESS_RW] = fd_take;
        backing->fds[ACCESS_RO] = strcmp(device->uuid, "host") == 0 ? -1 : fd_take;
        *ret = backing;
        return 0;
}

static int absent_open(struct backing *backing, enum access access, int *ret_fd, struct backend_detail *detail) {
        (void)backing, (void)access, (void)ret_fd;
        return absent_fail(detail);
}

static int absent_seal(struct backing *backing, struct backend_detail *detail) {
        (void)backing;
        return absent_fail(detail);
}

static void absent_close(struct backing *backing) {
        (void)close(backing->fds[ACCESS_RW]);
        free(backing);
}

const struct backend backend_absent = {
        .name = "absent",
        .probe = absent_probe,
        .info = absent_info,
        .round = absent_round,
        .free_bytes = absent_free_bytes,
        .allocate = absent_allocate,
        .adopt = absent_adopt,
        .open = absent_open,
        .seal = absent_seal,
        .close = absent_close,
};
