/* SPDX-License-Identifier: Apache-2.0 */
/* Items from process to process in host memory: there and back one at a time, one after another, and to two receivers, by channels and by
 * what one would use without, in one run. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "client/ctl/trial.h"
#include "proto/cleanup.h"
#include "tests/support/daemon_fixture.h"

#define USEC 300000
#define HANDOFF_USEC 15

static const struct line_kind *const single[] = { &line_channel, &line_memory, &line_pipe, &line_socket };
static const struct line_kind *const several[] = { &line_broadcast, &line_pipe, &line_socket };
static const size_t sizes[] = { 256, 64 << 10, 4 << 20 };

static double one(const struct gpuipcd *daemon, const struct line_kind *kind, int n_receivers, size_t size) {
        struct trial trial = { .kind = kind, .socket_path = daemon->socket, .device = "host", .item_bytes = size,
                               .n_receivers = n_receivers, .usec = USEC };
        struct trial_result result = { .p50_usec = 0 };

        if (n_receivers == 1)
                ck_assert_msg(trial_handoff(&trial, &result) == 0, "%s: %s", kind->name, result.why);
        ck_assert_msg(trial_flow(&trial, &result) == 0, "%s: %s", kind->name, result.why);
        printf("  %-8s to %d: ", kind->name, n_receivers);
        if (n_receivers == 1)
                printf("p50 %.1f us, p99 %.1f us; ", result.p50_usec, result.p99_usec);
        printf("%.0f items/s, %.2f GB/s\n", result.items, result.items * (double)size / 1e9);
        return result.p50_usec;
}

START_TEST(channels) {
        struct gpuipcd *daemon = gpuipcd_start(NULL);
        double handoff = 0;

        for (size_t i = 0; i < ELEMENTSOF(sizes); i++) {
                printf("items of %zu bytes\n", sizes[i]);
                for (size_t way = 0; way < ELEMENTSOF(single); way++) {
                        double p50 = one(daemon, single[way], 1, sizes[i]);
                        if (i == 0 && way == 0)
                                handoff = p50;
                }
                for (size_t way = 0; way < ELEMENTSOF(several); way++)
                        (void)one(daemon, several[way], LINE_RECEIVERS_MAX, sizes[i]);
        }
        bench_at_most("handoff of 256 bytes by a channel, p50", handoff, "us", HANDOFF_USEC);
        gpuipcd_stop(daemon);
}
END_TEST

int main(void) {
        return bench_main(channels);
}
