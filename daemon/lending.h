/* SPDX-License-Identifier: Apache-2.0 */
/* What goes with a reply: descriptors, and what keeps them open until the reply is written. */
#ifndef DAEMON_LENDING_H
#define DAEMON_LENDING_H

#include <stdbool.h>
#include <stddef.h>

struct buffer;
struct holder;

struct lending {
        const int *fds;
        size_t n_fds;
        bool fresh;             /* the first of them was made for this reply: closed when it was sent, while `pinned` is */
        struct buffer *pinned;  /* its pin goes with the reply; NULL: none */
        struct holder *const *holders; /* whose pidfds are lent: referred to until the reply is written */
        size_t n_holders;
};

#endif
