/* SPDX-License-Identifier: Apache-2.0 */
/* Two wires, one socket pair. */
#include "wire_pair.h"

#include <check.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

void pair_init(struct pair *pair, size_t max_message) {
        int fds[2];

        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
        wire_init(&pair->a, fds[0], max_message);
        wire_init(&pair->b, fds[1], max_message);
}

void pair_deinit(struct pair *pair) {
        wire_deinit(&pair->a);
        wire_deinit(&pair->b);
}

int option_on(int fd, int option) {
        int on = 1;

        return setsockopt(fd, SOL_SOCKET, option, &on, sizeof(on));
}

void put(struct wire *wire, const char *text) {
        ck_assert_int_eq(wire_put(wire, text, strlen(text), NULL, 0, NULL, NULL), 0);
}

void send_raw(int fd, const char *data, size_t n) {
        ck_assert_int_eq(send(fd, data, n, MSG_NOSIGNAL), (ssize_t)n);
}

void expect_next(struct wire *wire, const char *expected) {
        char *text = NULL;
        size_t n = 0;

        ck_assert_int_eq(wire_next(wire, &text, &n), 1);
        ck_assert_uint_eq(n, strlen(expected));
        ck_assert_str_eq(text, expected);
        memset(text, '!', n + 1); /* it is the caller's to write to */
}

void expect_none(struct wire *wire) {
        char *text = NULL;
        size_t n = 77;

        ck_assert(!wire_ready(wire));
        ck_assert_int_eq(wire_next(wire, &text, &n), 0);
        ck_assert_ptr_null(text);
        ck_assert_uint_eq(n, 77);
}

void expect_fill(struct wire *wire, const char *expected) {
        ck_assert_int_gt(wire_fill(wire), 0);
        expect_next(wire, expected);
}
