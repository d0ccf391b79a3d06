/* SPDX-License-Identifier: Apache-2.0 */
/* Configuration as a whole: files, drop-ins and the command line in their order, lists, mistakes, help and reload. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config_files.h"
#include "proto/cleanup.h"
#include "tests/support/fds.h"
#include "tests/support/json.h"
#include "tests/support/suite.h"

#define FILE_(text) config_write("gpuipcd.conf", text)

static void expect_range(const struct config *config, size_t i, uid_t first, uid_t last) {
        ck_assert_uint_lt(i, config->policy.n_allow_uids);
        ck_assert_uint_eq(config->policy.allow_uids[i].first, first);
        ck_assert_uint_eq(config->policy.allow_uids[i].last, last);
}

/* ---- order ------------------------------------------------------------------------------------------------ */

START_TEST(later_files_win_and_options_win_over_all) {
        FILE_("# comment\n; another\n\n[Limits]\nClientsMax = 1\nBuffersMax=1\nEventsMax=1\nNamesPerUser=1\n"
              "[Daemon]\nLogLevel=debug\n");
        config_write("gpuipcd.conf.d/20-b.conf", "[Limits]\nBuffersMax=20\nEventsMax=20\nNamesPerUser=20\n");
        config_write("gpuipcd.conf.d/10-a.conf", "[Limits]\nBuffersMax=10\n");
        config_write("gpuipcd.conf.d/30-c.conf", "[Limits]\nEventsMax=30\nNamesPerUser=30\n");
        config_write("gpuipcd.conf.d/.40-hidden.conf", "[Limits]\nWaitsPerUser=40\n");
        config_write("gpuipcd.conf.d/50-other.conf.bak", "[Limits]\nEventsMax=50\n");
        config_write("gpuipcd.conf.d/README", "not a file of ours\n");
        check_fd_count_begin();
        struct config config = config_good("--names-per-user", "99", NULL);
        check_fd_count_end();
        ck_assert_int_eq(config.limits.clients, 1);
        ck_assert_int_eq(config.limits.buffers, 20);
        ck_assert_int_eq(config.limits.events, 30);
        ck_assert_int_eq(config.limits.names_per_uid, 99);
        ck_assert_int_eq(config.limits.waits_per_uid, 256);
        ck_assert_int_eq(config.log_level, LOG_DEBUG);
        config_deinit(&config);
        ck_assert_str_eq(config_bad("--names-per-user", NULL, NULL),
                         "--names-per-user: its value is missing; write --names-per-user=VALUE");
} END_TEST

START_TEST(mistakes_in_drop_ins_name_their_file) {
        config_write("gpuipcd.conf.d/10-a.conf", "[Limits]\n\nClientsMax=x\n");
        check_fd_count_begin();
        ck_assert_str_eq(config_bad(NULL, NULL, NULL), "ROOT/gpuipcd.conf.d/10-a.conf:3: [Limits] ClientsMax=x: not a number; "
                                                       "give a whole number from 1 to 1000000");
        check_fd_count_end();
} END_TEST

START_TEST(lines_go_on_behind_a_backslash) {
        FILE_("[Access]\nAllowUidRanges=1-2 \\\n# a comment within\n   3-4 \\\n5\nTrustRelease=no\n[Limits]\nClientsMax=5\\\n");
        struct config config = config_good(NULL, NULL, NULL);

        ck_assert_uint_eq(config.policy.n_allow_uids, 3);
        expect_range(&config, 2, 5, 5);
        ck_assert(!config.policy.trust_release);
        ck_assert_int_eq(config.limits.clients, 5);
        config_deinit(&config);
        FILE_("[Access]\nAllowUidRanges=1-2 \\\n3-4 \\\nx\n");
        ck_assert_str_eq(config_bad(NULL, NULL, NULL), "ROOT/gpuipcd.conf:2: [Access] AllowUidRanges=1-2  3-4  x: \"x\" is no range of "
                                                       "uids; give such as 1000-1999 or 1000");
} END_TEST

/* ---- mistakes --------------------------------------------------------------------------------------------- */

