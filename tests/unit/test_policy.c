/* SPDX-License-Identifier: Apache-2.0 */
/* Who may do what, as tables of cases. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/policy.h"
#include "proto/cleanup.h"
#include "tests/support/suite.h"

static const gid_t groups[] = { 50, 60 };

static struct peer peer_of(uid_t uid, gid_t gid) {
        return (struct peer){ .principal = { .uid = uid, .gid = gid } };
}

START_TEST(everyone_may_in_by_default) {
        struct policy policy = { 0 };
        struct peer peer = peer_of(1000, 1000);
        struct failure failure = { 0 };

        ck_assert_int_eq(policy_admit(&policy, &peer, &failure), 0);
        peer.principal.uid = 0;
        ck_assert_int_eq(policy_admit(&policy, &peer, &failure), 0);
}
END_TEST

START_TEST(the_unmapped_are_told_why) {
        struct policy policy = { 0 };
        struct peer peer = peer_of(65534, 65534);
        struct principal owner = { .uid = 65534, .gid = 65534 };
        struct failure failure = { 0 };

        ck_assert_int_eq(policy_admit(&policy, &peer, &failure), 0);
        peer.overflow = true;
        ck_assert_int_eq(policy_admit(&policy, &peer, &failure), VERDICT_ACCESS_DENIED);
        ck_assert_int_eq(failure.verdict, VERDICT_ACCESS_DENIED);
        ck_assert_ptr_nonnull(strstr(failure.reason, "not mapped"));
        ck_assert(!policy_may_open(&policy, &peer, &owner, 0666, ACCESS_RO));
        ck_assert(!policy_may_see(&policy, &peer, &owner, 0666));
        ck_assert(!policy_may_rule(&policy, &peer, &owner));

        peer.admin = true;
        ck_assert_int_eq(policy_admit(&policy, &peer, &failure), 0);
        ck_assert(policy_may_see(&policy, &peer, &owner, 0));
        ck_assert(!policy_may_open(&policy, &peer, &owner, 0666, ACCESS_RO));
}
END_TEST

START_TEST(lists_let_in_whom_they_name) {
        struct uid_range ranges[] = { { 1000, 1000 }, { 2000, 2999 } };
        gid_t gids[] = { 60 };
        struct policy policy = {
                .restricted = true,
                .allow_uids = ranges,
                .n_allow_uids = 2,
                .allow_gids = gids,
                .n_allow_gids = 1,
        };
        static const struct {
                uid_t uid;
                gid_t gid;
                size_t n_groups;
                bool admin;
                bool in;
        } cases[] = {
                { 1000, 1, 0, false, true }, { 1001, 1, 0, false, false }, { 1999, 1, 0, false, false },
                { 2000, 1, 0, false, true }, { 2999, 1, 0, false, true },  { 3000, 1, 0, false, false },
                { 0, 0, 0, false, false },   { 1001, 60, 0, false, true }, { 1001, 1, 1, false, false },
                { 1001, 1, 2, false, true }, { 1001, 1, 0, true, true },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                struct peer peer = peer_of(cases[i].uid, cases[i].gid);
                struct failure failure = { 0 };

                peer.gids = groups;
                peer.n_gids = cases[i].n_groups;
                peer.admin = cases[i].admin;
                ck_assert_msg((policy_admit(&policy, &peer, &failure) == 0) == cases[i].in, "case %zu", i);
                ck_assert_int_eq(failure.verdict == VERDICT_ACCESS_DENIED, !cases[i].in);
                ck_assert_msg(cases[i].in || strstr(failure.reason, "AllowUsers="), "case %zu: no remedy", i);
        }
}
END_TEST

/* Owner 1000:100. */
static const struct {
        uid_t uid;
        gid_t gid;
        size_t n_groups; /* of { 50, 60 } */
        gid_t owner_gid;
        const char *mode;
        bool ro, rw;
} modes[] = {
        { 1000, 100, 0, 100, "0600", true, true },
        { 1000, 100, 0, 100, "0400", true, false },
        { 1000, 100, 0, 100, "0200", false, true },
        { 1000, 100, 0, 100, "0000", false, false },
        { 1001, 101, 0, 100, "0600", false, false },
        { 0, 0, 0, 100, "0600", false, false },
        { 1001, 100, 0, 100, "0640", true, false },
        { 1001, 100, 0, 100, "0660", true, true },
        { 1001, 100, 0, 100, "0620", false, true },
        { 1001, 101, 2, 60, "0640", true, false },
        { 1001, 101, 1, 60, "0640", false, false },
        { 1001, 101, 0, 100, "0604", true, false },
        { 1001, 101, 0, 100, "0602", false, true },
        { 1001, 101, 0, 100, "0666", true, true },
        /* As on Unix the nearest bits decide, even against their owner. */
        { 1000, 100, 0, 100, "0066", false, false },
        { 1001, 100, 0, 100, "0606", false, false },
        { 1001, 101, 2, 50, "0606", false, false },
};

