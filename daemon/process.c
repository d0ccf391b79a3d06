/* SPDX-License-Identifier: Apache-2.0 */
/* Watches a process that holds leases. Loop thread. The struct lives until its last lease is gone and libuv has closed the poll. */
#include "process.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "clock.h"
#include "creds.h"
#include "dispatch.h"
#include "proto/cleanup.h"

static void process_free(struct process *process) {
        rcstr_unref(process->holder.command);
        rcstr_unref(process->holder.container);
        if (process->pidfd >= 0)
                (void)registry_use_descriptors(&process->house->registry, -1, NULL);
        fd_closep(&process->pidfd);
        free(process);
}

static void process_on_close(uv_handle_t *handle) {
        process_free(handle->data);
}

static void process_destroy(struct holder *holder) {
        struct process *process = container_of(holder, struct process, holder);

        if (process->pidfd < 0)
                process_free(process);
        else
                uv_close((uv_handle_t *)&process->poll, process_on_close);
}

static void process_on_poll(uv_poll_t *poll, int status, int events) {
        struct process *process = poll->data;

        (void)status;
        (void)events;
        uv_poll_stop(poll);
        holder_ref(&process->holder);
        registry_holder_exited(&process->house->registry, &process->holder, clock_real_usec(), clock_monotonic_usec());
        dispatch_holder_exited(process->house, &process->holder);
        holder_unref(&process->holder);
}

/* What it is known by when the daemon has restarted. */
static void process_identify(struct process *process) {
        struct holder *holder = &process->holder;
        struct stat st;

        holder->pidfd = process->pidfd;
        if (!process->house->registry.state)
                return;
        holder->identity = creds_identity(process->pidfd, holder->pid);
        if (fstat(process->pidfd, &st) < 0)
                return;
        holder->pidfd_device = st.st_dev;
        holder->pidfd_inode = st.st_ino;
}

/* Watches the exit of a process by a descriptor. */
static int process_poll(struct process *process, int *pidfd) {
        int r = uv_poll_init(process->house->loop, &process->poll, *pidfd);

        if (r < 0)
                return r;
        process->pidfd = take_fd(pidfd);
        process_identify(process);
        process->poll.data = process;
        uv_poll_start(&process->poll, UV_READABLE, process_on_poll);
        return 0;
}

/* The descriptor counts. */
static int process_watch(struct process *process, int *pidfd, struct failure *failure) {
        struct registry *registry = &process->house->registry;
        int r;

        r = registry_use_descriptors(registry, 1, failure);
        if (r != 0)
                return r;
        r = process_poll(process, pidfd);
        if (r < 0)
                (void)registry_use_descriptors(registry, -1, failure);
        return r;
}

/* What /proc says of the pid is true of this process only if it still lives afterwards. */
static void process_look(struct process *process, int pidfd) {
        _cleanup_(rcstr_unrefp) struct rcstr *command = creds_command(process->holder.pid);
        _cleanup_(rcstr_unrefp) struct rcstr *container = NULL;
        bool told = creds_container(process->holder.pid, &container);

        if (creds_exited(pidfd))
                return;
        process->holder.unplaced = !told;
        process->holder.command = take_ptr(command);
        process->holder.container = take_ptr(container);
}

int process_new(struct house *house, pid_t pid, uid_t uid, gid_t gid, int pidfd_take, bool dead, struct process **ret,
                struct failure *failure) {
        struct process *process = calloc(1, sizeof(*process));
        int r;

        if (!process) {
                fd_closep(&pidfd_take);
                return -ENOMEM;
        }
        process->house = house;
        process->holder = (struct holder){.pid = pid, .uid = uid, .gid = gid, .refs = 1, .exited = dead, .destroy = process_destroy};
        process->holder.unplaced = true;
        list_init(&process->holder.leases);
        list_init(&process->holder.members);
        list_init(&process->by_session);
        process->pidfd = process->holder.pidfd = -1;
        if (!dead)
                process_look(process, pidfd_take);
        r = pidfd_take >= 0 ? process_watch(process, &pidfd_take, failure) : 0;
        if (r != 0) {
                fd_closep(&pidfd_take);
                process_free(process);
                return r;
        }
        *ret = process;
        return 0;
}

int process_restore(struct house *house, const struct holder *known, int pidfd_take, struct process **ret) {
        struct process *process = calloc(1, sizeof(*process));
        int r;

        if (!process) {
                fd_closep(&pidfd_take);
                return -ENOMEM;
        }
        process->house = house;
        process->holder = *known;
        process->holder.refs = 1;
        process->holder.destroy = process_destroy;
        rcstr_ref(known->command);
        rcstr_ref(known->container);
        list_init(&process->holder.leases);
        list_init(&process->holder.members);
        list_init(&process->by_session);
        process->pidfd = process->holder.pidfd = -1;
        r = pidfd_take >= 0 ? process_poll(process, &pidfd_take) : 0;
        if (r < 0) {
                fd_closep(&pidfd_take);
                process_free(process);
                return r;
        }
        if (process->pidfd >= 0)
                house->registry.n_descriptors++;
        *ret = process;
        return 0;
}
