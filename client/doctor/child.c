/* SPDX-License-Identifier: Apache-2.0 */
/* Both ends of a child: one writes lines to descriptor 3, the other reads them until it ends or has had its time. One thread. What the
 * child prints of its own goes nowhere. */
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/cleanup.h"

#define CHILD_FD 3
#define LINE_MAX_BYTES 1024
#define TICK_MS 250
#define REAP_MS 2000 /* what the kernel may take to end it */

static int64_t now_ms(void) {
        struct timespec t;

        (void)clock_gettime(CLOCK_MONOTONIC, &t);
        return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- the child's side -------------------------------------------------------------------------------------- */

void child_tell(const char *key, const char *format, ...) {
        char line[LINE_MAX_BYTES];
        int at = snprintf(line, sizeof(line), "%s ", key);
        va_list list;

        va_start(list, format);
        (void)vsnprintf(line + at, sizeof(line) - (size_t)at - 1, format, list);
        va_end(list);
        for (char *p = line; *p; p++)
                if (*p == '\n')
                        *p = ' ';
        (void)strcat(line, "\n");
        if (write(CHILD_FD, line, strlen(line)) < 0)
                _exit(EXIT_FAILURE); /* nobody reads any more */
}

void child_calls(const char *call) {
        child_tell("call", "%s", call);
}

int child_main(int argc, char **argv) {
        int r = EXIT_FAILURE;

        if (argc == 2 && strcmp(argv[1], "probe") == 0)
                r = child_probe();
        else if (argc == 6 && strcmp(argv[1], "trial") == 0)
                r = child_trial(argv[2], argv[3], argv[4], (int)strtol(argv[5], NULL, 10));
        if (r == EXIT_SUCCESS)
                child_tell("end", "%s", "");
        /* The driver's own farewell may hang or crash as well, and nothing depends on it. */
        _exit(r);
}

__attribute__((noreturn))
static void child_become(const struct child_task *task, int writer, pid_t parent) {
        char *argv[CHILD_WORDS_MAX + 2] = { (char *)(uintptr_t)CHILD_NAME };
        int argc = 1, null = open("/dev/null", O_RDWR);
        const char *path = (const char *)getauxval(AT_EXECFN);

        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
                _exit(EXIT_FAILURE);
        for (int fd = 0; fd < CHILD_FD && null >= 0; fd++)
                (void)dup2(null, fd);
        if (writer == CHILD_FD)
                (void)fcntl(CHILD_FD, F_SETFD, 0);
        else
                (void)dup2(writer, CHILD_FD);
        if (task->all_visible)
                (void)unsetenv("CUDA_VISIBLE_DEVICES");
        while (argc <= CHILD_WORDS_MAX && task->words[argc - 1]) {
                argv[argc] = (char *)(uintptr_t)task->words[argc - 1];
                argc++;
        }
        (void)execv("/proc/self/exe", argv);
        if (path)
                (void)execv(path, argv);
        _exit(child_main(argc, argv)); /* where /proc is none; the parent never touched the driver */
}

/* ---- the parent's side ------------------------------------------------------------------------------------- */

struct reading {
        const struct child_task *task;
        struct child_outcome *outcome;
        char text[LINE_MAX_BYTES * 2];
        size_t n;
        bool ended;
};

static void line_take(struct reading *in, char *line) {
        char *value = strchr(line, ' ');

        if (!value)
                return;
        *value++ = 0;
        if (strcmp(line, "end") == 0)
                in->ended = true;
        else if (strcmp(line, "call") == 0)
                (void)snprintf(in->outcome->call, sizeof(in->outcome->call), "%s", value);
        else
                in->task->line(line, value, in->task->data);
}

static void lines_take(struct reading *in) {
        char *line = in->text, *end;

        while ((end = memchr(line, '\n', in->n - (size_t)(line - in->text)))) {
                *end = 0;
                line_take(in, line);
                line = end + 1;
        }
        in->n -= (size_t)(line - in->text);
        memmove(in->text, line, in->n);
}

/* False: its deadline came first. */
static bool read_all(struct reading *in, int fd) {
        int64_t started = now_ms(), waited;

        while ((waited = now_ms() - started) < in->task->patience_ms) {
                int64_t left = in->task->patience_ms - waited;
                struct pollfd p = { .fd = fd, .events = POLLIN };
                ssize_t n;

                if (in->task->waiting)
                        in->task->waiting(in->outcome->call, waited, in->task->waiting_data);
                if (poll(&p, 1, left < TICK_MS ? (int)left : TICK_MS) <= 0)
                        continue;
                n = read(fd, in->text + in->n, sizeof(in->text) - in->n);
                if (n == 0 || in->ended)
                        return true;
                in->n += n > 0 ? (size_t)n : 0;
                lines_take(in);
                if (in->ended || in->n == sizeof(in->text))
                        return true;
        }
        return false;
}

/* A process that the driver holds in the kernel cannot be ended: it is left to itself. */
static int reap(pid_t pid) {
        int64_t deadline = now_ms() + REAP_MS;
        int status = 0;

        for (;;) {
                pid_t r = waitpid(pid, &status, WNOHANG);
                if (r == pid)
                        return status;
                if ((r < 0 && errno != EINTR) || now_ms() > deadline)
                        return 0;
                (void)poll(NULL, 0, 5);
        }
}

static void child_watch(const struct child_task *task, int fd, pid_t pid, struct child_outcome *ret) {
        struct reading in = { .task = task, .outcome = ret };
        bool in_time = read_all(&in, fd);
        int status;

        if (!in_time)
                (void)kill(pid, SIGKILL);
        status = reap(pid);
        if (!in_time)
                ret->end = CHILD_HUNG;
        else if (!in.ended) {
                ret->end = CHILD_CRASHED;
                ret->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
        }
}

void child_run(const struct child_task *task, struct child_outcome *ret) {
        _cleanup_fd_ int reader = -1, writer = -1;
        pid_t parent = getpid(), pid;
        int ends[2];

        *ret = (struct child_outcome){ .end = CHILD_DONE };
        if (pipe2(ends, O_CLOEXEC) < 0) {
                *ret = (struct child_outcome){ .end = CHILD_FAILED, .error = errno };
                return;
        }
        reader = ends[0];
        writer = ends[1];
        (void)fflush(NULL);
        pid = fork();
        if (pid == 0)
                child_become(task, writer, parent);
        if (pid < 0) {
                *ret = (struct child_outcome){ .end = CHILD_FAILED, .error = errno };
                return;
        }
        fd_closep(&writer);
        child_watch(task, reader, pid, ret);
        if (task->waiting)
                task->waiting(NULL, 0, task->waiting_data);
}
