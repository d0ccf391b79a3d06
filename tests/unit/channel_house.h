/* SPDX-License-Identifier: Apache-2.0 */
/* A channel that a scripted daemon grants: the daemon admits members and tells who they are, and never says that one is dead. Fails the
 * test (Check) when it cannot be set up. */
#ifndef UNIT_CHANNEL_HOUSE_H
#define UNIT_CHANNEL_HOUSE_H

#include <stdbool.h>
#include <stdint.h>

#include "client/ring.h"
#include "include/gpuipc.h"
#include "tests/support/child.h"
#include "tests/support/fake_server.h"

/* What it is to be. Zeros: a queue that blocks, in host memory. */
struct house_plan {
        enum ring_mode mode;
        enum ring_policy policy;
        uint32_t n_slots, meta_bytes; /* 0: 4, 64 */
        uint64_t slot_bytes;          /* 0: 256 */
        const char *device, *kind;    /* NULL: "host", "memfd" */
        int data_fd, fences_fd;       /* 0: memory of the host's, no fences; else borrowed */
};

struct house {
        struct house_plan plan;
        struct fake *fake;
        gpuipc_client *client;
        struct ring_geometry geometry;
        struct ring_page *page;
        size_t page_bytes;
        int control_fd, data_fd;
        const char *wrong; /* a lie that the daemon tells; NULL: none */

        pthread_mutex_t lock; /* the members */
        struct {
                uint32_t generation; /* 0: never given */
                enum ring_role role;
                int pidfd;
        } members[RING_MEMBERS];
};

void house_open(struct house *house, const struct house_plan *plan);
void house_close(struct house *house);

/* A member in this process. */
gpuipc_channel *house_join(struct house *house, gpuipc_channel_role role);
int house_try_join(struct house *house, gpuipc_channel_role role, gpuipc_channel **ret, gpuipc_error *ret_error);

/* A member in a process of its own, forked before this one has a thread: what it does once it is attached. It uses no checks, and what it
 * returns is its exit status. */
typedef int house_script(gpuipc_channel *channel, int talk_fd);
struct house_peer {
        struct child child;
        struct house_order *order;
};
struct house_peer house_fork(gpuipc_channel_role role, house_script *script);
/* Has it attach, and waits until it has, and until so many members in this process have its pidfd. */
void house_let_in_known(struct house *house, struct house_peer *peer, int n_members);
/* Has it attach, and waits until it has. */
void house_let_in(struct house *house, struct house_peer *peer);
void house_peer_done(struct house_peer *peer);
/* SIGKILL. */
void house_peer_kill(struct house_peer *peer);

/* One item, at once. */
void house_put(gpuipc_channel *channel, uint64_t number);
uint64_t house_get(gpuipc_channel *channel);

#endif
