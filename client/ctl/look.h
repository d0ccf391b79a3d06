/* SPDX-License-Identifier: Apache-2.0 */
/* One look of top at the daemon: what was found, and its picture as lines of text. */
#ifndef CTL_LOOK_H
#define CTL_LOOK_H

#include <stdbool.h>
#include <stdint.h>

#include "channels.h"
#include "include/gpuipc.h"
#include "proto/bytes.h"
#include "rows.h"

/* Counted from the event stream since the look before. */
struct look_rates {
        int64_t created, opened, released, freed; /* events */
        int64_t bytes;                            /* of buffers created */
        int64_t since_usec;                       /* when the counting began; 0: it has not */
        struct channels channels;                 /* as they were at the look before */
};

enum look_view { LOOK_LEASES, LOOK_BUFFERS, LOOK_CHANNELS };

struct look_style {
        enum look_view view;
        bool exact, color;
        int columns, lines; /* 0: no limit */
};

/* Appends the picture of one look; takes the counts and begins new ones. On failure appends nothing. A gpuipc_status. */
int look_take(gpuipc_client *client, const struct look_style *style, struct look_rates *rates, struct bytes *out,
              gpuipc_error *ret_error);

/* Nothing was counted yet, or what was does not go on. */
void look_rates_clear(struct look_rates *rates);

void look_count(struct look_rates *rates, const gpuipc_event_info *event);

#endif
