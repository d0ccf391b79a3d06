/* SPDX-License-Identifier: Apache-2.0 */
/* A real gpuipcd for one test: in a directory of its own, with sockets of its own, waited for by its READY=1, and stopped
 * by SIGTERM, which must end it with status 0. Fails the test (Check) on any surprise and shows what it logged.
 *
 *     struct gpuipcd *daemon = gpuipcd_start(NULL);
 *     struct raw raw = raw_connect(daemon->socket);
 *     …
 *     raw_close(&raw);
 *     gpuipcd_stop(daemon);
 */
#ifndef SUPPORT_DAEMON_FIXTURE_H
#define SUPPORT_DAEMON_FIXTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "child.h"
#include "fds.h"
#include "json.h"
#include "raw.h"
#include "wait.h"

struct gpuipcd {
        pid_t pid;
        int pidfd;
        char directory[64];
        char socket[96], admin_socket[96], log[96], config[96];
        int notify_fd;     /* what the daemon believes to be its manager */
        char notify_path[96];
        struct fds before; /* this process's descriptors at the start */
        /* The daemon's own with no client, after a first one came and went: where a real driver opens some for itself, from and to. */
        size_t idle_fds, idle_fds_most;
};

struct gpuipcd_options {
        const char *program;      /* NULL: $GPUIPCD */
        const char *const *args;  /* more of the command line, NULL-ended */
        const char *config;       /* text of its configuration file; NULL: an empty one */
        const char *const *environment; /* "NAME=value", NULL-ended */
        int fd_limit;             /* RLIMIT_NOFILE, soft and hard; 0: as it is */
        uid_t uid;                /* 0: as it is */
        bool without_admin;
        bool expect_failure;      /* do not wait for READY=1 */
};

/* The daemon, heap. */
struct gpuipcd *gpuipcd_start(const struct gpuipcd_options *options);

/* SIGTERM; it must end with status 0 in time, remove its sockets, and this process must own as many descriptors as before
 * the start. Frees. */
void gpuipcd_stop(struct gpuipcd *daemon);

/* Waits for it to end by itself and gives the wait status. Frees. */
int gpuipcd_wait_end(struct gpuipcd *daemon);

/* SIGKILL. Frees. */
void gpuipcd_kill(struct gpuipcd *daemon);

/* The next notification that contains `word` ("READY=1", "STATUS="), heap; fails the test when none comes. */
char *gpuipcd_notified(struct gpuipcd *daemon, const char *word);

/* What it wrote to stderr so far, heap. */
char *gpuipcd_log(const struct gpuipcd *daemon);

/* Waits until it logged a line with `text`. */
void gpuipcd_wait_log(const struct gpuipcd *daemon, const char *text);

/* Waits until the ledger is empty and its descriptors are those of an idle daemon again. */
void gpuipcd_wait_idle(const struct gpuipcd *daemon);

/* One integer of GetStatus: "leases", "devices.0.draining_bytes". */
long long gpuipcd_status(const struct gpuipcd *daemon, const char *path);

/* A field of /proc/PID/status in kB, such as "VmRSS". */
long gpuipcd_memory_kb(const struct gpuipcd *daemon, const char *field);

#endif
