/* SPDX-License-Identifier: Apache-2.0 */
/* Tells by the kernel's word which process sent a message. Loop thread. Never believes a number alone: a pid counts only while the
 * process behind it is known to live. */
#include "sender.h"

#include <errno.h>
#include <unistd.h>

#include "process.h"
#include "proto/cleanup.h"

struct peer senders_identify(const struct creds *creds, bool admin, uid_t overflow_uid) {
        return (struct peer){
                .principal = {.uid = creds->uid, .gid = creds->gid},
                .gids = creds->gids,
                .n_gids = creds->n_gids,
                .admin = admin,
                .overflow = creds->uid == overflow_uid,
        };
}

int senders_init(struct senders *senders, struct house *house, struct creds *creds, struct failure *failure) {
        int r;

        list_init(&senders->processes);
        r = process_new(house, creds->pid, creds->uid, creds->gid, take_fd(&creds->pidfd), creds->dead, &senders->peer,
                        failure);
        if (r != 0)
                return r;
        list_append(&senders->processes, &senders->peer->by_session);
        return 0;
}

void senders_deinit(struct senders *senders) {
        struct process *process;

        if (!senders->peer)
                return;
        senders->peer = NULL;
        list_for_each(process, &senders->processes, by_session) {
                list_remove(&process->by_session);
                holder_unref(&process->holder);
        }
}

void senders_leave(struct senders *senders) {
        struct process *process;

        if (!senders->peer)
                return;
        list_for_each(process, &senders->processes, by_session) {
                struct holder *holder = &process->holder;

                if (process->pidfd < 0)
                        holder->exited = true;
                else if (!list_empty(&holder->members))
                        holder->ending = creds_is_ending(process->pidfd);
        }
}

/* Lets go of those that have exited; their leases are over. */
static void senders_sweep(struct senders *senders) {
        struct process *process;

        list_for_each(process, &senders->processes, by_session)
                if (process != senders->peer && process->holder.exited) {
                        list_remove(&process->by_session);
                        holder_unref(&process->holder);
                }
}

/* Pid 0 stands for every process outside our pid namespace; the pidfds tell them apart. */
static bool sender_is(const struct wire_sender *sender, const struct process *process) {
        if (sender->pid != process->holder.pid || process->holder.exited)
                return false;
        return sender->pid != 0 || sender->pidfd < 0 || creds_same_process(sender->pidfd, process->pidfd);
}

int senders_find(struct senders *senders, struct house *house, const struct creds *creds, struct wire_sender *sender,
                 struct holder **ret, struct failure *failure) {
        struct process *process;
        int pidfd, r;

        if (!sender->known || sender_is(sender, senders->peer)) {
                *ret = &senders->peer->holder;
                return 0;
        }
        list_for_each(process, &senders->processes, by_session)
                if (sender_is(sender, process)) {
                        *ret = &process->holder;
                        return 0;
                }
        if (sender->uid != creds->uid)
                return fail_reason(failure, VERDICT_ACCESS_DENIED, "",
                                   "this connection belongs to uid %u; uid %u must make one of its own",
                                   (unsigned)creds->uid, (unsigned)sender->uid);
        if (sender->dead)
                return -ESRCH;
        senders_sweep(senders);
        pidfd = take_fd(&sender->pidfd);
        if (pidfd < 0)
                pidfd = creds_open_pid(sender->pid);
        r = process_new(house, sender->pid, sender->uid, sender->gid, pidfd, false, &process, failure);
        if (r != 0)
                return r;
        list_append(&senders->processes, &process->by_session);
        *ret = &process->holder;
        return 0;
}
