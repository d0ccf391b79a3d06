/* SPDX-License-Identifier: Apache-2.0 */
/* Which container a process is in, by the text of its /proc/PID/cgroup. */
#include <check.h>
#include <string.h>

#include "daemon/creds.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"

#define ID_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define ID_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define POD "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
#define POD_SLICE "0f1e2d3c_4b5a_6978_8796_a5b4c3d2e1f0"

static const struct {
        const char *text, *container; /* NULL: none */
} cases[] = {
        {"0::/\n", NULL},
        {"0::/user.slice/user-1000.slice/session-2.scope\n", NULL},
        {"", NULL},
        {"0::/system.slice/docker-" ID_A ".scope\n", ID_A},
        {"12:pids:/docker/" ID_A "\n11:memory:/docker/" ID_A "\n", ID_A},
        {"0::/machine.slice/libpod-" ID_A ".scope/container\n", ID_A},
        {"5:pids:/libpod_parent/libpod-" ID_A "\n", ID_A},
        /* The outermost counts: what is below, the container may have made itself. */
        {"0::/docker/" ID_A "/docker/" ID_B "\n", ID_A},
        {"0::/docker/" ID_A "/" ID_B "\n", ID_A},
        /* Of whatever kind. */
        {"0::/docker/" ID_A "/kubepods/pod" POD "/" ID_B "\n", ID_A},
        {"0::/lxc.payload.web/docker/" ID_A "\n", "lxc:web"},
        {"0::/lxc.payload.web/kubepods/pod" POD "\n", "lxc:web"},
        {"0::/machine.slice/machine-debian.scope/" ID_A "\n", "machine:debian"},
        {"0::/docker/" ID_A "/lxc.payload.web\n", ID_A},
        /* 63 and 65 digits are no id. */
        {"0::/docker/a" ID_A "\n", NULL},
        {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" POD_SLICE ".slice/cri-containerd-" ID_A ".scope\n",
         "pod:" POD},
        {"0::/kubepods/besteffort/pod" POD "/" ID_A "\n", "pod:" POD},
        {"0::/lxc.payload.web/init.scope\n", "lxc:web"},
        {"0::/machine.slice/machine-debian.scope/payload\n", "machine:debian"},
        {"0::/docker/" ID_A, ID_A}, /* no line end */
};

START_TEST(container) {
        char got[256];

        check_fd_count_begin();
        ck_assert_int_eq(creds_container_of(cases[_i].text, got, sizeof(got)), cases[_i].container != NULL);
        if (cases[_i].container)
                ck_assert_str_eq(got, cases[_i].container);
        check_fd_count_end();
}
END_TEST

int main(void) {
        Suite *suite = suite_create("creds");
        TCase *tcase = tcase_create("container");

        tcase_add_loop_test(tcase, container, 0, sizeof(cases) / sizeof(cases[0]));
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
