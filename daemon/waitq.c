/* SPDX-License-Identifier: Apache-2.0 */
/* Whose turn it is. Loop thread; knows no clock and wakes nobody: the broker tries again when bytes come free, and
 * when waitq_next_change() says so. */
#include "waitq.h"

#include <stddef.h>

void waitq_init(struct waitq *queue) {
        list_init(&queue->waiters);
}

void waiter_init(struct waiter *waiter) {
        *waiter = (struct waiter){ 0 };
        list_init(&waiter->by_queue);
}

void waitq_join(struct waitq *queue, struct waiter *waiter, uid_t uid, int64_t bytes, uint64_t since_usec) {
        struct list *place = &queue->waiters;

        waiter_leave(waiter);
        waiter->queue = queue;
        waiter->uid = uid;
        waiter->bytes = bytes;
        waiter->since_usec = since_usec;

        while (place->prev != &queue->waiters &&
               container_of(place->prev, struct waiter, by_queue)->since_usec > since_usec)
                place = place->prev;
        list_append(place, &waiter->by_queue);
}

void waiter_leave(struct waiter *waiter) {
        if (!waiter->queue)
                return;
        list_remove(&waiter->by_queue);
        waiter->queue = NULL;
}

static const struct waiter *waitq_head(const struct waitq *queue) {
        const struct list *link = list_first(&queue->waiters);

        return link ? container_of(link, const struct waiter, by_queue) : NULL;
}

/* Whole turns that the head has waited: 0 while it is patient, odd during its claims, even when others may pass. */
static uint64_t waiter_turns(const struct waiter *waiter, uint64_t now_usec) {
        return now_usec > waiter->since_usec ? (now_usec - waiter->since_usec) / WAITQ_PATIENCE_USEC : 0;
}

bool waitq_may_try(const struct waitq *queue, const struct waiter *waiter, uid_t uid, int64_t bytes, bool patient,
                   uint64_t now_usec) {
        const struct waiter *head = waitq_head(queue);
        uint64_t turns;

        if (!head || head == waiter)
                return true;
        if (!waiter && !patient && head->uid != uid)
                return true;
        if (bytes >= head->bytes)
                return false;
        turns = waiter_turns(head, now_usec);
        return turns == 0 || (head->uid != uid && turns % 2 == 0);
}

uint64_t waitq_next_change(const struct waitq *queue, uint64_t now_usec) {
        const struct waiter *head = waitq_head(queue), *waiter;
        uint64_t turns;

        if (!head)
                return UINT64_MAX;
        turns = waiter_turns(head, now_usec);
        if (turns == 0)
                return head->since_usec + WAITQ_PATIENCE_USEC;
        list_for_each(waiter, &queue->waiters, by_queue)
                if (waiter->uid != head->uid)
                        return head->since_usec + (turns + 1) * WAITQ_PATIENCE_USEC;
        return UINT64_MAX;
}
