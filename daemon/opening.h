/* SPDX-License-Identifier: Apache-2.0 */
/* What Open and ChannelAttach have in common: a lease on what is there already, or is waited for by name. Loop thread but for
 * opening_work(). */
#ifndef DAEMON_OPENING_H
#define DAEMON_OPENING_H

#include "request.h"

struct opening {
        const char *id_field;  /* what the parameter of the id is called */
        const char *id, *name; /* exactly one */
        int64_t owner, wait_ms;
        enum access access;
        const char *label;
        bool channel;          /* or a plain buffer */
};

/* Reserves the lease: request->buffer, lease, backing (borrowed), place, access. 0, a verdict, VERDICT_AGAIN, -errno. */
int opening_begin(struct request *request, const struct opening *opening);

/* Makes the descriptor of a lease that needs one of its own. */
int opening_work(struct request *request);

/* 0 when the lease is to be committed, else it is cancelled: a verdict. */
int opening_judge(struct request *request);

void opening_undo(struct request *request);

/* Whether read-only access to memory of this kind may be had: 0 or VERDICT_HANDLE_UNSUPPORTED. `otherwise` says in words what else could
 * be asked for. */
int opening_check_read_only(struct request *request, const char *handle, bool enforced, const char *otherwise);

#endif
