/* SPDX-License-Identifier: Apache-2.0 */
/* Starts, watches and stops a gpuipcd. It stays in the test's process group, so Check ends it with a failed test. */
#include "daemon_fixture.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "memory_kind.h"
#include "proto/cleanup.h"

#define ARGS_MAX 64

static void make_directory(struct gpuipcd *daemon, const struct gpuipcd_options *options) {
        const char *parent = getenv("TMPDIR");
        int n = snprintf(daemon->directory, sizeof(daemon->directory), "%s/d.XXXXXX", parent ? parent : "/tmp");
        ck_assert_int_lt(n, (int)sizeof(daemon->directory));
        ck_assert_msg(mkdtemp(daemon->directory), "%s: %m", daemon->directory);
        ck_assert_int_eq(chmod(daemon->directory, 0755), 0);
        if (options->uid)
                ck_assert_int_eq(chown(daemon->directory, options->uid, (gid_t)-1), 0);
        const char *directory = daemon->directory;
        snprintf(daemon->socket, sizeof(daemon->socket), "%s/s", directory);
        snprintf(daemon->admin_socket, sizeof(daemon->admin_socket), "%s/a", directory);
        snprintf(daemon->notify_path, sizeof(daemon->notify_path), "%s/n", directory);
        snprintf(daemon->log, sizeof(daemon->log), "%s/log", directory);
        snprintf(daemon->config, sizeof(daemon->config), "%s/conf", directory);

        FILE *file = fopen(daemon->config, "we");
        ck_assert_ptr_nonnull(file);
        fputs(options->config ? options->config : "", file);
        ck_assert_int_eq(fclose(file), 0);
}

static int open_notify(const char *path) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
        int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        ck_assert_msg(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0, "%s: %m", path);
        ck_assert_int_eq(chmod(path, 0666), 0);
        return fd;
}

static void fill_args(const struct gpuipcd *daemon, const struct gpuipcd_options *options, const char **args) {
        size_t n = 0;
        const char *own = getenv("GPUIPCD");
        args[n++] = options->program ? options->program : own ? own : "build/gpuipcd";
        args[n++] = "--config";
        args[n++] = daemon->config;
        args[n++] = "--backend";
        args[n++] = memory_backend();
        args[n++] = "--log-target";
        args[n++] = "stderr";
        args[n++] = "--socket";
        args[n++] = daemon->socket;
        args[n++] = "--admin-socket";
        args[n++] = options->without_admin ? "" : daemon->admin_socket;
        for (const char *const *more = options->args; more && *more; more++) {
                ck_assert_uint_lt(n, ARGS_MAX - 1);
                args[n++] = *more;
        }
        args[n] = NULL;
}

static _Noreturn void become_daemon(const struct gpuipcd *daemon, const struct gpuipcd_options *options,
                                    const char *const *args) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int log = open(daemon->log, O_WRONLY | O_CREAT | O_APPEND, 0644), nothing = open("/dev/null", O_RDONLY);
        if (log < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0 || dup2(nothing, 0) < 0)
                _exit(96);
        /* What the test has open is not the daemon's. */
        close_range(3, ~0U, 0);
        setenv("NOTIFY_SOCKET", daemon->notify_path, 1);
        for (const char *const *more = options->environment; more && *more; more++)
                putenv((char *)(uintptr_t)*more);
        struct rlimit limit = { (rlim_t)options->fd_limit, (rlim_t)options->fd_limit };
        if (options->fd_limit && setrlimit(RLIMIT_NOFILE, &limit) < 0)
                _exit(96);
        if (options->uid && (setgroups(0, NULL) < 0 || setresgid(options->uid, options->uid, options->uid) < 0 ||
                             setresuid(options->uid, options->uid, options->uid) < 0))
                _exit(96);
        execv(args[0], (char *const *)(uintptr_t)args);
        fprintf(stderr, "%s: %m\n", args[0]);
        _exit(96);
}

/* Lets a real driver open what it opens for itself with the first buffer, and may keep or open again: how many descriptors the daemon had
 * with it that are not the buffer's or the client's. */
