/* SPDX-License-Identifier: Apache-2.0 */
/* Messages over real sockets, at times with a kernel that interrupts and writes short. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"
#include "wire_pair.h"

static struct {
        int n_interrupts;   /* calls still to fail with EINTR */
        size_t write_limit; /* bytes a sendmsg() takes, 0 = no limit */
        size_t n_writes;
} kernel;

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
        struct iovec vector = message->msg_iov[0];
        struct msghdr shorter = *message;

        kernel.n_writes++;
        if (kernel.n_interrupts > 0 && kernel.n_interrupts-- > 0) {
                errno = EINTR;
                return -1;
        }
        if (kernel.write_limit > 0) {
                vector.iov_len = vector.iov_len < kernel.write_limit ? vector.iov_len : kernel.write_limit;
                shorter.msg_iov = &vector;
                shorter.msg_iovlen = 1;
        }
        return syscall(SYS_sendmsg, fd, &shorter, flags);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
        if (kernel.n_interrupts > 0 && kernel.n_interrupts-- > 0) {
                errno = EINTR;
                return -1;
        }
        return syscall(SYS_recvmsg, fd, message, flags);
}

START_TEST(messages_arrive_whole_and_in_order) {
        struct pair pair;

        check_fd_count_begin();
        pair_init(&pair, 0);
        expect_none(&pair.b);
        ck_assert_int_eq(wire_fill(&pair.b), -EAGAIN);
        ck_assert_int_eq(wire_flush(&pair.a), 0);
        put(&pair.a, "first");
        put(&pair.a, "");
        put(&pair.a, "{\"third\":3}");
        ck_assert_uint_eq(wire_pending(&pair.a), 6 + 1 + 12);
        ck_assert_int_eq(wire_flush(&pair.a), 0);
        ck_assert_uint_eq(wire_pending(&pair.a), 0);
        ck_assert_int_eq(wire_fill(&pair.b), 19);
        ck_assert(wire_ready(&pair.b));
        expect_next(&pair.b, "first");
        expect_next(&pair.b, "");
        ck_assert(wire_ready(&pair.b));
        expect_next(&pair.b, "{\"third\":3}");
        expect_none(&pair.b);
        put(&pair.b, "back");
        ck_assert_int_eq(wire_flush(&pair.b), 0);
        expect_fill(&pair.a, "back");
        pair_deinit(&pair);
        check_fd_count_end();
}
END_TEST

START_TEST(small_messages_share_a_write) {
        struct pair pair;

        pair_init(&pair, 0);
        for (int i = 0; i < 50; i++)
                put(&pair.a, "small");
        kernel.n_writes = 0;
        ck_assert_int_eq(wire_flush(&pair.a), 0);
        ck_assert_uint_eq(kernel.n_writes, 1);
        for (int i = 0; i < 50; i++)
                put(&pair.a, "small");
        ck_assert_int_eq(wire_flush(&pair.a), 0);
        ck_assert_int_eq(wire_fill(&pair.b), 600);
        for (int i = 0; i < 100; i++)
                expect_next(&pair.b, "small");
        pair_deinit(&pair);
}
END_TEST

START_TEST(bytes_may_come_one_by_one) {
        static const char stream[] = "one\0\0three";
        struct pair pair;

        pair_init(&pair, 0);
        for (size_t i = 0; i < sizeof(stream); i++) {
                send_raw(pair.a.fd, stream + i, 1);
                ck_assert_int_eq(wire_fill(&pair.b), 1);
                ck_assert_int_eq(wire_ready(&pair.b), stream[i] == '\0');
                if (stream[i] != '\0')
                        expect_none(&pair.b);
                else
                        expect_next(&pair.b, i == 3 ? "one" : i == 4 ? "" : "three");
        }
        pair_deinit(&pair);
}
END_TEST

START_TEST(a_read_may_end_inside_a_message) {
        struct pair pair;

        pair_init(&pair, 0);
        send_raw(pair.a.fd, "one\0two\0thr", 11);
        ck_assert_int_eq(wire_fill(&pair.b), 11);
        expect_next(&pair.b, "one");
        expect_next(&pair.b, "two");
        expect_none(&pair.b);
        send_raw(pair.a.fd, "ee\0f", 4);
        ck_assert_int_eq(wire_fill(&pair.b), 4);
        expect_next(&pair.b, "three");
        expect_none(&pair.b);
        pair_deinit(&pair);
}
END_TEST

static char *make_text(size_t n) {
        char *text = malloc(n + 1);

        ck_assert_ptr_nonnull(text);
        for (size_t i = 0; i < n; i++)
                text[i] = (char)('a' + i % 26);
        text[n] = '\0';
        return text;
}

/* Moves everything from one end to the other until a message is there; returns wire_next(). */
static int pump(struct pair *pair, char **ret_text, size_t *ret_n) {
        for (;;) {
                int r = wire_next(&pair->b, ret_text, ret_n);
                ssize_t n;

                if (r != 0)
                        return r;
                r = wire_flush(&pair->a);
                ck_assert(r == 0 || r == -EAGAIN);
                n = wire_fill(&pair->b);
                ck_assert_msg(n > 0, "nothing left to read: %zd", n);
        }
}

