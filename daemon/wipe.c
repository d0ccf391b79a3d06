/* SPDX-License-Identifier: Apache-2.0 */
/* Starting the wiping helper and waiting for it. Pool threads enter, several at a time. Never calls CUDA. */
#include "wipe.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "clock.h"
#include "proto/cleanup.h"

#define REPORT_FD STDOUT_FILENO
#define MEMORY_FD 3

const char *wipe_program = "/proc/self/exe";
int wipe_deadline_ms = 30000;

extern char **environ;

static int wipe_fail(struct backend_detail *detail, int error, const char *what) {
        snprintf(detail->text, sizeof(detail->text), "wiping new memory: %s: %s", what, strerrordesc_np(error));
        detail->free_bytes = SCHEMA_UNSET;
        return -EIO;
}

/* The descriptors it gets and no others; signals as a program expects them. */
static int wipe_prepare(posix_spawn_file_actions_t *files, posix_spawnattr_t *attributes, int fd, int report_fd) {
        sigset_t none, defaults;
        int r;

        sigemptyset(&none);
        sigemptyset(&defaults);
        sigaddset(&defaults, SIGPIPE);
        r = posix_spawnattr_setsigmask(attributes, &none);
        if (r == 0)
                r = posix_spawnattr_setsigdefault(attributes, &defaults);
        if (r == 0)
                r = posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
        if (r == 0)
                r = posix_spawn_file_actions_addopen(files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        if (r == 0)
                r = posix_spawn_file_actions_adddup2(files, report_fd, REPORT_FD);
        if (r == 0)
                r = posix_spawn_file_actions_adddup2(files, fd, MEMORY_FD);
        if (r == 0)
                r = posix_spawn_file_actions_addclosefrom_np(files, MEMORY_FD + 1);
        return r;
}

static int wipe_spawn(int fd, const char *uuid, int64_t bytes, int report_fd, pid_t *ret_pid) {
        posix_spawn_file_actions_t files;
        posix_spawnattr_t attributes;
        char size[24], device[64], name[] = "gpuipcd", option[] = WIPE_OPTION;
        char *argv[] = {name, option, device, size, NULL};
        int r;

        snprintf(size, sizeof(size), "%" PRId64, bytes);
        snprintf(device, sizeof(device), "%s", uuid);
        r = posix_spawn_file_actions_init(&files);
        if (r != 0)
                return r;
        r = posix_spawnattr_init(&attributes);
        if (r == 0) {
                r = wipe_prepare(&files, &attributes, fd, report_fd);
                if (r == 0)
                        r = posix_spawn(ret_pid, wipe_program, &files, &attributes, argv, environ);
                posix_spawnattr_destroy(&attributes);
        }
        posix_spawn_file_actions_destroy(&files);
        return r;
}

/* Reads until the helper has closed its end, which it does by ending. False: not in time. */
static bool wipe_listen(int fd, uint64_t deadline_usec, char *ret_text, size_t n) {
        size_t got = 0;

        ret_text[0] = '\0';
        for (;;) {
                struct pollfd poller = {.fd = fd, .events = POLLIN};
                uint64_t now_usec = clock_monotonic_usec();
                char excess[256], *place = got + 1 < n ? ret_text + got : excess;
                ssize_t r;

                if (now_usec >= deadline_usec)
                        return false;
                if (poll(&poller, 1, (int)((deadline_usec - now_usec) / 1000) + 1) <= 0)
                        continue;
                r = read(fd, place, place == excess ? sizeof(excess) : n - 1 - got);
                if (r == 0)
                        return true;
                if (r > 0 && place != excess)
                        ret_text[got += (size_t)r] = '\0';
        }
}

static int wipe_reap(pid_t pid) {
        int status;

        while (waitpid(pid, &status, 0) < 0)
                if (errno != EINTR)
                        return -1;
        return status;
}

/* What the end of the helper says. */
static int wipe_judge(int status, bool in_time, const char *text, struct backend_detail *detail) {
        char end[64];

        if (in_time && WIFEXITED(status) && WEXITSTATUS(status) == 0)
                return 0;
        if (!in_time)
                snprintf(end, sizeof(end), "not done within %d ms", wipe_deadline_ms);
        else if (WIFSIGNALED(status))
                snprintf(end, sizeof(end), "the helper was killed by signal %d", WTERMSIG(status));
        else
                snprintf(end, sizeof(end), "the helper ended with status %d", WEXITSTATUS(status));
        snprintf(detail->text, sizeof(detail->text), "wiping new memory: %.120s", *text && in_time ? text : end);
        detail->free_bytes = SCHEMA_UNSET;
        if (!in_time)
                return -ETIMEDOUT;
        return WIFEXITED(status) && WEXITSTATUS(status) == WIPE_NO_MEMORY ? -ENOMEM : -EIO;
}

int wipe_run(int fd, const char *uuid, int64_t bytes, struct backend_detail *detail) {
        _cleanup_fd_ int read_fd = -1;
        int ends[2], r, status;
        char text[160];
        bool in_time;
        pid_t pid;

        if (pipe2(ends, O_CLOEXEC) < 0)
                return wipe_fail(detail, errno, "pipe");
        read_fd = ends[0];
        r = wipe_spawn(fd, uuid, bytes, ends[1], &pid);
        (void)close(ends[1]);
        if (r != 0)
                return wipe_fail(detail, r, wipe_program);
        in_time = wipe_listen(read_fd, clock_monotonic_usec() + (uint64_t)wipe_deadline_ms * 1000, text, sizeof(text));
        if (!in_time)
                (void)kill(pid, SIGKILL);
        status = wipe_reap(pid);
        return wipe_judge(status, in_time, text, detail);
}
