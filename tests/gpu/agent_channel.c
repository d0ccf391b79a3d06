/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's commands about channels. One thread, the agent's own stream. */
#include <inttypes.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "agent.h"
#include "kernels.h"

#define CHANNELS_MAX 4
#define WAIT_MS 60000

static struct held {
        char key[32];
        gpuipc_channel *channel; /* NULL: none */
        gpuipc_item item;        /* the last that was taken */
} held[CHANNELS_MAX];

static struct held *find(const char *key) {
        for (int i = 0; i < CHANNELS_MAX; i++)
                if (held[i].channel && strcmp(held[i].key, key) == 0)
                        return &held[i];
        agent_wrong("no such channel");
        return NULL;
}

static void keep(const char *key, gpuipc_channel *channel) {
        for (int i = 0; i < CHANNELS_MAX; i++) {
                if (held[i].channel)
                        continue;
                snprintf(held[i].key, sizeof(held[i].key), "%s", key);
                held[i].channel = channel;
                printf("ok %s %d %d %d\n", gpuipc_channel_device(channel), gpuipc_channel_number(channel),
                       gpuipc_channel_is_synchronous(channel), gpuipc_channel_is_peer(channel));
                return;
        }
        (void)gpuipc_channel_free(channel, NULL);
        agent_wrong("too many channels");
}