START_TEST(messages_are_limited_in_length) {
        _cleanup_free_ char *longest = make_text(WIRE_MESSAGE_MAX + 1);
        struct pair pair;
        char *text;
        size_t n;

        pair_init(&pair, WIRE_MESSAGE_MAX);
        ck_assert_int_eq(wire_put(&pair.a, longest, WIRE_MESSAGE_MAX, NULL, 0, NULL, NULL), 0);
        ck_assert_int_eq(pump(&pair, &text, &n), 1);
        ck_assert_uint_eq(n, WIRE_MESSAGE_MAX);
        ck_assert_mem_eq(text, longest, n);
        ck_assert_int_eq(wire_put(&pair.a, longest, WIRE_MESSAGE_MAX + 1, NULL, 0, NULL, NULL), 0);
        ck_assert_int_eq(pump(&pair, &text, &n), -EMSGSIZE);
        pair_deinit(&pair);
}
END_TEST

START_TEST(a_message_without_end_is_refused_in_time) {
        _cleanup_free_ char *longest = make_text(WIRE_MESSAGE_MAX + 1);
        struct wire wire;
        char *text;
        size_t n;

        wire_init(&wire, -1, WIRE_MESSAGE_MAX);
        bytes_append(&wire.in, longest, WIRE_MESSAGE_MAX);
        expect_none(&wire);
        bytes_append(&wire.in, "x", 1);
        ck_assert_int_eq(wire_next(&wire, &text, &n), -EMSGSIZE);
        wire_deinit(&wire);
}
END_TEST

START_TEST(long_messages_go_out_in_pieces) {
        _cleanup_free_ char *sent = make_text(3000000);
        struct pair pair;
        char *text;
        size_t n;

        pair_init(&pair, 0);
        ck_assert_int_eq(wire_put(&pair.a, sent, 3000000, NULL, 0, NULL, NULL), 0);
        put(&pair.a, "after");
        ck_assert_int_eq(wire_flush(&pair.a), -EAGAIN);
        ck_assert_uint_gt(wire_pending(&pair.a), 0);
        ck_assert_uint_lt(wire_pending(&pair.a), 3000007);
        ck_assert_int_eq(pump(&pair, &text, &n), 1);
        ck_assert_uint_eq(n, 3000000);
        ck_assert_mem_eq(text, sent, n);
        ck_assert_int_eq(pump(&pair, &text, &n), 1);
        ck_assert_str_eq(text, "after");
        ck_assert_uint_eq(wire_pending(&pair.a), 0);
        expect_none(&pair.b);
        /* Room for what was long is not kept by an idle connection. */
        ck_assert_int_eq(wire_fill(&pair.b), -EAGAIN);
        ck_assert_uint_le(pair.b.in.capacity, 32768);
        pair_deinit(&pair);
}
END_TEST

START_TEST(interruptions_and_short_writes_lose_nothing) {
        struct pair pair;

        pair_init(&pair, 0);
        kernel.write_limit = 3;
        kernel.n_interrupts = 5;
        for (int i = 0; i < 4; i++)
                put(&pair.a, "0123456789");
        ck_assert_int_eq(wire_flush(&pair.a), 0);
        ck_assert_int_eq(kernel.n_interrupts, 0);
        kernel.n_interrupts = 3;
        ck_assert_int_eq(wire_fill(&pair.b), 44);
        ck_assert_int_eq(kernel.n_interrupts, 0);
        for (int i = 0; i < 4; i++)
                expect_next(&pair.b, "0123456789");
        expect_none(&pair.b);
        pair_deinit(&pair);
}
END_TEST

START_TEST(ends_are_told) {
        struct pair pair;

        check_fd_count_begin();
        pair_init(&pair, 0);
        send_raw(pair.a.fd, "last\0half", 9);
        fd_closep(&pair.a.fd);
        put(&pair.b, "into the void");
        ck_assert_int_eq(wire_flush(&pair.b), -EPIPE); /* and no SIGPIPE */
        ck_assert_int_eq(wire_fill(&pair.b), 9);
        expect_next(&pair.b, "last");
        expect_none(&pair.b);
        ck_assert_int_eq(wire_fill(&pair.b), 0);
        expect_none(&pair.b);
        pair_deinit(&pair);
        check_fd_count_end();
}
END_TEST

int main(void) {
        Suite *suite = suite_create("wire");
        TCase *tcase = tcase_create("wire");

        suite_add_tcase(suite, tcase);
        tcase_add_test(tcase, messages_arrive_whole_and_in_order);
        tcase_add_test(tcase, small_messages_share_a_write);
        tcase_add_test(tcase, bytes_may_come_one_by_one);
        tcase_add_test(tcase, a_read_may_end_inside_a_message);
        tcase_add_test(tcase, messages_are_limited_in_length);
        tcase_add_test(tcase, a_message_without_end_is_refused_in_time);
        tcase_add_test(tcase, long_messages_go_out_in_pieces);
        tcase_add_test(tcase, interruptions_and_short_writes_lose_nothing);
        tcase_add_test(tcase, ends_are_told);
        return suite_run(suite);
}