START_TEST(mistakes_are_named) {
        static const struct {
                const char *text, *message;
        } cases[] = {
                {"[Limits]\nClientMax=3\n", "ROOT/gpuipcd.conf:2: [Limits] ClientMax=3: unknown key; gpuipcd.conf(5) lists the keys "
                                            "of [Limits]"},
                {"[Limits]\nclientsmax=3\n", "ROOT/gpuipcd.conf:2: [Limits] clientsmax=3: unknown key; it is spelled ClientsMax= and "
                                             "stands under [Limits]"},
                {"[Daemon]\nClientsMax=3\n", "ROOT/gpuipcd.conf:2: [Daemon] ClientsMax=3: not a key of [Daemon]; put it under [Limits]"},
                {"\n[Limit]\n", "ROOT/gpuipcd.conf:2: [Limit]: unknown section; there are [Daemon], [Access] and [Limits]"},
                {"[Limits\n", "ROOT/gpuipcd.conf:1: [Limits: the section's ] is missing"},
                {"[Limits] # all\n", "ROOT/gpuipcd.conf:1: [Limits] # all: something follows the section's ]; put it on a line of its own"},
                {"ClientsMax=3\n", "ROOT/gpuipcd.conf:1: ClientsMax=: before any section; put [Daemon], [Access] or [Limits] on a line "
                                   "above"},
                {"[Limits]\nClientsMax 3\n", "ROOT/gpuipcd.conf:2: ClientsMax 3: neither Key=value nor [Section]; put # before a "
                                             "comment"},
                {"[Limits]\nClientsMax=\x1b[2J\n", "ROOT/gpuipcd.conf:2: [Limits] ClientsMax=?[2J: not a number; give a whole number "
                                                   "from 1 to 1000000"},
                {"[Daemon]\nSocket=/a\nAdminSocket=/a\n", "Socket= and AdminSocket= are both /a; give each a path of its own"},
        };

        FILE_(cases[_i].text);
        ck_assert_str_eq(config_bad(NULL, NULL, NULL), cases[_i].message);
} END_TEST

START_TEST(nul_bytes_are_refused) {
        int fd = open(config_path, O_WRONLY | O_CLOEXEC);

        ck_assert_int_eq((int)write(fd, "[Limits]\nA\0B=1\n", 15), 15);
        close(fd);
        ck_assert_str_eq(config_bad(NULL, NULL, NULL), "ROOT/gpuipcd.conf:2: a NUL byte; this is not a text file");
} END_TEST

static int load_args(char *argv[], struct config *ret, enum config_action *ret_action, char **ret_message) {
        int argc = 0;

        while (argv[argc])
                argc++;
        return config_load(argc, argv, ret, ret_action, ret_message);
}

START_TEST(a_file_asked_for_must_be_there) {
        char *argv[] = {(char *)"gpuipcd", (char *)"--config=/nonexistent/x.conf", NULL};
        _cleanup_free_ char *message = NULL, *other = NULL;
        enum config_action action;
        struct config config;

        check_fd_count_begin();
        ck_assert_int_eq(load_args(argv, &config, &action, &message), -ENOENT);
        ck_assert_str_eq(message, "/nonexistent/x.conf: cannot open: No such file or directory");
        argv[1] = (char *)"--config=/tmp";
        ck_assert_int_eq(load_args(argv, &config, &action, &other), -EISDIR);
        ck_assert_str_eq(other, "/tmp: cannot read: Is a directory");
        check_fd_count_end();
} END_TEST

START_TEST(no_file_at_all) {
        char *argv[] = {(char *)"gpuipcd", (char *)"--config", (char *)"/dev/null", NULL};
        _cleanup_free_ char *message = NULL;
        enum config_action action;
        struct config config;

        ck_assert_int_eq(load_args(argv, &config, &action, &message), 0);
        ck_assert_int_eq(config.limits.clients, 4096);
        config_deinit(&config);
} END_TEST

/* ---- the command line ------------------------------------------------------------------------------------- */

START_TEST(options_are_checked) {
        static const struct {
                const char *a, *b, *message;
        } cases[] = {
                {"--client-max", "3", "--client-max: unknown option; see gpuipcd --help"},
                {"--client-max=3", NULL, "--client-max: unknown option; see gpuipcd --help"},
                {"--", NULL, "--: unknown option; see gpuipcd --help"},
                {"--ClientsMax=3", NULL, "--ClientsMax: unknown option; see gpuipcd --help"},
                {"--an-option-with-a-name-that-is-longer-than-any-key-ever", NULL,
                 "--an-option-with-a-name-that-is-longer-than-any-key-ever: unknown option; see gpuipcd --help"},
                {"serve", NULL, "serve: gpuipcd takes options only; see gpuipcd --help"},
                {"-x", NULL, "-x: unknown option; see gpuipcd --help"},
                {"--help=yes", NULL, "--help: takes no value; leave out =yes"},
                {"--config", NULL, "--config: its value is missing; write --config=VALUE"},
        };

        ck_assert_str_eq(config_bad(cases[_i].a, cases[_i].b, NULL), cases[_i].message);
} END_TEST

