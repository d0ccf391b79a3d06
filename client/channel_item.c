/* SPDX-License-Identifier: Apache-2.0 */
/* Items begun, published, taken and released: the ring says whose a slot is, fences say when a stream is done with it. Any thread enters.
 * Never calls the daemon; waits for the ring with a deadline. */
#include <string.h>

#include "channel.h"
#include "deadline.h"
#include "error.h"
#include "proto/cleanup.h"
#include "trace.h"

/* What the library notes in an item of the caller's. */
enum { OWN_GENERATION, OWN_PRODUCED, OWN_STATE };
enum { ITEM_NONE, ITEM_BEGUN, ITEM_TAKEN, ITEM_BROKEN };

/* ---- the caller's items ----------------------------------------------------------------------------------- */

static void item_fill(const gpuipc_channel *channel, const struct ring_item *from, int state, gpuipc_item *to) {
        to->pointer = channel->slots + from->slot * channel->stride;
        to->size = state == ITEM_BEGUN ? (int64_t)channel->geometry.slot_bytes : (int64_t)from->size;
        to->ticket = from->ticket;
        to->slot = (int32_t)from->slot;
        to->producer = state == ITEM_BEGUN ? (int32_t)channel->me : (int32_t)from->producer;
        to->broken = 0;
        to->n_meta = (int32_t)from->n_meta;
        (void)memcpy(to->meta, from->meta, from->n_meta);
        to->own[OWN_GENERATION] = from->generation;
        to->own[OWN_PRODUCED] = from->produced;
        to->own[OWN_STATE] = (uint64_t)state;
        to->own[3] = 0;
}

static void item_keep(gpuipc_channel *channel, const gpuipc_item *item) {
        if (item->own[OWN_STATE] != ITEM_BROKEN)
                atomic_store(&channel->in_hand[item->ticket % channel->geometry.n_slots], item->ticket + 1);
}

/* What the ring needs to know of it again. */
static struct ring_item *item_read(const gpuipc_channel *channel, const gpuipc_item *from, struct ring_item *to) {
        to->ticket = from->ticket;
        to->slot = (uint32_t)(from->ticket % channel->geometry.n_slots);
        to->producer = (unsigned)from->producer % RING_MEMBERS;
        to->generation = (uint32_t)from->own[OWN_GENERATION];
        to->produced = from->own[OWN_PRODUCED];
        to->size = (uint64_t)from->size;
        return to;
}

static int check_item(const gpuipc_channel *channel, const gpuipc_item *item, uint64_t state, gpuipc_error *ret_error) {
        int r = channel_check(channel, ret_error);

        if (r != GPUIPC_OK)
                return r;
        if (!item || (item->own[OWN_STATE] != state && !(state == ITEM_TAKEN && item->own[OWN_STATE] == ITEM_BROKEN)))
                return error_parameter(ret_error, "item", state == ITEM_BEGUN ? "one that gpuipc_channel_begin() filled"
                                                                              : "one that gpuipc_channel_take() filled");
        return GPUIPC_OK;
}

/* It is in the caller's hand no more; of two threads at once it was in one's. item_keep() for what is not done with it after all. */
static int item_give_up(gpuipc_channel *channel, const gpuipc_item *item, gpuipc_error *ret_error) {
        uint64_t mark = item->ticket + 1;

        if (item->own[OWN_STATE] == ITEM_BROKEN ||
            atomic_compare_exchange_strong(&channel->in_hand[item->ticket % channel->geometry.n_slots], &mark, 0))
                return GPUIPC_OK;
        return error_parameter(ret_error, "item", item->own[OWN_STATE] == ITEM_BEGUN ? "one that was not published or cancelled before"
                                                                                    : "one that was not released before");
}

static int check_wait(const gpuipc_channel *channel, int timeout_ms, const gpuipc_item *ret_item, gpuipc_error *ret_error) {
        int r = channel_check(channel, ret_error);

        if (r == GPUIPC_OK && !ret_item)
                r = error_parameter(ret_error, "ret_item", "a pointer to where the item goes");
        if (r == GPUIPC_OK && timeout_ms < -1)
                r = error_parameter(ret_error, "timeout_ms", "milliseconds, 0 for one look or -1 for no end");
        return r;
}

