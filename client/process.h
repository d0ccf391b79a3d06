/* SPDX-License-Identifier: Apache-2.0 */
/* What there is once per process: the mark that tells a forked child from its parent, and one lock. */
#ifndef CLIENT_PROCESS_H
#define CLIENT_PROCESS_H

#include <stdbool.h>
#include <sys/types.h>

struct process_mark {
        pid_t pid;
        unsigned generation;
};

/* The mark of this process. The first call arms the fork handlers. */
struct process_mark process_mark(void);

/* Whether this process is the one that took the mark, not a child of it. */
bool process_is(struct process_mark mark);

/* Guards the table of mappings and every list that a forked child may have to walk: fork() waits for it, so the
 * child finds them whole. Taken last, held briefly, never across a call that can wait. */
void process_lock(void);
void process_unlock(void);

#endif
