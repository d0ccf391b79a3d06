/* SPDX-License-Identifier: Apache-2.0 */
/* Writes straight from a buffer: one copy, made by the kernel. A file is written under another name beside its
 * place and renamed; signals that end the process take the other name away first. */
#include "sink.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "report.h"

#define CHUNK ((int64_t)256 << 10) /* what stays in the processor between a fault and its copy */
#define SEND ((int64_t)8 << 20)

/* For the signal handler; the process has one sink. */
static const char *volatile doomed;

static void cleanup_and_die(int number) {
        if (doomed)
                (void)unlink(doomed);
        (void)raise(number); /* the handler is gone after its first call */
}

static void doom(const char *temporary) {
        static const int numbers[] = { SIGINT, SIGTERM, SIGHUP, SIGXFSZ };
        struct sigaction action = { .sa_handler = cleanup_and_die, .sa_flags = (int)SA_RESETHAND }, before;

        doomed = temporary;
        for (size_t i = 0; i < ELEMENTSOF(numbers); i++)
                if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
                        (void)sigaction(numbers[i], &action, NULL);
}

void sink_deinit(struct sink *sink) {
        if (sink->temporary) {
                (void)unlink(sink->temporary);
                doomed = NULL;
        }
        fd_closep(&sink->fd);
        free(sink->path);
        free(sink->temporary);
        sink->path = sink->temporary = NULL;
}

/* A new file keeps the modes of the one it replaces, else has what the umask leaves of 0666. */
static mode_t mode_for(const struct stat *old) {
        mode_t mask;

        if (old)
                return old->st_mode & 0777;
        mask = umask(0);
        (void)umask(mask);
        return 0666 & ~mask;
}

/* Files are replaced where their symbolic links point to. */
static char *path_resolve(const char *path, bool exists) {
        return exists ? realpath(path, NULL) : strdup(path);
}

static int temporary_open(struct sink *sink, const struct stat *old) {
        const char *slash = strrchr(sink->path, '/');
        int n = slash ? (int)(slash - sink->path) + 1 : 0;

        if (asprintf(&sink->temporary, "%.*s.gpuipcctl.XXXXXX", n, sink->path) < 0) {
                sink->temporary = NULL;
                return report_failure("out of memory");
        }
        sink->fd = mkostemp(sink->temporary, O_CLOEXEC);
        if (sink->fd < 0) {
                int error = errno;

                free(sink->temporary);
                sink->temporary = NULL;
                return report_failure("%s: no file can be made beside it (%s)", sink->name, strerror(error));
        }
        doom(sink->temporary);
        if (old && fchown(sink->fd, old->st_uid, old->st_gid) != 0 && errno != EPERM)
                return report_errno(sink->name, errno);
        if (fchmod(sink->fd, mode_for(old)) != 0)
                return report_errno(sink->name, errno);
        return EXIT_DONE;
}

/* Fails early where there is no room. Where it cannot be reserved, writing will tell. */
static int reserve(const struct sink *sink, int64_t size) {
        if (fallocate(sink->fd, 0, 0, size) != 0 && (errno == ENOSPC || errno == EFBIG || errno == EDQUOT))
                return report_errno(sink->name, errno);
        return EXIT_DONE;
}

int sink_open(const char *path, int64_t size, struct sink *ret) {
        _cleanup_sink_ struct sink sink = { .fd = -1, .name = path };
        struct stat st;
        bool exists;
        int r;

        if (!path || strcmp(path, "-") == 0) {
                *ret = (struct sink){ .fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3), .name = "standard output" };
                return ret->fd < 0 ? report_errno(ret->name, errno) : EXIT_DONE;
        }
        exists = stat(path, &st) == 0;
        if (!exists && errno != ENOENT)
                return report_errno(path, errno);
        if (exists && !S_ISREG(st.st_mode)) {
                sink.fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
                if (sink.fd < 0)
                        return report_errno(path, errno);
        } else {
                sink.path = path_resolve(path, exists);
                if (!sink.path)
                        return report_errno(path, errno);
                if (exists && access(path, W_OK) != 0)
                        return report_errno(path, errno);
                r = temporary_open(&sink, exists ? &st : NULL);
                if (r == EXIT_DONE)
                        r = reserve(&sink, size);
                if (r != EXIT_DONE)
                        return r;
        }
        *ret = sink;
        sink = (struct sink){ .fd = -1 };
        return EXIT_DONE;
}

