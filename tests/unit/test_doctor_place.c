/* SPDX-License-Identifier: Apache-2.0 */
/* What a directory that stands for "/" tells of the machine: its platform, whether it is a container, and whether device nodes are
 * asked for there. */
#include <check.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/doctor/doctor.h"
#include "client/doctor/place.h"
#include "proto/cleanup.h"
#include "tests/support/suite.h"

#define HOST_VERSION "Linux version 6.1.0-18-amd64 (debian-kernel@lists.debian.org)\n"
#define WSL_VERSION "Linux version 5.15.167.4-microsoft-standard-WSL2 (root@f9c826d3017f)\n"

static char root[64];

static const char *at(const char *end) {
        static char path[PATH_MAX + sizeof(root)];

        (void)snprintf(path, sizeof(path), "%s%s", root, end);
        return path;
}

/* With the directories above it. */
static void make_room(const char *end) {
        char part[PATH_MAX];

        (void)snprintf(part, sizeof(part), "%s", end);
        for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
                *slash = 0;
                (void)mkdir(at(part), 0755);
                *slash = '/';
        }
}

static void put(const char *end, const char *text, size_t n) {
        FILE *file;

        make_room(end);
        file = fopen(at(end), "we");
        ck_assert_ptr_nonnull(file);
        ck_assert_uint_eq(fwrite(text, 1, n, file), n);
        ck_assert_int_eq(fclose(file), 0);
}

static void put_text(const char *end, const char *text) {
        put(end, text, strlen(text));
}

static void put_link(const char *end, const char *to) {
        make_room(end);
        (void)unlink(at(end));
        ck_assert_int_eq(symlink(to, at(end)), 0);
}

static void setup(void) {
        const char *parent = getenv("TMPDIR");

        (void)snprintf(root, sizeof(root), "%.40s/place.XXXXXX", parent ? parent : "/tmp");
        ck_assert_ptr_nonnull(mkdtemp(root));
        put_text("/proc/version", HOST_VERSION);
}

static void teardown(void) {
        char command[128];

        (void)snprintf(command, sizeof(command), "rm -rf '%s'", root);
        ck_assert_int_eq(system(command), 0);
}

/* ---- what was found ---------------------------------------------------------------------------------------- */

struct found {
        enum finding_level level;
        enum doctor_code code;
        char cause[512];
        bool fix;
        int n;
};

static void on_found(const struct finding *finding, void *data) {
        struct found *found = data;

        found->level = finding->level;
        found->code = finding->code;
        found->fix = finding->fix != NULL;
        (void)snprintf(found->cause, sizeof(found->cause), "%s", finding->cause);
        found->n++;
}

static const struct found *run(void (*check)(struct doctor *doctor), struct doctor doctor) {
        static struct found found;
        static struct doctor_options options = { .found = on_found, .data = &found };

        found = (struct found){ .code = N_DOCTOR_CODES };
        doctor.options = &options;
        doctor.root = root;
        doctor.platform = place_platform(root);
        check(&doctor);
        return &found;
}

/* ---- platforms --------------------------------------------------------------------------------------------- */

static const struct found *platform(void) {
        return run(check_platform, (struct doctor){ .proc_is_own = true });
}

START_TEST(nothing_special) {
        ck_assert_int_eq(place_platform(root), PLATFORM_PLAIN);
        ck_assert_int_eq(platform()->n, 0);
        put_text("/sys/firmware/devicetree/base/compatible", "raspberrypi,4-model-b");
        ck_assert_int_eq(place_platform(root), PLATFORM_PLAIN);
        ck_assert_int_eq(place_platform("/no-such-root"), PLATFORM_PLAIN);
}
END_TEST

START_TEST(wsl_by_its_kernel) {
        put_text("/proc/version", WSL_VERSION);
        ck_assert_int_eq(platform()->n, 1);
        ck_assert_int_eq(platform()->code, DOCTOR_WSL);
        ck_assert_int_eq(platform()->level, FINDING_NOTE);
        ck_assert(platform()->fix);
        put_text("/proc/version", "Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com)\n");
        ck_assert_int_eq(platform()->code, DOCTOR_WSL);
}
END_TEST

START_TEST(wsl_by_its_device) {
        put_text("/dev/dxg", "");
        ck_assert_int_eq(platform()->code, DOCTOR_WSL);
}
END_TEST

START_TEST(tegra_by_its_release) {
        put_text("/etc/nv_tegra_release", "# R36 (release), REVISION: 4.3\n");
        ck_assert_int_eq(platform()->n, 1);
        ck_assert_int_eq(platform()->code, DOCTOR_TEGRA);
        ck_assert_int_eq(platform()->level, FINDING_NOTE);
        ck_assert(platform()->fix);
}
END_TEST

