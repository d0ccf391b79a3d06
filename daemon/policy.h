/* SPDX-License-Identifier: Apache-2.0 */
/* Who may do what. Pure: decides from facts the kernel told, remembers nothing. */
#ifndef DAEMON_POLICY_H
#define DAEMON_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "proto/schema.h"
#include "rcstr.h"

/* Who owns: a uid, and with Isolation=container the container it runs in. */
struct principal {
        uid_t uid;
        gid_t gid;
        struct rcstr *container; /* NULL outside of any container */
        bool unplaced;           /* its container could not be told: with Isolation=container it is nobody's like */
};

/* Who asks. Filled once at accept; the gids are borrowed from the session. */
struct peer {
        struct principal principal;
        const gid_t *gids; /* supplementary groups */
        size_t n_gids;
        bool admin;    /* came by the admin socket */
        bool overflow; /* the kernel could not map its uid: owns and opens nothing */
};

struct uid_range {
        uid_t first, last;
};

struct reserved_name {
        char *prefix;
        uid_t uid;
};

enum isolation { ISOLATION_UID, ISOLATION_CONTAINER };

struct policy {
        enum isolation isolation;
        bool trust_release;
        bool refuse_unenforced_read_only;
        bool restricted;              /* any of the three lists below was given; else everyone may in */
        struct uid_range *allow_uids; /* AllowUsers= and AllowUidRanges= */
        size_t n_allow_uids;
        gid_t *allow_gids;
        size_t n_allow_gids;
        struct reserved_name *reserved;
        size_t n_reserved;
};

/* Frees what the policy owns and zeroes it. */
void policy_deinit(struct policy *policy);

/* Whether this peer may use the daemon at all: 0 or VERDICT_ACCESS_DENIED with the reason in words. Whose container must count and
 * cannot be told may not: it would pass for a process of none. */
int policy_admit(const struct policy *policy, const struct peer *peer, struct failure *failure);

/* Whether the two are the same owner under the policy's isolation. */
bool policy_same(const struct policy *policy, const struct principal *a, const struct principal *b);

/* Whether `peer` may open a buffer of `owner` with `mode`. Administrators may. Like Unix: the owner's bits for the owner,
 * else the group's for members of the group, else the others'. With ISOLATION_CONTAINER group and other bits count
 * across containers, the owner's only within. */
bool policy_may_open(const struct policy *policy, const struct peer *peer, const struct principal *owner, mode_t mode,
                     enum access access);

/* Whether `peer` may see a buffer: its own, one it may open either way, or anything for administrators. */
bool policy_may_see(const struct policy *policy, const struct peer *peer, const struct principal *owner, mode_t mode);

/* Whether `peer` may seal, free or kick what belongs to `owner`. */
bool policy_may_rule(const struct policy *policy, const struct peer *peer, const struct principal *owner);

/* Whether `peer` may take a name: 0 or VERDICT_ACCESS_DENIED naming the reserved prefix. */
int policy_may_name(const struct policy *policy, const struct peer *peer, const char *name, struct failure *failure);

/* "0640" to a mode; the text has passed schema_valid_mode(). */
mode_t policy_mode(const char *text);

#endif