static size_t use_driver(const struct gpuipcd *daemon) {
        const size_t others = 2 + !memory_is_classic(); /* the connection, who is at its other end, and the buffer */
        _cleanup_free_ char *made = NULL, *lease = NULL, *done = NULL;
        struct raw raw = raw_connect(daemon->socket);
        char text[128];
        size_t n;

        snprintf(text, sizeof(text), "{\"size\":1,\"handle\":\"%s\"}", memory_handle());
        made = raw_call_ok(&raw, "Allocate", text);
        lease = json_get(made, "parameters.lease");
        ck_assert_ptr_nonnull(lease);
        n = fds_count(daemon->pid);
        snprintf(text, sizeof(text), "{\"lease\":\"%s\"}", lease);
        done = raw_call_ok(&raw, "Release", text);
        raw_close(&raw);
        wait_for(gpuipcd_status(daemon, "buffers") == 0);
        ck_assert_uint_gt(n, others);
        return n - others;
}

/* A first client makes the daemon open what it opens only once. */
static size_t settled_fds(const struct gpuipcd *daemon) {
        int64_t deadline = deadline_in(WAIT_MS);
        unsigned pause_usec = 0;
        size_t n, again;

        wait_for(gpuipcd_status(daemon, "sessions") == 1);
        wait_for(!fds_have(daemon->pid, "pidfd")); /* of the client that asked */
        again = fds_count(daemon->pid);
        do {
                n = again;
                wait_pause(&pause_usec);
                again = fds_count(daemon->pid);
        } while ((n != again || pause_usec < 5000) && now_ms() < deadline);
        return n;
}

static void count_idle_fds(struct gpuipcd *daemon) {
        size_t seen[3];

        daemon->idle_fds = daemon->idle_fds_most = settled_fds(daemon);
        if (!memory_is_real())
                return;
        seen[0] = daemon->idle_fds;
        seen[1] = use_driver(daemon);
        seen[2] = settled_fds(daemon);
        for (size_t i = 0; i < ELEMENTSOF(seen); i++) {
                daemon->idle_fds = seen[i] < daemon->idle_fds ? seen[i] : daemon->idle_fds;
                daemon->idle_fds_most = seen[i] > daemon->idle_fds_most ? seen[i] : daemon->idle_fds_most;
        }
}

struct gpuipcd *gpuipcd_start(const struct gpuipcd_options *options) {
        static const struct gpuipcd_options plain;
        const char *args[ARGS_MAX];
        struct gpuipcd *daemon = calloc(1, sizeof(*daemon));
        ck_assert_ptr_nonnull(daemon);
        options = options ? options : &plain;
        daemon->before = fds_of(0);
        make_directory(daemon, options);
        daemon->notify_fd = open_notify(daemon->notify_path);
        fill_args(daemon, options, args);
        fflush(NULL);
        daemon->pid = fork();
        ck_assert_int_ge(daemon->pid, 0);
        if (daemon->pid == 0)
                become_daemon(daemon, options, args);
        daemon->pidfd = (int)syscall(SYS_pidfd_open, daemon->pid, 0);
        ck_assert_int_ge(daemon->pidfd, 0);
        if (options->expect_failure)
                return daemon;
        free(gpuipcd_notified(daemon, "READY=1"));
        count_idle_fds(daemon);
        return daemon;
}

char *gpuipcd_log(const struct gpuipcd *daemon) {
        FILE *file = fopen(daemon->log, "re");
        char *text = NULL;
        size_t size = 0;
        if (!file)
                return strdup("");
        if (getdelim(&text, &size, '\0', file) < 0) {
                free(text);
                text = strdup("");
        }
        fclose(file);
        return text;
}

static void fail_with_log(const struct gpuipcd *daemon, const char *what) {
        char *log = gpuipcd_log(daemon);
        size_t n = strlen(log);
        ck_abort_msg("%s; it logged:\n%s", what, n > 6000 ? log + n - 6000 : log);
}

char *gpuipcd_notified(struct gpuipcd *daemon, const char *word) {
        int64_t deadline = deadline_in(WAIT_MS);
        char text[4096], what[128];
        for (;;) {
                struct pollfd pollers[2] = { { .fd = daemon->notify_fd, .events = POLLIN },
                                             { .fd = daemon->pidfd, .events = POLLIN } };
                int n = poll(pollers, 2, deadline_left(deadline));
                if (n > 0 && pollers[0].revents) {
                        ssize_t length = recv(daemon->notify_fd, text, sizeof(text) - 1, 0);
                        text[length > 0 ? length : 0] = '\0';
                        if (strstr(text, word))
                                return strdup(text);
                } else if (n >= 0) {
                        snprintf(what, sizeof(what), "gpuipcd %s without %s", n ? "ended" : "runs", word);
                        fail_with_log(daemon, what);
                }
        }
}

