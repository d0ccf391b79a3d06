/* SPDX-License-Identifier: Apache-2.0 */
/* The channel object: a lease on its buffer, the ring in its control page, the members' fences, and the threads that watch. */
#ifndef CLIENT_CHANNEL_H
#define CLIENT_CHANNEL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "buffer.h"
#include "conn.h"
#include "fence.h"
#include "process.h"
#include "ring.h"

/* Another member as the daemon told of it. */
struct peer {
        uint32_t generation;
        int pidfd; /* -1: none */
};

/* What a grant brings beside the buffer. A channel takes it over. */
struct channel_parts {
        struct ring_geometry geometry; /* as the daemon says */
        enum ring_role role;
        unsigned number;
        uint32_t generation;
        int control_fd, fences_fd; /* -1: none */
        char *fences_kind;         /* of the handle; NULL: none */
        int64_t fences_offset, fences_size;
        struct peer peers[RING_MEMBERS];
};

void channel_parts_free(struct channel_parts *parts);
static inline void channel_parts_freep(struct channel_parts **parts) {
        channel_parts_free(*parts);
}

/* The watcher: a thread that sees members die, and does for them what they cannot any more. */
struct channel_watch {
        bool started;
        pthread_t thread;
        int wake_fd;                     /* an eventfd: the thread looks at once */
        atomic_bool stop;
        struct peer peers[RING_MEMBERS]; /* the thread's own, as is all below */
        struct conn *conn;               /* ChannelParticipants is asked over it; NULL: it is not */
        bool unknown;                    /* there are members without a pidfd */
        int64_t ask_usec;                /* not before */
        int64_t pause_usec;              /* how long to wait after the last answer */
};

/* Feeds gpuipc_channel_fd(). */
struct channel_feed {
        pthread_mutex_t lock;
        pthread_cond_t changed;
        atomic_int fd; /* -1: not asked for yet */
        pthread_t thread;
        atomic_bool readable; /* the thread says so; it waits until this is no longer so */
        atomic_bool busy;     /* it waits until an item is released */
        bool stop;
};

/* An item that was taken, and that no stream could be made to wait for: not in time, or not that stream. */
struct channel_late {
        struct channel_late *next;
        struct ring_item item;
};

struct gpuipc_channel {
        struct process_mark mark;
        gpuipc_buffer *buffer;       /* owned: the lease, and the data */
        struct ring *ring;           /* owned */
        struct ring_geometry geometry;
        enum ring_role role;
        unsigned me;
        uint32_t generation;
        char *slots;
        size_t stride;
        bool synchronous;                    /* on a GPU that cannot have streams wait */
        _Atomic uint64_t *in_hand;           /* owned; a slot: one more than the ticket that the caller has there, 0: none */
        gpuipc_fence *fences[RING_MEMBERS];  /* owned; all NULL in host memory */

        pthread_mutex_t lock; /* guards what follows, so that values reach a stream in their order */
        uint64_t value;       /* the last that this member's fence was told to reach */
        void *stream;         /* which was told */
        bool told;            /* one was, since this member joined */
        struct channel_late *_Atomic late; /* changed under the lock */

        struct channel_watch watch;
        struct channel_feed feed;
};

/* Above any value that a member can have told its fence to reach when it had reached `reached`. */
#define CHANNEL_FENCE_ROOM (UINT64_C(1) << 32)

/* Reads a reply to ChannelCreate or ChannelAttach: the buffer's part as if it were one to Open, and the rest, with descriptors, all of
 * which are taken from the reply. `ret_fd` is the data's. */
int channel_grant_read(struct reply *reply, enum method method, struct grant_reply *ret_grant, int *ret_fd,
                       struct channel_parts **ret_parts, gpuipc_error *ret_error);

/* The pidfds of a reply to ChannelParticipants, or of a grant: replaces what `peers` has of earlier generations. */
int channel_peers_read(const struct struct_array *participants, struct fdset *fds, struct peer peers[RING_MEMBERS],
                       gpuipc_error *ret_error);

/* GPUIPC_OK, or whose channel it is not. */
int channel_check(const gpuipc_channel *channel, gpuipc_error *ret_error);

/* A verdict of the ring's as a status. `timeout_ms` was the caller's. */
int channel_verdict(const gpuipc_channel *channel, int verdict, int timeout_ms, gpuipc_error *ret_error);

/* Has the stream wait for the slot's last readers and its last writer: nobody may have read what that wrote, or whoever did may have
 * died. Where streams cannot wait, waits here; GPUIPC_ERROR_TIMED_OUT. */
int channel_fence_slot(gpuipc_channel *channel, void *stream, const struct ring_item *item, int64_t deadline, gpuipc_error *ret_error);

/* The same for an item's writer. */
int channel_fence_item(gpuipc_channel *channel, void *stream, const struct ring_item *item, int64_t deadline, gpuipc_error *ret_error);

/* Has the stream note that it is done. `ret_value` is what to wait for: 0, nothing. */
int channel_fence_done(gpuipc_channel *channel, void *stream, uint64_t *ret_value, gpuipc_error *ret_error);

/* A channel of a buffer that was granted as one; the buffer's and its parts' end is the channel's, whatever is returned. */
int channel_new(gpuipc_buffer *buffer_take, gpuipc_channel **ret_channel, gpuipc_error *ret_error);

int channel_watch_start(gpuipc_channel *channel, const struct peer peers[RING_MEMBERS], gpuipc_error *ret_error);
/* Also of one that was not started. The ring was stopped, or this is a forked child. */
void channel_watch_stop(gpuipc_channel *channel);

/* The watcher is to look now. Of a channel whose watcher was started. */
void channel_watch_wake(gpuipc_channel *channel);

void channel_feed_init(struct channel_feed *feed);
/* The ring was stopped, or this is a forked child. */
void channel_feed_stop(gpuipc_channel *channel);
/* A call found nothing, or a consumer of a broadcast has released its item. */
void channel_feed_look_again(gpuipc_channel *channel, bool found_nothing);

/* The next call has something, which the ring does not know of. */
void channel_feed_say(gpuipc_channel *channel);

#endif