START_TEST(actions) {
        static const struct {
                const char *a, *b;
                enum config_action action;
        } cases[] = {
                {NULL, NULL, CONFIG_RUN},
                {"--help", NULL, CONFIG_HELP},
                {"-h", "--version", CONFIG_HELP},
                {"--version", "--help", CONFIG_HELP},
                {"--version", "--test-config", CONFIG_VERSION},
                {"--test-config", NULL, CONFIG_TEST},
        };
        char *argv[] = {(char *)"gpuipcd", (char *)"--config", config_path, (char *)cases[_i].a, (char *)cases[_i].b, NULL};
        _cleanup_free_ char *message = NULL;
        enum config_action action;
        struct config config;

        ck_assert_int_eq(load_args(argv, &config, &action, &message), 0);
        ck_assert_int_eq(action, cases[_i].action);
        config_deinit(&config);

        /* Help and version must come whatever is in the files. */
        FILE_("nonsense\n");
        if (cases[_i].action == CONFIG_RUN || cases[_i].action == CONFIG_TEST) {
                ck_assert_int_eq(load_args(argv, &config, &action, &message), -EINVAL);
                return;
        }
        ck_assert_int_eq(load_args(argv, &config, &action, &message), 0);
        config_deinit(&config);
} END_TEST

START_TEST(a_socket_of_one_s_own_has_no_admin_socket) {
        struct config config = config_good("--socket=/a", NULL, NULL);

        ck_assert_str_eq(config.socket_path, "/a");
        ck_assert_str_eq(config.admin_socket_path, "");
        config_deinit(&config);
        config = config_good("--admin-socket=/b", "--socket=/a", NULL);
        ck_assert_str_eq(config.admin_socket_path, "/b");
        config_deinit(&config);
        config = config_good("--admin-socket=/b", NULL, NULL);
        ck_assert_str_eq(config.socket_path, "/run/gpuipcd/gpuipcd.sock");
        ck_assert_str_eq(config.admin_socket_path, "/b");
        config_deinit(&config);
        FILE_("[Daemon]\nSocket=/a\n");
        config = config_good(NULL, NULL, NULL);
        ck_assert_str_eq(config.admin_socket_path, "/run/gpuipcd-admin/admin.sock");
        config_deinit(&config);
} END_TEST

START_TEST(no_admin_socket) {
        static const char *const words[] = {"--admin-socket=none", "--admin-socket="};
        struct config config = config_good(words[_i], NULL, NULL);

        ck_assert_str_eq(config.admin_socket_path, "");
        config_deinit(&config);
} END_TEST

/* ---- lists ------------------------------------------------------------------------------------------------ */

START_TEST(nobody_is_shut_out_by_default) {
        struct config config = config_good(NULL, NULL, NULL);

        ck_assert(!config.policy.restricted);
        ck_assert_uint_eq(config.policy.n_allow_uids + config.policy.n_allow_gids + config.policy.n_reserved, 0);
        config_deinit(&config);
} END_TEST

