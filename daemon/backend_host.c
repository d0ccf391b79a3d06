/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory: one sealed memfd a buffer. Pool threads, but for round and free_bytes, which are the loop's. Maps nothing and
 * never touches the bytes. */
#include "backend.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "clock.h"
#include "list.h"
#include "memory.h"
#include "proto/cleanup.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define STEP_BYTES (INT64_C(8) << 20) /* about 0.7 ms of clearing, ten times that on a slow machine: what others wait */
#define FREE_AGE_USEC 500000

struct host_backing {
        struct backing base;
        int64_t size, done_bytes;
};

struct backend_device {
        int64_t page_bytes;
};

static struct backend_device host_device;

static int host_fail(struct backend_detail *detail, int error, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
static int host_fail(struct backend_detail *detail, int error, const char *format, ...) {
        va_list ap;

        va_start(ap, format);
        vsnprintf(detail->text, sizeof(detail->text), format, ap);
        va_end(ap);
        detail->free_bytes = SCHEMA_UNSET;
        return -error;
}

static int host_probe(const struct backend *backend, struct backend_device ***ret_devices) {
        static struct backend_device *devices[] = {&host_device};

        (void)backend;
        host_device = (struct backend_device){.page_bytes = sysconf(_SC_PAGESIZE)};
        *ret_devices = devices;
        return 1;
}

static void host_info(const struct backend_device *device, struct backend_device_info *ret) {
        static const char *const handles[] = {"memfd"};
        int64_t usable = memory_usable_bytes();

        *ret = (struct backend_device_info){
                .uuid = "host",
                .name = "Host memory",
                .kind = DEVICE_HOST,
                .total_bytes = memory_total_bytes(),
                .capacity_bytes = usable == SCHEMA_UNSET ? 0 : usable / 2 / device->page_bytes * device->page_bytes,
                .zeroed = ZEROED_DRIVER,
                .handles = handles,
                .n_handles = ELEMENTSOF(handles),
                .ro_enforced = true,
        };
}

static int64_t host_round(const struct backend_device *device, int64_t size, const char *handle) {
        int64_t page = device->page_bytes;

        (void)handle;
        if (size <= 0 || size > SCHEMA_INT_MAX - page)
                return 0;
        return (size + page - 1) / page * page;
}

static int64_t host_free_bytes(const struct backend_device *device) {
        static struct {
                int64_t bytes;
                uint64_t usec;
        } known;
        uint64_t now_usec = clock_monotonic_usec();

        (void)device;
        if (known.usec == 0 || now_usec - known.usec >= FREE_AGE_USEC) {
                known.bytes = memory_available_bytes();
                known.usec = now_usec;
        }
        return known.bytes;
}

static void host_close(struct backing *base) {
        struct host_backing *backing = container_of(base, struct host_backing, base);

        for (size_t i = 0; i < ELEMENTSOF(base->fds); i++)
                if (base->fds[i] >= 0)
                        (void)close(base->fds[i]);
        free(backing);
}

static void host_closep(struct host_backing **backing) {
        if (*backing)
                host_close(&(*backing)->base);
}

static int host_create_fd(void) {
        int fd = memfd_create("gpuipc", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

        if (fd < 0 && errno == EINVAL)
                fd = memfd_create("gpuipc", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        return fd < 0 ? -errno : fd;
}

/* A file of the right length that owns no page yet. Its length cannot change from here on. */
static int host_create(int64_t size, struct host_backing **ret, struct backend_detail *detail) {
        _cleanup_(host_closep) struct host_backing *backing = calloc(1, sizeof(*backing));
        struct rlimit limit;
        int fd;

        if (!backing)
                return host_fail(detail, ENOMEM, "the daemon's own memory is exhausted");
        backing->size = size;
        backing->base.fds[ACCESS_RW] = backing->base.fds[ACCESS_RO] = -1;

        /* Beyond this limit the kernel would not only refuse but send a signal. */
        if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && (uint64_t)size > limit.rlim_cur)
                return host_fail(detail, EFBIG, "the daemon may not make files over %" PRIu64 " bytes: raise LimitFSIZE=",
                                 (uint64_t)limit.rlim_cur);
        fd = host_create_fd();
        if (fd < 0)
                return host_fail(detail, -fd, "memfd_create: %s", strerrordesc_np(-fd));
        backing->base.fds[ACCESS_RW] = fd;
        /* A memfd is born open to everyone: whoever got a read-only descriptor could open it anew for writing. */
        if (fchmod(fd, 0600) < 0)
                return host_fail(detail, errno, "fchmod of a memfd: %s", strerrordesc_np(errno));
        if (ftruncate(fd, size) < 0)
                return host_fail(detail, errno, "ftruncate of a memfd to %" PRId64 " bytes: %s", size, strerrordesc_np(errno));
        if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
                return host_fail(detail, errno, "sealing a memfd's length: %s", strerrordesc_np(errno));
        *ret = take_ptr(backing);
        return 0;
}

/* Puts pages under the next stretch of the file. */
static int host_step(struct host_backing *backing, struct backend_detail *detail) {
        int64_t step = backing->size - backing->done_bytes;
        int r;

        if (step > STEP_BYTES)
                step = STEP_BYTES;
        do
                r = fallocate(backing->base.fds[ACCESS_RW], 0, backing->done_bytes, step) < 0 ? errno : 0;
        while (r == EINTR);
        if (r == ENOSPC || r == ENOMEM) {
                r = host_fail(detail, ENOMEM, "no more memory after %" PRId64 " of %" PRId64 " bytes (fallocate: %s)",
                              backing->done_bytes, backing->size, strerrordesc_np(r));
                detail->free_bytes = memory_available_bytes();
                return r;
        }
        if (r != 0)
                return host_fail(detail, r, "fallocate of a memfd: %s", strerrordesc_np(r));
        backing->done_bytes += step;
        return 0;
}

static int host_allocate(struct backend_device *device, int64_t size, int64_t allocated, const char *handle,
                         struct backing **base, struct backend_detail *detail) {
        _cleanup_(host_closep) struct host_backing *backing = NULL;
        int r;

        (void)device, (void)allocated, (void)handle;
        if (*base)
                backing = container_of(take_ptr(*base), struct host_backing, base);
        else if ((r = host_create(size, &backing, detail)) < 0)
                return r;
        r = host_step(backing, detail);
        if (r < 0)
                return r;
        r = backing->done_bytes < backing->size ? BACKEND_MORE : 0;
        *base = &take_ptr(backing)->base;
        return r;
}

static int host_adopt(struct backend_device *device, int fd_take, int64_t size, const char *handle, struct backing **ret,
                      struct backend_detail *detail) {
        _cleanup_fd_ int fd = fd_take;
        struct host_backing *backing;
        struct stat st;
        int seals = fcntl(fd, F_GET_SEALS);

        (void)device, (void)handle;
        if (seals < 0 && errno != EINVAL)
                return host_fail(detail, errno, "reading its seals: %s", strerrordesc_np(errno));
        if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW))
                return host_fail(detail, EBADMSG, "it is no memfd of fixed length");
        if (fstat(fd, &st) < 0)
                return host_fail(detail, errno, "fstat: %s", strerrordesc_np(errno));
        if (st.st_size != size)
                return host_fail(detail, EBADMSG, "its length is not %" PRId64 " bytes", size);
        backing = calloc(1, sizeof(*backing));
        if (!backing)
                return host_fail(detail, ENOMEM, "the daemon's own memory is exhausted");
        backing->size = backing->done_bytes = size;
        backing->base.fds[ACCESS_RW] = take_fd(&fd);
        backing->base.fds[ACCESS_RO] = -1;
        *ret = &backing->base;
        return 0;
}

