/* SPDX-License-Identifier: Apache-2.0 */
/* The warden's set of descriptors, its clock, its thread, and what it does when it wakes. The warden's thread enters, or the
 * caller's own through gpuipc_client_dispatch(). Never blocks outside epoll_wait(), so that stopping it is quick. */
#include "warden.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include "client.h"
#include "conn.h"
#include "deadline.h"
#include "error.h"
#include "outage.h"
#include "proto/cleanup.h"
#include "resume.h"

#define STACK_BYTES ((size_t)256 << 10)
#define EVENTS_MAX 16

/* ---- the set and the clock -------------------------------------------------------------------------------- */

static void clock_set(struct warden *warden, int64_t usec) {
        struct itimerspec when = { 0 };

        if (warden->timer_fd < 0)
                return;
        if (usec != DEADLINE_NONE)
                when.it_value = usec_to_timespec(usec < 1 ? 1 : usec);
        (void)timerfd_settime(warden->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

void warden_ring_locked(gpuipc_client *client) {
        clock_set(&client->warden, 0);
}

int warden_watch(gpuipc_client *client, struct conn *conn, bool replies, gpuipc_error *ret_error) {
        /* Edges: while another thread is at it, what happened is told once. Replies wake nobody unless they are waited for here. */
        struct epoll_event event = { .events = EPOLLRDHUP | EPOLLET | (replies ? EPOLLIN : 0), .data.fd = conn->wire.fd };
        bool known = conn->epoll_fd >= 0;
        int r = known ? GPUIPC_OK : warden_start(client, ret_error);

        if (r != GPUIPC_OK)
                return r;
        (void)pthread_mutex_lock(&client->lock);
        conn->watched_fd = conn->wire.fd;
        (void)pthread_mutex_unlock(&client->lock);
        conn->watched_in = replies;
        if (epoll_ctl(client->warden.epoll_fd, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, conn->wire.fd, &event) < 0)
                return error_set(ret_error, GPUIPC_ERROR_NO_MEMORY, errno, NULL, "A connection cannot be looked after: %s.",
                                 strerrordesc_np(errno));
        conn->epoll_fd = client->warden.epoll_fd;
        return GPUIPC_OK;
}

/* Notes which connections something happened to. */
static void harvest(gpuipc_client *client) {
        struct epoll_event events[EVENTS_MAX];
        uint64_t count;
        int n;

        (void)!read(client->warden.timer_fd, &count, sizeof(count));
        do {
                n = epoll_wait(client->warden.epoll_fd, events, EVENTS_MAX, 0);
                (void)pthread_mutex_lock(&client->lock);
                for (int i = 0; i < n; i++)
                        for (struct conn *conn = client->conns; conn; conn = conn->next)
                                conn->look = conn->look || conn->watched_fd == events[i].data.fd;
                (void)pthread_mutex_unlock(&client->lock);
        } while (n == EVENTS_MAX);
}

/* ---- what is due ------------------------------------------------------------------------------------------ */

static int64_t due(const struct conn *conn) {
        if (conn->look)
                return 0;
        if (!resume_wanted(conn) || (conn_open(conn) && !conn->resuming))
                return DEADLINE_NONE;
        return conn->away_usec != 0 ? conn->retry_usec : 0;
}

/* A connection to see to, busy now. NULL: none, and the clock is set to when there may be one. */
static struct conn *pick(gpuipc_client *client) {
        int64_t now = clock_usec(), next = DEADLINE_NONE;
        struct conn *conn;

        (void)pthread_mutex_lock(&client->lock);
        for (conn = client->closed ? NULL : client->conns; conn; conn = conn->next) {
                int64_t at = conn->busy ? DEADLINE_NONE : due(conn); /* who has it busy rings when putting it back */
                if (at <= now)
                        break;
                next = at < next ? at : next;
        }
        if (conn) {
                conn->look = false;
                conn->busy = true;
        } else {
                clock_set(&client->warden, next);
        }
        (void)pthread_mutex_unlock(&client->lock);
        return conn;
}

static void tend(gpuipc_client *client, struct conn *conn) {
        if (conn_alive(conn) && !conn->resuming) {
                if (conn->owed)
                        (void)conn_settle(conn, 0, NULL);
                return;
        }
        if (!conn->resuming)
                conn_close(conn);
        outage_begin(conn);
        /* What broke again at once, be it a daemon that ends each time or another in its place, is not hammered at. */
        if (resume_wanted(conn) && !conn->resuming && clock_usec() < conn->retry_usec)
                return;
        if (resume_wanted(conn))
                (void)outage_try(client, conn, 0, NULL);
        else
                resume_forget(client, conn, resume_loss(client));
}

static void dispatch(gpuipc_client *client) {
        struct conn *conn;

        harvest(client);
        while ((conn = pick(client))) {
                tend(client, conn);
                client_put_by(client, conn, 0);
        }
}

/* ---- the thread ------------------------------------------------------------------------------------------- */

static bool is_closed(gpuipc_client *client) {
        bool closed;

        (void)pthread_mutex_lock(&client->lock);
        closed = client->closed;
        (void)pthread_mutex_unlock(&client->lock);
        return closed;
}

static void *warden_run(void *arg) {
        gpuipc_client *client = arg;

        while (!is_closed(client)) {
                struct pollfd fd = { .fd = client->warden.epoll_fd, .events = POLLIN };

                if (poll(&fd, 1, -1) > 0)
                        dispatch(client);
        }
        return NULL;
}

static int thread_start(gpuipc_client *client) {
        sigset_t all, before;
        pthread_attr_t attributes;
        int r = pthread_attr_init(&attributes);

        if (r != 0)
                return r;
        (void)pthread_attr_setstacksize(&attributes, STACK_BYTES);
        /* Signals are for the program's own threads. */
        (void)sigfillset(&all);
        (void)pthread_sigmask(SIG_SETMASK, &all, &before);
        r = pthread_create(&client->warden.thread, &attributes, warden_run, client);
        if (r == EINVAL) /* a program with much thread-local memory needs more */
                r = pthread_create(&client->warden.thread, NULL, warden_run, client);
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
        (void)pthread_attr_destroy(&attributes);
        if (r != 0)
                return r;
        (void)pthread_setname_np(client->warden.thread, "gpuipc");
        client->warden.running = true;
        return 0;
}

static int start_locked(gpuipc_client *client) {
        struct warden *warden = &client->warden;
        struct epoll_event event = { .events = EPOLLIN };

        if (warden->epoll_fd < 0) {
                _cleanup_fd_ int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
                _cleanup_fd_ int timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);

                event.data.fd = timer_fd;
                if (epoll_fd < 0 || timer_fd < 0 || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, timer_fd, &event) < 0)
                        return errno;
                warden->epoll_fd = take_fd(&epoll_fd);
                warden->timer_fd = take_fd(&timer_fd);
        }
        return warden->running || client->no_thread ? 0 : thread_start(client);
}

