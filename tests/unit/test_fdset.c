/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors in order of arrival: who owns which, and that none is lost. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "proto/fdset.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"

static int make_fd(void) {
        int fd = eventfd(0, EFD_CLOEXEC);

        ck_assert_int_ge(fd, 0);
        return fd;
}

static void fill(struct fdset *set, int *fds, size_t n) {
        for (size_t i = 0; i < n; i++) {
                fds[i] = make_fd();
                ck_assert_int_eq(fdset_add_take(set, fds[i]), 0);
        }
}

static int is_open(int fd) {
        return fcntl(fd, F_GETFD) >= 0;
}

START_TEST(closes_what_is_not_taken) {
        struct fdset set = { 0 };
        int fds[FDSET_MAX], taken;

        check_fd_count_begin();
        fill(&set, fds, FDSET_MAX);
        ck_assert_uint_eq(set.n, FDSET_MAX);
        taken = fdset_take(&set, 100);
        ck_assert_int_eq(taken, fds[100]);
        fdset_deinit(&set);
        for (size_t i = 0; i < FDSET_MAX; i++)
                ck_assert_int_eq(is_open(fds[i]), i == 100);
        ck_assert_uint_eq(set.n, 0);
        ck_assert_ptr_null(set.fds);
        (void)close(taken);
        check_fd_count_end();
}
END_TEST

START_TEST(takes_once) {
        struct fdset set = { 0 };
        int fds[2];

        check_fd_count_begin();
        fill(&set, fds, 2);
        ck_assert_int_eq(fdset_borrow(&set, 1), fds[1]);
        ck_assert_int_eq(fdset_borrow(&set, 1), fds[1]);
        ck_assert_int_eq(fdset_take(&set, 1), fds[1]);
        ck_assert_int_eq(fdset_take(&set, 1), -1);
        ck_assert_int_eq(fdset_borrow(&set, 1), -1);
        ck_assert_int_eq(fdset_take(&set, 2), -1);
        ck_assert_int_eq(fdset_borrow(&set, 2), -1);
        ck_assert_int_eq(fdset_borrow(&set, 0), fds[0]);
        (void)close(fds[1]);
        fdset_deinit(&set);
        check_fd_count_end();
}
END_TEST

START_TEST(splits_in_order) {
        struct fdset set = { 0 }, first = { 0 }, rest = { 0 };
        int fds[9];

        check_fd_count_begin();
        fill(&set, fds, 9);
        (void)close(fdset_take(&set, 1));
        ck_assert_int_eq(fdset_split_take(&set, 3, &first), 0);
        ck_assert_uint_eq(first.n, 3);
        ck_assert_uint_eq(set.n, 6);
        ck_assert_int_eq(fdset_borrow(&first, 0), fds[0]);
        ck_assert_int_eq(fdset_borrow(&first, 1), -1);
        ck_assert_int_eq(fdset_borrow(&first, 2), fds[2]);
        ck_assert_int_eq(fdset_borrow(&set, 0), fds[3]);
        ck_assert_int_eq(fdset_borrow(&set, 5), fds[8]);
        ck_assert_int_eq(fdset_split_take(&set, 6, &rest), 0);
        ck_assert_uint_eq(set.n, 0);
        fdset_deinit(&first);
        ck_assert(!is_open(fds[2]));
        ck_assert(is_open(fds[3]));
        fdset_deinit(&rest);
        fdset_deinit(&set);
        check_fd_count_end();
}
END_TEST

START_TEST(splits_all_or_nothing) {
        struct fdset set = { 0 }, first = { 0 };
        int fds[2];

        check_fd_count_begin();
        fill(&set, fds, 2);
        ck_assert_int_eq(fdset_split_take(&set, 3, &first), -EPROTO);
        ck_assert_uint_eq(set.n, 2);
        ck_assert_uint_eq(first.n, 0);
        ck_assert_int_eq(fdset_split_take(&set, 0, &first), 0);
        ck_assert_uint_eq(set.n, 2);
        ck_assert_uint_eq(first.n, 0);
        fdset_deinit(&first);
        fdset_deinit(&set);
        check_fd_count_end();
}
END_TEST

int main(void) {
        Suite *suite = suite_create("fdset");
        TCase *tcase = tcase_create("fdset");

        suite_add_tcase(suite, tcase);
        tcase_add_test(tcase, closes_what_is_not_taken);
        tcase_add_test(tcase, takes_once);
        tcase_add_test(tcase, splits_in_order);
        tcase_add_test(tcase, splits_all_or_nothing);
        return suite_run(suite);
}
