/* SPDX-License-Identifier: Apache-2.0 */
/* The suite that must fail: each broken case below is run by Check in a process of its own, and is to be caught. The
 * daemon here is a shell script, so that it can be made to misbehave. */
#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/suite.h"

START_TEST(breaks_by_leaking) {
        setenv("GPUIPC_TEST_SLOWER", "1", 1);
        check_fd_count_begin();
        ck_assert_int_ge(open("/dev/null", O_RDONLY | O_CLOEXEC), 0);
        check_fd_count_end();
} END_TEST

START_TEST(breaks_by_crashing) {
        abort();
} END_TEST

START_TEST(breaks_by_hanging) {
        for (;;)
                pause();
} END_TEST

static bool never(void *data) {
        (void)data;
        return false;
}

START_TEST(breaks_by_waiting_in_vain) {
        setenv("GPUIPC_TEST_SLOWER", "1", 1);
        ck_assert_msg(wait_until(never, NULL, 50), "it never came");
} END_TEST

static int leave_with_3(int talk_fd, void *data) {
        (void)data;
        return talk_say(talk_fd, 'x') == 0 ? 3 : 1;
}

START_TEST(breaks_by_a_child_that_fails) {
        struct child child = child_start(NULL, leave_with_3, NULL);
        child_expect_exit(&child, 0);
} END_TEST

START_TEST(breaks_by_a_child_that_says_something_else) {
        struct child child = child_start(NULL, leave_with_3, NULL);
        child_hear(&child, 'y');
} END_TEST

/* Starts a shell script in the daemon's place. It gets the fixture's own arguments. */
static struct gpuipcd *start_script(const char *script, bool expect_failure) {
        static char path[128];
        const char *directory = getenv("TMPDIR");
        snprintf(path, sizeof(path), "%s/false-daemon.%d", directory ? directory : "/tmp", getpid());
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
        ck_assert_int_ge(fd, 0);
        ck_assert_int_gt(dprintf(fd, "#!/bin/sh\n%s\n", script), 0);
        close(fd);
        return gpuipcd_start(&(struct gpuipcd_options){ .program = path, .expect_failure = expect_failure });
}

START_TEST(breaks_by_a_daemon_that_is_never_ready) {
        start_script("echo some last words >&2; exit 0", false);
} END_TEST

START_TEST(breaks_by_a_daemon_that_ends_with_1) {
        struct gpuipcd *daemon = start_script("trap 'exit 1' TERM; echo set >&2; while :; do sleep 0.05; done", true);
        gpuipcd_wait_log(daemon, "set");
        gpuipcd_stop(daemon);
} END_TEST

START_TEST(breaks_by_a_daemon_that_crashed_before) {
        struct gpuipcd *daemon = start_script("kill -SEGV $$", true);
        ck_assert(wait_readable(daemon->pidfd, WAIT_MS));
        gpuipcd_stop(daemon);
} END_TEST

START_TEST(breaks_by_a_descriptor_left_open_around_a_daemon) {
        struct gpuipcd *daemon = start_script("trap 'exit 0' TERM; echo set >&2; while :; do sleep 0.05; done", true);
        gpuipcd_wait_log(daemon, "set");
        setenv("GPUIPC_TEST_SLOWER", "1", 1);
        ck_assert_int_ge(open("/dev/null", O_RDONLY | O_CLOEXEC), 0);
        gpuipcd_stop(daemon);
} END_TEST

START_TEST(a_healthy_daemon_passes) {
        struct gpuipcd *daemon = start_script("trap 'exit 0' TERM; echo set >&2; while :; do sleep 0.05; done", true);
        gpuipcd_wait_log(daemon, "set");
        gpuipcd_stop(daemon);
} END_TEST

START_TEST(a_healthy_child_passes) {
        check_fd_count_begin();
        struct child child = child_start(NULL, leave_with_3, NULL);
        child_hear(&child, 'x');
        child_expect_exit(&child, 3);
        check_fd_count_end();
} END_TEST

/* Runs one broken case with Check, quietly, and gives its message; NULL when it passed. */
static char *run_broken(const TTest *test, double timeout_s) {
        Suite *suite = suite_create("broken");
        TCase *tcase = tcase_create("broken");
        tcase_set_timeout(tcase, timeout_s);
        tcase_add_test(tcase, test);
        suite_add_tcase(suite, tcase);
        SRunner *runner = srunner_create(suite);
        srunner_set_fork_status(runner, CK_FORK);
        srunner_run_all(runner, CK_SILENT);
        char *message = NULL;
        if (srunner_ntests_failed(runner) > 0) {
                TestResult **failures = srunner_failures(runner);
                message = strdup(tr_msg(failures[0]));
                free(failures);
        }
        srunner_free(runner);
        return message;
}

static void expect_caught(const TTest *test, double timeout_s, const char *expected) {
        _cleanup_free_ char *message = run_broken(test, timeout_s);
        if (!expected) {
                ck_assert_msg(!message, "a healthy case failed: %s", message);
                return;
        }
        ck_assert_msg(message, "a broken case passed; \"%s\" expected", expected);
        ck_assert_msg(strstr(message, expected), "\"%s\" expected in: %s", expected, message);
}

START_TEST(leak_is_caught) {
        expect_caught(breaks_by_leaking, 20, "descriptors of this process");
        expect_caught(breaks_by_a_descriptor_left_open_around_a_daemon, 20, "descriptors of the test");
} END_TEST

START_TEST(crash_is_caught) {
        expect_caught(breaks_by_crashing, 20, "signal 6");
        expect_caught(breaks_by_a_daemon_that_crashed_before, 20, "signal 11");
} END_TEST

START_TEST(timeout_is_caught) {
        expect_caught(breaks_by_hanging, 0.2, "timeout");
        expect_caught(breaks_by_waiting_in_vain, 20, "it never came");
} END_TEST

START_TEST(bad_child_is_caught) {
        expect_caught(breaks_by_a_child_that_fails, 20, "ended with status 3, 0 expected");
        expect_caught(breaks_by_a_child_that_says_something_else, 20, "said 'x', 'y' expected");
} END_TEST

START_TEST(bad_daemon_is_caught) {
        expect_caught(breaks_by_a_daemon_that_is_never_ready, 20, "some last words");
        expect_caught(breaks_by_a_daemon_that_ends_with_1, 20, "ended on SIGTERM with status 1");
} END_TEST

START_TEST(healthy_ones_pass) {
        expect_caught(a_healthy_daemon_passes, 20, NULL);
        expect_caught(a_healthy_child_passes, 20, NULL);
} END_TEST

int main(void) {
        Suite *suite = suite_create("fixture");
        TCase *tcase = tcase_create("fixture");
        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, leak_is_caught);
        tcase_add_test(tcase, crash_is_caught);
        tcase_add_test(tcase, timeout_is_caught);
        tcase_add_test(tcase, bad_child_is_caught);
        tcase_add_test(tcase, bad_daemon_is_caught);
        tcase_add_test(tcase, healthy_ones_pass);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