int warden_start(gpuipc_client *client, gpuipc_error *ret_error) {
        int r;

        (void)pthread_mutex_lock(&client->lock);
        r = start_locked(client);
        (void)pthread_mutex_unlock(&client->lock);
        if (r == 0)
                return GPUIPC_OK;
        return error_set(ret_error, GPUIPC_ERROR_NO_MEMORY, r, NULL,
                         "Leases that are to outlive a restart of the daemon need two descriptors and a thread of the library's, "
                         "which could not be had: %s. Raise the limit, set no_thread, or do without (restart_ms -1).",
                         strerrordesc_np(r));
}

void warden_stop(gpuipc_client *client) {
        (void)pthread_mutex_lock(&client->lock);
        warden_ring_locked(client);
        (void)pthread_mutex_unlock(&client->lock);
        if (client->warden.running)
                (void)pthread_join(client->warden.thread, NULL);
        client->warden.running = false;
}

void warden_deinit(struct warden *warden) {
        fd_closep(&warden->epoll_fd);
        fd_closep(&warden->timer_fd);
}

/* ---- the caller's own loop -------------------------------------------------------------------------------- */

int gpuipc_client_fd(const gpuipc_client *client) {
        return client->no_thread ? client->warden.epoll_fd : -1;
}

int gpuipc_client_dispatch(gpuipc_client *client, gpuipc_error *ret_error) {
        int r = client_check(client, ret_error);

        if (r != GPUIPC_OK)
                return r;
        if (!client->no_thread)
                return error_parameter(ret_error, "client", "one made with the option no_thread: others look after themselves");
        dispatch(client);
        return GPUIPC_OK;
}
