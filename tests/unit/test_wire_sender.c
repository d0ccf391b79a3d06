/* SPDX-License-Identifier: Apache-2.0 */
/* Who wrote: with a second process that writes, and with what other kernels and other namespaces would show. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"
#include "wire_pair.h"

static struct {
        int pidfd_error; /* what stands in a pidfd's place, 0 = the pidfd */
        bool hides_pids; /* as to a reader in another pid namespace */
} kernel;

static void spoil_pidfd(struct msghdr *message) {
        for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header != NULL;
             header = CMSG_NXTHDR(message, header)) {
                int pidfd;

                if (header->cmsg_type != SCM_PIDFD)
                        continue;
                memcpy(&pidfd, CMSG_DATA(header), sizeof(pidfd));
                if (pidfd >= 0)
                        (void)close(pidfd);
                memcpy(CMSG_DATA(header), &kernel.pidfd_error, sizeof(pidfd));
        }
}

static void hide_pid(struct msghdr *message) {
        for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header != NULL;
             header = CMSG_NXTHDR(message, header))
                if (header->cmsg_type == SCM_CREDENTIALS)
                        memset(CMSG_DATA(header), 0, sizeof(pid_t));
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
        ssize_t n = syscall(SYS_recvmsg, fd, message, flags);

        if (n >= 0 && kernel.pidfd_error != 0)
                spoil_pidfd(message);
        if (n >= 0 && kernel.hides_pids)
                hide_pid(message);
        return n;
}

START_TEST(nobody_is_known_where_the_kernel_does_not_tell) {
        struct pair pair;

        check_fd_count_begin();
        pair_init(&pair, 0);
        send_raw(pair.a.fd, "a\0b", 3);
        expect_fill(&pair.b, "a");
        ck_assert(!pair.b.sender.known);
        ck_assert_int_eq(pair.b.sender.pidfd, -1);
        send_raw(pair.a.fd, "c", 2);
        expect_fill(&pair.b, "bc");
        pair_deinit(&pair);
        check_fd_count_end();
}
END_TEST

START_TEST(the_sender_is_told) {
        struct pair pair;

        check_fd_count_begin();
        pair_init(&pair, 0);
        ck_assert_int_eq(option_on(pair.b.fd, SO_PASSCRED), 0);
        send_raw(pair.a.fd, "a", 2);
        expect_fill(&pair.b, "a");
        ck_assert(pair.b.sender.known);
        ck_assert_int_eq(pair.b.sender.pid, getpid());
        ck_assert_int_eq(pair.b.sender.uid, getuid());
        ck_assert_int_eq(pair.b.sender.gid, getgid());
        ck_assert(!pair.b.sender.dead);
        pair_deinit(&pair);
        check_fd_count_end();
}
END_TEST

/* Another process writes through the same socket and is gone and reaped when this returns. Gives its pid. */
static pid_t write_by_another(int fd, const char *data, size_t n) {
        pid_t pid = fork();
        int status;

        ck_assert_int_ge(pid, 0);
        if (pid == 0)
                _exit(send(fd, data, n, MSG_NOSIGNAL) == (ssize_t)n ? 0 : 1);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        return pid;
}

START_TEST(two_writers_are_told_apart) {
        struct pair pair;
        pid_t other;

        check_fd_count_begin();
        pair_init(&pair, 0);
        ck_assert_int_eq(option_on(pair.b.fd, SO_PASSCRED), 0);
        send_raw(pair.a.fd, "mine", 5);
        other = write_by_another(pair.a.fd, "another's", 10);
        send_raw(pair.a.fd, "mine again", 11);
        ck_assert_int_eq(wire_fill(&pair.b), 5);
        ck_assert_int_eq(pair.b.sender.pid, getpid());
        expect_next(&pair.b, "mine");
        ck_assert_int_eq(wire_fill(&pair.b), 10);
        ck_assert_int_eq(pair.b.sender.pid, other);
        expect_next(&pair.b, "another's");
        expect_fill(&pair.b, "mine again");
        ck_assert_int_eq(pair.b.sender.pid, getpid());
        ck_assert(!pair.b.mixed);
        pair_deinit(&pair);
        check_fd_count_end();
}
END_TEST

START_TEST(a_message_of_two_writers_is_refused) {
        struct pair pair;
        char *text;
        size_t n;

        check_fd_count_begin();
        pair_init(&pair, 0);
        ck_assert_int_eq(option_on(pair.b.fd, SO_PASSCRED), 0);
        send_raw(pair.a.fd, "whole\0ha", 8);
        (void)write_by_another(pair.a.fd, "lf", 3);
        ck_assert_int_eq(wire_fill(&pair.b), 8);
        expect_next(&pair.b, "whole");
        expect_none(&pair.b);
        ck_assert_int_eq(wire_fill(&pair.b), 3);
        ck_assert(pair.b.mixed);
        ck_assert_int_eq(wire_next(&pair.b, &text, &n), -EPERM);
        ck_assert_int_eq(wire_next(&pair.b, &text, &n), -EPERM);
        pair_deinit(&pair);
        check_fd_count_end();
}
END_TEST

/* Whether this kernel gives each process's pidfd an inode of its own (6.9 and later). */
static bool pidfds_have_inodes(void) {
        struct stat mine, parents;
        _cleanup_fd_ int a = (int)syscall(SYS_pidfd_open, getpid(), 0),
                         b = (int)syscall(SYS_pidfd_open, getppid(), 0);

        return fstat(a, &mine) == 0 && fstat(b, &parents) == 0 && mine.st_ino != parents.st_ino;
}