START_TEST(lists_grow_and_are_emptied_apart) {
        FILE_("[Access]\nAllowUidRanges=7-9\nAllowUsers=1\nAllowUsers=root daemon, 5\nAllowGroups=root 77\n");
        config_write("gpuipcd.conf.d/a.conf", "[Access]\nAllowUidRanges=100000-165535 12\n");
        struct config config = config_good("--allow-groups=78", NULL, NULL);

        ck_assert(config.policy.restricted);
        ck_assert_uint_eq(config.policy.n_allow_uids, 7);
        expect_range(&config, 0, 1, 1);
        expect_range(&config, 1, 0, 0);
        expect_range(&config, 2, 1, 1);
        expect_range(&config, 3, 5, 5);
        expect_range(&config, 4, 7, 9);
        expect_range(&config, 5, 100000, 165535);
        expect_range(&config, 6, 12, 12);
        ck_assert_uint_eq(config.policy.n_allow_gids, 3);
        ck_assert_uint_eq(config.policy.allow_gids[0], 0);
        ck_assert_uint_eq(config.policy.allow_gids[2], 78);
        config_deinit(&config);

        config_write("gpuipcd.conf.d/b.conf", "[Access]\nAllowUsers=\nAllowUsers=3\nAllowGroups=\n");
        config = config_good(NULL, NULL, NULL);
        ck_assert_uint_eq(config.policy.n_allow_uids, 4);
        expect_range(&config, 0, 3, 3);
        expect_range(&config, 1, 7, 9);
        ck_assert_uint_eq(config.policy.n_allow_gids, 0);
        config_deinit(&config);
        config = config_good("--allow-users=", "--allow-uid-ranges=", NULL);
        ck_assert(!config.policy.restricted);
        ck_assert_uint_eq(config.policy.n_allow_uids, 0);
        config_deinit(&config);
        config = config_good("--allow-users=", "--allow-uid-ranges=", "--allow-groups=4");
        ck_assert(config.policy.restricted);
        config_deinit(&config);
} END_TEST

START_TEST(reserved_names) {
        FILE_("[Access]\nReservedNames=models/:root cache.:1000\n");
        struct config config = config_good("--reserved-names=models/:7", NULL, NULL);

        ck_assert_uint_eq(config.policy.n_reserved, 3);
        ck_assert_str_eq(config.policy.reserved[0].prefix, "models/");
        ck_assert_uint_eq(config.policy.reserved[0].uid, 0);
        ck_assert_str_eq(config.policy.reserved[2].prefix, "models/");
        ck_assert_uint_eq(config.policy.reserved[2].uid, 7);
        ck_assert_str_eq(config.policy.reserved[1].prefix, "cache.");
        ck_assert_uint_eq(config.policy.reserved[1].uid, 1000);
        ck_assert(!config.policy.restricted);
        config_deinit(&config);
        config = config_good("--reserved-names=", "--reserved-names=x:1", NULL);
        ck_assert_uint_eq(config.policy.n_reserved, 1);
        ck_assert_str_eq(config.policy.reserved[0].prefix, "x");
        config_deinit(&config);
} END_TEST

START_TEST(list_mistakes_are_named) {
        static const char *const cases[][2] = {
                {"--allow-users=no-such-user", "there is no user \"no-such-user\"; give users by name or number"},
                {"--allow-groups=root,no-such-group", "there is no group \"no-such-group\"; give groups by name or number"},
                {"--allow-users=4294967295", "\"4294967295\" is no user; the largest number is 4294967294"},
                {"--allow-users=-1", "there is no user \"-1\"; give users by name or number"},
                {"--allow-uid-ranges=root", "\"root\" is no range of uids; give such as 1000-1999 or 1000"},
                {"--allow-uid-ranges=9-1", "\"9-1\" is no range of uids; give such as 1000-1999, up to 4294967294"},
                {"--allow-uid-ranges=1-", "\"1-\" is no range of uids; give such as 1000-1999, up to 4294967294"},
                {"--allow-uid-ranges=1-2-3", "\"1-2-3\" is no range of uids; give such as 1000-1999, up to 4294967294"},
                {"--allow-uid-ranges=0-4294967295", "\"0-4294967295\" is no range of uids; give such as 1000-1999, up to 4294967294"},
                {"--reserved-names=models", "\"models\" is not PREFIX:USER; a prefix is 1 to 128 of A-Z a-z 0-9 . _ / -"},
                {"--reserved-names=:root", "\":root\" is not PREFIX:USER; a prefix is 1 to 128 of A-Z a-z 0-9 . _ / -"},
                {"--reserved-names=a*b:root", "\"a*b:root\" is not PREFIX:USER; a prefix is 1 to 128 of A-Z a-z 0-9 . _ / -"},
                {"--reserved-names=a:no-such-user", "there is no user \"no-such-user\"; give users by name or number"},
        };
        char expected[512];

        snprintf(expected, sizeof(expected), "%s: %s", cases[_i][0], cases[_i][1]);
        ck_assert_str_eq(config_bad(cases[_i][0], NULL, NULL), expected);
} END_TEST

/* ---- what is said about it -------------------------------------------------------------------------------- */

