/* SPDX-License-Identifier: Apache-2.0 */
/* The warden: looks after connections that nobody uses, so that the leases of an idle program outlive the daemon's restart
 * too. A thread of the client's own, or the caller's event loop by gpuipc_client_fd(). It sleeps until a connection ends, a
 * pause is over or a reply to Resume has come; it never waits for the daemon, and never touches a connection that is busy. */
#ifndef CLIENT_WARDEN_H
#define CLIENT_WARDEN_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "include/gpuipc.h"

struct conn;

struct warden {
        int epoll_fd, timer_fd; /* -1: not made yet */
        bool running;           /* the thread is */
        pthread_t thread;
};

/* Makes the descriptors, and the thread unless the caller does without. Once is enough. */
int warden_start(gpuipc_client *client, gpuipc_error *ret_error);

/* Looks after the connection, which the caller has busy, from now on: for its end, and with `replies` for those too. */
int warden_watch(gpuipc_client *client, struct conn *conn, bool replies, gpuipc_error *ret_error);

/* Has a look soon; under the client's lock. */
void warden_ring_locked(gpuipc_client *client);

/* Ends the thread; client->closed is set. */
void warden_stop(gpuipc_client *client);

/* Closes the descriptors, in a forked child too. */
void warden_deinit(struct warden *warden);

#endif
