/* SPDX-License-Identifier: Apache-2.0 */
/* At what pace memory is asked for, and whether some is to be made ahead: a spare. Pure: no clock, no device, no lane. */
#ifndef DAEMON_PACE_H
#define DAEMON_PACE_H

#include <stdbool.h>
#include <stdint.h>

/* Two Allocates of a kind and size within this time are a pace; a spare that nobody took for so long goes. */
#define PACE_USEC UINT64_C(1000000)

/* A device must have so many times a spare's bytes free beside it: nobody is to lack the memory that lies ready. */
#define PACE_FREE_SHARE 8

#define PACE_SIZES 4 /* kinds and sizes told apart; the one that was asked for longest ago is forgotten first */

struct pace_size {
        const char *handle; /* static; NULL: none */
        int64_t bytes;
        uint64_t last_usec, before_usec; /* monotonic: of the last two Allocates; 0: there was none before */
};

/* All zero at first. */
struct pace {
        struct pace_size sizes[PACE_SIZES]; /* the one asked for last comes first */
};

/* There was such an Allocate. */
void pace_note(struct pace *pace, const char *handle, int64_t bytes, uint64_t now_usec);

/* Whoever is at a pace must find it anew. */
void pace_forget(struct pace *pace);

/* Of the sizes at a pace the one asked for last; NULL: none is. */
const struct pace_size *pace_find(const struct pace *pace, uint64_t now_usec);

/* Whether people have gone on to another size: one was asked for twice since `asked_usec`, when the spare's own last was. */
bool pace_has_moved(const struct pace *pace, uint64_t asked_usec);

/* What speaks for and against a spare of `bytes`. All figures are those beside it, whether it is there yet or not. */
struct pace_room {
        int64_t bytes;
        int64_t max_bytes;        /* SpareMax= */
        int64_t free_bytes;       /* of the device, what is to be kept free left aside */
        int64_t descriptors_left; /* that buffers may still take */
        int64_t stored_left;      /* that may still be stored */
        bool waiting;             /* somebody waits for memory of the device */
        bool degraded, stopping;
};

/* Whether one may be made; the lane must be idle. */
bool pace_may_make(const struct pace_room *room);

/* Whether one that is there may stay. Another's need of a place in the store does not concern it: it has none. */
bool pace_may_keep(const struct pace_room *room);

#endif
