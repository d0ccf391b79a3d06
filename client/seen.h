/* SPDX-License-Identifier: Apache-2.0 */
/* Which entries of a list the caller has been given, so that a list begun anew tells none twice. */
#ifndef CLIENT_SEEN_H
#define CLIENT_SEEN_H

#include <stdbool.h>
#include <stddef.h>

struct seen {
        char **ids;
        size_t n, capacity;
        size_t n_before; /* of the rounds before this one, in order */
};

void seen_deinit(struct seen *seen);

/* The list begins anew: what was noted so far is not to be told again. */
void seen_again(struct seen *seen);

/* Whether an earlier round told it. */
bool seen_has(const struct seen *seen, const char *id);

/* -ENOMEM. */
int seen_add(struct seen *seen, const char *id);

#endif