START_TEST(help_fits_a_terminal) {
        _cleanup_free_ char *text = NULL;
        size_t n;
        FILE *stream = open_memstream(&text, &n);

        config_print_help(stream);
        fclose(stream);
        for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
                ck_assert_msg(strcspn(line, "\n") <= 100, "too long: %.120s", line);
        ck_assert_ptr_nonnull(strstr(text, "\nLimits:\n  --clients-max=N "));
        ck_assert_ptr_nonnull(strstr(text, " Sessions [4096]\n"));
        ck_assert_ptr_nonnull(strstr(text, "  --backend=auto|host|cuda "));
        ck_assert_ptr_nonnull(strstr(text, "  --config=FILE "));
} END_TEST

START_TEST(what_a_reload_cannot_change) {
        static const struct {
                const char *option, *key;
        } cases[] = {
                {"--socket=/other", "Socket"},     {"--admin-socket=/other", "AdminSocket"},
                {"--backend=host", "Backend"},     {"--log-target=stderr", "LogTarget"},
                {"--wipe=always", "Wipe"},
                {"--host-bytes=1M", NULL},         {"--descriptors-max=200", NULL},
                {"--clients-max=5", NULL},         {"--log-level=err", NULL},
                {"--isolation=container", NULL},   {"--allow-users=5", NULL},
        };
        struct config old = config_good("--admin-socket=/b", NULL, NULL);
        struct config new = config_good("--admin-socket=/b", cases[_i].option, NULL);
        _cleanup_free_ char *keys = config_needs_restart(&old, &new), *none = config_needs_restart(&old, &old);

        ck_assert_ptr_null(none);
        ck_assert_pstr_eq(keys, cases[_i].key);
        config_deinit(&old);
        config_deinit(&new);
} END_TEST

START_TEST(several_keys_need_a_restart) {
        struct config old = config_good("--admin-socket=/b", NULL, NULL);
        struct config new = config_good("--admin-socket=/b", "--socket=/c", "--backend=host");
        _cleanup_free_ char *keys = config_needs_restart(&old, &new);

        ck_assert_str_eq(keys, "Socket, Backend");
        config_deinit(&old);
        config_deinit(&new);
} END_TEST

START_TEST(limits_as_json) {
        struct config config = config_good("--clients-max=5", "--wait-sec-max=2s", NULL);
        _cleanup_free_ char *text = limits_json(&config.limits);
        size_t n = 0;

        ck_assert_int_eq(json_int(text, "clients"), 5);
        ck_assert_int_eq(json_int(text, "wait_ms"), 2000);
        for (const struct limit_field *field = limit_fields; field->name; field++, n++)
                ck_assert_int_eq(json_int(text, field->name), *(int64_t *)((char *)&config.limits + field->offset));
        ck_assert_uint_eq(n, sizeof(struct limits) / sizeof(int64_t));
        config_deinit(&config);
} END_TEST

int main(void) {
        Suite *suite = suite_create("config_file");
        TCase *tcase = tcase_create("config_file");

        tcase_add_checked_fixture(tcase, config_setup, config_teardown);
        tcase_add_test(tcase, later_files_win_and_options_win_over_all);
        tcase_add_test(tcase, mistakes_in_drop_ins_name_their_file);
        tcase_add_test(tcase, lines_go_on_behind_a_backslash);
        tcase_add_loop_test(tcase, mistakes_are_named, 0, 10);
        tcase_add_test(tcase, nul_bytes_are_refused);
        tcase_add_test(tcase, a_file_asked_for_must_be_there);
        tcase_add_test(tcase, no_file_at_all);
        tcase_add_loop_test(tcase, options_are_checked, 0, 9);
        tcase_add_loop_test(tcase, actions, 0, 6);
        tcase_add_test(tcase, a_socket_of_one_s_own_has_no_admin_socket);
        tcase_add_loop_test(tcase, no_admin_socket, 0, 2);
        tcase_add_test(tcase, nobody_is_shut_out_by_default);
        tcase_add_test(tcase, lists_grow_and_are_emptied_apart);
        tcase_add_test(tcase, reserved_names);
        tcase_add_loop_test(tcase, list_mistakes_are_named, 0, 13);
        tcase_add_test(tcase, help_fits_a_terminal);
        tcase_add_loop_test(tcase, what_a_reload_cannot_change, 0, 11);
        tcase_add_test(tcase, several_keys_need_a_restart);
        tcase_add_test(tcase, limits_as_json);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
