/* SPDX-License-Identifier: Apache-2.0 */
/* The namespaces this process lives in, whether /proc fits them, and whether a pid number is the daemon's. Loads nothing. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doctor.h"
#include "proto/cleanup.h"

#define CHECK "namespaces"

/* The kernel gives the namespaces it boots with these fixed numbers (linux/proc_ns.h). */
static const struct {
        const char *name;
        unsigned long first;
} kinds[] = {
        { "pid", 0xEFFFFFFC },
        { "ipc", 0xEFFFFFFF },
        { "user", 0xEFFFFFFD },
};

static bool proc_is_own(void) {
        char text[32];
        ssize_t n = readlink("/proc/self", text, sizeof(text) - 1);

        if (n < 0)
                return false;
        text[n] = 0;
        return strtol(text, NULL, 10) == (long)getpid();
}

/* "host's", "own" or "unknown". */
static const char *namespace_whose(const char *name, unsigned long first) {
        char path[32], text[64];
        unsigned long inode;
        ssize_t n;

        (void)snprintf(path, sizeof(path), "/proc/self/ns/%s", name);
        n = readlink(path, text, sizeof(text) - 1);
        if (n < 0)
                return "unknown";
        text[n] = 0;
        if (!strchr(text, '[') || sscanf(strchr(text, '['), "[%lu]", &inode) != 1)
                return "unknown";
        return inode == first ? "the host's" : "one of its own";
}

static void read_comm(int64_t pid, char *ret, size_t n) {
        char path[64];
        _cleanup_fd_ int fd = -1;
        ssize_t length;

        (void)snprintf(path, sizeof(path), "/proc/%" PRId64 "/comm", pid);
        (void)snprintf(ret, n, "a process");
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
                return;
        length = read(fd, ret, n - 1);
        if (length > 0)
                ret[length - (ret[length - 1] == '\n')] = 0;
}

static bool daemon_has_classic(const struct doctor *doctor) {
        for (size_t i = 0; i < doctor->daemon.n_devices; i++)
                for (size_t k = 0; k < doctor->daemon.devices[i].n_handles; k++)
                        if (strcmp(doctor->daemon.devices[i].handles[k], "cuda-ipc") == 0)
                                return true;
        return false;
}

/* What engines and hosts put at number 1, so that programs have others. */
static bool is_init(int64_t pid, const char *comm) {
        static const char *const inits[] = {
                "docker-init", "podman-init", "catatonit", "tini", "dumb-init", "systemd", "init",
        };

        for (size_t i = 0; i < ELEMENTSOF(inits); i++)
                if (pid == 1 && strcmp(comm, inits[i]) == 0)
                        return true;
        return false;
}

/* A classic handle carries its maker's pid number, and the driver takes an equal one for its own process's. */
static void check_pid(struct doctor *doctor) {
        int64_t pid = doctor->daemon.pid;
        char comm[32];

        /* Known by the same number on both sides: one pid namespace, where no two are alike. */
        if (pid <= 0 || !doctor->identity.known || doctor->identity.pid == (int64_t)getpid())
                return;
        if (pid == (int64_t)getpid()) {
                doctor_say(doctor, daemon_has_classic(doctor) ? FINDING_FAIL : FINDING_NOTE, DOCTOR_SAME_PID, CHECK,
                           "This process is pid %" PRId64 ", and so is the daemon in its own pid namespace. The driver takes a "
                           "classic handle (cuda-ipc) of the daemon's for this process's own and answers 201, invalid device "
                           "context.", pid);
                return;
        }
        if (kill((pid_t)pid, 0) < 0 && errno == ESRCH)
                return;
        read_comm(pid, comm, sizeof(comm));
        if (is_init(pid, comm)) {
                doctor_say_fix(doctor, FINDING_NOTE, DOCTOR_SAME_PID, CHECK, NULL, NULL,
                               "The daemon is pid %" PRId64 " in its own pid namespace, and so is %s here, which uses no CUDA: other "
                               "processes here can open classic handles (cuda-ipc) of the daemon's.", pid, comm);
                return;
        }
        doctor_say(doctor, daemon_has_classic(doctor) ? FINDING_WARN : FINDING_NOTE, DOCTOR_SAME_PID, CHECK,
                   "The daemon is pid %" PRId64 " in its own pid namespace, and so is %s here. If that opens a classic handle "
                   "(cuda-ipc) of the daemon's, the driver answers 201, invalid device context. Other processes here can.",
                   pid, comm);
}

void check_namespaces(struct doctor *doctor) {
        char text[256] = "";
        size_t at = 0;

        doctor->proc_is_own = proc_is_own();
        if (!doctor->proc_is_own)
                doctor_say(doctor, doctor_cuda_level(doctor), DOCTOR_PROC_NOT_MOUNTED, CHECK,
                           "/proc does not show this process (pid %d here): it is another pid namespace's, or not mounted. CUDA "
                           "answers 304, operating system error, to whoever initialises it.", (int)getpid());
        for (size_t i = 0; i < ELEMENTSOF(kinds); i++)
                at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s: %s", i > 0 ? ", " : "", kinds[i].name,
                                       namespace_whose(kinds[i].name, kinds[i].first));
        doctor_say(doctor, FINDING_OK, DOCTOR_NAMESPACES, CHECK,
                   "Namespaces are %s. None of them hinders memory shared by descriptor.", text);
        check_pid(doctor);
}
