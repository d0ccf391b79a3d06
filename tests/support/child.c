/* SPDX-License-Identifier: Apache-2.0 */
/* Forks, changes who the child is, and reaps it. */
#include "child.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "wait.h"

#define STATUS_NOT_STARTED 97

int child_needs_root(const char *test) {
        if (geteuid() == 0)
                return 0;
        printf("SKIP %s: needs root, to act as another user\n", test);
        return 1;
}

static int become(const struct child_options *options) {
        /* Inside a user namespace the mapped root stays what it is. */
        if (options->uid == 0 || (options->namespaces & CLONE_NEWUSER))
                return 0;
        if (setgroups(0, NULL) < 0 || setresgid(options->gid, options->gid, options->gid) < 0 ||
            setresuid(options->uid, options->uid, options->uid) < 0)
                return -errno;
        /* Changing the user made the process undumpable: its /proc files would be root's. */
        return prctl(PR_SET_DUMPABLE, 1) < 0 ? -errno : 0;
}

static void write_file(pid_t pid, const char *name, const char *text) {
        char path[64];
        snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        ck_assert_msg(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), "%s: %m", path);
        close(fd);
}

static void map_user(pid_t pid, const struct child_options *options) {
        char text[64];
        write_file(pid, "setgroups", "deny");
        snprintf(text, sizeof(text), "0 %u 1", options->uid);
        write_file(pid, "uid_map", text);
        snprintf(text, sizeof(text), "0 %u 1", options->gid);
        write_file(pid, "gid_map", text);
}

static _Noreturn void run_child(const struct child_options *options, int talk_fd, int (*main)(int, void *),
                                void *data) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int status = STATUS_NOT_STARTED;
        if (talk_hear(talk_fd, 'g') == 0 && become(options) == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                status = main(talk_fd, data);
        }
        fflush(NULL);
        _exit(status);
}

struct child child_start(const struct child_options *options, int (*main)(int talk_fd, void *data), void *data) {
        static const struct child_options nothing;
        int talk[2];
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, talk), 0);
        options = options ? options : &nothing;
        fflush(NULL);
        /* The plain system call takes namespaces with it; fork() keeps sanitizers informed. */
        pid_t pid = options->namespaces ? (pid_t)syscall(SYS_clone, options->namespaces | SIGCHLD, NULL, NULL, NULL, NULL)
                                        : fork();
        ck_assert_msg(pid >= 0, "cannot start a child: %m");
        if (pid == 0) {
                close(talk[0]);
                run_child(options, talk[1], main, data);
        }
        close(talk[1]);
        struct child child = { .pid = pid, .pidfd = (int)syscall(SYS_pidfd_open, pid, 0), .talk_fd = talk[0] };
        ck_assert_msg(child.pidfd >= 0 || errno == ENOSYS, "pidfd_open: %m");
        if (options->namespaces & CLONE_NEWUSER)
                map_user(pid, options);
        child_say(&child, 'g');
        return child;
}

int talk_say(int talk_fd, char word) {
        return send(talk_fd, &word, 1, MSG_NOSIGNAL) == 1 ? 0 : -EPIPE;
}

int talk_hear(int talk_fd, char expected) {
        char word = 0;
        ssize_t n;
        do
                n = recv(talk_fd, &word, 1, 0);
        while (n < 0 && errno == EINTR);
        return n == 1 && word == expected ? 0 : -EPIPE;
}

void child_say(const struct child *child, char word) {
        ck_assert_msg(talk_say(child->talk_fd, word) == 0, "child %d no longer listens", child->pid);
}

void child_hear(const struct child *child, char expected) {
        ck_assert_msg(wait_readable(child->talk_fd, WAIT_MS), "child %d said nothing, '%c' expected", child->pid,
                      expected);
        char word = 0;
        ssize_t n = recv(child->talk_fd, &word, 1, 0);
        ck_assert_msg(n == 1, "child %d ended, '%c' expected of it", child->pid, expected);
        ck_assert_msg(word == expected, "child %d said '%c', '%c' expected", child->pid, word, expected);
}

/* Waits until `deadline`, or without end when it is 0; false when it has not ended by then. */
static bool reap(struct child *child, int64_t deadline, int *ret_status) {
        unsigned pause_usec = 0;
        pid_t pid;

        /* Not by the pidfd: valgrind knows none. */
        while ((pid = waitpid(child->pid, ret_status, deadline ? WNOHANG : 0)) == 0 || (pid < 0 && errno == EINTR)) {
                if (deadline && now_ms() >= deadline)
                        return false;
                if (pid == 0)
                        wait_pause(&pause_usec);
        }
        ck_assert_int_eq(pid, child->pid);
        fd_closep(&child->pidfd);
        fd_closep(&child->talk_fd);
        child->pid = 0;
        return true;
}

void child_expect_exit(struct child *child, int status) {
        pid_t pid = child->pid;
        int got = 0;
        ck_assert_msg(reap(child, deadline_in(WAIT_MS), &got), "child %d does not end", pid);
        ck_assert_msg(!WIFSIGNALED(got), "child %d was ended by signal %d", pid, WTERMSIG(got));
        ck_assert_msg(WEXITSTATUS(got) != STATUS_NOT_STARTED || status == STATUS_NOT_STARTED,
                      "child %d could not change its user", pid);
        ck_assert_msg(WEXITSTATUS(got) == status, "child %d ended with status %d, %d expected", pid, WEXITSTATUS(got),
                      status);
}

void child_kill(struct child *child) {
        int status = 0;
        ck_assert_int_eq(kill(child->pid, SIGKILL), 0);
        (void)reap(child, 0, &status);
}