/* A wait of the ring's that has come to `verdict`. */
static int waited(gpuipc_channel *channel, int verdict, int timeout_ms, gpuipc_error *ret_error) {
        if (verdict == RING_TIMED_OUT)
                channel_feed_look_again(channel, true);
        return channel_verdict(channel, verdict, timeout_ms, ret_error);
}

static int64_t deadline_of(int timeout_ms) {
        return timeout_ms == 0 ? 0 : deadline_after_ms(timeout_ms);
}

/* ---- producing -------------------------------------------------------------------------------------------- */

int gpuipc_channel_begin(gpuipc_channel *channel, void *stream, int timeout_ms, gpuipc_item *ret_item, gpuipc_error *ret_error) {
        struct ring_item item;
        int64_t deadline;
        int r = check_wait(channel, timeout_ms, ret_item, ret_error);

        if (r != GPUIPC_OK)
                return r;
        trace_scope(TRACE_CHANNEL_WAIT, 0);
        deadline = deadline_of(timeout_ms);
        r = waited(channel, ring_begin_produce(channel->ring, deadline, &item), timeout_ms, ret_error);
        if (r != GPUIPC_OK)
                return r;
        r = channel_fence_slot(channel, stream, &item, deadline, ret_error);
        if (r != GPUIPC_OK) {
                (void)ring_cancel(channel->ring, &item);
                return r;
        }
        item_fill(channel, &item, ITEM_BEGUN, ret_item);
        item_keep(channel, ret_item);
        return GPUIPC_OK;
}

int gpuipc_channel_publish(gpuipc_channel *channel, const gpuipc_item *item, int64_t size, const void *meta, size_t n_meta,
                           void *stream, gpuipc_error *ret_error) {
        struct ring_item own;
        uint64_t produced;
        int r = check_item(channel, item, ITEM_BEGUN, ret_error);

        if (r != GPUIPC_OK)
                return r;
        if (size < 0 || (uint64_t)size > channel->geometry.slot_bytes)
                return error_parameter(ret_error, "size", "0 to the bytes of a slot (gpuipc_channel_slot_bytes())");
        if (n_meta > channel->geometry.meta_bytes)
                return error_parameter(ret_error, "n_meta", "0 to what the channel was made with (gpuipc_channel_meta_bytes())");
        if (n_meta > 0 && !meta)
                return error_parameter(ret_error, "meta", "a pointer to n_meta bytes");
        r = item_give_up(channel, item, ret_error);
        if (r != GPUIPC_OK)
                return r;
        trace_scope(TRACE_PUBLISH, (int64_t)item->ticket);
        r = channel_fence_done(channel, stream, &produced, ret_error);
        if (r != GPUIPC_OK) {
                item_keep(channel, item);
                return r;
        }
        return channel_verdict(channel, ring_publish(channel->ring, item_read(channel, item, &own), (uint64_t)size, meta, (uint32_t)n_meta,
                                                     produced), 0, ret_error);
}

int gpuipc_channel_cancel(gpuipc_channel *channel, const gpuipc_item *item, gpuipc_error *ret_error) {
        struct ring_item own;
        int r = check_item(channel, item, ITEM_BEGUN, ret_error);

        if (r == GPUIPC_OK)
                r = item_give_up(channel, item, ret_error);
        if (r != GPUIPC_OK)
                return r;
        return channel_verdict(channel, ring_cancel(channel->ring, item_read(channel, item, &own)), 0, ret_error);
}

/* ---- consuming -------------------------------------------------------------------------------------------- */

/* Taken before, and waited for in vain. */
static bool late_take(gpuipc_channel *channel, struct ring_item *ret_item) {
        struct channel_late *first;

        if (!atomic_load_explicit(&channel->late, memory_order_relaxed))
                return false;
        (void)pthread_mutex_lock(&channel->lock);
        first = channel->late;
        if (first)
                channel->late = first->next;
        (void)pthread_mutex_unlock(&channel->lock);
        if (!first)
                return false;
        *ret_item = first->item;
        free(first);
        return true;
}

/* The item stays this member's, for its next call; of several the oldest comes first, whichever thread had it. Without memory for that it
 * is given up. */
