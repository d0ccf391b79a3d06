/* SPDX-License-Identifier: Apache-2.0 */
/* Channels, memory that is copied into and out of, pipes and sockets. One process uses a line at a time, in one thread. */
#include "line.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "include/gpuipc.h"

#define WAIT_MS 30000 /* for the other side, which is there */

uint64_t line_read(struct line *line, const void *bytes) {
        const volatile uint64_t *words = bytes;

        for (size_t i = 0; i < line->item_bytes / 8; i += 8)
                line->sum += words[i];
        return words[0];
}

static int failed(struct line *line, const char *what) {
        (void)snprintf(line->why, sizeof(line->why), "%s: %s", what, strerrordesc_np(errno));
        return -1;
}

static int own_memory(struct line *line) {
        line->own = malloc(line->item_bytes);
        return line->own ? 0 : failed(line, "memory");
}

static void own_leave(struct line *line) {
        free(line->own);
        line->own = NULL;
}

/* ---- channels --------------------------------------------------------------------------------------------- */

int line_refused(struct line *line, const gpuipc_error *error) {
        (void)snprintf(line->why, sizeof(line->why), "%s", error->message);
        return -1;
}

int line_channel_make(struct line *line) {
        static unsigned n;

        (void)snprintf(line->name, sizeof(line->name), "gpuipcctl-bench-%d-%u", (int)getpid(), n++);
        return 0;
}

static int channel_create(struct line *line, gpuipc_error *error) {
        gpuipc_channel_create_options options = GPUIPC_CHANNEL_CREATE_OPTIONS_INIT;

        options.name = line->name;
        options.kind = line->n_receivers > 1 ? GPUIPC_CHANNEL_BROADCAST : GPUIPC_CHANNEL_QUEUE;
        options.slots = LINE_ITEMS;
        options.slot_bytes = (int64_t)line->item_bytes;
        options.meta_bytes = sizeof(uint64_t);
        options.device = line->device;
        options.label = "gpuipcctl bench";
        return gpuipc_channel_create(line->client, &options, (gpuipc_channel **)&line->channel, error);
}

int line_channel_join(struct line *line, int me) {
        gpuipc_connect_options connect = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_channel_attach_options options = GPUIPC_CHANNEL_ATTACH_OPTIONS_INIT;
        gpuipc_error error;
        int r;

        connect.socket_path = line->socket_path;
        r = gpuipc_connect(&connect, (gpuipc_client **)&line->client, &error);
        options.wait_ms = WAIT_MS;
        options.label = "gpuipcctl bench";
        if (r == GPUIPC_OK)
                r = me < 0 ? channel_create(line, &error)
                           : gpuipc_channel_attach(line->client, line->name, &options, (gpuipc_channel **)&line->channel, &error);
        return r == GPUIPC_OK ? 0 : line_refused(line, &error);
}

static int channel_send(struct line *line, const void *bytes) {
        gpuipc_error error;
        gpuipc_item item;

        if (gpuipc_channel_begin(line->channel, NULL, WAIT_MS, &item, &error) != GPUIPC_OK)
                return line_refused(line, &error);
        (void)memcpy(item.pointer, bytes, line->item_bytes);
        if (gpuipc_channel_publish(line->channel, &item, (int64_t)line->item_bytes, NULL, 0, NULL, &error) != GPUIPC_OK)
                return line_refused(line, &error);
        return 0;
}

static int channel_receive(struct line *line, uint64_t *ret_first) {
        gpuipc_error error;
        gpuipc_item item;

        if (gpuipc_channel_take(line->channel, NULL, WAIT_MS, &item, &error) != GPUIPC_OK)
                return line_refused(line, &error);
        if (item.broken) {
                (void)snprintf(line->why, sizeof(line->why), "the sender died");
                return -1;
        }
        *ret_first = line_read(line, item.pointer);
        return gpuipc_channel_release(line->channel, &item, NULL, &error) == GPUIPC_OK ? 0 : line_refused(line, &error);
}

void line_channel_leave(struct line *line) {
        (void)gpuipc_channel_free(line->channel, NULL);
        gpuipc_client_free(line->client);
        line->channel = line->client = NULL;
}

const struct line_kind line_channel = { "channel", 1, line_channel_make, line_channel_join, channel_send, channel_receive, NULL,
                                        line_channel_leave };
const struct line_kind line_broadcast = { "channel", 2, line_channel_make, line_channel_join, channel_send, channel_receive, NULL,
                                          line_channel_leave };

/* ---- memory that is copied into and out of ---------------------------------------------------------------- */

