/* SPDX-License-Identifier: Apache-2.0 */
/* Which container a process is in, by the text of its /proc/PID/cgroup; and which process is ending, among real ones: a thread that was
 * seized stays when it has ended, and keeps its process from having ended, until it is let go. */
#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/creds.h"
#include "proto/cleanup.h"
#include "tests/support/child.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"
#include "tests/support/wait.h"

#define ID_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define ID_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define POD "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
#define POD_SLICE "0f1e2d3c_4b5a_6978_8796_a5b4c3d2e1f0"

static const struct {
        const char *text, *container; /* NULL: none */
} cases[] = {
        {"0::/\n", NULL},
        {"0::/user.slice/user-1000.slice/session-2.scope\n", NULL},
        {"", NULL},
        {"0::/system.slice/docker-" ID_A ".scope\n", ID_A},
        {"12:pids:/docker/" ID_A "\n11:memory:/docker/" ID_A "\n", ID_A},
        {"0::/machine.slice/libpod-" ID_A ".scope/container\n", ID_A},
        {"5:pids:/libpod_parent/libpod-" ID_A "\n", ID_A},
        /* The outermost counts: what is below, the container may have made itself. */
        {"0::/docker/" ID_A "/docker/" ID_B "\n", ID_A},
        {"0::/docker/" ID_A "/" ID_B "\n", ID_A},
        /* Of whatever kind. */
        {"0::/docker/" ID_A "/kubepods/pod" POD "/" ID_B "\n", ID_A},
        {"0::/lxc.payload.web/docker/" ID_A "\n", "lxc:web"},
        {"0::/lxc.payload.web/kubepods/pod" POD "\n", "lxc:web"},
        {"0::/machine.slice/machine-debian.scope/" ID_A "\n", "machine:debian"},
        {"0::/docker/" ID_A "/lxc.payload.web\n", ID_A},
        /* 63 and 65 digits are no id. */
        {"0::/docker/a" ID_A "\n", NULL},
        {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" POD_SLICE ".slice/cri-containerd-" ID_A ".scope\n",
         "pod:" POD},
        {"0::/kubepods/besteffort/pod" POD "/" ID_A "\n", "pod:" POD},
        {"0::/lxc.payload.web/init.scope\n", "lxc:web"},
        {"0::/machine.slice/machine-debian.scope/payload\n", "machine:debian"},
        {"0::/docker/" ID_A, ID_A}, /* no line end */
};

START_TEST(container) {
        char got[256];

        check_fd_count_begin();
        ck_assert_int_eq(creds_container_of(cases[_i].text, got, sizeof(got)), cases[_i].container != NULL);
        if (cases[_i].container)
                ck_assert_str_eq(got, cases[_i].container);
        check_fd_count_end();
}
END_TEST

/* ---- one that is ending ------------------------------------------------------------------------------------ */

#define THREADS_MOST 64 /* that are looked at, the first among them */

/* A process with threads besides its first, all of which are seized. */
static struct child crowd;
static pid_t threads[THREADS_MOST];
static int n_threads, names[2], exits[2]; /* pipes: threads' numbers, and a byte for each that is to end */

static void *crowd_wait(void *data) {
        pid_t me = gettid();
        char byte;

        if (write(names[1], &me, sizeof(me)) == sizeof(me))
                (void)!read(exits[0], &byte, 1);
        return data;
}

static int crowd_run(int talk_fd, void *data) {
        pthread_t thread;

        for (int i = 0; i < n_threads; i++)
                if (pthread_create(&thread, NULL, crowd_wait, data) != 0)
                        return 1;
        if (talk_hear(talk_fd, 'e') != 0)
                return 2;
        (void)syscall(SYS_exit, 0); /* the first thread, and no other */
        return 3;
}

static void crowd_begin(int n) {
        n_threads = n;
        ck_assert(pipe2(names, O_CLOEXEC) == 0 && pipe2(exits, O_CLOEXEC) == 0);
        crowd = child_start(NULL, crowd_run, NULL);
        for (int i = 0; i < n; i++) {
                ck_assert_int_eq(read(names[0], &threads[i], sizeof(threads[i])), sizeof(threads[i]));
                ck_assert_msg(ptrace(PTRACE_SEIZE, threads[i], 0, 0) == 0, "thread %d: %m", threads[i]);
        }
}

static bool is_over(pid_t thread) {
        char path[64], sizes[2] = "";

        (void)snprintf(path, sizeof(path), "/proc/%d/task/%d/statm", crowd.pid, thread);
        _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
        ck_assert_msg(fd >= 0 && read(fd, sizes, 2) == 2, "%s: %m", path);
        return memcmp(sizes, "0 ", 2) == 0;
}

static int count_over(void) {
        int n = 0;

        for (int i = 0; i < n_threads; i++)
                n += is_over(threads[i]);
        return n;
}

static void crowd_kill(void) {
        ck_assert_int_eq(kill(crowd.pid, SIGKILL), 0);
        wait_for(is_over(crowd.pid) && count_over() == n_threads);
}

