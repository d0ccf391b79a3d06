/* SPDX-License-Identifier: Apache-2.0 */
/* A child that answers, hangs, crashes, ends early or says too much. This program is its own child (not under valgrind: what it executes
 * would be valgrind). */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/doctor/child.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"
#include "tests/support/wait.h"

#define LONG_MS 20000
#define HANG_MS 1500 /* for one that says something first, which has to be started before that */

struct heard {
        char lines[8][64];
        int n, waits;
        bool cleared;
};

static void line_take(const char *key, const char *value, void *data) {
        struct heard *heard = data;

        if (heard->n < 8)
                (void)snprintf(heard->lines[heard->n], sizeof(heard->lines[0]), "%.20s=%.40s", key, value);
        heard->n++;
}

static void waiting(const char *what, int64_t waited_ms, void *data) {
        struct heard *heard = data;

        heard->waits += what && waited_ms >= 0;
        heard->cleared = !what;
}

static struct child_outcome run(const char *how, int patience_ms, struct heard *heard) {
        struct child_task task = { .words = { how }, .patience_ms = patience_ms, .line = line_take, .data = heard,
                                   .waiting = waiting, .waiting_data = heard };
        struct child_outcome outcome;
        size_t before = fds_count(0);

        *heard = (struct heard){ .n = 0 };
        child_run(&task, &outcome);
        ck_assert_uint_eq(fds_count(0), before);
        ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
        ck_assert(heard->cleared);
        return outcome;
}

START_TEST(it_answers) {
        struct heard heard;
        struct child_outcome outcome = run("answer", LONG_MS, &heard);

        ck_assert_int_eq(outcome.end, CHILD_DONE);
        ck_assert_int_eq(heard.n, 2);
        ck_assert_str_eq(heard.lines[0], "one=1 2 3");
        ck_assert_str_eq(heard.lines[1], "two=in one line");
}
END_TEST

START_TEST(it_hangs) {
        struct heard heard;
        struct child_outcome outcome = run("hang", slower_ms(HANG_MS), &heard);

        ck_assert_int_eq(outcome.end, CHILD_HUNG);
        ck_assert_str_eq(outcome.call, "cuHang()");
        ck_assert_int_eq(heard.n, 1);
        ck_assert_int_ge(heard.waits, 1);
}
END_TEST

START_TEST(it_ignores_what_can_be_ignored) {
        struct heard heard;

        ck_assert_int_eq(run("stubborn", slower_ms(HANG_MS), &heard).end, CHILD_HUNG);
}
END_TEST

START_TEST(it_crashes) {
        struct heard heard;
        struct child_outcome outcome = run("crash", LONG_MS, &heard);

        ck_assert_int_eq(outcome.end, CHILD_CRASHED);
        ck_assert_int_eq(outcome.signal, SIGSEGV);
        ck_assert_str_eq(outcome.call, "cuCrash()");
}
END_TEST

START_TEST(it_ends_early) {
        struct heard heard;
        struct child_outcome outcome = run("exit", LONG_MS, &heard);

        ck_assert_int_eq(outcome.end, CHILD_CRASHED);
        ck_assert_int_eq(outcome.signal, 0);
        ck_assert_int_eq(heard.n, 0);
}
END_TEST

START_TEST(it_says_too_much) {
        struct heard heard;
        struct child_outcome outcome = run("long", LONG_MS, &heard);

        ck_assert_int_eq(outcome.end, CHILD_DONE);
        ck_assert_int_eq(heard.n, 3000 + 1);
}
END_TEST

START_TEST(its_own_output_goes_nowhere) {
        struct heard heard;

        ck_assert_int_eq(run("noise", LONG_MS, &heard).end, CHILD_DONE);
        ck_assert_int_eq(heard.n, 0);
}
END_TEST

START_TEST(nothing_visible_is_passed_on_or_not) {
        struct heard heard;
        struct child_task task = { .words = { "visible" }, .patience_ms = LONG_MS, .line = line_take, .data = &heard };
        struct child_outcome outcome;

        (void)setenv("CUDA_VISIBLE_DEVICES", "7", 1);
        heard = (struct heard){ .n = 0 };
        child_run(&task, &outcome);
        ck_assert_str_eq(heard.lines[0], "visible=7");
        task.all_visible = true;
        heard = (struct heard){ .n = 0 };
        child_run(&task, &outcome);
        ck_assert_str_eq(heard.lines[0], "visible=none");
        ck_assert_str_eq(getenv("CUDA_VISIBLE_DEVICES"), "7");
}
END_TEST

/* ---- the child --------------------------------------------------------------------------------------------- */

static void say_much(void) {
        char text[2000];

        memset(text, 'x', sizeof(text) - 1);
        text[sizeof(text) - 1] = 0;
        child_tell("long", "%s", text);
        for (int i = 0; i < 3000; i++)
                child_tell("line", "%d", i);
}

static int child(const char *how) {
        if (strcmp(how, "answer") == 0) {
                child_tell("one", "%d %d %d", 1, 2, 3);
                child_tell("two", "in\none line");
        } else if (strcmp(how, "hang") == 0 || strcmp(how, "stubborn") == 0) {
                if (how[0] == 's') {
                        (void)signal(SIGTERM, SIG_IGN);
                        (void)signal(SIGINT, SIG_IGN);
                }
                child_tell("before", "%s", how);
                child_calls("cuHang()");
                for (;;)
                        (void)pause();
        } else if (strcmp(how, "crash") == 0) {
                child_calls("cuCrash()");
                (void)signal(SIGSEGV, SIG_DFL);
                (void)raise(SIGSEGV);
        } else if (strcmp(how, "exit") == 0) {
                return 0;
        } else if (strcmp(how, "long") == 0) {
                say_much();
        } else if (strcmp(how, "noise") == 0) {
                (void)puts("noise on standard output");
                (void)fflush(stdout);
                (void)fputs("noise on standard error\n", stderr);
        } else if (strcmp(how, "visible") == 0) {
                child_tell("visible", "%s", getenv("CUDA_VISIBLE_DEVICES") ? getenv("CUDA_VISIBLE_DEVICES") : "none");
        }
        child_tell("end", "%s", "");
        return 0;
}

int main(int argc, char **argv) {
        Suite *suite = suite_create("doctor_child");
        TCase *tc = tcase_create("child");

        if (argc == 2 && strcmp(argv[0], CHILD_NAME) == 0)
                _exit(child(argv[1]));
        tcase_set_timeout(tc, 60);
        tcase_add_test(tc, it_answers);
        tcase_add_test(tc, it_hangs);
        tcase_add_test(tc, it_ignores_what_can_be_ignored);
        tcase_add_test(tc, it_crashes);
        tcase_add_test(tc, it_ends_early);
        tcase_add_test(tc, it_says_too_much);
        tcase_add_test(tc, its_own_output_goes_nowhere);
        tcase_add_test(tc, nothing_visible_is_passed_on_or_not);
        suite_add_tcase(suite, tc);
        return suite_run(suite);
}
