/* SPDX-License-Identifier: Apache-2.0 */
/* Channels as rows of a table: what flows through each since the look before, and who lags. */
#ifndef CTL_CHANNELS_H
#define CTL_CHANNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "include/gpuipc.h"
#include "rows.h"

/* One channel at one look. */
struct channel_seen {
        char *id, *name, *device;
        gpuipc_channel_info facts;
        gpuipc_channel_stats stats;
        bool looked; /* there are figures */
        int64_t at_usec;
};

/* All of them. Starts as { 0 }. */
struct channels {
        struct channel_seen *seen;
        size_t n;
};

void channels_deinit(struct channels *channels);

/* One look: initialises and fills the rows, and puts what was seen in the place of the look before. A gpuipc_status. */
int channels_take(gpuipc_client *client, bool exact, struct channels *channels, struct rows *rows, gpuipc_error *ret_error);

/* Who holds the flow up, in words: "consumers", "producers", "pid 123: 7 items"; "" where nobody does. */
#define CHANNELS_LAGS_SIZE 64
void channels_lags(char ret[CHANNELS_LAGS_SIZE], const gpuipc_channel_info *facts, const gpuipc_channel_stats *stats);

#endif
