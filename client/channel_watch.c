/* SPDX-License-Identifier: Apache-2.0 */
/* The watcher of a channel: one thread that polls the other members' pidfds, so it sees deaths while the daemon is down as well. Who joins
 * is seen in the control page, and its pidfd asked of the daemon over a connection of the watcher's own. Nothing here waits for the
 * daemon or for a stream; what is read in the page is compared, and costs a forger no more than the channel. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "channel.h"
#include "deadline.h"
#include "error.h"
#include "message.h"
#include "proto/cleanup.h"

#define TICK_MS 40      /* how often the page is looked at */
#define CONNECT_MS 20   /* a daemon that takes longer is asked later */
#define ANSWER_MS 1000  /* the same, once it was asked */
#define PAUSE_MS 20     /* between questions; twice as long each time, */
#define PAUSE_MAX_MS 1000 /* up to this */

/* ---- the dead --------------------------------------------------------------------------------------------- */

/* What one that is ending has published and not yet done is broken, though its fence may not be completed before it has ended. */
static void decide(gpuipc_channel *channel, unsigned member, uint32_t generation) {
        gpuipc_fence *fence = channel->fences[member];
        uint64_t reached;

        if (fence && ring_is_undecided(channel->ring, member, generation) && gpuipc_fence_query(fence, &reached, NULL) == GPUIPC_OK)
                (void)ring_decide(channel->ring, member, generation, reached);
}

/* Completes what a dead member left, and its fence above all that anybody's stream can wait for. */
static void bury(gpuipc_channel *channel, unsigned member, uint32_t generation) {
        gpuipc_fence *fence = channel->fences[member];
        uint64_t reached = RING_FENCE_MAX;
        int r;

        /* First: once it counts as being reaped, this is what others go by. */
        if (fence && gpuipc_fence_query(fence, &reached, NULL) != GPUIPC_OK)
                return; /* CUDA has failed in this process: it is for the others to do */
        r = ring_reap(channel->ring, member, generation, reached);
        if (r == RING_OK && fence) {
                reached = ring_reached(channel->ring, member, generation);
                if (gpuipc_fence_signal(fence, reached + CHANNEL_FENCE_ROOM, NULL) != GPUIPC_OK)
                        return;
        }
        if (r == RING_OK || r == RING_GONE)
                (void)ring_reaped(channel->ring, member, generation);
}

/* Members dead or ending by the page are seen to, without waiting for anything but the GPU. */
static void look(gpuipc_channel *channel) {
        struct channel_watch *watch = &channel->watch;

        watch->unknown = false;
        for (unsigned i = 0; i < RING_MEMBERS; i++) {
                uint64_t word = atomic_load(&ring_page(channel->ring)->members[i].word);
                uint32_t generation = ring_member_generation(word);
                enum ring_life life = ring_member_life(word);
                struct peer *peer = &watch->peers[i];

                if (i == channel->me)
                        continue;
                if (life == RING_ENDING)
                        decide(channel, i, generation);
                if (life == RING_DEAD || life == RING_REAPING)
                        bury(channel, i, generation);
                if (!ring_has_process(life) || peer->generation != generation)
                        fd_closep(&peer->pidfd);
                if (ring_has_process(life) && peer->pidfd < 0)
                        watch->unknown = true;
        }
}

/* ---- who joined ------------------------------------------------------------------------------------------- */

static void pause_asking(struct channel_watch *watch) {
        conn_free(take_ptr(watch->conn));
        watch->ask_usec = clock_usec() + watch->pause_usec;
        watch->pause_usec = watch->pause_usec * 2 < PAUSE_MAX_MS * 1000 ? watch->pause_usec * 2 : PAUSE_MAX_MS * 1000;
}

static void ask(gpuipc_channel *channel) {
        struct channel_watch *watch = &channel->watch;
        struct channel_params params = { .channel = channel->buffer->id };
        _cleanup_(bytes_deinit) struct bytes message = { 0 };
        int64_t deadline = deadline_after_ms(CONNECT_MS);

        watch->conn = conn_new();
        if (watch->conn && conn_connect(watch->conn, channel->buffer->client->path, deadline, NULL) == GPUIPC_OK &&
            message_put(&message, METHOD_CHANNEL_PARTICIPANTS, &params, false, NULL) == GPUIPC_OK &&
            conn_send(watch->conn, &message, deadline, NULL) == GPUIPC_OK)
                watch->ask_usec = clock_usec() + ANSWER_MS * 1000; /* by then there must be an answer */
        else
                pause_asking(watch);
}

