/* SPDX-License-Identifier: Apache-2.0 */
/* A stream cut in any way: pieces read from a socket must give the messages that the whole gives, and messages written must
 * arrive as they were. Input: one byte of limit, one of how many cuts, the cuts, the stream. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "proto/cleanup.h"
#include "proto/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void insist(bool condition) {
        if (!condition)
                abort();
}

/* What a reader must find, from the definition: text up to each NUL, none longer than the limit. */
struct expected {
        const char *stream;
        size_t n, at, limit;
        bool broken;
};

static void expect(struct expected *expected, int r, const char *text, size_t n) {
        insist(!expected->broken);
        if (r < 0) {
                insist(r == -EMSGSIZE);
                insist(expected->limit > 0 &&
                       strnlen(expected->stream + expected->at, expected->n - expected->at) > expected->limit);
                expected->broken = true;
                return;
        }
        insist(n == strlen(text));
        insist(expected->limit == 0 || n <= expected->limit);
        insist(n < expected->n - expected->at);
        insist(memcmp(text, expected->stream + expected->at, n + 1) == 0);
        expected->at += n + 1;
}

static void drain(struct wire *wire, struct expected *expected) {
        while (!expected->broken) {
                bool ready = wire_ready(wire);
                char *text = NULL;
                size_t n = 0;
                int r = wire_next(wire, &text, &n);

                insist(r <= 0 || ready);
                if (r == 0)
                        return;
                expect(expected, r, text, n);
                if (r > 0)
                        memset(text, 'x', n + 1);
        }
}

static void read_pieces(const uint8_t *cuts, size_t n_cuts, const char *stream, size_t n, size_t limit) {
        struct expected expected = { .stream = stream, .n = n, .limit = limit };
        struct wire wire;
        size_t at = 0;
        int fds[2];

        insist(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
        wire_init(&wire, fds[0], limit);
        for (size_t i = 0; at < n && !expected.broken; i++) {
                size_t piece = i < n_cuts ? cuts[i] + 1u : 8192;

                piece = piece < n - at ? piece : n - at;
                insist(send(fds[1], stream + at, piece, MSG_NOSIGNAL) == (ssize_t)piece);
                at += piece;
                for (;;) {
                        ssize_t r = wire_fill(&wire);

                        insist(r > 0 || r == -EAGAIN);
                        if (r < 0)
                                break;
                        drain(&wire, &expected);
                        if (expected.broken)
                                break;
                }
        }
        /* All that ends is handed out; what has no end is not. */
        insist(expected.broken || memchr(stream + expected.at, '\0', n - expected.at) == NULL);
        wire_deinit(&wire);
        fd_closep(&fds[1]);
}

static void count_release(void *arg) {
        ++*(size_t *)arg;
}

/* The same stream as messages, each put with or without a descriptor as the cuts say. */
static void write_messages(const uint8_t *cuts, size_t n_cuts, const char *stream, size_t n) {
        struct expected expected = { .stream = stream, .n = n };
        size_t n_released = 0, n_fds = 0, n_messages = 0;
        _cleanup_fd_ int fd = eventfd(0, EFD_CLOEXEC);
        struct wire from, to;
        int fds[2];

        insist(fd >= 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
        wire_init(&from, fds[0], 0);
        wire_init(&to, fds[1], 0);
        for (size_t at = 0; memchr(stream + at, '\0', n - at) != NULL && n_fds < 64; n_messages++) {
                size_t length = strlen(stream + at), n_here = n_messages < n_cuts ? cuts[n_messages] & 1 : 0;

                insist(wire_put(&from, stream + at, length, &fd, n_here, count_release, &n_released) == 0);
                n_fds += n_here;
                at += length + 1;
        }
        while (wire_pending(&from) > 0) {
                int r = wire_flush(&from);

                insist(r == 0 || r == -EAGAIN);
                while (wire_fill(&to) > 0)
                        drain(&to, &expected);
        }
        insist(to.fds.n == n_fds && n_released == n_messages);
        insist(!to.truncated && !to.mixed);
        wire_deinit(&from);
        wire_deinit(&to);
        insist(n_released == n_messages);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        size_t limit, n_cuts;
        char *stream;

        if (n < 2)
                return 0;
        limit = data[0] * 8u; /* 0: none */
        n_cuts = data[1] < n - 2 ? data[1] : n - 2;
        n -= 2 + n_cuts;
        /* A NUL after it, for the reference alone. */
        stream = calloc(1, n + 1);
        insist(stream != NULL);
        memcpy(stream, data + 2 + n_cuts, n);
        read_pieces(data + 2, n_cuts, stream, n, limit);
        write_messages(data + 2, n_cuts, stream, n);
        free(stream);
        return 0;
}
