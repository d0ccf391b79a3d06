/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to a service manager that this test plays, by path and by abstract name, and to one that does not read. */
#include <check.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/clock.h"
#include "daemon/notify.h"
#include "proto/cleanup.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"
#include "tests/support/wait.h"

static char directory[32], name[64];
static int manager_fd;

/* Case 0: a path; case 1: an abstract name. */
static void manager_start(int kind) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        size_t n;

        strcpy(directory, "/tmp/gpuipc-test-XXXXXX");
        ck_assert_ptr_nonnull(mkdtemp(directory));
        snprintf(name, sizeof(name), "%s%s/notify", kind ? "@" : "", directory);
        n = strlen(name);
        memcpy(address.sun_path, name, n);
        if (kind)
                address.sun_path[0] = '\0';
        manager_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        ck_assert_int_ge(manager_fd, 0);
        ck_assert_int_eq(bind(manager_fd, (struct sockaddr *)&address,
                              (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)), 0);
        setenv("NOTIFY_SOCKET", name, 1);
}

static void manager_stop(void) {
        fd_closep(&manager_fd);
        if (name[0] == '/')
                ck_assert_int_eq(unlink(name), 0);
        ck_assert_int_eq(rmdir(directory), 0);
}

static const char *manager_read(void) {
        static char text[2048];
        ssize_t n;

        ck_assert_msg(wait_readable(manager_fd, WAIT_MS), "nothing was sent");
        n = recv(manager_fd, text, sizeof(text) - 1, 0);
        ck_assert_int_ge(n, 0);
        text[n] = '\0';
        return text;
}

START_TEST(messages_arrive) {
        uint64_t before_usec, told_usec;
        const char *text;

        manager_start(_i);
        check_fd_count_begin();
        notify_ready("2 buffers");
        ck_assert_str_eq(manager_read(), "READY=1\nSTATUS=2 buffers");
        notify_status("3 buffers\nREADY=1\r\n");
        ck_assert_str_eq(manager_read(), "STATUS=3 buffers READY=1  ");
        notify_stopping();
        ck_assert_str_eq(manager_read(), "STOPPING=1");
        notify_watchdog();
        ck_assert_str_eq(manager_read(), "WATCHDOG=1");
        before_usec = clock_monotonic_usec();
        notify_reloading();
        text = manager_read();
        ck_assert_int_eq(sscanf(text, "RELOADING=1\nMONOTONIC_USEC=%lu", &told_usec), 1);
        ck_assert_uint_ge(told_usec, before_usec);
        ck_assert_uint_le(told_usec, clock_monotonic_usec());
        check_fd_count_end();
        manager_stop();
} END_TEST

START_TEST(long_status_is_cut) {
        char status[2000];

        memset(status, 'x', sizeof(status) - 1);
        status[sizeof(status) - 1] = '\0';
        manager_start(0);
        notify_status(status);
        ck_assert_uint_eq(strlen(manager_read()), strlen("STATUS=") + 511);
        manager_stop();
} END_TEST

START_TEST(a_manager_that_does_not_read_is_not_waited_for) {
        int n_queued = 0;

        manager_start(0);
        check_fd_count_begin();
        for (int i = 0; i < 5000; i++) { /* more than any queue holds; blocking would end in the test's timeout */
                notify_status("busy");
                notify_watchdog();
        }
        check_fd_count_end();
        while (wait_readable(manager_fd, 0)) {
                manager_read();
                n_queued++;
        }
        ck_assert_int_gt(n_queued, 0);
        ck_assert_int_lt(n_queued, 10000);
        notify_status("again");
        ck_assert_str_eq(manager_read(), "STATUS=again");
        manager_stop();
} END_TEST

START_TEST(without_a_manager_nothing_happens) {
        static const char *const names[] = {NULL, "", "/", "@", "relative", "/nonexistent/notify",
                                            "/a/name/that/is/longer/than/the/108/bytes/of/a/socket/address/in/any/unix/system/"
                                            "and/so/can/never/be/bound"};

        if (names[_i])
                setenv("NOTIFY_SOCKET", names[_i], 1);
        else
                unsetenv("NOTIFY_SOCKET");
        check_fd_count_begin();
        notify_ready("x");
        notify_status("x");
        notify_reloading();
        notify_stopping();
        notify_watchdog();
        check_fd_count_end();
} END_TEST

START_TEST(watchdog_interval) {
        char pid[16];

        unsetenv("WATCHDOG_USEC");
        unsetenv("WATCHDOG_PID");
        ck_assert_uint_eq(notify_watchdog_interval_ms(), 0);
        setenv("WATCHDOG_USEC", "30000000", 1);
        ck_assert_uint_eq(notify_watchdog_interval_ms(), 15000);
        setenv("WATCHDOG_USEC", "5", 1);
        ck_assert_uint_eq(notify_watchdog_interval_ms(), 1);
        setenv("WATCHDOG_PID", "1", 1);
        ck_assert_uint_eq(notify_watchdog_interval_ms(), 0);
        snprintf(pid, sizeof(pid), "%d", getpid());
        setenv("WATCHDOG_PID", pid, 1);
        ck_assert_uint_eq(notify_watchdog_interval_ms(), 1);
        setenv("WATCHDOG_USEC", "nonsense", 1);
        ck_assert_uint_eq(notify_watchdog_interval_ms(), 0);
} END_TEST

int main(void) {
        Suite *suite = suite_create("notify");
        TCase *tcase = tcase_create("notify");

        tcase_set_timeout(tcase, 30);
        tcase_add_loop_test(tcase, messages_arrive, 0, 2);
        tcase_add_test(tcase, long_status_is_cut);
        tcase_add_test(tcase, a_manager_that_does_not_read_is_not_waited_for);
        tcase_add_loop_test(tcase, without_a_manager_nothing_happens, 0, 7);
        tcase_add_test(tcase, watchdog_interval);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
