/* SPDX-License-Identifier: Apache-2.0 */
/* Reads files and streams straight into the mapping of a buffer: one copy, made by the kernel. What lies on a GPU is reached by way of a
 * stage, a chunk at a time. */
#include "source.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "report.h"
#include "spool.h"

#define CHUNK ((int64_t)8 << 20)
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

void source_deinit(struct source *source) {
        fd_closep(&source->fd);
}

/* A file whose size can be known: what lies between its offset and its end. */
static int measure(struct source *source, const struct stat *st) {
        off_t start = lseek(source->fd, 0, SEEK_CUR), end;

        /* Files of /proc say so, hold something nevertheless, and have no end to seek to. */
        if (S_ISREG(st->st_mode) && st->st_size == 0)
                return EXIT_DONE;
        if (start < 0 || (end = lseek(source->fd, 0, SEEK_END)) < 0 || lseek(source->fd, start, SEEK_SET) < 0)
                return report_errno(source->name, errno);
        source->seekable = true;
        source->start = start;
        source->size = end > start ? end - start : 0;
        source->changed = st->st_mtim;
        return EXIT_DONE;
}

static int spool(struct source *source) {
        _cleanup_fd_ int fd = -1;
        struct stat st;
        int r = spool_open(source->fd, source->name, &fd);

        if (r != EXIT_DONE)
                return r;
        fd_closep(&source->fd);
        source->fd = take_fd(&fd);
        if (fstat(source->fd, &st) != 0)
                return report_errno(source->name, errno);
        return measure(source, &st);
}

/* What seems to have no bytes is a stream, of the size told or of one to be found out. */
static int settle(struct source *source, int64_t size) {
        int r;

        if (source->size > 0) {
                if (size >= 0 && size != source->size)
                        return report_failure("%s has %lld bytes, not %lld as --size says", source->name,
                                              (long long)source->size, (long long)size);
                return EXIT_DONE;
        }
        if (size >= 0) {
                source->seekable = false;
                source->size = size;
                return EXIT_DONE;
        }
        r = spool(source);
        if (r == EXIT_DONE && source->size == 0)
                return report_failure("%s is empty, and a buffer has at least one byte", source->name);
        return r;
}

static int open_path(const char *path) {
        if (strcmp(path, "-") == 0)
                return fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
        return open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
}

int source_open(const char *path, int64_t size, struct source *ret) {
        _cleanup_source_ struct source source = { .fd = open_path(path), .name = path };
        struct stat st;
        int r;

        if (strcmp(path, "-") == 0)
                source.name = "standard input";
        if (source.fd < 0 || fstat(source.fd, &st) != 0)
                return report_errno(source.name, errno);
        if (S_ISDIR(st.st_mode))
                return report_failure("%s is a directory; put takes one file (tar can make one)", source.name);
        if (S_ISREG(st.st_mode) || S_ISBLK(st.st_mode)) {
                r = measure(&source, &st);
                if (r != EXIT_DONE)
                        return r;
        }
        r = settle(&source, size);
        if (r != EXIT_DONE)
                return r;
        *ret = source;
        source.fd = -1;
        return EXIT_DONE;
}

/* ---- reading ---------------------------------------------------------------------------------------------- */

#define COPY_FAILED (-ECOMM) /* `error` says how */

/* Where the bytes go. */
struct reading {
        const struct source *source;
        char *memory;          /* the mapping; NULL: */
        gpuipc_buffer *buffer; /* by way of */
        char *stage;           /* CHUNK bytes */
        const struct stop *stop;
        struct progress progress;
        gpuipc_error error;
};

/* The part of a file from `at` that is no hole, at most to `end`. Where the file system cannot tell, all of it. */
static void data_find(const struct source *source, int64_t at, int64_t end, int64_t *ret_from, int64_t *ret_to) {
        off_t from = lseek(source->fd, source->start + at, SEEK_DATA), to;

        if (from < 0 && errno == ENXIO) {
                *ret_from = *ret_to = end;
                return;
        }
        to = from < 0 ? from : lseek(source->fd, from, SEEK_HOLE);
        if (to < 0) {
                *ret_from = at;
                *ret_to = end;
                return;
        }
        *ret_from = from - source->start < end ? from - source->start : end;
        *ret_to = to - source->start < end ? to - source->start : end;
}

/* One read of at most `n` bytes, those of the source from `at` on: what read() says, or -errno. */
static ssize_t read_some(const struct source *source, char *to, int64_t at, int64_t n, const struct stop *stop) {
        ssize_t got;
        int r;

        if (source->seekable) {
                if (stop_wait(stop, 0))
                        return -EINTR;
                got = pread(source->fd, to, (size_t)n, source->start + at);
        } else {
                r = stop_wait_fd(stop, source->fd, POLLIN);
                if (r < 0)
                        return r;
                got = read(source->fd, to, (size_t)n);
        }
        return got < 0 ? -errno : got;
}

