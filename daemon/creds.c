/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel tells of a peer. Loop thread; nothing here waits for the peer's process. */
#include "creds.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdalign.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#include "fault.h"
#include "proto/cleanup.h"
#include "proto/wire.h"

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif

#define CONTAINER_ID_DIGITS 64
#define THREADS_MAX 64 /* looked at: of those that have ended, few are left */
#define THREAD_BYTES 32 /* what one takes in a directory, at most */
#define LOOKS_MAX 6
#define PIDFS_MAGIC 0x50494446
#define IDENTITY_OF_PID (UINT64_C(1) << 62)

void creds_deinit(struct creds *creds) {
        free(creds->gids);
        creds->gids = NULL;
        fd_closep(&creds->pidfd);
}

static int creds_read_groups(int fd, struct creds *creds) {
        socklen_t n = 0;

        if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &n) == 0 || errno != ERANGE)
                return 0;
        creds->gids = malloc(n);
        if (!creds->gids)
                return -ENOMEM;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, creds->gids, &n) < 0)
                return 0;
        creds->n_gids = n / sizeof(gid_t);
        return 0;
}

int creds_open_pid(pid_t pid) {
        return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

static void creds_read_process(int fd, struct creds *creds) {
        socklen_t n = sizeof(creds->pidfd);

        if (!fault_absent("SO_PEERPIDFD") && getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &creds->pidfd, &n) == 0)
                return;
        creds->pidfd = -1;
        if (errno == ESRCH || errno == EINVAL) {
                creds->dead = true;
                return;
        }
        /* An older kernel: by number, which may have been given to another process since the connect(). Only its exit is
         * watched, so the worst that comes of it is a lease that ends with the connection instead. */
        creds->pidfd = creds_open_pid(creds->pid);
}

int creds_read(int socket_fd, struct creds *ret) {
        struct creds creds = {.pidfd = -1};
        struct ucred ucred;
        socklen_t n = sizeof(ucred);
        int r;

        if (getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &ucred, &n) < 0)
                return -errno;
        creds.pid = ucred.pid;
        creds.uid = ucred.uid;
        creds.gid = ucred.gid;
        r = creds_read_groups(socket_fd, &creds);
        if (r < 0)
                return r;
        creds_read_process(socket_fd, &creds);
        *ret = creds;
        return 0;
}

bool creds_exited(int pidfd) {
        struct pollfd poll_fd = {.fd = pidfd, .events = POLLIN};

        return pidfd >= 0 && poll(&poll_fd, 1, 0) == 1;
}

bool creds_same_process(int a, int b) {
        struct stat first, second;

        return a >= 0 && b >= 0 && fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
               first.st_ino == second.st_ino;
}

uint64_t creds_identity(int pidfd, pid_t pid) {
        struct statfs file_system;
        struct stat st;

        if (pidfd < 0)
                return 0;
        if (fstatfs(pidfd, &file_system) == 0 && file_system.f_type == PIDFS_MAGIC && fstat(pidfd, &st) == 0)
                return (uint64_t)st.st_ino & ~IDENTITY_OF_PID;
        return pid > 0 ? IDENTITY_OF_PID | (uint64_t)pid : 0;
}

/* The beginning of a file of /proc, NUL-ended; the bytes read, or −1. */
static ssize_t creds_read_path(const char *path, char *ret, size_t n) {
        _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t got;

        if (fd < 0)
                return -1;
        got = read(fd, ret, n - 1);
        if (got >= 0)
                ret[got] = '\0';
        return got;
}

/* The same of a process's file. */
static ssize_t creds_read_file(pid_t pid, const char *file, char *ret, size_t n) {
        char path[64];

        if (pid <= 0)
                return -1;
        snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
        return creds_read_path(path, ret, n);
}

/* What /proc calls the process of a pidfd. The number that its socket told may be another process's by now, and is where /proc is that of
 * another pid namespace. */
