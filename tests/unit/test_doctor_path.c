/* SPDX-License-Identifier: Apache-2.0 */
/* Where paths end, and whose they are. */
#include <check.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/doctor/path.h"
#include "tests/support/suite.h"

static char root[64];

static void setup(void) {
        const char *parent = getenv("TMPDIR");
        char path[PATH_MAX];

        (void)snprintf(root, sizeof(root), "%.40s/path.XXXXXX", parent ? parent : "/tmp");
        ck_assert_ptr_nonnull(mkdtemp(root));
        (void)snprintf(path, sizeof(path), "%s/in", root);
        ck_assert_int_eq(mkdir(path, 0755), 0);
}

static void teardown(void) {
        char path[PATH_MAX];

        (void)snprintf(path, sizeof(path), "%s/in", root);
        (void)rmdir(path);
        (void)rmdir(root);
}

static const char *deepest(const char *end) {
        static char found[PATH_MAX];
        char path[PATH_MAX];

        (void)snprintf(path, sizeof(path), "%s%s", root, end);
        path_deepest(path, found, sizeof(found));
        return found + (strncmp(found, root, strlen(root)) == 0 ? strlen(root) : 0);
}

START_TEST(the_deepest_part_that_is_there) {
        char found[PATH_MAX];

        ck_assert_str_eq(deepest("/in"), "/in");
        ck_assert_str_eq(deepest("/in/s"), "/in");
        ck_assert_str_eq(deepest("/in/a/b/s"), "/in");
        ck_assert_str_eq(deepest("/out/s"), "");
        path_deepest("/no-such-thing/s", found, sizeof(found));
        ck_assert_str_eq(found, "/");
        path_deepest("no-such-thing", found, sizeof(found));
        ck_assert_str_eq(found, ".");
}
END_TEST

START_TEST(the_first_closed_directory) {
        char path[PATH_MAX], closed[PATH_MAX];

        (void)snprintf(path, sizeof(path), "%s/in/deep/s", root);
        ck_assert(path_closed(path, closed, sizeof(closed))); /* what is not there is closed as well */
        ck_assert_str_eq(closed + strlen(root), "/in/deep");
        (void)snprintf(path, sizeof(path), "%s/in/s", root);
        ck_assert(!path_closed(path, closed, sizeof(closed)));
        if (geteuid() != 0) {
                puts("SKIP the_first_closed_directory: needs root to become another user");
                return;
        }
        ck_assert_int_eq(chmod(root, 0700), 0);
        ck_assert_int_eq(seteuid(12345), 0);
        ck_assert(path_closed(path, closed, sizeof(closed)));
        ck_assert_int_eq(seteuid(0), 0);
        ck_assert_str_eq(closed, root);
}
END_TEST

START_TEST(whose_it_is) {
        char words[PATH_WORDS_SIZE], own[PATH_WORDS_SIZE], expected[64];

        ck_assert(!path_owner_words("/no-such-thing", words));
        ck_assert(path_owner_words(root, words));
        ck_assert_msg(strstr(words, ", mode 0700"), "%s", words);
        ck_assert(path_owner_words("/", words));
        ck_assert_msg(strncmp(words, "root:root, mode 0", 17) == 0, "%s", words);
        path_own_words(own);
        (void)snprintf(expected, sizeof(expected), "uid %u, gid %u", (unsigned)geteuid(), (unsigned)getegid());
        ck_assert_msg(strncmp(own, expected, strlen(expected)) == 0, "%s", own);
}
END_TEST

START_TEST(what_is_mounted_or_removed) {
        char path[PATH_MAX];

        ck_assert(path_below_mount("/proc/self"));
        ck_assert(path_is_mount("/proc"));
        ck_assert(!path_is_mount(root));
        ck_assert(!path_is_mount("/no-such-thing"));
        ck_assert(!path_is_removed(root));
        ck_assert(!path_is_removed("/no-such-thing"));
        (void)snprintf(path, sizeof(path), "%s/in", root);
        ck_assert_int_eq(chdir(path), 0);
        ck_assert_int_eq(rmdir(path), 0);
        ck_assert(path_is_removed("."));
        ck_assert_int_eq(chdir("/"), 0);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("doctor_path");
        TCase *tc = tcase_create("path");

        tcase_add_checked_fixture(tc, setup, teardown);
        tcase_add_test(tc, the_deepest_part_that_is_there);
        tcase_add_test(tc, the_first_closed_directory);
        tcase_add_test(tc, whose_it_is);
        tcase_add_test(tc, what_is_mounted_or_removed);
        suite_add_tcase(suite, tc);
        return suite_run(suite);
}
