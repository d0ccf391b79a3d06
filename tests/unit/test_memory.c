/* SPDX-License-Identifier: Apache-2.0 */
/* Memory limits read from made-up /proc and cgroup trees, and the machine's own figures. */
#include <check.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "daemon/memory.h"
#include "proto/schema.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"

#define V2_MOUNT "30 24 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
#define V1_MOUNTS                                                                                            \
        "30 24 0:27 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n"                                                  \
        "31 30 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"                                \
        "32 30 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"                                  \
        "33 30 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"

static const struct tree {
        const char *cgroup, *mountinfo;
        const char *files[6][2]; /* path, content */
        int64_t limit;
} trees[] = {
        /* version 2: the tightest of the own and those above */
        {"0::/a/b\n", V2_MOUNT, {{"/sys/fs/cgroup/a/b/memory.max", "4096000\n"}}, 4096000},
        {"0::/a/b\n", V2_MOUNT, {{"/sys/fs/cgroup/a/b/memory.max", "max\n"}, {"/sys/fs/cgroup/a/memory.max", "8192000\n"}}, 8192000},
        {"0::/a/b\n", V2_MOUNT,
         {{"/sys/fs/cgroup/a/b/memory.max", "9000000\n"}, {"/sys/fs/cgroup/a/memory.max", "8192000\n"}}, 8192000},
        {"0::/a/b\n", V2_MOUNT,
         {{"/sys/fs/cgroup/a/b/memory.max", "7000000\n"}, {"/sys/fs/cgroup/a/memory.max", "8192000\n"}}, 7000000},
        {"0::/a\n", V2_MOUNT, {{"/sys/fs/cgroup/a/memory.max", "max\n"}}, INT64_MAX},
        {"0::/\n", V2_MOUNT, {{"/sys/fs/cgroup/memory.max", "5000\n"}}, 5000},
        {"0::/ab\n", V2_MOUNT, {{"/sys/fs/cgroup/a/memory.max", "5000\n"}}, INT64_MAX},
        /* a container that sees its own part of the tree */
        {"0::/docker/x/y\n", "30 24 0:27 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
         {{"/sys/fs/cgroup/y/memory.max", "6000\n"}}, 6000},
        {"0::/docker/x\n", "30 24 0:27 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
         {{"/sys/fs/cgroup/memory.max", "6100\n"}}, 6100},
        {"0::/docker/xy\n", "30 24 0:27 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
         {{"/sys/fs/cgroup/memory.max", "6200\n"}, {"/sys/fs/cgroup/y/memory.max", "6000\n"}}, 6200},
        {"0::/other\n", "30 24 0:27 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
         {{"/sys/fs/cgroup/memory.max", "6300\n"}, {"/sys/fs/cgroup/other/memory.max", "1\n"}}, 6300},
        {"0::/u\n5:pids:/z\n", V2_MOUNT,
         {{"/sys/fs/cgroup/u/memory.max", "6400\n"}, {"/sys/fs/cgroup/z/memory.max", "1\n"}}, 6400},
        /* version 1, also beside version 2 */
        {"4:cpu,cpuacct:/z\n3:memory:/a/b\n0::/u\n", V1_MOUNTS,
         {{"/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"},
          {"/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "123456\n"},
          {"/sys/fs/cgroup/unified/u/memory.max", "1\n"}}, 123456},
        {"0::/u\n3:memory:/a\n", V1_MOUNTS,
         {{"/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n"}}, INT64_MAX},
        {"3:cpu,memory:/a\n", "31 30 0:28 / /c rw shared:5 - cgroup none rw,cpu,memory\n",
         {{"/c/a/memory.limit_in_bytes", "777\n"}}, 777},
        {"3:memoryx:/a\n", V1_MOUNTS, {{"/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1\n"}}, INT64_MAX},
        /* nothing to be read */
        {"0::/a\n", "30 24 0:27 / /sys rw - sysfs sysfs rw\n", {{NULL}}, INT64_MAX},
        {"", V2_MOUNT, {{"/sys/fs/cgroup/memory.max", "5\n"}}, INT64_MAX},
        {NULL, V2_MOUNT, {{"/sys/fs/cgroup/memory.max", "5\n"}}, INT64_MAX},
        {"0::/a\n", NULL, {{"/sys/fs/cgroup/a/memory.max", "5\n"}}, INT64_MAX},
        {"0::/a\n", V2_MOUNT, {{"/sys/fs/cgroup/a/memory.max", "nonsense\n"}}, INT64_MAX},
        {"0::/a\n", V2_MOUNT, {{"/sys/fs/cgroup/a/memory.max", "-1\n"}}, INT64_MAX},
        {"garbage\n:::\n", V2_MOUNT, {{"/sys/fs/cgroup/memory.max", "5\n"}}, INT64_MAX},
};

static void put_file(const char *root, const char *path, const char *content) {
        char full[PATH_MAX];
        FILE *file;

        snprintf(full, sizeof(full), "%s%s", root, path);
        for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
                *slash = '\0';
                ck_assert(mkdir(full, 0700) == 0 || errno == EEXIST);
                *slash = '/';
        }
        file = fopen(full, "we");
        ck_assert_ptr_nonnull(file);
        fputs(content, file);
        fclose(file);
}

START_TEST(limits_are_found) {
        const struct tree *tree = &trees[_i];
        char root[] = "/tmp/gpuipc-test-XXXXXX", command[64];
        int64_t limit;

        ck_assert_ptr_nonnull(mkdtemp(root));
        if (tree->cgroup)
                put_file(root, "/proc/self/cgroup", tree->cgroup);
        if (tree->mountinfo)
                put_file(root, "/proc/self/mountinfo", tree->mountinfo);
        for (size_t i = 0; tree->files[i][0]; i++)
                put_file(root, tree->files[i][0], tree->files[i][1]);
        check_fd_count_begin();
        limit = memory_limit_bytes(root);
        check_fd_count_end();
        snprintf(command, sizeof(command), "rm -r %s", root);
        ck_assert_int_eq(system(command), 0);
        ck_assert_int_eq(limit, tree->limit);
} END_TEST

START_TEST(the_machine_s_own) {
        struct sysinfo info;

        ck_assert_int_eq(sysinfo(&info), 0);
        ck_assert_int_eq(memory_total_bytes(), (int64_t)info.totalram * info.mem_unit);
        ck_assert_int_gt(memory_available_bytes(), 0);
        ck_assert_int_le(memory_available_bytes(), memory_total_bytes());
        ck_assert_int_gt(memory_usable_bytes(), 0);
        ck_assert_int_le(memory_usable_bytes(), memory_total_bytes());
        ck_assert_int_le(memory_usable_bytes(), memory_limit_bytes(""));
} END_TEST

int main(void) {
        Suite *suite = suite_create("memory");
        TCase *tcase = tcase_create("memory");

        tcase_add_loop_test(tcase, limits_are_found, 0, sizeof(trees) / sizeof(trees[0]));
        tcase_add_test(tcase, the_machine_s_own);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
