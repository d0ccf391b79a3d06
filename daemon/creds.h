/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel tells of a peer: credentials of its socket, its process, its container. Loop thread; reads only files of /proc
 * that never wait for the process (comm, cgroup and statm, not cmdline). */
#ifndef DAEMON_CREDS_H
#define DAEMON_CREDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "rcstr.h"

struct creds {
        pid_t pid; /* 0 outside our pid namespace */
        uid_t uid; /* effective, when it connected */
        gid_t gid;
        gid_t *gids; /* owned */
        size_t n_gids;
        int pidfd;   /* owned; -1 when there is none */
        bool dead;   /* already reaped when asked */
};

void creds_deinit(struct creds *creds);

/* Asks the kernel about the process that called connect(). 0 or -errno. */
int creds_read(int socket_fd, struct creds *ret);

/* A pidfd by number, for kernels that give none with the socket: the caller must check afterwards that the process is still the one
 * meant. -1 when it is gone or out of sight. */
int creds_open_pid(pid_t pid);

/* Whether the process behind a pidfd has exited. False without a pidfd. */
bool creds_exited(int pidfd);

/* Whether the process behind a pidfd runs no more but has not exited: what it had open is being closed, which a driver can take its time
 * for. False where that cannot be told. */
bool creds_is_ending(int pidfd);

/* Whether two pidfds name one process, as far as the kernel tells them apart. */
bool creds_same_process(int a, int b);

/* A number equal for two pidfds of one process: the file's own where the kernel gives each process one, else made of the pid; 0 when
 * neither tells. */
uint64_t creds_identity(int pidfd, pid_t pid);

/* The command name of a process, NULL when unknown. */
struct rcstr *creds_command(pid_t pid);

/* The container of a process, NULL when it is in none; see creds_container_of(). False when it cannot be told: the process is gone, or
 * outside our pid namespace. */
bool creds_container(pid_t pid, struct rcstr **ret);

/* The container that the text of a /proc/PID/cgroup names: "pod:UID" for a Kubernetes pod, else "ID" of 64 hex digits as container
 * engines name their groups, "machine:NAME" or "lxc:NAME". False when it names none. */
bool creds_container_of(const char *cgroup_text, char *ret, size_t n);

/* The uid that stands for "not mapped here". */
uid_t creds_overflow_uid(void);

#endif
