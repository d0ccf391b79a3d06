/* SPDX-License-Identifier: Apache-2.0 */
/* Puts a stream aside, since a buffer's size must be known before it is made. The file goes with its descriptor. */
#include "spool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "progress.h"
#include "proto/cleanup.h"
#include "report.h"
#include "sink.h"

#define CHUNK ((size_t)1 << 20)

static const char *spool_folder(void) {
        const char *folder = getenv("TMPDIR");

        return folder && folder[0] ? folder : "/var/tmp";
}

static int file_make(const char *folder) {
        _cleanup_free_ char *path = NULL;
        int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

        if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR))
                return fd < 0 ? -errno : fd;
        if (asprintf(&path, "%s/gpuipcctl.XXXXXX", folder) < 0) {
                path = NULL;
                return -ENOMEM;
        }
        fd = mkostemp(path, O_CLOEXEC);
        if (fd < 0)
                return -errno;
        (void)unlink(path);
        return fd;
}

static int spool_copy(int from, int to, const char *name, struct progress *progress) {
        _cleanup_free_ char *chunk = malloc(CHUNK);
        int64_t done = 0;

        if (!chunk)
                return report_failure("out of memory");
        for (;;) {
                ssize_t n = read(from, chunk, CHUNK);
                int r;

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return report_errno(name, errno);
                if (n == 0)
                        return EXIT_DONE;
                r = sink_write(to, chunk, n, NULL, done);
                if (r < 0)
                        return report_failure(
                                "%s could not be spooled in %s (%s): give --size so that it need not be, or set "
                                "$TMPDIR to a folder with more room",
                                name, spool_folder(), strerror(-r));
                done += n;
                progress_update(progress, done);
        }
}

int spool_open(int fd, const char *name, int *ret_fd) {
        _cleanup_fd_ int file = file_make(spool_folder());
        struct progress progress;
        int r;

        if (file < 0)
                return report_failure(
                        "%s cannot be spooled in %s (%s): give --size so that it need not be, or set $TMPDIR",
                        name, spool_folder(), strerror(-file));
        progress_init(&progress, name, -1);
        r = spool_copy(fd, file, name, &progress);
        progress_deinit(&progress);
        if (r != EXIT_DONE)
                return r;
        if (lseek(file, 0, SEEK_SET) < 0)
                return report_errno(name, errno);
        *ret_fd = take_fd(&file);
        return EXIT_DONE;
}
