/* SPDX-License-Identifier: Apache-2.0 */
/* hold: an existing buffer, by itself or for a command that gets its descriptor. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "connect.h"
#include "hold.h"
#include "proto/cleanup.h"
#include "report.h"

#define COMMAND_FD 3
#define EXIT_NOT_RUNNABLE 126
#define EXIT_NOT_FOUND 127

static int number_setenv(const char *name, int64_t number) {
        char text[32];

        (void)snprintf(text, sizeof(text), "%" PRId64, number);
        return setenv(name, text, 1);
}

static int environment_set(const gpuipc_buffer *buffer) {
        const char *name = gpuipc_buffer_name(buffer);

        if (number_setenv("GPUIPC_FD", COMMAND_FD) != 0 ||
            number_setenv("GPUIPC_SIZE", gpuipc_buffer_size(buffer)) != 0 ||
            number_setenv("GPUIPC_OFFSET", gpuipc_buffer_offset(buffer)) != 0 ||
            setenv("GPUIPC_BUFFER", gpuipc_buffer_id(buffer), 1) != 0)
                return -errno;
        if ((name ? setenv("GPUIPC_NAME", name, 1) : unsetenv("GPUIPC_NAME")) != 0)
                return -errno;
        return 0;
}

/* In the child. The command must not outlive its holder: what it has mapped would be in nobody's books. */
__attribute__((noreturn)) static void command_exec(char *const *command, int fd, pid_t parent,
                                                   const sigset_t *mask) {
        int duplicate = fd == COMMAND_FD ? dup(fd) : fd; /* dup2() onto itself would leave close-on-exec set */
        int error;

        (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent)
                _exit(EXIT_NOT_RUNNABLE);
        if (duplicate < 0 || dup2(duplicate, COMMAND_FD) < 0)
                _exit(EXIT_NOT_RUNNABLE);
        if (duplicate != fd)
                (void)close(duplicate);
        (void)sigprocmask(SIG_SETMASK, mask, NULL);
        (void)execvp(command[0], command);
        error = errno;
        (void)report_errno(command[0], error);
        _exit(error == ENOENT ? EXIT_NOT_FOUND : EXIT_NOT_RUNNABLE);
}

/* Passes signals on and waits for the end. What the terminal sends, the command has got already. */
static int command_wait(pid_t pid, int signals) {
        for (;;) {
                struct signalfd_siginfo info;
                int status;

                if (waitpid(pid, &status, WNOHANG) == pid)
                        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
                if (read(signals, &info, sizeof(info)) != (ssize_t)sizeof(info))
                        continue;
                if (info.ssi_signo != SIGCHLD && info.ssi_code <= 0)
                        (void)kill(pid, (int)info.ssi_signo);
        }
}

static int command_run(const gpuipc_buffer *buffer, char *const *command) {
        static const int numbers[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD };
        _cleanup_fd_ int signals = -1;
        int fd = gpuipc_buffer_fd(buffer), r = environment_set(buffer);
        sigset_t set, before;
        pid_t parent = getpid(), pid;

        if (r < 0)
                return report_errno("environment", -r);
        if (fd < 0)
                return report_failure("the handle of %s is \"%s\", which has no descriptor to give to a command",
                                      gpuipc_buffer_id(buffer), gpuipc_buffer_handle(buffer));
        (void)sigemptyset(&set);
        for (size_t i = 0; i < ELEMENTSOF(numbers); i++)
                (void)sigaddset(&set, numbers[i]);
        (void)signal(SIGCHLD, SIG_DFL); /* were it ignored, there would be nothing to wait for */
        if (sigprocmask(SIG_BLOCK, &set, &before) != 0)
                return report_errno("signals", errno);
        signals = signalfd(-1, &set, SFD_CLOEXEC);
        pid = signals < 0 ? -1 : fork();
        if (pid < 0)
                return report_errno("fork", errno);
        if (pid == 0)
                command_exec(command, fd, parent, &before);
        return command_wait(pid, signals);
}

int verb_hold(const struct arguments *arguments) {
        _cleanup_client_ gpuipc_client *client = NULL;
        _cleanup_buffer_ gpuipc_buffer *buffer = NULL;
        _cleanup_stop_ struct stop stop = { .fd = -1 };
        gpuipc_access access = arguments_has(arguments, OPTION_RW) ? GPUIPC_RW : GPUIPC_RO;
        int r = ctl_connect(arguments, 0, &client);

        if (r == EXIT_DONE)
                r = hold_open(arguments, client, access, &buffer);
        if (r != EXIT_DONE)
                return r;
        if (arguments->command)
                return command_run(buffer, arguments->command);
        r = stop_init(&stop);
        if (r < 0)
                return report_errno("signals", -r);
        r = hold_announce(buffer);
        if (r != EXIT_DONE)
                return r;
        return hold_until_stopped(client, &buffer, &stop);
}