static void late_keep(gpuipc_channel *channel, const struct ring_item *item) {
        struct channel_late *one = malloc(sizeof(*one)), *before = NULL, *after;

        if (!one) {
                (void)ring_release(channel->ring, item, 0);
                return;
        }
        (void)pthread_mutex_lock(&channel->lock);
        for (after = channel->late; after && after->item.ticket < item->ticket; after = after->next)
                before = after;
        *one = (struct channel_late){ .item = *item, .next = after };
        if (before)
                before->next = one;
        else
                channel->late = one;
        (void)pthread_mutex_unlock(&channel->lock);
        channel_feed_say(channel);
}

static void broken_fill(const struct ring_item *item, gpuipc_item *ret_item) {
        ret_item->pointer = NULL;
        ret_item->size = 0;
        ret_item->ticket = item->ticket;
        ret_item->slot = (int32_t)item->slot;
        ret_item->producer = (int32_t)item->producer;
        ret_item->broken = 1;
        ret_item->n_meta = 0;
        (void)memset(ret_item->own, 0, sizeof(ret_item->own));
        ret_item->own[OWN_STATE] = ITEM_BROKEN;
}

/* The stream waits for what was taken. If it cannot, another call of this member's may have one that can: nobody else gets the item. */
static int wait_for_item(gpuipc_channel *channel, void *stream, const struct ring_item *item, int64_t deadline, gpuipc_error *ret_error) {
        int r = channel_fence_item(channel, stream, item, deadline, ret_error);

        if (r != GPUIPC_OK)
                late_keep(channel, item);
        return r;
}

int gpuipc_channel_take(gpuipc_channel *channel, void *stream, int timeout_ms, gpuipc_item *ret_item, gpuipc_error *ret_error) {
        struct ring_item item;
        int64_t deadline;
        int r = check_wait(channel, timeout_ms, ret_item, ret_error), verdict;

        if (r != GPUIPC_OK)
                return r;
        trace_scope(TRACE_CHANNEL_WAIT, 0);
        deadline = deadline_of(timeout_ms);
        if (!late_take(channel, &item)) {
                verdict = ring_take(channel->ring, deadline, &item);
                if (verdict == RING_BROKEN) {
                        broken_fill(&item, ret_item);
                        return GPUIPC_OK;
                }
                r = waited(channel, verdict, timeout_ms, ret_error);
                if (r != GPUIPC_OK)
                        return r;
        }
        r = wait_for_item(channel, stream, &item, deadline, ret_error);
        if (r != GPUIPC_OK)
                return r;
        item_fill(channel, &item, ITEM_TAKEN, ret_item);
        item_keep(channel, ret_item);
        if (channel->synchronous && ring_is_broken(channel->ring, &item))
                ret_item->broken = 1; /* its slot is in hand nevertheless */
        return GPUIPC_OK;
}

int gpuipc_channel_release(gpuipc_channel *channel, const gpuipc_item *item, void *stream, gpuipc_error *ret_error) {
        struct ring_item own;
        uint64_t consumed;
        int r = check_item(channel, item, ITEM_TAKEN, ret_error);

        if (r == GPUIPC_OK)
                r = item_give_up(channel, item, ret_error);
        if (r != GPUIPC_OK || item->own[OWN_STATE] == ITEM_BROKEN)
                return r;
        r = channel_fence_done(channel, stream, &consumed, ret_error);
        if (r != GPUIPC_OK) {
                item_keep(channel, item);
                return r;
        }
        r = channel_verdict(channel, ring_release(channel->ring, item_read(channel, item, &own), consumed), 0, ret_error);
        channel_feed_look_again(channel, false);
        return r;
}

int gpuipc_item_is_broken(gpuipc_channel *channel, const gpuipc_item *item) {
        struct ring_item own;

        if (check_item(channel, item, ITEM_TAKEN, NULL) != GPUIPC_OK || item->broken)
                return 1;
        if (ring_is_broken(channel->ring, item_read(channel, item, &own)))
                return 1;
        if (channel->fences[own.producer] && ring_is_undecided(channel->ring, own.producer, own.generation))
                channel_watch_wake(channel); /* it will be by the next time */
        return 0;
}