START_TEST(modes_are_unix_modes) {
        struct policy policy = { 0 };

        for (size_t i = 0; i < ELEMENTSOF(modes); i++) {
                struct principal owner = { .uid = 1000, .gid = modes[i].owner_gid };
                struct peer peer = peer_of(modes[i].uid, modes[i].gid);
                mode_t mode = policy_mode(modes[i].mode);
                bool rules = modes[i].uid == 1000;

                peer.gids = groups;
                peer.n_gids = modes[i].n_groups;
                ck_assert_msg(policy_may_open(&policy, &peer, &owner, mode, ACCESS_RO) == modes[i].ro, "ro %zu",
                              i);
                ck_assert_msg(policy_may_open(&policy, &peer, &owner, mode, ACCESS_RW) == modes[i].rw, "rw %zu",
                              i);
                ck_assert_msg(policy_may_see(&policy, &peer, &owner, mode) ==
                                      (rules || modes[i].ro || modes[i].rw),
                              "see %zu", i);
                ck_assert_msg(policy_may_rule(&policy, &peer, &owner) == rules, "rule %zu", i);
                peer.admin = true;
                ck_assert(policy_may_open(&policy, &peer, &owner, mode, ACCESS_RW));
                ck_assert(policy_may_see(&policy, &peer, &owner, mode));
                ck_assert(policy_may_rule(&policy, &peer, &owner));
        }
}
END_TEST

START_TEST(mode_texts_are_octal) {
        ck_assert_int_eq(policy_mode("0640"), 0640);
        ck_assert_int_eq(policy_mode("640"), 0640);
        ck_assert_int_eq(policy_mode("0006"), 06);
}
END_TEST

START_TEST(containers_are_owners_when_isolated) {
        _cleanup_(rcstr_unrefp) struct rcstr *one = rcstr_new("one"), *same = rcstr_new("one");
        _cleanup_(rcstr_unrefp) struct rcstr *two = rcstr_new("two");
        struct principal owner = { .uid = 0, .gid = 0, .container = one };
        struct rcstr *containers[] = { one, same, two, NULL };

        for (size_t i = 0; i < ELEMENTSOF(containers); i++) {
                struct policy policy = { .isolation = ISOLATION_UID };
                struct peer peer = peer_of(0, 0);
                bool within = i < 2;

                peer.principal.container = containers[i];
                ck_assert(policy_same(&policy, &peer.principal, &owner));
                ck_assert(policy_may_open(&policy, &peer, &owner, 0600, ACCESS_RW));

                policy.isolation = ISOLATION_CONTAINER;
                ck_assert_int_eq(policy_same(&policy, &peer.principal, &owner), within);
                ck_assert_int_eq(policy_same(&policy, &owner, &peer.principal), within);
                ck_assert_int_eq(policy_may_open(&policy, &peer, &owner, 0600, ACCESS_RW), within);
                ck_assert_int_eq(policy_may_see(&policy, &peer, &owner, 0600), within);
                ck_assert_int_eq(policy_may_rule(&policy, &peer, &owner), within);
                /* The group's bits, then the others', count across. */
                ck_assert(policy_may_open(&policy, &peer, &owner, 0660, ACCESS_RW));
                peer.principal.gid = 7;
                ck_assert_int_eq(policy_may_open(&policy, &peer, &owner, 0660, ACCESS_RW), within);
                ck_assert(policy_may_open(&policy, &peer, &owner, 0606, ACCESS_RW));
                peer.principal.uid = 1;
                ck_assert(!policy_same(&policy, &peer.principal, &owner));
        }
}
END_TEST

