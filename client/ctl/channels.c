/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at each channel's control page and tells rates, depth and who lags. A channel that is gone by then, or whose figures are not for
 * the caller, is told without figures. */
#include "channels.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "channel_json.h"
#include "print.h"

static void seen_deinit(struct channel_seen *seen) {
        free(seen->id);
        free(seen->name);
        free(seen->device);
}

void channels_deinit(struct channels *channels) {
        for (size_t i = 0; i < channels->n; i++)
                seen_deinit(&channels->seen[i]);
        free(channels->seen);
        *channels = (struct channels){ 0 };
}

struct collection {
        struct channels channels;
        bool failed;
};

static int collect(const gpuipc_buffer_info *buffer, void *data) {
        struct collection *collection = data;
        struct channels *channels = &collection->channels;
        struct channel_seen *seen;

        if (!buffer->channel)
                return 0;
        seen = reallocarray(channels->seen, channels->n + 1, sizeof(*seen));
        if (seen) {
                channels->seen = seen;
                seen = &seen[channels->n];
                *seen = (struct channel_seen){ .id = strdup(buffer->id), .name = buffer->name ? strdup(buffer->name) : NULL,
                                               .device = strdup(buffer->device), .facts = *buffer->channel };
                channels->n++;
        }
        collection->failed = !seen || !seen->id || !seen->device || (buffer->name && !seen->name);
        return collection->failed;
}

static const struct channel_seen *find(const struct channels *channels, const char *id) {
        for (size_t i = 0; i < channels->n; i++)
                if (channels->seen[i].looked && strcmp(channels->seen[i].id, id) == 0)
                        return &channels->seen[i];
        return NULL;
}

void channels_lags(char ret[CHANNELS_LAGS_SIZE], const gpuipc_channel_info *facts, const gpuipc_channel_stats *stats) {
        const gpuipc_channel_member *last = NULL;

        ret[0] = 0;
        for (int i = 0; i < stats->n_members; i++)
                if (stats->members[i].role == GPUIPC_CHANNEL_CONSUMER && (!last || stats->members[i].lag > last->lag))
                        last = &stats->members[i];
        if (facts->kind == GPUIPC_CHANNEL_BROADCAST && last && last->lag > 0)
                (void)snprintf(ret, CHANNELS_LAGS_SIZE, "pid %" PRId64 ": %" PRIu64 " item%s", last->pid, last->lag,
                               rows_plural(last->lag));
        else if ((int64_t)stats->depth >= facts->slots)
                (void)snprintf(ret, CHANNELS_LAGS_SIZE, "consumers");
        else if (stats->begun > 0 && stats->depth == 0)
                (void)snprintf(ret, CHANNELS_LAGS_SIZE, "producers");
}

/* A figure's growth in a second. Members that left have taken theirs along. */
static double rate(uint64_t now, uint64_t then, int64_t usec) {
        return usec <= 0 ? -1 : now < then ? 0 : (double)(now - then) * 1e6 / (double)usec;
}

static struct channel_sums members_sum(const gpuipc_channel_stats *stats) {
        struct channel_sums sums = { .items_rate = -1, .bytes_rate = -1 };

        for (int i = 0; i < stats->n_members; i++) {
                const gpuipc_channel_member *member = &stats->members[i];
                bool produces = member->role == GPUIPC_CHANNEL_PRODUCER;

                sums.producers += produces;
                sums.consumers += !produces;
                sums.bytes += produces ? member->bytes : 0;
                sums.drops += member->drops;
                sums.broken += member->broken;
        }
        return sums;
}

struct channel_sums channels_sums(const struct channel_seen *seen, const struct channel_seen *before) {
        struct channel_sums sums = members_sum(&seen->stats);
        int64_t usec = before ? seen->at_usec - before->at_usec : 0;

        if (before) {
                sums.items_rate = rate(seen->stats.begun, before->stats.begun, usec);
                sums.bytes_rate = rate(sums.bytes, members_sum(&before->stats).bytes, usec);
        }
        return sums;
}

