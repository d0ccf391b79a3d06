/* SPDX-License-Identifier: Apache-2.0 */
/* One measurement of bench: processes that send each other items over lines of a kind. */
#ifndef CTL_TRIAL_H
#define CTL_TRIAL_H

#include <stddef.h>
#include <stdint.h>

#include "line.h"

struct trial {
        const struct line_kind *kind;
        const char *socket_path;
        const char *device; /* of channels: a UUID or "host" */
        size_t item_bytes;
        int n_receivers;
        int64_t usec; /* how long to measure */
};

struct trial_result {
        double p50_usec, p99_usec; /* of an item's way, half of there and back */
        double items;              /* a second */
        char why[512];             /* why it failed */
};

/* There and back, one item at a time. 0, or -1 with result->why. */
int trial_handoff(const struct trial *trial, struct trial_result *result);

/* One after another, to all receivers. */
int trial_flow(const struct trial *trial, struct trial_result *result);

/* Either in a process of its own, so that the next finds this one as it was: CUDA is not for a process that forks afterwards. */
int trial_apart(int (*run)(const struct trial *trial, struct trial_result *result), const struct trial *trial,
                struct trial_result *result);

#endif
