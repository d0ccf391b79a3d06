/* SPDX-License-Identifier: Apache-2.0 */
/* Channels as rows of a table: what flows through each since the look before, and who lags. */
#ifndef CTL_CHANNELS_H
#define CTL_CHANNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "include/gpuipc.h"
#include "proto/bytes.h"
#include "rows.h"

/* One channel at one look. No figures: it is gone by then, or they are not for the caller. */
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

/* The same look as one JSON array: gpuipcctl(1) has its members. */
int channels_json(gpuipc_client *client, struct channels *channels, struct bytes *out, gpuipc_error *ret_error);

/* What all members of a kind come to, and what flowed in a second since the look before (NULL: none yet): −1, not known. */
struct channel_sums {
        int64_t producers, consumers;
        uint64_t bytes, drops, broken;
        double items_rate, bytes_rate;
};
struct channel_sums channels_sums(const struct channel_seen *seen, const struct channel_seen *before);

/* Who holds the flow up, in words: "consumers", "producers", "pid 123: 7 items"; "" where nobody does. */
#define CHANNELS_LAGS_SIZE 64
void channels_lags(char ret[CHANNELS_LAGS_SIZE], const gpuipc_channel_info *facts, const gpuipc_channel_stats *stats);

#endif
