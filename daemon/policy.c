/* SPDX-License-Identifier: Apache-2.0 */
/* Who may do what: decisions over facts handed in. Any thread; changes nothing but the failure it is given. */
#include "policy.h"

#include <stdlib.h>
#include <string.h>

void policy_deinit(struct policy *policy) {
        for (size_t i = 0; i < policy->n_reserved; i++)
                free(policy->reserved[i].prefix);
        free(policy->reserved);
        free(policy->allow_uids);
        free(policy->allow_gids);
        *policy = (struct policy){ 0 };
}

static bool peer_in_group(const struct peer *peer, gid_t gid) {
        if (peer->principal.gid == gid)
                return true;
        for (size_t i = 0; i < peer->n_gids; i++)
                if (peer->gids[i] == gid)
                        return true;
        return false;
}

static bool policy_lists(const struct policy *policy, const struct peer *peer) {
        uid_t uid = peer->principal.uid;

        for (size_t i = 0; i < policy->n_allow_uids; i++)
                if (uid >= policy->allow_uids[i].first && uid <= policy->allow_uids[i].last)
                        return true;
        for (size_t i = 0; i < policy->n_allow_gids; i++)
                if (peer_in_group(peer, policy->allow_gids[i]))
                        return true;
        return false;
}

int policy_admit(const struct policy *policy, const struct peer *peer, struct failure *failure) {
        if (peer->admin)
                return 0;
        if (peer->overflow)
                return fail_reason(
                        failure, VERDICT_ACCESS_DENIED, "",
                        "your user id is not mapped where the daemon runs, so nothing can belong to you; "
                        "map it in the user namespace, or run as a mapped user");
        if (policy->isolation == ISOLATION_CONTAINER && peer->principal.unplaced)
                return fail_reason(failure, VERDICT_ACCESS_DENIED, "",
                                   "Isolation=container, and which container you are in cannot be told: the daemon cannot read "
                                   "/proc/PID/cgroup of your process; run gpuipcd on the host, or its container with --pid=host, and "
                                   "where its /proc has hidepid=, in the group of that mount's gid=");
        if (!policy->restricted || policy_lists(policy, peer))
                return 0;
        return fail_reason(failure, VERDICT_ACCESS_DENIED, "",
                           "uid %u is none of those admitted; an administrator can add it with AllowUsers=, "
                           "AllowGroups= or AllowUidRanges= in gpuipcd.conf",
                           (unsigned)peer->principal.uid);
}

static bool same_container(const struct principal *a, const struct principal *b) {
        if (a->unplaced || b->unplaced)
                return false;
        if (!a->container || !b->container)
                return a->container == b->container;
        return strcmp(a->container->text, b->container->text) == 0;
}

bool policy_same(const struct policy *policy, const struct principal *a, const struct principal *b) {
        return a->uid == b->uid && (policy->isolation == ISOLATION_UID || same_container(a, b));
}

bool policy_may_open(const struct policy *policy, const struct peer *peer, const struct principal *owner,
                     mode_t mode, enum access access) {
        mode_t bit = access == ACCESS_RW ? 02 : 04;

        if (peer->overflow)
                return false;
        if (peer->admin)
                return true;
        if (policy_same(policy, &peer->principal, owner))
                return mode & bit << 6;
        if (peer_in_group(peer, owner->gid))
                return mode & bit << 3;
        return mode & bit;
}

bool policy_may_see(const struct policy *policy, const struct peer *peer, const struct principal *owner,
                    mode_t mode) {
        return policy_may_rule(policy, peer, owner) || policy_may_open(policy, peer, owner, mode, ACCESS_RO) ||
               policy_may_open(policy, peer, owner, mode, ACCESS_RW);
}

bool policy_may_rule(const struct policy *policy, const struct peer *peer, const struct principal *owner) {
        if (peer->admin)
                return true;
        return !peer->overflow && policy_same(policy, &peer->principal, owner);
}

/* The longest prefix that fits decides; several uids may share it. */
int policy_may_name(const struct policy *policy, const struct peer *peer, const char *name,
                    struct failure *failure) {
        const struct reserved_name *longest = NULL;
        bool allowed = true;
        size_t n_longest = 0;

        for (size_t i = 0; i < policy->n_reserved; i++) {
                const struct reserved_name *reserved = &policy->reserved[i];
                size_t n = strlen(reserved->prefix);

                if (strncmp(name, reserved->prefix, n) != 0 || (longest && n < n_longest))
                        continue;
                if (!longest || n > n_longest)
                        allowed = false;
                allowed = allowed || reserved->uid == peer->principal.uid;
                longest = reserved;
                n_longest = n;
        }
        if (allowed || peer->admin)
                return 0;
        return fail_reason(
                failure, VERDICT_ACCESS_DENIED, longest->prefix,
                "names that begin with \"%s\" are reserved for another user (uid %u); choose another name",
                longest->prefix, (unsigned)longest->uid);
}

mode_t policy_mode(const char *text) {
        return (mode_t)strtoul(text, NULL, 8);
}