void gpuipcd_wait_log(const struct gpuipcd *daemon, const char *text) {
        int64_t deadline = deadline_in(WAIT_MS);
        unsigned pause_usec = 0;
        for (;;) {
                _cleanup_free_ char *log = gpuipcd_log(daemon), *what = NULL;
                if (strstr(log, text))
                        return;
                if (now_ms() >= deadline && asprintf(&what, "gpuipcd did not log \"%s\"", text) > 0)
                        fail_with_log(daemon, what);
                wait_pause(&pause_usec);
        }
}

static void forget(struct gpuipcd *daemon) {
        static const char *const names[] = { "s", "a", "n", "log", "conf" };
        fd_closep(&daemon->pidfd);
        fd_closep(&daemon->notify_fd);
        struct fds after = fds_of(0);
        fds_assert_same(&daemon->before, &after, "the test, around gpuipcd_start() and its end");
        fds_deinit(&after);
        fds_deinit(&daemon->before);
        char path[96];
        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                snprintf(path, sizeof(path), "%s/%s", daemon->directory, names[i]);
                unlink(path);
        }
        rmdir(daemon->directory);
        free(daemon);
}

int gpuipcd_wait_end(struct gpuipcd *daemon) {
        int status = 0;
        if (!wait_readable(daemon->pidfd, WAIT_MS))
                fail_with_log(daemon, "gpuipcd does not end");
        ck_assert_int_eq(waitpid(daemon->pid, &status, 0), daemon->pid);
        forget(daemon);
        return status;
}

void gpuipcd_stop(struct gpuipcd *daemon) {
        int status = 0;
        char what[128];
        if (waitpid(daemon->pid, &status, WNOHANG) != 0) {
                snprintf(what, sizeof(what), "gpuipcd had ended before it was stopped, with %s %d",
                         WIFSIGNALED(status) ? "signal" : "status", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
                fail_with_log(daemon, what);
        }
        ck_assert_int_eq(kill(daemon->pid, SIGTERM), 0);
        if (!wait_readable(daemon->pidfd, WAIT_MS))
                fail_with_log(daemon, "gpuipcd does not end on SIGTERM");
        ck_assert_int_eq(waitpid(daemon->pid, &status, 0), daemon->pid);
        if (status != 0) {
                snprintf(what, sizeof(what), "gpuipcd ended on SIGTERM with %s %d",
                         WIFSIGNALED(status) ? "signal" : "status", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
                fail_with_log(daemon, what);
        }
        ck_assert_msg(access(daemon->socket, F_OK) < 0, "gpuipcd left its socket behind");
        ck_assert_msg(access(daemon->admin_socket, F_OK) < 0, "gpuipcd left its admin socket behind");
        forget(daemon);
}

void gpuipcd_kill(struct gpuipcd *daemon) {
        ck_assert_int_eq(kill(daemon->pid, SIGKILL), 0);
        ck_assert_int_eq(waitpid(daemon->pid, NULL, 0), daemon->pid);
        forget(daemon);
}

long long gpuipcd_status(const struct gpuipcd *daemon, const char *path) {
        return raw_status(daemon->socket, path);
}

void gpuipcd_wait_idle(const struct gpuipcd *daemon) {
        wait_for(gpuipcd_status(daemon, "leases") == 0);
        wait_for(gpuipcd_status(daemon, "buffers") == 0);
        wait_for(gpuipcd_status(daemon, "devices.0.brokered_bytes") == 0);
        wait_for(gpuipcd_status(daemon, "devices.0.draining_bytes") == 0);
        wait_for(memory_is_host() || gpuipcd_status(daemon, "devices.0.spare_bytes") == 0);
        wait_for(gpuipcd_status(daemon, "sessions") == 1);
        fds_wait_count(daemon->pid, daemon->idle_fds, daemon->idle_fds_most, "the idle gpuipcd");
}

long gpuipcd_memory_kb(const struct gpuipcd *daemon, const char *field) {
        char path[32], line[256];
        long value = -1;
        snprintf(path, sizeof(path), "/proc/%d/status", daemon->pid);
        FILE *file = fopen(path, "re");
        ck_assert_msg(file, "%s: %m", path);
        while (value < 0 && fgets(line, sizeof(line), file))
                if (strncmp(line, field, strlen(field)) == 0 && line[strlen(field)] == ':')
                        value = atol(line + strlen(field) + 1);
        fclose(file);
        ck_assert_msg(value >= 0, "no %s in %s", field, path);
        return value;
}
