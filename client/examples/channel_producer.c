/* SPDX-License-Identifier: Apache-2.0 */
/* Sends numbered items through a channel in host memory, as fast as its consumers take them.
 *
 *     channel_producer NAME ITEMS [BYTES [broadcast]]      ITEMS items of BYTES (65536) each
 *
 * Makes the channel, waits until somebody has attached, and closes it at the end: consumers then take what is left and stop. */
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <gpuipc.h>

static int count_consumers(gpuipc_channel *channel) {
        gpuipc_channel_stats stats = GPUIPC_CHANNEL_STATS_INIT;
        int n = 0;

        if (gpuipc_channel_get_stats(channel, &stats, NULL) != 0)
                return 0;
        for (int i = 0; i < stats.n_members; i++)
                n += stats.members[i].role == GPUIPC_CHANNEL_CONSUMER && stats.members[i].alive;
        return n;
}

static void send_one(gpuipc_channel *channel, unsigned long long number, size_t bytes) {
        gpuipc_error error;
        gpuipc_item item;

        if (gpuipc_channel_begin(channel, NULL, -1, &item, &error) != 0)
                errx(1, "%s", error.message);
        memset(item.pointer, (int)(number & 0xff), bytes);
        if (gpuipc_channel_publish(channel, &item, (int64_t)bytes, &number, sizeof(number), NULL, &error) != 0)
                errx(1, "%s", error.message);
}

int main(int argc, char **argv) {
        gpuipc_channel_create_options options = GPUIPC_CHANNEL_CREATE_OPTIONS_INIT;
        unsigned long long n_items;
        gpuipc_channel *channel;
        gpuipc_client *client;
        gpuipc_error error;
        size_t bytes;

        if (argc < 3 || argc > 5 || (argc == 5 && strcmp(argv[4], "broadcast") != 0))
                errx(2, "usage: channel_producer NAME ITEMS [BYTES [broadcast]]");
        n_items = strtoull(argv[2], NULL, 10);
        bytes = argc > 3 ? strtoull(argv[3], NULL, 10) : 65536;

        options.name = argv[1];
        options.kind = argc == 5 ? GPUIPC_CHANNEL_BROADCAST : GPUIPC_CHANNEL_QUEUE;
        options.slots = 16;
        options.slot_bytes = (int64_t)bytes;
        options.meta_bytes = sizeof(n_items);
        options.device = "host";
        options.mode = "0644"; /* everyone may consume */
        options.label = "channel_producer";
        if (gpuipc_connect(NULL, &client, &error) != 0 || gpuipc_channel_create(client, &options, &channel, &error) != 0)
                errx(1, "%s", error.message);
        printf("ready: %s, channel %s\n", argv[1], gpuipc_channel_id(channel));
        fflush(stdout);

        /* A broadcast is for those who are there when an item is begun. */
        while (count_consumers(channel) == 0)
                nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
        for (unsigned long long i = 1; i <= n_items; i++)
                send_one(channel, i, bytes);
        printf("sent: %llu items of %zu bytes\n", n_items, bytes);
        fflush(stdout);

        /* Who leaves while the others still read takes nothing from them. */
        if (gpuipc_channel_close(channel, &error) != 0 || gpuipc_channel_free(channel, &error) != 0)
                errx(1, "%s", error.message);
        gpuipc_client_free(client);
        return 0;
}