/* Each read-only lease has an open file of its own: what one holder does to its offset and flags is no other's business. A holder that
 * took a lease (F_SETLEASE) would keep an ordinary open() waiting, and the lane with it. */
static int host_open(struct backing *backing, enum access access, int *ret_fd, struct backend_detail *detail) {
        char path[32];
        int fd;

        (void)access;
        snprintf(path, sizeof(path), "/proc/self/fd/%d", backing_fd(backing, ACCESS_RW));
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0 && errno == EWOULDBLOCK)
                return host_fail(detail, EBUSY, "a holder has taken a lease on the file (F_SETLEASE)");
        if (fd < 0 && errno == ENOENT)
                return host_fail(detail, ENOENT, "cannot make a read-only descriptor: /proc is not mounted");
        if (fd < 0)
                return host_fail(detail, errno, "cannot make a read-only descriptor: %s", strerrordesc_np(errno));
        (void)fcntl(fd, F_SETFL, 0);
        *ret_fd = fd;
        return 0;
}

/* A holder who can write may have set seals of its own, even against further seals. */
static int host_seal(struct backing *backing, struct backend_detail *detail) {
        int fd = backing_fd(backing, ACCESS_RW);
        int seals = fcntl(fd, F_GET_SEALS);

        if (seals < 0)
                return host_fail(detail, errno, "reading a memfd's seals: %s", strerrordesc_np(errno));
        if (!(seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE))) {
                if (seals & F_SEAL_SEAL)
                        return host_fail(detail, EPERM, "a holder has forbidden further seals on this buffer: free it instead");
                if (fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) < 0)
                        return host_fail(detail, errno, "sealing a memfd against writing: %s", strerrordesc_np(errno));
        }
        if (!(seals & F_SEAL_SEAL) && fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL) < 0 && errno != EPERM)
                return host_fail(detail, errno, "sealing a memfd's seals: %s", strerrordesc_np(errno));
        return 0;
}

const struct backend backend_host = {
        .name = "host",
        .probe = host_probe,
        .info = host_info,
        .round = host_round,
        .free_bytes = host_free_bytes,
        .allocate = host_allocate,
        .adopt = host_adopt,
        .open = host_open,
        .seal = host_seal,
        .close = host_close,
};