static double usec_now(void) {
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static gpuipc_channel_role role_of(const char *word) {
        return strcmp(word, "producer") == 0 ? GPUIPC_CHANNEL_PRODUCER : GPUIPC_CHANNEL_CONSUMER;
}

/* channel KEY NAME queue|broadcast SLOTS BYTES producer|consumer DEVICE: makes one; whether it is synchronous, and over another GPU */
static void do_channel(char **words) {
        gpuipc_channel_create_options options = GPUIPC_CHANNEL_CREATE_OPTIONS_INIT;
        gpuipc_channel *channel;
        gpuipc_error error;

        options.name = words[2];
        options.kind = strcmp(words[3], "broadcast") == 0 ? GPUIPC_CHANNEL_BROADCAST : GPUIPC_CHANNEL_QUEUE;
        options.slots = atoll(words[4]);
        options.slot_bytes = atoll(words[5]);
        options.meta_bytes = 64;
        options.role = role_of(words[6]);
        options.device = words[7];
        options.mode = "0666";
        if (gpuipc_channel_create(agent_client(), &options, &channel, &error) != GPUIPC_OK)
                agent_refused(&error);
        else
                keep(words[1], channel);
}

/* attach KEY NAME producer|consumer: the same */
static void do_attach(char **words) {
        gpuipc_channel_attach_options options = GPUIPC_CHANNEL_ATTACH_OPTIONS_INIT;
        gpuipc_channel *channel;
        gpuipc_error error;

        options.role = role_of(words[3]);
        options.owner = -2;
        options.wait_ms = WAIT_MS;
        if (gpuipc_channel_attach(agent_client(), words[2], &options, &channel, &error) != GPUIPC_OK)
                agent_refused(&error);
        else
                keep(words[1], channel);
}

/* leave KEY */
static void do_leave(char **words) {
        struct held *mine = find(words[1]);
        gpuipc_error error;

        if (!mine)
                return;
        if (gpuipc_channel_free(mine->channel, &error) != GPUIPC_OK)
                agent_refused(&error);
        else
                printf("ok\n");
        mine->channel = NULL;
}

/* ---- one at a time ---------------------------------------------------------------------------------------- */

/* put KEY BYTES, get KEY, let KEY, broken KEY, told KEY: publishes; takes (broken, size); releases; whether what was taken is broken; waits
 * until it is. */
static void do_put(char **words) {
        struct held *mine = find(words[1]);
        gpuipc_error error;
        gpuipc_item item;

        if (!mine)
                return;
        if (gpuipc_channel_begin(mine->channel, agent_stream(), WAIT_MS, &item, &error) != GPUIPC_OK ||
            gpuipc_channel_publish(mine->channel, &item, atoll(words[2]), NULL, 0, agent_stream(), &error) != GPUIPC_OK)
                agent_refused(&error);
        else
                printf("ok %" PRIu64 "\n", item.ticket);
}

static void do_get(char **words) {
        struct held *mine = find(words[1]);
        gpuipc_error error;

        if (!mine)
                return;
        if (gpuipc_channel_take(mine->channel, agent_stream(), WAIT_MS, &mine->item, &error) != GPUIPC_OK)
                agent_refused(&error);
        else
                printf("ok %d %" PRId64 "\n", mine->item.broken, mine->item.size);
}

static void do_let(char **words) {
        struct held *mine = find(words[1]);
        gpuipc_error error;

        if (!mine)
                return;
        if (gpuipc_channel_release(mine->channel, &mine->item, agent_stream(), &error) != GPUIPC_OK)
                agent_refused(&error);
        else
                printf("ok\n");
}

static void do_broken(char **words) {
        struct held *mine = find(words[1]);

        if (mine)
                printf("ok %d\n", gpuipc_item_is_broken(mine->channel, &mine->item));
}

static void do_told(char **words) {
        struct held *mine = find(words[1]);
        double until = usec_now() + WAIT_MS * 1e3;

        if (!mine)
                return;
        while (!gpuipc_item_is_broken(mine->channel, &mine->item) && usec_now() < until)
                (void)sched_yield();
        do_broken(words);
}

/* ---- there and back --------------------------------------------------------------------------------------- */

enum mode { PLAIN, SETTLED, WORKED, LOOSE };

static enum mode mode_of(const char *word) {
        return strcmp(word, "settled") == 0 ? SETTLED : strcmp(word, "worked") == 0 ? WORKED : strcmp(word, "loose") == 0 ? LOOSE : PLAIN;
}

/* In the mode `worked` a kernel writes all of the item, and one compares it; in `loose` that one is given to a stream that does not wait
 * for the item; in `settled` the processor waits for the stream where it has the item. */
static int send_item(gpuipc_channel *channel, enum mode mode, uint64_t number, gpuipc_error *error) {
        void *stream = agent_stream();
        gpuipc_item item;
        int r = gpuipc_channel_begin(channel, stream, WAIT_MS, &item, error);

        if (r == GPUIPC_OK && mode >= WORKED)
                r = kernels_slot_fill(stream, item.pointer, (size_t)item.size, number);
        return r == GPUIPC_OK ? gpuipc_channel_publish(channel, &item, item.size, NULL, 0, stream, error) : r;
}

static int receive_item(gpuipc_channel *channel, enum mode mode, uint64_t number, gpuipc_error *error) {
        void *stream = agent_stream();
        gpuipc_item item;
        int r = gpuipc_channel_take(channel, mode == LOOSE ? NULL : stream, WAIT_MS, &item, error);

        if (r == GPUIPC_OK && mode == SETTLED)
                r = kernels_stream_settle(stream);
        if (r == GPUIPC_OK && mode >= WORKED)
                r = kernels_slot_check(stream, item.pointer, (size_t)item.size, number);
        return r == GPUIPC_OK ? gpuipc_channel_release(channel, &item, stream, error) : r;
}

static int by_size(const void *a, const void *b) {
        double x = *(const double *)a, y = *(const double *)b;
        return (x > y) - (x < y);
}

static void tell(double *times, uint64_t n, uint64_t bad, uint64_t sleeps) {
        qsort(times, (size_t)n, sizeof(*times), by_size);
        printf("ok %.2f %.2f %" PRIu64 " %" PRIu64 "\n", times[n / 2], times[n - 1 - n / 100], bad, sleeps);
}

static uint64_t sleeps_of(gpuipc_channel *channel) {
        gpuipc_channel_stats stats = GPUIPC_CHANNEL_STATS_INIT;
        return gpuipc_channel_get_stats(channel, &stats, NULL) == GPUIPC_OK ? stats.sleeps : 0;
}

/* handoff OUT IN N MODE: an item there and one back, waited for, one after the other: the median and the 99th of a hundred of half that
 * time in usec, words that were not the item's, and how often this side slept. handback IN OUT N MODE is the other side. */
static void do_handoff(char **words) {
        bool first = strcmp(words[0], "handoff") == 0;
        struct held *out = find(words[first ? 1 : 2]), *in = find(words[first ? 2 : 1]);
        gpuipc_error error = { .name = "agent", .message = "out of memory, or CUDA" };
        uint64_t n = strtoull(words[3], NULL, 10), bad = 0;
        enum mode mode = mode_of(words[4]);
        double *times = calloc(n, sizeof(*times));
        int r = out && in && times ? kernels_slots_begin() : -1;

        for (uint64_t i = 0; r == 0 && i < n; i++) {
                double since = usec_now();

                r = first ? send_item(out->channel, mode, i + 1, &error) : receive_item(in->channel, mode, i + 1, &error);
                if (r == 0)
                        r = first ? receive_item(in->channel, mode, i + 1, &error) : send_item(out->channel, mode, i + 1, &error);
                if (r == 0 && first)
                        r = kernels_stream_settle(agent_stream());
                times[i] = (usec_now() - since) / 2;
        }
        if (r == 0)
                r = kernels_stream_settle(agent_stream());
        if (r == 0)
                r = kernels_slots_end(&bad);
        if (r == 0)
                tell(times, n, bad, sleeps_of(in->channel) + sleeps_of(out->channel));
        else
                agent_refused(&error);
        free(times);
}

/* ---- one after another ------------------------------------------------------------------------------------ */

/* flow KEY N MODE: N items published or taken, by the member's role: the usec of all, and words that were not the item's. */
static void do_flow(char **words) {
        struct held *mine = find(words[1]);
        gpuipc_error error = { .name = "agent", .message = "CUDA" };
        uint64_t n = strtoull(words[2], NULL, 10), bad = 0;
        enum mode mode = mode_of(words[3]);
        int64_t started = agent_now_usec();
        bool producing;
        int r;

        if (!mine)
                return;
        producing = gpuipc_channel_get_role(mine->channel) == GPUIPC_CHANNEL_PRODUCER;
        r = kernels_slots_begin();
        for (uint64_t i = 1; r == 0 && i <= n; i++)
                r = producing ? send_item(mine->channel, mode, i, &error) : receive_item(mine->channel, mode, i, &error);
        if (r == 0)
                r = kernels_stream_settle(agent_stream());
        if (r == 0)
                r = kernels_slots_end(&bad);
        if (r == 0)
                printf("ok %" PRId64 " %" PRIu64 "\n", agent_now_usec() - started, bad);
        else
                agent_refused(&error);
}

const struct agent_command agent_channel_commands[] = {
        { "channel", 8, do_channel }, { "attach", 4, do_attach },   { "leave", 2, do_leave },     { "put", 3, do_put },
        { "get", 2, do_get },         { "let", 2, do_let },         { "broken", 2, do_broken },   { "told", 2, do_told },
        { "handoff", 5, do_handoff }, { "handback", 5, do_handoff }, { "flow", 4, do_flow },     { NULL, 0, NULL },
};
