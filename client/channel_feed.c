/* SPDX-License-Identifier: Apache-2.0 */
/* What gpuipc_channel_fd() polls: a thread that waits in the ring and makes an eventfd readable. Made when it is first asked for. It
 * rests from then until a call finds nothing, so it costs nothing while there is something. */
#include <signal.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "channel.h"
#include "deadline.h"
#include "proto/cleanup.h"

void channel_feed_init(struct channel_feed *feed) {
        (void)pthread_mutex_init(&feed->lock, NULL);
        (void)pthread_cond_init(&feed->changed, NULL);
        atomic_init(&feed->fd, -1);
}

static void make_readable(struct channel_feed *feed) {
        uint64_t one = 1;

        atomic_store(&feed->readable, true);
        (void)!write(atomic_load(&feed->fd), &one, sizeof(one));
}

/* Until a call found nothing, or released what kept the ring busy. False: the end. */
static bool rest(struct channel_feed *feed) {
        bool stop;

        (void)pthread_mutex_lock(&feed->lock);
        while (!feed->stop && (atomic_load(&feed->readable) || atomic_load(&feed->busy)))
                (void)pthread_cond_wait(&feed->changed, &feed->lock);
        stop = feed->stop;
        (void)pthread_mutex_unlock(&feed->lock);
        return !stop;
}

static void *feed_run(void *data) {
        gpuipc_channel *channel = data;
        struct channel_feed *feed = &channel->feed;

        do {
                int r;

                /* First said, then seen: whoever releases in between finds it said. */
                atomic_store(&feed->busy, true);
                r = ring_wait(channel->ring, DEADLINE_NONE);
                if (r == RING_BUSY)
                        continue;
                (void)pthread_mutex_lock(&feed->lock);
                atomic_store(&feed->busy, false);
                if (!feed->stop)
                        make_readable(feed); /* an error too: the next call tells it at once */
                (void)pthread_mutex_unlock(&feed->lock);
        } while (rest(feed));
        return NULL;
}

void channel_feed_look_again(gpuipc_channel *channel, bool found_nothing) {
        struct channel_feed *feed = &channel->feed;
        uint64_t counted;

        /* Not before the release that comes ahead of this: see feed_run(). */
        if (atomic_load(&feed->fd) < 0)
                return;
        if (found_nothing ? !atomic_load(&feed->readable) : !atomic_load(&feed->busy))
                return;
        (void)pthread_mutex_lock(&feed->lock);
        /* What is late may have come to be so since. It was put there before it was said, which is done with the lock. */
        if (found_nothing && atomic_load(&feed->readable) && !channel->late) {
                (void)!read(atomic_load(&feed->fd), &counted, sizeof(counted));
                atomic_store(&feed->readable, false);
        }
        atomic_store(&feed->busy, false);
        (void)pthread_cond_signal(&feed->changed);
        (void)pthread_mutex_unlock(&feed->lock);
}

void channel_feed_say(gpuipc_channel *channel) {
        struct channel_feed *feed = &channel->feed;

        (void)pthread_mutex_lock(&feed->lock);
        if (atomic_load(&feed->fd) >= 0 && !feed->stop)
                make_readable(feed);
        (void)pthread_mutex_unlock(&feed->lock);
}

/* With the lock. */
static int feed_start(gpuipc_channel *channel) {
        struct channel_feed *feed = &channel->feed;
        int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), r;
        sigset_t all, before;

        if (fd < 0)
                return -1;
        atomic_store(&feed->fd, fd);
        (void)sigfillset(&all);
        (void)pthread_sigmask(SIG_SETMASK, &all, &before);
        r = pthread_create(&feed->thread, NULL, feed_run, channel);
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (r == 0) {
                if (channel->late)
                        make_readable(feed);
                return fd;
        }
        atomic_store(&feed->fd, -1);
        (void)close(fd);
        return -1;
}

int gpuipc_channel_fd(gpuipc_channel *channel) {
        int fd;

        if (channel_check(channel, NULL) != GPUIPC_OK)
                return -1;
        (void)pthread_mutex_lock(&channel->feed.lock);
        fd = atomic_load(&channel->feed.fd);
        if (fd < 0)
                fd = feed_start(channel);
        (void)pthread_mutex_unlock(&channel->feed.lock);
        return fd;
}

void channel_feed_stop(gpuipc_channel *channel) {
        struct channel_feed *feed = &channel->feed;
        int fd = atomic_load(&feed->fd);

        if (fd < 0)
                return;
        if (process_is(channel->mark)) {
                (void)pthread_mutex_lock(&feed->lock);
                feed->stop = true;
                (void)pthread_cond_signal(&feed->changed);
                (void)pthread_mutex_unlock(&feed->lock);
                (void)pthread_join(feed->thread, NULL);
        }
        atomic_store(&feed->fd, -1);
        (void)close(fd);
}