START_TEST(outside_of_containers_is_one_place) {
        struct policy policy = { .isolation = ISOLATION_CONTAINER };
        struct principal a = { .uid = 5 }, b = { .uid = 5, .gid = 9 };

        ck_assert(policy_same(&policy, &a, &b));
}
END_TEST

/* Else a process that the daemon cannot see would pass for one of the host. */
START_TEST(whose_container_is_unknown_is_nobody_s_like) {
        struct policy policy = { .isolation = ISOLATION_CONTAINER };
        struct peer peer = { .principal = { .uid = 5, .unplaced = true } };
        struct principal host = { .uid = 5 };
        struct failure failure = { 0 };

        ck_assert(!policy_same(&policy, &peer.principal, &host));
        ck_assert(!policy_same(&policy, &peer.principal, &peer.principal));
        ck_assert_int_eq(policy_admit(&policy, &peer, &failure), VERDICT_ACCESS_DENIED);
        ck_assert_ptr_nonnull(strstr(failure.reason, "--pid=host"));
        peer.admin = true;
        ck_assert_int_eq(policy_admit(&policy, &peer, &failure), 0);
        peer.admin = false;
        policy.isolation = ISOLATION_UID;
        ck_assert_int_eq(policy_admit(&policy, &peer, &failure), 0);
        ck_assert(policy_same(&policy, &peer.principal, &host));
}
END_TEST

START_TEST(the_longest_reserved_prefix_decides) {
        struct reserved_name reserved[] = { { (char *)"model/", 10 },
                                            { (char *)"model/big/", 20 },
                                            { (char *)"model/big/", 21 },
                                            { (char *)"model/big", 30 } };
        struct policy policy = { .reserved = reserved, .n_reserved = 4 };
        static const struct {
                const char *name;
                uid_t uid;
                bool may;
                const char *prefix;
        } cases[] = {
                { "other", 1, true, NULL },
                { "model", 1, true, NULL },
                { "model/x", 1, false, "model/" },
                { "model/x", 10, true, NULL },
                { "model/x", 20, false, "model/" },
                { "model/big/x", 10, false, "model/big/" },
                { "model/big/x", 20, true, NULL },
                { "model/big/x", 21, true, NULL },
                { "model/big/x", 30, false, "model/big/" },
                { "model/bigger", 30, true, NULL },
                { "model/bigger", 20, false, "model/big" },
                { "model/x", 0, false, "model/" },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                struct peer peer = peer_of(cases[i].uid, 1);
                struct failure failure = { 0 };
                int r = policy_may_name(&policy, &peer, cases[i].name, &failure);

                ck_assert_msg(r == (cases[i].may ? 0 : VERDICT_ACCESS_DENIED), "case %zu", i);
                ck_assert_msg(cases[i].may || strstr(failure.reason, cases[i].prefix), "case %zu", i);
                peer.admin = true;
                ck_assert_int_eq(policy_may_name(&policy, &peer, cases[i].name, &failure), 0);
        }
}
END_TEST

START_TEST(a_policy_frees_what_it_owns) {
        struct policy policy = {
                .restricted = true,
                .allow_uids = calloc(2, sizeof(struct uid_range)),
                .n_allow_uids = 2,
                .allow_gids = calloc(2, sizeof(gid_t)),
                .n_allow_gids = 2,
                .reserved = calloc(1, sizeof(struct reserved_name)),
                .n_reserved = 1,
        };

        policy.reserved[0].prefix = strdup("a");
        policy_deinit(&policy);
        ck_assert(!policy.restricted && !policy.allow_uids && !policy.reserved && policy.n_reserved == 0);
        policy_deinit(&policy);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("policy");
        TCase *tcase = tcase_create("policy");

        suite_add_tcase(suite, tcase);
        tcase_add_test(tcase, everyone_may_in_by_default);
        tcase_add_test(tcase, the_unmapped_are_told_why);
        tcase_add_test(tcase, lists_let_in_whom_they_name);
        tcase_add_test(tcase, modes_are_unix_modes);
        tcase_add_test(tcase, mode_texts_are_octal);
        tcase_add_test(tcase, containers_are_owners_when_isolated);
        tcase_add_test(tcase, outside_of_containers_is_one_place);
        tcase_add_test(tcase, whose_container_is_unknown_is_nobody_s_like);
        tcase_add_test(tcase, the_longest_reserved_prefix_decides);
        tcase_add_test(tcase, a_policy_frees_what_it_owns);
        return suite_run(suite);
}