int sink_write(int fd, const char *memory, int64_t n, struct progress *progress, int64_t done) {
        for (int64_t at = 0; at < n;) {
                ssize_t wrote = write(fd, memory + at, (size_t)(n - at < CHUNK ? n - at : CHUNK));
                struct pollfd poll_fd = { fd, POLLOUT, 0 };

                if (wrote < 0 && errno == EAGAIN)
                        (void)poll(&poll_fd, 1, -1);
                else if (wrote < 0 && errno != EINTR)
                        return -errno;
                at += wrote > 0 ? wrote : 0;
                if (progress)
                        progress_update(progress, done + at);
        }
        return 0;
}

/* File to file inside the kernel, which costs half of what write() does. 0, or -errno; *at is how far it came. */
static int send_file(int to, int from, int64_t offset, int64_t size, struct progress *progress, int64_t *at) {
        while (*at < size) {
                off_t position = offset + *at;
                ssize_t sent = sendfile(to, from, &position, (size_t)(size - *at < SEND ? size - *at : SEND));

                if (sent == 0)
                        return -EIO; /* a buffer cannot shrink */
                if (sent < 0 && errno != EINTR)
                        return -errno;
                *at += sent > 0 ? sent : 0;
                progress_update(progress, *at);
        }
        return 0;
}

int sink_put(struct sink *sink, const char *memory, int64_t size, int from, int64_t offset) {
        struct progress progress;
        struct stat st;
        int64_t at = 0;
        int r = -EINVAL;

        progress_init(&progress, sink->name, size);
        /* Not to pipes: they would take the buffer's own pages, which its other holders may still change. */
        if (from >= 0 && fstat(sink->fd, &st) == 0 && S_ISREG(st.st_mode))
                r = send_file(sink->fd, from, offset, size, &progress, &at);
        if (r == -EINVAL || r == -ENOSYS)
                r = sink_write(sink->fd, memory + at, size - at, &progress, at);
        progress_deinit(&progress);
        return r < 0 ? report_errno(sink->name, -r) : EXIT_DONE;
}

int sink_copy(struct sink *sink, gpuipc_buffer *buffer) {
        _cleanup_free_ char *stage = malloc(SEND);
        int64_t size = gpuipc_buffer_size(buffer), n;
        struct progress progress;
        int r = EXIT_DONE, wrote = 0;
        gpuipc_error error;

        if (!stage)
                return report_failure("out of memory");
        progress_init(&progress, sink->name, size);
        for (int64_t at = 0; at < size && r == EXIT_DONE && wrote == 0; at += n) {
                n = size - at < SEND ? size - at : SEND;
                if (gpuipc_buffer_read(buffer, at, stage, (size_t)n, &error) != GPUIPC_OK)
                        r = report_error(&error);
                else
                        wrote = sink_write(sink->fd, stage, n, &progress, at);
        }
        progress_deinit(&progress);
        return wrote < 0 ? report_errno(sink->name, -wrote) : r;
}

int sink_commit(struct sink *sink) {
        int fd = take_fd(&sink->fd);

        /* Some file systems tell of a full disk only here. */
        if (close(fd) != 0 && errno != EINTR)
                return report_errno(sink->name, errno);
        if (!sink->path)
                return EXIT_DONE;
        if (rename(sink->temporary, sink->path) != 0)
                return report_errno(sink->name, errno);
        doomed = NULL;
        free(sink->temporary);
        sink->temporary = NULL;
        return EXIT_DONE;
}
