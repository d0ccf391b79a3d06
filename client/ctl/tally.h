/* SPDX-License-Identifier: Apache-2.0 */
/* Sums by label, for metrics. */
#ifndef CTL_TALLY_H
#define CTL_TALLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/bytes.h"

struct tally_entry {
        char *labels; /* "device=\"host\",state=\"live\"" */
        int64_t value;
};

struct tally {
        struct tally_entry *entries; /* in the order they came up */
        size_t n, capacity;
        bool failed;
};

void tally_deinit(struct tally *tally);

/* Adds to the sum of these labels, beginning at 0. */
void tally_add(struct tally *tally, const char *labels, int64_t value);

/* Appends key="value" (after a comma unless it is the first), escaped as Prometheus demands. */
void tally_label(struct bytes *labels, const char *key, const char *value);

/* Appends HELP, TYPE gauge and one line a sum. Nothing when there is none. */
void tally_print(struct bytes *out, const struct tally *tally, const char *name, const char *help);

#endif
