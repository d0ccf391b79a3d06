/* SPDX-License-Identifier: Apache-2.0 */
/* Whether memory is made ahead, and of which size. Loop thread; remembers times and sizes and nothing else. */
#include "pace.h"

#include <stddef.h>
#include <string.h>

static bool pace_is_of(const struct pace_size *size, const char *handle, int64_t bytes) {
        return size->handle && size->bytes == bytes && strcmp(size->handle, handle) == 0;
}

void pace_note(struct pace *pace, const char *handle, int64_t bytes, uint64_t now_usec) {
        struct pace_size noted = {.handle = handle, .bytes = bytes, .last_usec = now_usec};
        size_t place = 0;

        while (place < PACE_SIZES - 1 && !pace_is_of(&pace->sizes[place], handle, bytes))
                place++;
        if (pace_is_of(&pace->sizes[place], handle, bytes))
                noted.before_usec = pace->sizes[place].last_usec;
        memmove(&pace->sizes[1], &pace->sizes[0], place * sizeof(pace->sizes[0]));
        pace->sizes[0] = noted;
}

void pace_forget(struct pace *pace) {
        *pace = (struct pace){0};
}

const struct pace_size *pace_find(const struct pace *pace, uint64_t now_usec) {
        for (size_t i = 0; i < PACE_SIZES; i++) {
                const struct pace_size *size = &pace->sizes[i];

                if (size->before_usec > 0 && now_usec - size->before_usec < PACE_USEC)
                        return size;
        }
        return NULL;
}

bool pace_has_moved(const struct pace *pace, uint64_t asked_usec) {
        for (size_t i = 0; i < PACE_SIZES; i++)
                if (pace->sizes[i].before_usec > asked_usec)
                        return true;
        return false;
}

bool pace_may_keep(const struct pace_room *room) {
        return !room->stopping && !room->degraded && !room->waiting && room->bytes <= room->max_bytes &&
               room->free_bytes / PACE_FREE_SHARE >= room->bytes && room->descriptors_left >= 0;
}

bool pace_may_make(const struct pace_room *room) {
        return pace_may_keep(room) && room->descriptors_left > 0 && room->stored_left > 0;
}