START_TEST(writers_without_a_number_are_told_apart_by_pidfd) {
        struct pair pair;

        check_fd_count_begin();
        pair_init(&pair, 0);
        ck_assert_int_eq(option_on(pair.b.fd, SO_PASSCRED), 0);
        kernel.hides_pids = true;
        if (option_on(pair.b.fd, SO_PASSPIDFD) < 0 || !pidfds_have_inodes()) {
                printf("SKIP writers_without_a_number_are_told_apart_by_pidfd: this kernel's pidfds are all "
                       "alike\n");
        } else {
                send_raw(pair.a.fd, "ha", 2);
                ck_assert_int_eq(wire_fill(&pair.b), 2);
                send_raw(pair.a.fd, "lf", 2);
                ck_assert_int_eq(wire_fill(&pair.b), 2);
                ck_assert_int_eq(pair.b.sender.pid, 0);
                ck_assert(!pair.b.mixed);
                (void)write_by_another(pair.a.fd, "!", 2);
                ck_assert_int_eq(wire_fill(&pair.b), 2);
                ck_assert(pair.b.mixed);
        }
        pair_deinit(&pair);
        check_fd_count_end();
}
END_TEST

static bool pidfd_fired(int pidfd) {
        struct pollfd item = { .fd = pidfd, .events = POLLIN };

        return poll(&item, 1, 0) == 1;
}

START_TEST(one_pidfd_is_kept) {
        struct pair pair;

        check_fd_count_begin();
        pair_init(&pair, 0);
        ck_assert_int_eq(option_on(pair.b.fd, SO_PASSCRED), 0);
        if (option_on(pair.b.fd, SO_PASSPIDFD) < 0) {
                printf("SKIP one_pidfd_is_kept: this kernel has no SO_PASSPIDFD\n");
        } else {
                struct fds before, after;

                send_raw(pair.a.fd, "a", 1);
                ck_assert_int_eq(wire_fill(&pair.b), 1);
                ck_assert_int_ge(pair.b.sender.pidfd, 0);
                before = fds_of(0);
                for (int i = 0; i < 10; i++) {
                        send_raw(pair.a.fd, "b", 1);
                        ck_assert_int_eq(wire_fill(&pair.b), 1);
                        expect_none(&pair.b);
                }
                after = fds_of(0);
                fds_assert_same(&before, &after, "the wire");
                fds_deinit(&before);
                fds_deinit(&after);
                ck_assert(!pidfd_fired(pair.b.sender.pidfd));
                ck_assert_int_eq(fcntl(pair.b.sender.pidfd, F_GETFD), FD_CLOEXEC);
        }
        pair_deinit(&pair);
        check_fd_count_end();
}
END_TEST

/* Kernels tell of a reaped sender in one of two ways: no pidfd, or one that has fired. */
START_TEST(a_reaped_sender_is_told) {
        struct pair pair;

        check_fd_count_begin();
        pair_init(&pair, 0);
        ck_assert_int_eq(option_on(pair.b.fd, SO_PASSCRED), 0);
        if (option_on(pair.b.fd, SO_PASSPIDFD) == 0) {
                (void)write_by_another(pair.a.fd, "last words", 11);
                expect_fill(&pair.b, "last words");
                ck_assert(pair.b.sender.known);
                ck_assert_int_eq(pair.b.sender.dead, pair.b.sender.pidfd < 0);
                ck_assert(pair.b.sender.dead || pidfd_fired(pair.b.sender.pidfd));
        }
        pair_deinit(&pair);
        check_fd_count_end();
}
END_TEST

START_TEST(numbers_in_a_pidfds_place_are_understood) {
        static const struct {
                int error;
                bool dead;
        } cases[] = { { -ESRCH, true }, { -EINVAL, true }, { -EMFILE, false }, { -ENOMEM, false } };
        struct pair pair;

        check_fd_count_begin();
        pair_init(&pair, 0);
        ck_assert_int_eq(option_on(pair.b.fd, SO_PASSCRED), 0);
        for (size_t i = 0; option_on(pair.b.fd, SO_PASSPIDFD) == 0 && i < ELEMENTSOF(cases); i++) {
                kernel.pidfd_error = cases[i].error;
                send_raw(pair.a.fd, "a", 2);
                expect_fill(&pair.b, "a");
                ck_assert_int_eq(pair.b.sender.pidfd, -1);
                ck_assert_int_eq(pair.b.sender.dead, cases[i].dead);
        }
        kernel.pidfd_error = 0;
        send_raw(pair.a.fd, "a", 2);
        expect_fill(&pair.b, "a");
        ck_assert(!pair.b.sender.dead);
        pair_deinit(&pair);
        check_fd_count_end();
}
END_TEST

int main(void) {
        Suite *suite = suite_create("wire_sender");
        TCase *tcase = tcase_create("senders");

        suite_add_tcase(suite, tcase);
        tcase_add_test(tcase, nobody_is_known_where_the_kernel_does_not_tell);
        tcase_add_test(tcase, the_sender_is_told);
        tcase_add_test(tcase, two_writers_are_told_apart);
        tcase_add_test(tcase, a_message_of_two_writers_is_refused);
        tcase_add_test(tcase, writers_without_a_number_are_told_apart_by_pidfd);
        tcase_add_test(tcase, one_pidfd_is_kept);
        tcase_add_test(tcase, a_reaped_sender_is_told);
        tcase_add_test(tcase, numbers_in_a_pidfds_place_are_understood);
        return suite_run(suite);
}