static pid_t creds_pid_in_proc(int pidfd) {
        char path[64], text[512];
        const char *line;

        snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", pidfd);
        line = creds_read_path(path, text, sizeof(text)) > 0 ? strstr(text, "\nPid:\t") : NULL;
        return line ? (pid_t)strtol(line + strlen("\nPid:\t"), NULL, 10) : -1;
}

/* Of threads; CHANGED: one went while they were looked at. */
enum creds_sight { SIGHT_RUNNING, SIGHT_CHANGED, SIGHT_OVER };

struct creds_threads {
        pid_t numbers[THREADS_MAX];
        size_t n;
};

/* Who exits gives up the address space first, and cannot run without it; "0 0 …" is what statm says then. Each thread does so for
 * itself. */
static enum creds_sight creds_look_at_thread(pid_t pid, pid_t thread) {
        char file[40], sizes[128];

        snprintf(file, sizeof(file), "task/%d/statm", (int)thread);
        if (creds_read_file(pid, file, sizes, sizeof(sizes)) < 2)
                return SIGHT_CHANGED;
        return strncmp(sizes, "0 ", 2) == 0 ? SIGHT_OVER : SIGHT_RUNNING;
}

/* Of a directory of any length no more than so many are listed. */
static enum creds_sight creds_look_at_threads(pid_t pid, struct creds_threads *ret_threads) {
        alignas(struct dirent64) char entries[(THREADS_MAX + 3) * THREAD_BYTES];
        enum creds_sight seen = SIGHT_OVER;
        _cleanup_fd_ int fd = -1;
        char path[64];
        ssize_t got;

        snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
        fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        got = fd >= 0 ? getdents64(fd, entries, sizeof(entries)) : -1;
        ret_threads->n = 0;
        for (ssize_t at = 0; at < got && seen == SIGHT_OVER;) {
                const struct dirent64 *entry = (const struct dirent64 *)(entries + at);
                pid_t thread = (pid_t)strtol(entry->d_name, NULL, 10);

                at += entry->d_reclen;
                if (thread <= 0)
                        continue;
                if (ret_threads->n == THREADS_MAX)
                        return SIGHT_RUNNING;
                ret_threads->numbers[ret_threads->n++] = thread;
                seen = creds_look_at_thread(pid, thread);
        }
        return ret_threads->n > 0 ? seen : SIGHT_CHANGED;
}

/* One that was listed may begin another and be over when it is looked at: so all that there are, are over twice. */
static bool creds_threads_are_over(pid_t pid) {
        struct creds_threads threads[2];
        bool before = false;

        for (int i = 0; i < LOOKS_MAX; i++) {
                struct creds_threads *now = &threads[i % 2], *last = &threads[(i + 1) % 2];
                enum creds_sight seen = creds_look_at_threads(pid, now);

                if (seen == SIGHT_RUNNING)
                        return false;
                if (before && seen == SIGHT_OVER && now->n == last->n &&
                    memcmp(now->numbers, last->numbers, now->n * sizeof(now->numbers[0])) == 0)
                        return true;
                before = seen == SIGHT_OVER;
        }
        return false;
}

bool creds_is_ending(int pidfd) {
        pid_t pid = pidfd >= 0 ? creds_pid_in_proc(pidfd) : -1;

        /* The first thread runs in almost all that live. */
        return pid > 0 && creds_look_at_thread(pid, pid) == SIGHT_OVER && creds_threads_are_over(pid) && !creds_exited(pidfd);
}

struct rcstr *creds_command(pid_t pid) {
        char command[64];

        if (creds_read_file(pid, "comm", command, sizeof(command)) <= 0)
                return NULL;
        command[strcspn(command, "\n")] = '\0';
        return rcstr_new(command);
}

/* Each of these finds where its kind of id begins; NULL: nowhere. */