static void hear(gpuipc_channel *channel) {
        _cleanup_(reply_deinit) struct reply reply = { 0 };
        struct channel_watch *watch = &channel->watch;
        struct participants_reply found;
        int r = conn_receive(watch->conn, 0, &reply, NULL);

        if (r == GPUIPC_ERROR_TIMED_OUT)
                return;
        if (r == GPUIPC_OK && message_read(&reply, METHOD_CHANNEL_PARTICIPANTS, &found, NULL) == GPUIPC_OK)
                (void)channel_peers_read(&found.participants, &reply.fds, watch->peers, NULL);
        fd_closep(&watch->peers[channel->me].pidfd); /* its own end it will not see */
        pause_asking(watch);
}

/* ---- the thread ------------------------------------------------------------------------------------------- */

struct polled {
        struct pollfd fds[RING_MEMBERS + 2]; /* others of this process, the daemon, then members */
        unsigned members[RING_MEMBERS];
        size_t n;
};

static void prepare(gpuipc_channel *channel, struct polled *polled) {
        struct channel_watch *watch = &channel->watch;

        polled->fds[0] = (struct pollfd){ .fd = watch->wake_fd, .events = POLLIN };
        polled->fds[1] = (struct pollfd){ .fd = watch->conn ? watch->conn->wire.fd : -1, .events = POLLIN };
        polled->n = 0;
        for (unsigned i = 0; i < RING_MEMBERS; i++) {
                if (watch->peers[i].pidfd < 0 || i == channel->me)
                        continue;
                polled->fds[2 + polled->n] = (struct pollfd){ .fd = watch->peers[i].pidfd, .events = POLLIN };
                polled->members[polled->n++] = i;
        }
}

static void *watch_run(void *data) {
        gpuipc_channel *channel = data;
        struct channel_watch *watch = &channel->watch;
        struct polled polled;
        uint64_t woken;

        for (;;) {
                look(channel);
                if (!watch->unknown)
                        watch->pause_usec = PAUSE_MS * 1000;
                if (watch->conn && clock_usec() >= watch->ask_usec)
                        pause_asking(watch);
                if (watch->unknown && !watch->conn && clock_usec() >= watch->ask_usec)
                        ask(channel);
                prepare(channel, &polled);
                if (poll(polled.fds, polled.n + 2, TICK_MS) < 0 && errno != EINTR)
                        (void)poll(NULL, 0, TICK_MS);
                if (polled.fds[0].revents)
                        (void)!read(watch->wake_fd, &woken, sizeof(woken));
                if (atomic_load(&watch->stop))
                        return NULL;
                for (size_t i = 0; i < polled.n; i++) {
                        struct peer *peer = &watch->peers[polled.members[i]];

                        if (polled.fds[2 + i].revents == 0)
                                continue;
                        ring_mark_dead(channel->ring, polled.members[i], peer->generation);
                        fd_closep(&peer->pidfd);
                }
                if (polled.fds[1].revents)
                        hear(channel);
        }
}

int channel_watch_start(gpuipc_channel *channel, const struct peer peers[RING_MEMBERS], gpuipc_error *ret_error) {
        struct channel_watch *watch = &channel->watch;
        sigset_t all, before;
        int r;

        for (int i = 0; i < RING_MEMBERS; i++)
                watch->peers[i].pidfd = -1;
        watch->pause_usec = PAUSE_MS * 1000;
        watch->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (watch->wake_fd < 0)
                return error_set(ret_error, GPUIPC_ERROR_NO_MEMORY, errno, NULL, "The channel's watcher cannot be made: %s.",
                                 strerrordesc_np(errno));
        for (int i = 0; i < RING_MEMBERS; i++)
                watch->peers[i] = peers[i];
        (void)sigfillset(&all);
        (void)pthread_sigmask(SIG_SETMASK, &all, &before);
        r = pthread_create(&watch->thread, NULL, watch_run, channel);
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (r != 0) {
                for (int i = 0; i < RING_MEMBERS; i++)
                        watch->peers[i].pidfd = -1; /* the caller's still */
                return error_set(ret_error, GPUIPC_ERROR_NO_MEMORY, r, NULL, "The channel's watcher cannot be started: %s.",
                                 strerrordesc_np(r));
        }
        (void)pthread_setname_np(watch->thread, "gpuipc-channel");
        watch->started = true;
        return GPUIPC_OK;
}

void channel_watch_wake(gpuipc_channel *channel) {
        uint64_t one = 1;

        (void)!write(channel->watch.wake_fd, &one, sizeof(one));
}

void channel_watch_stop(gpuipc_channel *channel) {
        struct channel_watch *watch = &channel->watch;

        if (watch->started && process_is(channel->mark)) {
                atomic_store(&watch->stop, true);
                channel_watch_wake(channel);
                (void)pthread_join(watch->thread, NULL);
        }
        for (int i = 0; watch->started && i < RING_MEMBERS; i++)
                fd_closep(&watch->peers[i].pidfd);
        watch->started = false;
        conn_free(take_ptr(watch->conn));
        fd_closep(&watch->wake_fd);
}
