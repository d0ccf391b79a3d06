/* SPDX-License-Identifier: Apache-2.0 */
/* A progress bar on stderr, only when that is a terminal and only for what takes over a second. */
#ifndef CTL_PROGRESS_H
#define CTL_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/bytes.h"

struct progress {
        const char *what; /* borrowed */
        int64_t total;    /* -1: not known */
        int64_t started_usec, shown_usec;
        bool enabled, shown;
};

void progress_init(struct progress *progress, const char *what, int64_t total);
void progress_update(struct progress *progress, int64_t done);

/* Takes the bar off the screen. */
void progress_deinit(struct progress *progress);

/* The line itself, for a terminal of `width` columns: "model.bin  1.5 GiB of 3 GiB  [####----]  50%  1.1 GiB/s  1s". */
void progress_line(struct bytes *out, const struct progress *progress, int64_t done, int64_t elapsed_usec,
                   int width);

#endif
