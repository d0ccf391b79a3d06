/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors over real sockets: each sent once, with its message, and none lost. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"
#include "wire_pair.h"

static size_t write_limit; /* bytes a sendmsg() takes, 0 = no limit */
static size_t fd_limit;    /* descriptors a recvmsg() has room for, 0 = what was asked for */

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
        struct iovec vector = message->msg_iov[0];
        struct msghdr shorter = *message;

        if (write_limit > 0) {
                vector.iov_len = vector.iov_len < write_limit ? vector.iov_len : write_limit;
                shorter.msg_iov = &vector;
                shorter.msg_iovlen = 1;
        }
        return syscall(SYS_sendmsg, fd, &shorter, flags);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
        if (fd_limit > 0)
                message->msg_controllen = CMSG_SPACE(fd_limit * sizeof(int));
        return syscall(SYS_recvmsg, fd, message, flags);
}

static void make_fds(int *fds, size_t n) {
        for (size_t i = 0; i < n; i++) {
                fds[i] = eventfd(0, EFD_CLOEXEC);
                ck_assert_int_ge(fds[i], 0);
        }
}

static void close_fds(int *fds, size_t n) {
        for (size_t i = 0; i < n; i++)
                fd_closep(&fds[i]);
}

/* Whether both are one eventfd: what is written to one is read from the other. */
static bool same_eventfd(int a, int b) {
        eventfd_t value = 0;

        ck_assert_int_eq(eventfd_write(a, 41), 0);
        ck_assert_int_eq(fcntl(b, F_SETFL, O_NONBLOCK), 0);
        return eventfd_read(b, &value) == 0 && value == 41;
}

static void count_release(void *arg) {
        ++*(int *)arg;
}

START_TEST(descriptors_come_with_their_message) {
        int fds[3], n_released = 0, taken;
        struct pair pair;

        check_fd_count_begin();
        pair_init(&pair, 0);
        make_fds(fds, 3);
        put(&pair.a, "none");
        ck_assert_int_eq(wire_put(&pair.a, "two", 3, fds, 2, count_release, &n_released), 0);
        put(&pair.a, "none again");
        ck_assert_int_eq(wire_put(&pair.a, "one", 3, fds + 2, 1, count_release, &n_released), 0);
        ck_assert_int_eq(n_released, 0);
        ck_assert_int_eq(wire_flush(&pair.a), 0);
        ck_assert_int_eq(n_released, 2);
        while (pair.b.fds.n < 3)
                ck_assert_int_gt(wire_fill(&pair.b), 0);
        expect_next(&pair.b, "none");
        expect_next(&pair.b, "two");
        expect_next(&pair.b, "none again");
        expect_next(&pair.b, "one");
        ck_assert_uint_eq(pair.b.fds.n, 3);
        for (size_t i = 0; i < 3; i++) {
                taken = fdset_take(&pair.b.fds, i);
                ck_assert(same_eventfd(fds[i], taken));
                ck_assert_int_eq(fcntl(taken, F_GETFD), FD_CLOEXEC);
                fd_closep(&taken);
        }
        ck_assert(!pair.b.truncated);
        close_fds(fds, 3);
        pair_deinit(&pair);
        check_fd_count_end();
}
END_TEST

START_TEST(as_many_descriptors_as_the_kernel_carries) {
        int fds[FDSET_MAX + 1];
        struct pair pair;

        check_fd_count_begin();
        pair_init(&pair, 0);
        ck_assert_int_eq(option_on(pair.b.fd, SO_PASSCRED), 0);
        (void)option_on(pair.b.fd, SO_PASSPIDFD);
        make_fds(fds, FDSET_MAX + 1);
        ck_assert_int_eq(wire_put(&pair.a, "x", 1, fds, FDSET_MAX + 1, NULL, NULL), -EINVAL);
        ck_assert_uint_eq(wire_pending(&pair.a), 0);
        ck_assert_int_eq(wire_put(&pair.a, "x", 1, fds, FDSET_MAX, NULL, NULL), 0);
        ck_assert_int_eq(wire_flush(&pair.a), 0);
        expect_fill(&pair.b, "x");
        ck_assert_uint_eq(pair.b.fds.n, FDSET_MAX);
        ck_assert(!pair.b.truncated);
        ck_assert(same_eventfd(fds[FDSET_MAX - 1], fdset_borrow(&pair.b.fds, FDSET_MAX - 1)));
        close_fds(fds, FDSET_MAX + 1);
        pair_deinit(&pair);
        check_fd_count_end();
}
END_TEST

