/* SPDX-License-Identifier: Apache-2.0 */
/* A channel's fences and control page. Pool threads, but for annex_adopt(). The page is written here once, before anybody else maps it;
 * afterwards only its head stays mapped, for the loop's stores. */
#include "annex.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/cleanup.h"

static int annex_fail(struct backend_detail *detail, int error, const char *what) {
        snprintf(detail->text, sizeof(detail->text), "%s of a control page: %s", what, strerrordesc_np(error));
        detail->free_bytes = SCHEMA_UNSET;
        return -error;
}

static size_t head_bytes(void) {
        size_t page = (size_t)sysconf(_SC_PAGESIZE);

        return (sizeof(struct ring_page) + page - 1) / page * page;
}

/* Who only looks gets a descriptor that cannot write. One for all: nothing is made on the loop. */
static int annex_open(struct annex *annex, struct backend_detail *detail) {
        int fd, r = backend_host.open(annex->control, ACCESS_RO, &fd, detail);

        if (r == 0)
                annex->control->fds[ACCESS_RO] = fd;
        return r;
}

static int annex_map(struct annex *annex, struct backend_detail *detail) {
        void *page = mmap(NULL, head_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, backing_fd(annex->control, ACCESS_RW), 0);

        if (page == MAP_FAILED)
                return annex_fail(detail, errno, "mapping");
        annex->page = page;
        return 0;
}

static int annex_begin(struct annex *annex, const struct annex_spec *spec, struct backend_detail *detail) {
        int fd = backing_fd(annex->control, ACCESS_RW);
        void *page = mmap(NULL, (size_t)spec->control_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        int r;

        if (page == MAP_FAILED)
                return annex_fail(detail, errno, "mapping");
        ring_page_init(page, &spec->geometry);
        (void)munmap(page, (size_t)spec->control_bytes);
        /* Whoever has the descriptor could seal it against the writing of those who come later, and of a later daemon. */
        if (fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL) < 0)
                return annex_fail(detail, errno, "sealing");
        r = annex_open(annex, detail);
        return r == 0 ? annex_map(annex, detail) : r;
}

int annex_allocate(const struct backend *backend, struct backend_device *device, const char *handle, const struct annex_spec *spec,
                   struct backing *backing, struct backend_detail *detail) {
        struct annex *annex = backing->annex;
        int r = 0;

        if (!annex) {
                annex = backing->annex = calloc(1, sizeof(*annex));
                if (!annex)
                        return -ENOMEM;
                if (spec->fences_bytes > 0)
                        r = backend->allocate(device, FENCES_BYTES, spec->fences_bytes, handle, &annex->fences, detail);
                if (r != 0)
                        return r == BACKEND_MORE ? -EPROTO : r;
        }
        r = backend_host.allocate(NULL, spec->control_bytes, spec->control_bytes, "memfd", &annex->control, detail);
        annex->short_of_host = r == -ENOMEM;
        return r == 0 ? annex_begin(annex, spec, detail) : r;
}

bool annex_is_ours(int control_fd) {
        uint32_t version;

        return pread(control_fd, &version, sizeof(version), offsetof(struct ring_page, version)) == sizeof(version) &&
               version == RING_VERSION;
}

int annex_adopt(const struct backend *backend, struct backend_device *device, const char *handle, const struct annex_spec *spec,
                int fences_take, int control_take, struct backing *backing, struct backend_detail *detail) {
        _cleanup_fd_ int fences = fences_take, control = control_take;
        struct annex *annex = calloc(1, sizeof(*annex));
        int r;

        if (!annex)
                return -ENOMEM;
        backing->annex = annex;
        r = backend_host.adopt(NULL, take_fd(&control), spec->control_bytes, "memfd", &annex->control, detail);
        if (r == 0 && fences >= 0)
                r = backend->adopt(device, take_fd(&fences), FENCES_BYTES, handle, &annex->fences, detail);
        if (r == 0)
                r = annex_map(annex, detail);
        if (r == 0)
                (void)annex_open(annex, detail); /* a member may have taken a lease on the file, which costs the others their look */
        return r;
}

void backing_close(const struct backend *backend, struct backing *backing_take) {
        struct annex *annex = backing_take->annex;

        if (annex && annex->page)
                (void)munmap(annex->page, head_bytes());
        if (annex && annex->control)
                backend_host.close(annex->control);
        if (annex && annex->fences)
                backend->close(annex->fences);
        free(annex);
        backend->close(backing_take);
}
