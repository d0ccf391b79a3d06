/* SPDX-License-Identifier: Apache-2.0 */
/* A session's output. Loop thread. A client that reads slowly is waited for; one that does not read at all is told of. */
#include "outbox.h"

#include <errno.h>
#include <stdlib.h>

#include "clock.h"
#include "proto/cleanup.h"

/* Descriptors that were sent and not yet received count against one limit of the daemon's user: a client that does not read must
 * not use it up for all. So many bytes are a handful of replies, as the kernel counts. */
#define LENT_UNREAD_MAX 8192
#define LENT_RETRY_MS 2

struct lent {
        struct registry *registry;
        struct buffer *buffer;
        int fresh_fd; /* closed once sent, while the buffer is pinned: never the last of its file */
        size_t n_holders;
        struct holder *holders[];
};

void outbox_init(struct outbox *outbox, struct house *house, struct wire *wire, void (*on_stuck)(void *arg),
                 void (*on_retry)(void *arg), void *arg) {
        *outbox = (struct outbox){.house = house, .wire = wire, .on_stuck = on_stuck, .on_retry = on_retry, .arg = arg};
        wire->unread_max = LENT_UNREAD_MAX;
}

void outbox_deinit(struct outbox *outbox) {
        alarm_cancel(&outbox->alarm);
        alarm_cancel(&outbox->retry);
        if (outbox->wire)
                wire_drop_output(outbox->wire);
}

static void lent_return(void *arg) {
        struct lent *lent = arg;

        fd_closep(&lent->fresh_fd);
        if (lent->buffer)
                registry_unpin(lent->registry, lent->buffer, clock_real_usec(), clock_monotonic_usec());
        for (size_t i = 0; i < lent->n_holders; i++)
                holder_unref(lent->holders[i]);
        free(lent);
}

static struct lent *lent_new(struct registry *registry, const struct lending *lending) {
        struct lent *lent = malloc(sizeof(*lent) + lending->n_holders * sizeof(struct holder *));

        if (!lent)
                return NULL;
        *lent = (struct lent){registry, lending->pinned, lending->fresh ? lending->fds[0] : -1, lending->n_holders};
        for (size_t i = 0; i < lending->n_holders; i++)
                lent->holders[i] = holder_ref(lending->holders[i]);
        return lent;
}

int outbox_put(struct outbox *outbox, const struct bytes *message, const struct lending *lending) {
        struct lent *lent = NULL;
        int r;

        if (!lending || (!lending->pinned && lending->n_holders == 0))
                return wire_put(outbox->wire, message->data, message->n, NULL, 0, NULL, NULL);
        lent = lent_new(&outbox->house->registry, lending);
        if (!lent)
                return -ENOMEM;
        r = wire_put(outbox->wire, message->data, message->n, lending->fds, lending->n_fds, lent_return, lent);
        if (r < 0) {
                for (size_t i = 0; i < lent->n_holders; i++)
                        holder_unref(lent->holders[i]);
                free(lent);
        }
        return r;
}

static int outbox_set_alarm(struct outbox *outbox);

/* The time may be up because the daemon stood still: alarms come before what polling tells, so whether the client has read is tried. */
static void outbox_on_alarm(void *arg) {
        struct outbox *outbox = arg;
        uint64_t then = outbox->n_written_then;

        if (outbox->n_written == then)
                outbox->on_retry(outbox->arg);
        if (wire_pending(outbox->wire) == 0)
                return;
        if (outbox->n_written == then || (!outbox->alarm && outbox_set_alarm(outbox) < 0))
                outbox->on_stuck(outbox->arg);
}

static int outbox_set_alarm(struct outbox *outbox) {
        outbox->n_written_then = outbox->n_written;
        return alarm_new(outbox->house->loop, (uint64_t)outbox->house->registry.limits.unread_ms, outbox_on_alarm, outbox,
                         &outbox->alarm);
}

static void outbox_on_retry(void *arg) {
        struct outbox *outbox = arg;

        outbox->on_retry(outbox->arg);
}

/* Polling does not tell when the client has read, so it is tried again after a while. */
static int outbox_hold(struct outbox *outbox) {
        if (!outbox->retry &&
            alarm_new(outbox->house->loop, LENT_RETRY_MS, outbox_on_retry, outbox, &outbox->retry) < 0)
                return -ENOMEM;
        return -EAGAIN;
}

int outbox_flush(struct outbox *outbox) {
        size_t before = wire_pending(outbox->wire);
        int r = wire_flush(outbox->wire);

        outbox->n_written += before - wire_pending(outbox->wire);
        outbox->held = r == -EBUSY || r == -ETOOMANYREFS;
        if (outbox->held)
                r = outbox_hold(outbox);
        if (r == 0)
                alarm_cancel(&outbox->alarm);
        else if (r == -EAGAIN && !outbox->alarm && outbox_set_alarm(outbox) < 0)
                return -ENOMEM;
        return r;
}

bool outbox_full(const struct outbox *outbox) {
        return outbox->held || wire_pending(outbox->wire) > (size_t)outbox->house->registry.limits.unread_bytes;
}