static void figures_put(struct rows *rows, const struct channel_seen *seen, const struct channel_seen *before) {
        struct channel_sums sums = channels_sums(seen, before);
        struct table *table = &rows->table;
        char lags[CHANNELS_LAGS_SIZE];

        table_format(table, "%" PRIu64, seen->stats.depth);
        if (sums.items_rate < 0)
                table_text(table, NULL);
        else
                table_format(table, sums.items_rate < 100 ? "%.1f" : "%.0f", sums.items_rate);
        rows_size_put(rows, (int64_t)sums.bytes_rate);
        rows_number_put(rows, sums.producers);
        rows_number_put(rows, sums.consumers);
        table_format(table, "%" PRIu64, sums.drops);
        table_format(table, "%" PRIu64, sums.broken);
        channels_lags(lags, &seen->facts, &seen->stats);
        table_text(table, seen->stats.closed ? "closed" : lags);
}

static void row_put(struct rows *rows, const struct channel_seen *seen, const struct channel_seen *before) {
        struct table *table = &rows->table;
        const gpuipc_channel_info *facts = &seen->facts;
        bool drops = facts->policy == GPUIPC_CHANNEL_DROP_OLDEST;

        table_row(table, seen->looked ? (int64_t)(seen->stats.begun - (before ? before->stats.begun : 0)) : 0);
        table_text(table, seen->id);
        table_text(table, seen->name);
        rows_device_put(rows, seen->device);
        table_format(table, "%s%s", facts->kind == GPUIPC_CHANNEL_BROADCAST ? "broadcast" : "queue", drops ? ",drops" : "");
        rows_number_put(rows, facts->slots);
        rows_size_put(rows, facts->slot_bytes);
        for (int i = 0; !seen->looked && i < 8; i++)
                table_text(table, NULL);
        if (seen->looked)
                figures_put(rows, seen, before);
        rows->n++;
}

/* What there is now, in the place of what was seen before, which is moved out. A gpuipc_status. */
static int look_again(gpuipc_client *client, struct channels *channels, struct channels *ret_before, bool *ret_failed,
                      gpuipc_error *ret_error) {
        struct collection now = { .failed = false };
        int r = gpuipc_list_buffers(client, NULL, collect, &now, ret_error);

        for (size_t i = 0; r == GPUIPC_OK && i < now.channels.n; i++) {
                struct channel_seen *seen = &now.channels.seen[i];

                seen->stats = (gpuipc_channel_stats)GPUIPC_CHANNEL_STATS_INIT;
                seen->looked = gpuipc_channel_look(client, seen->id, &seen->stats, NULL) == GPUIPC_OK;
                seen->at_usec = print_monotonic_usec();
        }
        *ret_failed = now.failed;
        *ret_before = *channels;
        *channels = now.channels;
        return r;
}

int channels_take(gpuipc_client *client, bool exact, struct channels *channels, struct rows *rows, gpuipc_error *ret_error) {
        struct channels before;
        bool failed;
        int r = look_again(client, channels, &before, &failed, ret_error);

        rows_init_channels(rows, exact);
        if (failed)
                rows->table.failed = true;
        for (size_t i = 0; r == GPUIPC_OK && i < channels->n; i++)
                row_put(rows, &channels->seen[i], find(&before, channels->seen[i].id));
        channels_deinit(&before);
        return r;
}

int channels_json(gpuipc_client *client, struct channels *channels, struct bytes *out, gpuipc_error *ret_error) {
        struct channels before;
        bool failed;
        int r = look_again(client, channels, &before, &failed, ret_error);

        bytes_append_char(out, '[');
        for (size_t i = 0; r == GPUIPC_OK && !failed && i < channels->n; i++) {
                if (i > 0)
                        bytes_append_char(out, ',');
                channel_json_put(out, &channels->seen[i], find(&before, channels->seen[i].id));
        }
        bytes_append_char(out, ']');
        if (failed)
                out->failed = true;
        channels_deinit(&before);
        return r;
}
