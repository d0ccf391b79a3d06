/* SPDX-License-Identifier: Apache-2.0 */
/* Ways for items to get from one process to others, for bench: a channel, and what people use without one. Each item's bytes are made
 * from the sender's own and read once by the receiver; whatever copies lie between are the way's own. */
#ifndef CTL_LINE_H
#define CTL_LINE_H

#include <stddef.h>
#include <stdint.h>

#include "include/gpuipc.h"

#define LINE_RECEIVERS_MAX 2
#define LINE_ITEMS 16 /* that may be on the way, where that can be chosen */

struct line;

struct line_kind {
        const char *name;
        int max_receivers;
        /* Before the processes part; closes nothing on failure. */
        int (*make)(struct line *line);
        /* In each process: `me` -1 sends. */
        int (*join)(struct line *line, int me);
        int (*send)(struct line *line, const void *bytes);
        /* `ret_first`: the item's first word. */
        int (*receive)(struct line *line, uint64_t *ret_first);
        /* Until all that was sent or received here is; NULL: it always is. */
        int (*settle)(struct line *line);
        void (*leave)(struct line *line);
};

/* All functions answer 0, or -1 after line->why was filled. */
struct line {
        const struct line_kind *kind;
        const char *socket_path; /* the daemon's; NULL: the library's choice */
        const char *device;      /* of a channel: a UUID or "host" */
        size_t item_bytes;       /* at least 8 */
        int n_receivers;
        int me;
        uint64_t sum; /* of what was read, so that it must be */
        char why[512];
        char name[64];
        int fds[LINE_RECEIVERS_MAX][2];
        struct line_ring *ring; /* memory that all share */
        unsigned char *own;     /* an item's bytes */
        void *client, *channel;
        uint64_t device_bytes; /* an item's bytes on a GPU; 0: none */
        unsigned char *aside;  /* what `own` was before the driver's own memory took its place; NULL: it did not */
};

extern const struct line_kind line_channel, line_broadcast, line_memory, line_pipe, line_socket;

/* Between memory of a GPU, to one and to several, NULL-ended: a channel whose items are written and read there, by a stream in each
 * process, and a pipe that bytes get to and from by way of the host. Empty in a build without CUDA. */
extern const struct line_kind *const line_gpu_single[], *const line_gpu_several[];

/* A channel's parts, for line_gpu.c. */
int line_channel_make(struct line *line);
int line_channel_join(struct line *line, int me);
void line_channel_leave(struct line *line);
int line_refused(struct line *line, const gpuipc_error *error);

/* Reads an item where it lies, a word of each 64 bytes. */
uint64_t line_read(struct line *line, const void *bytes);

#endif