START_TEST(descriptors_are_sent_once_however_short_the_writes) {
        int fds[2], n_released = 0;
        struct pair pair;

        check_fd_count_begin();
        pair_init(&pair, 0);
        make_fds(fds, 2);
        write_limit = 1;
        ck_assert_int_eq(wire_put(&pair.a, "first", 5, fds, 1, count_release, &n_released), 0);
        ck_assert_int_eq(wire_put(&pair.a, "second", 6, fds + 1, 1, count_release, &n_released), 0);
        ck_assert_int_eq(wire_flush(&pair.a), 0);
        ck_assert_int_eq(n_released, 2);
        while (wire_fill(&pair.b) > 0)
                continue;
        expect_next(&pair.b, "first");
        expect_next(&pair.b, "second");
        ck_assert_uint_eq(pair.b.fds.n, 2);
        ck_assert(same_eventfd(fds[0], fdset_borrow(&pair.b.fds, 0)));
        ck_assert(same_eventfd(fds[1], fdset_borrow(&pair.b.fds, 1)));
        close_fds(fds, 2);
        pair_deinit(&pair);
        check_fd_count_end();
}
END_TEST

START_TEST(what_is_not_sent_is_released) {
        _cleanup_free_ char *large = calloc(1, 3000000);
        int fds[2], n_released[3] = { 0 };
        struct pair pair;

        check_fd_count_begin();
        pair_init(&pair, 0);
        make_fds(fds, 2);
        ck_assert_int_eq(wire_put(&pair.a, large, 3000000, fds, 1, count_release, &n_released[0]), 0);
        ck_assert_int_eq(wire_put(&pair.a, "y", 1, fds + 1, 1, count_release, &n_released[1]), 0);
        ck_assert_int_eq(wire_put(&pair.a, "z", 1, NULL, 0, count_release, &n_released[2]), 0);
        ck_assert_int_eq(wire_flush(&pair.a), -EAGAIN);
        ck_assert_int_eq(n_released[0], 1);
        ck_assert_int_eq(n_released[1] + n_released[2], 0);
        pair_deinit(&pair);
        ck_assert_int_eq(n_released[0], 1);
        ck_assert_int_eq(n_released[1], 1);
        ck_assert_int_eq(n_released[2], 1);
        ck_assert_uint_eq(wire_pending(&pair.a), 0);
        close_fds(fds, 2);
        check_fd_count_end();
}
END_TEST

START_TEST(dropped_descriptors_are_noticed) {
        struct pair pair;
        int fds[10];

        check_fd_count_begin();
        pair_init(&pair, 0);
        make_fds(fds, 10);
        ck_assert_int_eq(wire_put(&pair.a, "x", 1, fds, 10, NULL, NULL), 0);
        ck_assert_int_eq(wire_flush(&pair.a), 0);
        fd_limit = 4;
        expect_fill(&pair.b, "x");
        ck_assert(pair.b.truncated);
        ck_assert_uint_eq(pair.b.fds.n, 4);
        close_fds(fds, 10);
        pair_deinit(&pair);
        check_fd_count_end();
}
END_TEST

int main(void) {
        Suite *suite = suite_create("wire_fds");
        TCase *tcase = tcase_create("wire_fds");

        suite_add_tcase(suite, tcase);
        tcase_add_test(tcase, descriptors_come_with_their_message);
        tcase_add_test(tcase, as_many_descriptors_as_the_kernel_carries);
        tcase_add_test(tcase, descriptors_are_sent_once_however_short_the_writes);
        tcase_add_test(tcase, what_is_not_sent_is_released);
        tcase_add_test(tcase, dropped_descriptors_are_noticed);
        return suite_run(suite);
}