/* "…pod0f1e_….slice" or "pod0f1e-…" in a Kubernetes path: the pod's uid, dashes restored. */
static const char *container_pod(const char *path, size_t n, char *ret, size_t n_ret) {
        const char *pods = memmem(path, n, "kubepods", 8), *pod, *end = path + n;
        size_t length = 0;

        if (!pods)
                return NULL;
        for (pod = pods + 8; (pod = memmem(pod, (size_t)(end - pod), "pod", 3)); pod += 3) {
                for (length = 0; pod + 3 + length < end; length++) {
                        char c = pod[3 + length];

                        if (!isxdigit((unsigned char)c) && c != '_' && c != '-')
                                break;
                }
                if (length == 36)
                        break;
        }
        if (!pod)
                return NULL;
        snprintf(ret, n_ret, "pod:%.*s", (int)length, pod + 3);
        for (char *c = ret; *c; c++)
                *c = *c == '_' ? '-' : *c;
        return pod;
}

/* The first run of exactly 64 hex digits: how Docker, Podman, containerd and CRI-O name a container's group. */
static const char *container_id(const char *path, size_t n, char *ret, size_t n_ret) {
        size_t run = 0;

        for (size_t i = 0; i <= n; i++) {
                if (i < n && isxdigit((unsigned char)path[i])) {
                        run++;
                        continue;
                }
                if (run == CONTAINER_ID_DIGITS) {
                        snprintf(ret, n_ret, "%.*s", (int)run, path + i - run);
                        return path + i - run;
                }
                run = 0;
        }
        return NULL;
}

/* One component of the path that begins with a known prefix: what follows, without ".scope" or ".service". */
static const char *container_named(const char *path, size_t n, const char *prefix, const char *kind, char *ret, size_t n_ret) {
        const char *at = memmem(path, n, prefix, strlen(prefix));
        size_t length;

        if (!at)
                return NULL;
        at += strlen(prefix);
        length = strcspn(at, "/\n");
        if (length > 6 && memcmp(at + length - 6, ".scope", 6) == 0)
                length -= 6;
        if (length == 0)
                return NULL;
        snprintf(ret, n_ret, "%s:%.*s", kind, (int)length, at);
        return at;
}

#define CONTAINER_KINDS 4
#define CONTAINER_TEXT_MAX 256

/* The outermost counts, of whatever kind: what is below it, the container may have made itself. */
static bool container_in_line(const char *line, size_t n, char *ret, size_t n_ret) {
        char found[CONTAINER_KINDS][CONTAINER_TEXT_MAX];
        const char *at[CONTAINER_KINDS] = {
                container_pod(line, n, found[0], CONTAINER_TEXT_MAX),
                container_id(line, n, found[1], CONTAINER_TEXT_MAX),
                container_named(line, n, "/lxc.payload.", "lxc", found[2], CONTAINER_TEXT_MAX),
                container_named(line, n, "/machine.slice/machine-", "machine", found[3], CONTAINER_TEXT_MAX),
        };
        int outermost = -1;

        for (int i = 0; i < CONTAINER_KINDS; i++)
                if (at[i] && (outermost < 0 || at[i] < at[outermost]))
                        outermost = i;
        if (outermost >= 0)
                snprintf(ret, n_ret, "%s", found[outermost]);
        return outermost >= 0;
}

bool creds_container_of(const char *cgroup_text, char *ret, size_t n) {
        for (const char *line = cgroup_text; *line; line += line[strcspn(line, "\n")] ? strcspn(line, "\n") + 1 : strlen(line)) {
                size_t length = strcspn(line, "\n");

                if (container_in_line(line, length, ret, n))
                        return true;
        }
        return false;
}

bool creds_container(pid_t pid, struct rcstr **ret) {
        char text[4096], container[256];

        *ret = NULL;
        if (creds_read_file(pid, "cgroup", text, sizeof(text)) <= 0)
                return false;
        if (!creds_container_of(text, container, sizeof(container)))
                return true;
        *ret = rcstr_new(container);
        return *ret;
}

uid_t creds_overflow_uid(void) {
        _cleanup_fd_ int fd = open("/proc/sys/kernel/overflowuid", O_RDONLY | O_CLOEXEC);
        char text[32];
        ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;

        if (n <= 0)
                return 65534;
        text[n] = '\0';
        return (uid_t)strtoul(text, NULL, 10);
}
