/* SPDX-License-Identifier: Apache-2.0 */
/* One look of top at the daemon: what was found, and its picture as lines of text. */
#ifndef CTL_LOOK_H
#define CTL_LOOK_H

#include <stdbool.h>
#include <stdint.h>

#include "include/gpuipc.h"
#include "proto/bytes.h"
#include "rows.h"

/* Counted from the event stream since the look before. */
struct look_rates {
        int64_t created, opened, released, freed; /* events */
        int64_t bytes;                            /* of buffers created */
        int64_t since_usec;                       /* when the counting began; 0: it has not */
};

struct look_style {
        bool buffers; /* instead of leases */
        bool exact, color;
        int columns, lines; /* 0: no limit */
};

/* Appends the picture of one look; takes the counts and begins new ones. On failure appends nothing. A gpuipc_status. */
int look_take(gpuipc_client *client, const struct look_style *style, struct look_rates *rates, struct bytes *out,
              gpuipc_error *ret_error);

void look_count(struct look_rates *rates, const gpuipc_event_info *event);

#endif