/* Makes the pages at once where the kernel can (Linux 5.14), which is twice as fast as a fault for each. */
static void populate(char *memory, int64_t at, int64_t n) {
        int64_t page = sysconf(_SC_PAGESIZE), from = at / page * page;

        (void)madvise(memory + from, (size_t)(at + n - from), MADV_POPULATE_WRITE);
}

/* One read to its place. As read_some(). */
static ssize_t read_chunk(struct reading *reading, int64_t at, int64_t n) {
        char *to = reading->memory ? reading->memory + at : reading->stage;
        ssize_t got = read_some(reading->source, to, at, n, reading->stop);

        if (got > 0 && !reading->memory &&
            gpuipc_buffer_write(reading->buffer, at, reading->stage, (size_t)got, &reading->error) != GPUIPC_OK)
                return COPY_FAILED;
        return got;
}

/* Reads [at, end). 0, also at the end of the input, or -errno. */
static int read_range(struct reading *reading, int64_t *at, int64_t end) {
        int64_t populated = *at;

        while (*at < end) {
                int64_t n = end - *at < CHUNK ? end - *at : CHUNK;
                ssize_t got;

                if (reading->memory && *at + n > populated) {
                        populated = *at + n;
                        populate(reading->memory, *at, n);
                }
                got = read_chunk(reading, *at, n);
                if (got == 0)
                        return 0;
                if (got < 0 && got != -EAGAIN)
                        return (int)got;
                *at += got > 0 ? got : 0;
                progress_update(&reading->progress, *at);
        }
        return 0;
}

static int read_all(struct reading *reading, int64_t *ret_done) {
        const struct source *source = reading->source;
        int64_t at = 0, from, to;
        int r = 0;

        if (!source->seekable || !reading->memory) {
                r = read_range(reading, &at, source->size);
                *ret_done = at;
                return r;
        }
        while (r == 0 && at < source->size) {
                data_find(source, at, source->size, &from, &to);
                at = from;
                r = read_range(reading, &at, to);
                if (r == 0 && at < to)
                        break;
        }
        *ret_done = at;
        return r;
}

/* What the file became while it was read. */
static int check_file(const struct source *source, int64_t done) {
        struct stat st;
        off_t end = lseek(source->fd, 0, SEEK_END);

        if (end < 0 || fstat(source->fd, &st) != 0)
                return report_errno(source->name, errno);
        if (done < source->size || end < source->start + source->size)
                return report_failure("%s shrank while it was read: %lld of %lld bytes are left", source->name,
                                      (long long)(end > source->start ? end - source->start : 0),
                                      (long long)source->size);
        if (end > source->start + source->size)
                report_note("note: %s grew while it was read; the buffer has its first %lld bytes", source->name,
                            (long long)source->size);
        else if (st.st_mtim.tv_sec != source->changed.tv_sec || st.st_mtim.tv_nsec != source->changed.tv_nsec)
                report_note("note: %s changed while it was read; the buffer may have some of both", source->name);
        return EXIT_DONE;
}

static int check_stream(const struct source *source, int64_t done, const struct stop *stop) {
        struct stat st;
        char more;

        if (done < source->size)
                return report_failure("%s ended after %lld of the %lld bytes that --size says", source->name,
                                      (long long)done, (long long)source->size);
        if (fstat(source->fd, &st) != 0 || S_ISCHR(st.st_mode))
                return EXIT_DONE;
        if (read_some(source, &more, source->size, 1, stop) > 0)
                return report_failure("%s has more than the %lld bytes that --size says", source->name,
                                      (long long)source->size);
        return EXIT_DONE;
}

static int reading_run(struct reading *reading) {
        const struct source *source = reading->source;
        int64_t done = 0;
        int r;

        progress_init(&reading->progress, source->name, source->size);
        r = read_all(reading, &done);
        progress_deinit(&reading->progress);
        if (r == -EINTR)
                return report_failure("interrupted; the buffer is given back");
        if (r == COPY_FAILED)
                return report_error(&reading->error);
        if (r < 0)
                return report_errno(source->name, -r);
        return source->seekable ? check_file(source, done) : check_stream(source, done, reading->stop);
}

int source_read(struct source *source, char *memory, const struct stop *stop) {
        struct reading reading = { .source = source, .memory = memory, .stop = stop };

        return reading_run(&reading);
}

int source_copy(struct source *source, gpuipc_buffer *buffer, const struct stop *stop) {
        _cleanup_free_ char *stage = malloc(CHUNK);
        struct reading reading = { .source = source, .buffer = buffer, .stage = stage, .stop = stop };

        return stage ? reading_run(&reading) : report_failure("out of memory");
}
