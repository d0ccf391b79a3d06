/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's rooms from dispatch down to host memory, without sockets: the test is the session, turns the loop by hand, and
 * decides when work on the lane may go on. After every turn the books must add up. */
#ifndef PAIR_OFFICE_H
#define PAIR_OFFICE_H

#include <check.h>
#include <pthread.h>
#include <unistd.h>

#include "daemon/clock.h"
#include "daemon/dispatch.h"
#include "daemon/hall.h"

/* Where calls into the backend wait for a permit. */
struct gate {
        pthread_mutex_t lock;
        pthread_cond_t changed;
        int permits, entered, left;
        bool open;
        int fail; /* errno that every call ends with instead of working; 0: none */
};

/* What stands for the service manager's store: the names in it, and a gate before it. */
struct shelf {
        struct gate gate;
        char names[64][STORE_NAME_SIZE];
        size_t n;
        int n_barriers;
};

struct office {
        uv_loop_t loop;
        struct house house;
        struct hall hall;
        struct workplace place;
        struct gate gate;
        int n_people; /* holders that exist */
        struct shelf shelf;
        struct state *state; /* NULL without a store */
        struct store *store;
        int null_fd; /* stands for every process's pidfd */
};

/* A client with a process behind it, and the sink its replies go to. */
struct caller {
        struct office *office;
        struct client *client;
        struct holder *holder;
        struct request *request; /* under way */
        char *reply;             /* the last one, heap */
        int n_replies;
        int n_refused;           /* sends to refuse from now on, as when memory is short */
        struct buffer *lent[8];  /* pins of replies not yet written out */
        size_t n_fds;            /* descriptors that the last one lent */
        size_t n_lent;
        const char *dropped;
};

void office_init(struct office *office, int64_t capacity_bytes);

/* From now on buffers of up to so many bytes are made ahead, as where making them takes long. */
void office_make_ahead(struct office *office, int64_t max_bytes);

/* From now on a restart keeps buffers; before anybody comes. */
void office_stock(struct office *office);

/* Everybody must have left; fails unless nothing is left of what they did. */
void office_deinit(struct office *office);

/* One turn of the loop; true while more is to come by itself. */
bool office_turn(struct office *office);

/* How long anything may take that is not a fault. */
int office_patience_sec(void);

/* Turns until the condition holds; fails when it never does. */
#define turn_until(office, condition)                                                                        \
        do {                                                                                                 \
                uint64_t _until = clock_usec(CLOCK_MONOTONIC_RAW) + (uint64_t)office_patience_sec() * 1000000; \
                while (!(condition)) {                                                                       \
                        ck_assert_msg(clock_usec(CLOCK_MONOTONIC_RAW) < _until, "it never came: %s", #condition); \
                        (void)usleep(100);                                                                   \
                        (void)office_turn(office);                                                           \
                }                                                                                            \
        } while (0)

/* Turns until nothing is to come. Not while the gate holds something. */
void office_settle(struct office *office);

void gate_open(struct gate *gate);
void gate_shut(struct gate *gate);
void gate_permit(struct gate *gate);

/* Calls that are let pass from now on end with the errno; with 0 they work. */
void gate_fail(struct gate *gate, int error);

/* How many calls have come in so far. */
int gate_n_entered(struct gate *gate);

/* Waits until so many calls have come in, or gone out, in all. */
void gate_wait_entered(struct gate *gate, int n);
void gate_wait_left(struct gate *gate, int n);

void caller_init(struct caller *caller, struct office *office, uid_t uid);
void caller_call(struct caller *caller, const char *call);

/* Its process exits, and the loop learns of it. */
void caller_exit(struct caller *caller);

/* Its session ends, as in session_close(): abandoned, unpinned, forgotten. Harmless twice. */
void caller_leave(struct caller *caller);

/* The reply has been written to the socket: its descriptors are no longer needed. */
void caller_written(struct caller *caller);
void caller_deinit(struct caller *caller);

/* A string member of the last reply's parameters ("lease"), heap. */
char *caller_reply_text(const struct caller *caller, const char *path);

#endif