START_TEST(tegra_by_its_device_tree) {
        static const char compatible[] = "nvidia,p3737-0000+p3701-0000\0nvidia,tegra234"; /* NULs between, as there */

        put("/sys/firmware/devicetree/base/compatible", compatible, sizeof(compatible));
        ck_assert_int_eq(platform()->code, DOCTOR_TEGRA);
}
END_TEST

/* ---- nodes ------------------------------------------------------------------------------------------------- */

static const struct found *nodes(void) {
        return run(check_nodes, (struct doctor){
                .proc_is_own = true,
                .here = { .end = PROBE_REFUSED, .result = 100, .words = "cuInit() says 100" },
                .cuda_fault = DOCTOR_NO_GPU,
                .cuda_unsaid = true,
        });
}

START_TEST(nodes_of_a_plain_machine) {
        ck_assert_int_eq(nodes()->code, DOCTOR_NO_KERNEL_DRIVER);
        ck_assert(strstr(nodes()->cause, "/dev/nvidiactl, /dev/nvidia-uvm, /dev/nvidia0"));
        put_text("/proc/driver/nvidia/version", "NVRM version:");
        ck_assert_int_eq(nodes()->code, DOCTOR_NO_DEVICE_NODE);
        ck_assert_int_eq(nodes()->n, 1);
        put_text("/dev/nvidiactl", "");
        put_text("/dev/nvidia-uvm", "");
        put_text("/dev/nvidia3", "");
        ck_assert_int_eq(nodes()->code, DOCTOR_NO_GPU); /* after saying that the nodes are well */
        ck_assert_int_eq(nodes()->n, 2);
        ck_assert_str_eq(nodes()->cause, "cuInit() says 100.");
}
END_TEST

START_TEST(node_of_wsl) {
        put_text("/proc/version", WSL_VERSION);
        ck_assert_int_eq(nodes()->n, 1);
        ck_assert_int_eq(nodes()->code, DOCTOR_NO_DEVICE_NODE);
        ck_assert_msg(strstr(nodes()->cause, "/dev/dxg") && !strstr(nodes()->cause, "nvidia"), "%s", nodes()->cause);
        put_text("/dev/dxg", "");
        ck_assert_int_eq(nodes()->n, 1);
        ck_assert_int_eq(nodes()->code, DOCTOR_NO_GPU);
}
END_TEST

START_TEST(no_such_nodes_on_tegra) {
        put_text("/etc/nv_tegra_release", "# R36 (release), REVISION: 4.3\n");
        ck_assert_int_eq(nodes()->n, 1);
        ck_assert_int_eq(nodes()->code, DOCTOR_NO_GPU);
}
END_TEST

/* ---- containers -------------------------------------------------------------------------------------------- */

static void namespaces(const char *pid, const char *uts, const char *ipc) {
        put_link("/proc/self/ns/pid", pid);
        put_link("/proc/self/ns/uts", uts);
        put_link("/proc/self/ns/ipc", ipc);
}

START_TEST(containers) {
        static const char *const marks[] = { "/.dockerenv", "/run/.containerenv" };

        ck_assert(!place_is_container(root)); /* nothing to tell by */
        namespaces("pid:[4026531836]", "uts:[4026531838]", "ipc:[4026531839]");
        ck_assert(!place_is_container(root));
        namespaces("pid:[4026532201]", "uts:[4026531838]", "ipc:[4026531839]");
        ck_assert(place_is_container(root));
        for (size_t i = 0; i < ELEMENTSOF(marks); i++) {
                namespaces("pid:[4026531836]", "uts:[4026531838]", "ipc:[4026531839]");
                put_text(marks[i], "");
                ck_assert_msg(!place_is_container(root), "%s", marks[i]); /* a machine made from an image */
                namespaces("pid:[4026531836]", "uts:[4026532200]", "ipc:[4026531839]");
                ck_assert_msg(place_is_container(root), "%s", marks[i]);
                namespaces("pid:[4026531836]", "uts:[4026531838]", "ipc:[4026532200]");
                ck_assert_msg(place_is_container(root), "%s", marks[i]);
                ck_assert_int_eq(unlink(at(marks[i])), 0);
                ck_assert_msg(!place_is_container(root), "%s", marks[i]);
        }
}
END_TEST

int main(void) {
        Suite *suite = suite_create("doctor_place");
        TCase *tc = tcase_create("place");

        tcase_add_checked_fixture(tc, setup, teardown);
        tcase_add_test(tc, nothing_special);
        tcase_add_test(tc, wsl_by_its_kernel);
        tcase_add_test(tc, wsl_by_its_device);
        tcase_add_test(tc, tegra_by_its_release);
        tcase_add_test(tc, tegra_by_its_device_tree);
        tcase_add_test(tc, nodes_of_a_plain_machine);
        tcase_add_test(tc, node_of_wsl);
        tcase_add_test(tc, no_such_nodes_on_tegra);
        tcase_add_test(tc, containers);
        suite_add_tcase(suite, tc);
        return suite_run(suite);
}