struct line_place {
        _Alignas(64) _Atomic uint32_t full; /* a futex */
};

struct line_ring {
        struct line_place places[LINE_ITEMS];
        size_t next; /* each side's own copy counts */
};

static size_t ring_bytes(const struct line *line) {
        return sizeof(struct line_ring) + LINE_ITEMS * line->item_bytes;
}

static int memory_make(struct line *line) {
        line->ring = mmap(NULL, ring_bytes(line), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        return line->ring == MAP_FAILED ? failed(line, "mmap") : 0;
}

static int memory_join(struct line *line, int me) {
        line->me = 0; /* places used so far */
        (void)me;
        return own_memory(line);
}

/* Waits until the next place is full, or free. */
static unsigned char *memory_next(struct line *line, uint32_t full, struct line_place **ret_place) {
        size_t i = (size_t)line->me++ % LINE_ITEMS;
        struct line_place *place = &line->ring->places[i];

        for (int spins = 0; atomic_load(&place->full) != full; spins++)
                if (spins > 200)
                        (void)syscall(SYS_futex, &place->full, FUTEX_WAIT, !full, NULL, NULL, 0);
        *ret_place = place;
        return (unsigned char *)(line->ring + 1) + i * line->item_bytes;
}

static void memory_done(struct line_place *place, uint32_t full) {
        atomic_store(&place->full, full);
        (void)syscall(SYS_futex, &place->full, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static int memory_send(struct line *line, const void *bytes) {
        struct line_place *place;
        unsigned char *at = memory_next(line, 0, &place);

        (void)memcpy(at, bytes, line->item_bytes);
        memory_done(place, 1);
        return 0;
}

static int memory_receive(struct line *line, uint64_t *ret_first) {
        struct line_place *place;
        const unsigned char *at = memory_next(line, 1, &place);

        (void)memcpy(line->own, at, line->item_bytes);
        memory_done(place, 0);
        *ret_first = line_read(line, line->own);
        return 0;
}

static void memory_leave(struct line *line) {
        (void)munmap(line->ring, ring_bytes(line));
        own_leave(line);
}

const struct line_kind line_memory = { "copied", 1, memory_make, memory_join, memory_send, memory_receive, NULL, memory_leave };

/* ---- pipes and sockets ------------------------------------------------------------------------------------ */

static int pipe_make(struct line *line) {
        for (int i = 0; i < line->n_receivers; i++) {
                if (pipe(line->fds[i]) < 0)
                        return failed(line, "pipe");
                (void)fcntl(line->fds[i][1], F_SETPIPE_SZ, 1 << 20);
        }
        return 0;
}

static int socket_make(struct line *line) {
        for (int i = 0; i < line->n_receivers; i++)
                if (socketpair(AF_UNIX, SOCK_STREAM, 0, line->fds[i]) < 0)
                        return failed(line, "socketpair");
        return 0;
}

static int fds_join(struct line *line, int me) {
        line->me = me;
        for (int i = 0; i < line->n_receivers; i++) {
                (void)close(line->fds[i][me < 0 ? 0 : 1]);
                if (me >= 0 && i != me)
                        (void)close(line->fds[i][0]);
        }
        return own_memory(line);
}

static int fds_send(struct line *line, const void *bytes) {
        for (int i = 0; i < line->n_receivers; i++)
                for (size_t at = 0; at < line->item_bytes;) {
                        ssize_t n = write(line->fds[i][1], (const char *)bytes + at, line->item_bytes - at);
                        if (n <= 0)
                                return failed(line, "write");
                        at += (size_t)n;
                }
        return 0;
}

static int fds_receive(struct line *line, uint64_t *ret_first) {
        for (size_t at = 0; at < line->item_bytes;) {
                ssize_t n = read(line->fds[line->me][0], line->own + at, line->item_bytes - at);
                if (n <= 0)
                        return failed(line, "read");
                at += (size_t)n;
        }
        *ret_first = line_read(line, line->own);
        return 0;
}

static void fds_leave(struct line *line) {
        for (int i = 0; i < line->n_receivers; i++)
                if (line->me < 0 || i == line->me)
                        (void)close(line->fds[i][line->me < 0 ? 1 : 0]);
        own_leave(line);
}

const struct line_kind line_pipe = { "pipe", 2, pipe_make, fds_join, fds_send, fds_receive, NULL, fds_leave };
const struct line_kind line_socket = { "socket", 2, socket_make, fds_join, fds_send, fds_receive, NULL, fds_leave };