/* It has ended when this returns. */
static void crowd_let_go(void) {
        for (int i = 0; i < n_threads; i++)
                ck_assert_int_eq(waitpid(threads[i], NULL, __WALL), threads[i]);
        wait_for(creds_exited(crowd.pidfd));
}

static void crowd_end(void) {
        child_kill(&crowd);
        for (int i = 0; i < 2; i++) {
                close(names[i]);
                close(exits[i]);
        }
}

/* Whatever of it has ended. */
START_TEST(one_that_lives_is_not_ending) {
        check_fd_count_begin();
        crowd_begin(3);
        ck_assert(!creds_is_ending(crowd.pidfd));
        for (int i = 1; i < 3; i++) {
                ck_assert_int_eq(write(exits[1], "e", 1), 1);
                wait_for(count_over() == i);
                ck_assert(!creds_is_ending(crowd.pidfd));
                if (i == 2)
                        break;
                child_say(&crowd, 'e');
                wait_for(is_over(crowd.pid));
                ck_assert(!creds_is_ending(crowd.pidfd));
        }
        crowd_kill();
        ck_assert(creds_is_ending(crowd.pidfd));
        crowd_let_go();
        crowd_end();
        check_fd_count_end();
} END_TEST

static const int crowds[] = { 1, THREADS_MOST - 1, THREADS_MOST };

START_TEST(one_that_was_killed_is_ending_until_it_has_ended) {
        bool few = crowds[_i] < THREADS_MOST;

        check_fd_count_begin();
        crowd_begin(crowds[_i]);
        ck_assert(!creds_is_ending(crowd.pidfd));
        crowd_kill();
        ck_assert_int_eq(creds_is_ending(crowd.pidfd), few);
        ck_assert(!creds_exited(crowd.pidfd));
        ck_assert(!creds_is_ending(-1) && !creds_is_ending(crowd.talk_fd) && !creds_is_ending(99999));
        crowd_let_go();
        ck_assert(!creds_is_ending(crowd.pidfd));
        int pidfd = fcntl(crowd.pidfd, F_DUPFD_CLOEXEC, 0);
        crowd_end();
        ck_assert(!creds_is_ending(pidfd)); /* its number may be another's */
        close(pidfd);
        check_fd_count_end();
} END_TEST

/* Each thread but the last that there is has begun the next one. */
static void *relay_run(void *data) {
        pthread_attr_t detached;
        pthread_t next;

        (void)pthread_attr_init(&detached);
        (void)pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
        while (pthread_create(&next, &detached, relay_run, data) != 0)
                ;
        return NULL;
}

static int relay_main(int talk_fd, void *data) {
        (void)talk_fd;
        (void)relay_run(data);
        (void)syscall(SYS_exit, 0);
        return 1;
}

/* At no time is there a thread that lives for long. */
START_TEST(one_whose_threads_take_turns_is_not_ending) {
        crowd = child_start(NULL, relay_main, NULL);
        wait_for(is_over(crowd.pid));
        for (int i = 0; i < 4000; i++)
                ck_assert_msg(!creds_is_ending(crowd.pidfd), "at look %d", i);
        child_kill(&crowd);
} END_TEST

/* In a pid namespace with the /proc of another, where numbers are other processes'. */
static int ask_within(int talk_fd, void *data) {
        pid_t pid;
        int pidfd;

        (void)data;
        do { /* the kernel's own threads, which have no address space, have low numbers there */
                pid = fork();
                if (pid == 0)
                        _exit(talk_hear(talk_fd, 'n'));
                pidfd = creds_open_pid(pid);
                if (pidfd < 0 || creds_is_ending(pidfd))
                        return 2;
        } while (pid < 32);
        return 0;
}

START_TEST(numbers_of_another_namespace_are_not_taken_for_ours) {
        const struct child_options options = { .namespaces = CLONE_NEWPID };

        if (child_needs_root(__func__))
                return;
        struct child child = child_start(&options, ask_within, NULL);
        child_expect_exit(&child, 0);
} END_TEST

static void add_ending(Suite *suite) {
        TCase *tcase = tcase_create("ending");

        tcase_add_test(tcase, one_that_lives_is_not_ending);
        tcase_add_loop_test(tcase, one_that_was_killed_is_ending_until_it_has_ended, 0, (int)(sizeof(crowds) / sizeof(crowds[0])));
        tcase_add_test(tcase, one_whose_threads_take_turns_is_not_ending);
        tcase_add_test(tcase, numbers_of_another_namespace_are_not_taken_for_ours);
        suite_add_tcase(suite, tcase);
}

int main(void) {
        Suite *suite = suite_create("creds");
        TCase *tcase = tcase_create("container");

        tcase_add_loop_test(tcase, container, 0, sizeof(cases) / sizeof(cases[0]));
        suite_add_tcase(suite, tcase);
        if (getenv("GPUIPC_VALGRIND"))
                printf("SKIP ending: valgrind knows no pidfd\n");
        else
                add_ending(suite);
        return suite_run(suite);
}
