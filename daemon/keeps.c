/* SPDX-License-Identifier: Apache-2.0 */
/* A binary heap of buffers by the end of their keep. Loop thread. */
#include "keeps.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "registry.h"

#define KEEPS_ROOM_MIN 16

void keeps_deinit(struct keeps *keeps) {
        free(keeps->heap);
        *keeps = (struct keeps){ 0 };
}

int keeps_reserve(struct keeps *keeps, size_t n) {
        size_t n_room = keeps->n_room ? keeps->n_room : KEEPS_ROOM_MIN;
        struct buffer **heap;

        if (n <= keeps->n_room)
                return 0;
        while (n_room < n)
                n_room *= 2;
        heap = reallocarray(keeps->heap, n_room + 1, sizeof(struct buffer *));
        if (!heap)
                return -ENOMEM;
        keeps->heap = heap;
        keeps->n_room = n_room;
        return 0;
}

static bool keeps_sooner(const struct buffer *a, const struct buffer *b) {
        return a->keep_until_usec < b->keep_until_usec;
}

static void keeps_set(struct keeps *keeps, size_t place, struct buffer *buffer) {
        keeps->heap[place] = buffer;
        buffer->keep_place = place;
}

/* Finds the buffer its place, from a place that is free. */
static void keeps_settle(struct keeps *keeps, size_t place, struct buffer *buffer) {
        for (; place > 1 && keeps_sooner(buffer, keeps->heap[place / 2]); place /= 2)
                keeps_set(keeps, place, keeps->heap[place / 2]);
        for (;;) {
                size_t child = place * 2;

                if (child + 1 <= keeps->n && keeps_sooner(keeps->heap[child + 1], keeps->heap[child]))
                        child++;
                if (child > keeps->n || !keeps_sooner(keeps->heap[child], buffer))
                        break;
                keeps_set(keeps, place, keeps->heap[child]);
                place = child;
        }
        keeps_set(keeps, place, buffer);
}

void keeps_add(struct keeps *keeps, struct buffer *buffer) {
        keeps->n++;
        keeps_settle(keeps, keeps->n, buffer);
}

void keeps_remove(struct keeps *keeps, struct buffer *buffer) {
        size_t place = buffer->keep_place;
        struct buffer *last;

        if (place == 0)
                return;
        buffer->keep_place = 0;
        last = keeps->heap[keeps->n--];
        if (last != buffer)
                keeps_settle(keeps, place, last);
}

struct buffer *keeps_first(const struct keeps *keeps) {
        return keeps->n > 0 ? keeps->heap[1] : NULL;
}
