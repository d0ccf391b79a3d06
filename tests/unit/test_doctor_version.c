/* SPDX-License-Identifier: Apache-2.0 */
/* Which version the driver's kernel module and its library say they are. */
#include <check.h>
#include <string.h>

#include "client/doctor/version.h"
#include "proto/cleanup.h"
#include "tests/support/suite.h"

START_TEST(of_the_module) {
        static const struct {
                const char *text, *version;
        } rows[] = {
                { "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue Jul  1 02:43:11 UTC 2026\n"
                  "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n",
                  "580.159.04" },
                { "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  "
                  "(dvs-builder@U22-I3-AF03-09-1)  Fri Jul  4 10:00:00 UTC 2026\n"
                  "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2)\n",
                  "580.159.04" },
                { "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.86.15  Release Build  (root@h)", "570.86.15" },
                { "NVRM version: NVIDIA UNIX x86_64 Kernel Module  384.81  Sat Sep  2 02:43:11 PDT 2017\n", "384.81" },
                { "NVRM version: 1.2", "1.2" },
        };
        char version[64];

        for (size_t i = 0; i < ELEMENTSOF(rows); i++) {
                ck_assert_msg(version_of_module(rows[i].text, version, sizeof(version)), "%s", rows[i].text);
                ck_assert_str_eq(version, rows[i].version);
        }
}
END_TEST

START_TEST(of_no_module) {
        static const char *const texts[] = {
                "",
                "NVRM",
                "NVRM version:",
                "NVRM version: \n",
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module\nGCC version:  gcc version 12.2.0\n",
                "GCC version:  gcc version 12.2.0\n",
                "NVRM version: 580 .1 1. . 86_64",
        };
        char version[64] = "as it was";

        for (size_t i = 0; i < ELEMENTSOF(texts); i++)
                ck_assert_msg(!version_of_module(texts[i], version, sizeof(version)), "%s: %s", texts[i], version);
        ck_assert(!version_of_module("NVRM version: 580.159.04", version, 10)); /* no part of it */
        ck_assert_str_eq(version, "as it was");
        ck_assert(version_of_module("NVRM version: 580.159.04", version, 11));
}
END_TEST

START_TEST(of_the_library) {
        ck_assert_str_eq(version_of_library("/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04"), "580.159.04");
        ck_assert_ptr_null(version_of_library("/usr/lib/libcuda.so.1"));
        ck_assert_ptr_null(version_of_library("/usr/lib/libcuda.so.580.159.04.old"));
        ck_assert_ptr_null(version_of_library("/usr/lib/libcuda.so."));
        ck_assert_ptr_null(version_of_library(""));
}
END_TEST

int main(void) {
        Suite *suite = suite_create("doctor_version");
        TCase *tc = tcase_create("version");

        tcase_add_test(tc, of_the_module);
        tcase_add_test(tc, of_no_module);
        tcase_add_test(tc, of_the_library);
        suite_add_tcase(suite, tc);
        return suite_run(suite);
}
