/* SPDX-License-Identifier: Apache-2.0 */
/* Takes items from a channel in an event loop until it is closed and empty.
 *
 *     channel_consumer NAME [WAIT_MS]       waits so long for the channel (10000)
 */
#include <err.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gpuipc.h>

struct totals {
        unsigned long long items, bytes, wrong, broken;
};

static void look_at(const gpuipc_item *item, struct totals *totals) {
        const unsigned char *bytes = item->pointer;
        unsigned long long number = 0;

        memcpy(&number, item->meta, sizeof(number));
        for (long long i = 0; i < item->size; i++)
                if (bytes[i] != (number & 0xff)) {
                        totals->wrong++;
                        break;
                }
        totals->items++;
        totals->bytes += (unsigned long long)item->size;
}

/* All that is there. Whether more may come. */
static int take_all(gpuipc_channel *channel, struct totals *totals) {
        gpuipc_error error;
        gpuipc_item item;
        int r;

        while ((r = gpuipc_channel_take(channel, NULL, 0, &item, &error)) == 0) {
                if (item.broken)
                        totals->broken++; /* its producer died; there is nothing in it */
                else
                        look_at(&item, totals);
                if (gpuipc_channel_release(channel, &item, NULL, &error) != 0)
                        errx(1, "%s", error.message);
        }
        if (r == GPUIPC_ERROR_CLOSED)
                return 0;
        if (r != GPUIPC_ERROR_TIMED_OUT)
                errx(1, "%s", error.message);
        return 1;
}

int main(int argc, char **argv) {
        gpuipc_channel_attach_options options = GPUIPC_CHANNEL_ATTACH_OPTIONS_INIT;
        struct totals totals = { 0 };
        gpuipc_channel *channel;
        gpuipc_client *client;
        gpuipc_error error;
        struct pollfd ready;

        if (argc < 2 || argc > 3)
                errx(2, "usage: channel_consumer NAME [WAIT_MS]");
        options.role = GPUIPC_CHANNEL_CONSUMER;
        options.wait_ms = argc == 3 ? strtoll(argv[2], NULL, 10) : 10000;
        options.label = "channel_consumer";
        if (gpuipc_connect(NULL, &client, &error) != 0 ||
            gpuipc_channel_attach(client, argv[1], &options, &channel, &error) != 0)
                errx(1, "%s", error.message);

        ready = (struct pollfd){ .fd = gpuipc_channel_fd(channel), .events = POLLIN };
        if (ready.fd < 0)
                errx(1, "no descriptor to wait for");
        while (poll(&ready, 1, -1) >= 0 && take_all(channel, &totals))
                ;

        printf("%s: %llu items, %llu bytes, %llu wrong, %llu broken\n", argv[1], totals.items, totals.bytes, totals.wrong,
               totals.broken);
        if (gpuipc_channel_free(channel, &error) != 0)
                errx(1, "%s", error.message);
        gpuipc_client_free(client);
        return 0;
}
