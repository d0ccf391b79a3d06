/* SPDX-License-Identifier: Apache-2.0 */
/* The table of operations. Each is a row: who may, which lane, how it answers, and four beats.
 *
 *   begin    loop: validate, resolve, reserve. 0, a verdict, -errno, or VERDICT_AGAIN with request->queue set: wait
 *   (ready)  loop: while it waits for its turn on the lane: whether what work would do is done by now. Then work is left out
 *   work     pool: may block. 0, JOB_MORE, or -errno, which finish sees as job.result
 *   (again)  loop: work ended for want of memory, for the first time: whether some came free for it. Then work runs once more
 *   (keeps)  loop: with a store, what was reserved is written down and its descriptors sent there; see keeping.h
 *   finish   loop: commit and fill the reply; on a verdict or -errno it has undone what begin reserved. VERDICT_AGAIN: wait
 *            (begin runs again), or for an event stream: nothing to say now
 *   abandon  loop: the client is gone: undo, whether or not work has run
 *
 * Rows answered from the ledger have no work. A row may leave out any beat it does not need. */
#ifndef DAEMON_OPS_H
#define DAEMON_OPS_H

#include "request.h"

enum op_permission {
        OP_ANYONE, /* every peer that was let in */
        OP_OWNERS, /* peers that can own and open: not the overflow uid */
};

enum op_lane { OP_LEDGER, OP_DEVICE };

enum op_answer {
        OP_ONE,    /* one reply, with or without `more` */
        OP_PAGES,  /* pages with `more`; one page without, or ExpectedMore */
        OP_STREAM, /* needs `more`, never ends by itself */
};

struct op {
        enum method method;
        enum op_permission permission;
        enum op_lane lane;
        enum op_answer answer;
        bool oneway;   /* may be called so */
        bool keeps;    /* makes leases, which a restart is to keep */
        bool always;   /* answered even by a daemon that cannot read what an earlier one left */
        int log_level; /* of its line when it succeeds */
        const char *(*about)(const struct request *request); /* which thing was asked for, for that line; NULL: none */
        int (*begin)(struct request *request);
        bool (*ready)(struct request *request);
        int (*work)(struct request *request);
        bool (*again)(struct request *request);
        int (*finish)(struct request *request);
        void (*abandon)(struct request *request);
};

extern const struct op ops[N_METHODS];

const char *op_allocate_about(const struct request *request);
const char *op_open_about(const struct request *request);
const char *op_channel_create_about(const struct request *request);
const char *op_channel_attach_about(const struct request *request);
const char *op_seal_about(const struct request *request);
const char *op_release_about(const struct request *request);
const char *op_free_about(const struct request *request);
const char *op_kick_about(const struct request *request);

int op_allocate_begin(struct request *request);
bool op_allocate_ready(struct request *request);
int op_allocate_work(struct request *request);
bool op_allocate_again(struct request *request);
int op_allocate_finish(struct request *request);
void op_allocate_abandon(struct request *request);

int op_open_begin(struct request *request);
int op_open_finish(struct request *request);

int op_channel_create_begin(struct request *request);
int op_channel_create_work(struct request *request);
bool op_channel_create_again(struct request *request);
int op_channel_create_finish(struct request *request);
int op_channel_attach_begin(struct request *request);
int op_channel_attach_finish(struct request *request);
int op_channel_participants_finish(struct request *request);

int op_seal_begin(struct request *request);
int op_seal_work(struct request *request);
int op_seal_finish(struct request *request);
void op_seal_abandon(struct request *request);

int op_release_finish(struct request *request);
int op_free_finish(struct request *request);
int op_kick_finish(struct request *request);

int op_list_begin(struct request *request);
int op_list_finish(struct request *request);
int op_list_buffers_begin(struct request *request);
int op_list_buffers_finish(struct request *request);

int op_watch_begin(struct request *request);
int op_watch_finish(struct request *request);

int op_resume_finish(struct request *request);

int op_status_finish(struct request *request);
int op_info_finish(struct request *request);
int op_description_finish(struct request *request);

#endif
