/* SPDX-License-Identifier: Apache-2.0 */
/* A small world around the ledger: one device, processes, sessions, a clock that a test moves by hand, and memory whose every
 * piece must be closed once. Every step is followed by registry_check(). */
#ifndef UNIT_LEDGER_H
#define UNIT_LEDGER_H

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/registry.h"

#define PAGE INT64_C(4096)

/* As ck_assert(), without its note to the runner at every single check. */
#define must(condition)                                                                                      \
        do {                                                                                                 \
                if (!(condition))                                                                            \
                        ck_abort_msg("%s:%d: %s", __FILE__, __LINE__, #condition);                           \
        } while (0)

enum { ALICE = 1000, BOB = 1001, CAROL = 1002 };

struct world {
        struct registry registry;
        struct device device;
        struct failure failure;
        int64_t now_usec;
        uint64_t monotonic_usec;
        int64_t n_holders, n_backings; /* that exist */
        int64_t seen;                  /* the last event told by world_news() */
        char news[1024];
        bool never;
        struct waitq *queue;
};

/* Generous limits, TrustRelease=yes. */
struct limits world_limits(void);
void world_init(struct world *world, const struct limits *limits);

/* Everything must have ended: no client, no buffer, no lease, nothing charged. Keeps are ended here. */
void world_deinit(struct world *world);

void world_check(const struct world *world);

struct client *world_client(struct world *world, uid_t uid);
void world_end(struct world *world, struct client *client);
struct holder *world_holder(struct world *world, uid_t uid);
void world_exit(struct world *world, struct holder *holder); /* gives the test's reference back, too */

struct buffer_spec world_spec(struct world *world, int64_t bytes, const char *name);

/* Reserve and commit; these fail the test unless they succeed. */
struct buffer *world_allocate(struct world *world, struct client *client, struct holder *holder,
                              const struct buffer_spec *spec);
struct lease *world_open(struct world *world, struct client *client, struct holder *holder, struct buffer *buffer);
void world_release(struct world *world, struct lease *lease);

/* The verdict of a reservation, which is cancelled at once when there was none. */
int world_try(struct world *world, struct client *client, struct holder *holder, const struct buffer_spec *spec);

struct backing *backing_new(struct world *world);
void backing_free(struct backing *backing);

/* Closes all memory that is to be closed; how many pieces. */
int world_close_memory(struct world *world);

/* The kinds of the events since the last call, a blank between. A kind about a lease ends with its id: "opened:l2". */
const char *world_news(struct world *world);

#endif
