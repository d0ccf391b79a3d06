/* SPDX-License-Identifier: Apache-2.0 */
/* Watches a process that holds leases. Loop thread. The struct lives until its last lease is gone and libuv has closed the poll. */
#include "process.h"

#include <errno.h>
#include <stdlib.h>

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

int process_new(struct house *house, pid_t pid, uid_t uid, gid_t gid, int pidfd_take, bool dead, struct process **ret) {
        struct process *process = calloc(1, sizeof(*process));
        int r;

        if (!process) {
                fd_closep(&pidfd_take);
                return -ENOMEM;
        }
        process->house = house;
        process->holder = (struct holder){.pid = pid, .uid = uid, .gid = gid, .refs = 1, .exited = dead, .destroy = process_destroy};
        list_init(&process->holder.leases);
        list_init(&process->by_session);
        process->pidfd = -1;
        if (!dead) {
                process->holder.command = creds_command(pid);
                process->holder.container = creds_container(pid);
        }
        if (pidfd_take < 0) {
                *ret = process;
                return 0;
        }
        /* What was read by number is true only if the process still lives now. */
        if (creds_exited(pidfd_take)) {
                rcstr_unrefp(&process->holder.command);
                rcstr_unrefp(&process->holder.container);
        }
        r = uv_poll_init(house->loop, &process->poll, pidfd_take);
        if (r < 0) {
                fd_closep(&pidfd_take);
                process_free(process);
                return r;
        }
        process->pidfd = pidfd_take;
        (void)registry_use_descriptors(&house->registry, 1, NULL);
        process->poll.data = process;
        uv_poll_start(&process->poll, UV_READABLE, process_on_poll);
        *ret = process;
        return 0;
}
