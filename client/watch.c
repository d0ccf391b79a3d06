/* SPDX-License-Identifier: Apache-2.0 */
/* Watches. One thread at a time takes events; gpuipc_watch_stop() may come from any. Never uses the pool's
 * connections. */
#include "watch.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include "calls.h"
#include "error.h"
#include "info.h"
#include "message.h"
#include "outage.h"
#include "proto/cleanup.h"

struct gpuipc_watch {
        gpuipc_client *client;      /* counted */
        gpuipc_watch *next, **link; /* the client's list; under its lock */
        struct conn *conn;
        int epoll_fd; /* what the user polls: the connection, or bell_fd */
        int bell_fd;  /* a clock, readable when something is to be told that the socket does not show, or to be tried */
        int64_t bell_usec; /* what it is set to by the thread that takes events */
        atomic_bool stopped;
        int64_t last;       /* event handed out, or what the watch began with; negative: none */
        int64_t back_usec;  /* when the connection was made or came back */
        unsigned n_breaks;  /* soon after that, in a row */

        /* The event handed out last. */
        struct reply reply;
        gpuipc_event_info event;
        gpuipc_buffer_info buffer;
        gpuipc_lease_info lease;
};

/* ---- life ------------------------------------------------------------------------------------------------- */

static void watch_destroy(gpuipc_watch *watch) {
        if (!watch)
                return;
        reply_deinit(&watch->reply);
        conn_free(watch->conn);
        fd_closep(&watch->epoll_fd);
        fd_closep(&watch->bell_fd);
        client_unref(watch->client);
        free(watch);
}

static void watch_destroyp(gpuipc_watch **watch) {
        watch_destroy(*watch);
}

static void watch_link(gpuipc_watch *watch) {
        gpuipc_client *client = watch->client;

        (void)pthread_mutex_lock(&client->lock);
        process_lock();
        watch->next = client->watches;
        watch->link = &client->watches;
        if (watch->next)
                watch->next->link = &watch->next;
        client->watches = watch;
        process_unlock();
        (void)pthread_mutex_unlock(&client->lock);
}

static void watch_unlink_locked(gpuipc_watch *watch) {
        *watch->link = watch->next;
        if (watch->next)
                watch->next->link = watch->link;
}

static int watch_add_fd(gpuipc_watch *watch, int fd) {
        struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };
        return epoll_ctl(watch->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

static int watch_add_conn(gpuipc_watch *watch) {
        int r = watch_add_fd(watch, watch->conn->wire.fd);
        if (r < 0)
                return r;
        watch->conn->epoll_fd = watch->epoll_fd;
        watch->back_usec = clock_usec();
        return 0;
}

static int watch_make_fds(gpuipc_watch *watch) {
        int r;

        watch->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
        if (watch->epoll_fd < 0)
                return -errno;
        watch->bell_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
        if (watch->bell_fd < 0)
                return -errno;
        r = watch_add_fd(watch, watch->bell_fd);
        return r < 0 ? r : watch_add_conn(watch);
}

static int watch_put(struct bytes *message, int64_t since, gpuipc_error *ret_error) {
        struct watch_params params = { .since = since < 0 ? SCHEMA_UNSET : since };
        return message_put(message, METHOD_WATCH, &params, true, ret_error);
}

/* One call first: once it is answered the daemon has this connection before it, so that what the caller does next on
 * another one comes after the watch. */
static int watch_begin(gpuipc_watch *watch, int64_t since, int64_t deadline, gpuipc_error *ret_error) {
        _cleanup_(bytes_deinit) struct bytes hello = { 0 }, message = { 0 };
        _cleanup_(reply_deinit) struct reply reply = { 0 };
        struct empty_params empty = { 0 };
        int r = message_put(&hello, METHOD_GET_INFO, &empty, false, ret_error);

        if (r == GPUIPC_OK)
                r = watch_put(&message, since, ret_error);
        if (r == GPUIPC_OK)
                r = conn_call(watch->conn, &hello, deadline, &reply, ret_error);
        if (r == GPUIPC_OK)
                r = message_read(&reply, METHOD_GET_INFO, NULL, ret_error);
        if (r == GPUIPC_OK)
                r = conn_send(watch->conn, &message, deadline, ret_error);
        return r;
}

int gpuipc_watch_new(gpuipc_client *client, int64_t since, gpuipc_watch **ret_watch, gpuipc_error *ret_error) {
        _cleanup_(watch_destroyp) gpuipc_watch *watch = NULL;
        struct repeats repeats = { 0 };
        int64_t deadline;
        int r = client_check(client, ret_error);

        if (r != GPUIPC_OK)
                return r;
        if (!ret_watch)
                return error_parameter(ret_error, "ret_watch", "a pointer to where the watch goes");
        watch = calloc(1, sizeof(*watch));
        if (!watch)
                return error_no_memory(ret_error);
        watch->epoll_fd = watch->bell_fd = -1;
        watch->client = client_ref(client);
        watch->last = since;
        watch->bell_usec = DEADLINE_NONE;
        watch->conn = conn_new();
        if (!watch->conn)
                return error_no_memory(ret_error);
        deadline = client_deadline(client);
        r = outage_mend(client, watch->conn, deadline, ret_error);
        while (r == GPUIPC_OK) {
                r = watch_begin(watch, since, deadline, ret_error);
                if (r == GPUIPC_OK)
                        break;
                r = outage_repeat(client, watch->conn, r, &repeats, deadline, ret_error);
        }
        if (r != GPUIPC_OK)
                return r;
        r = watch_make_fds(watch);
        if (r < 0)
                return error_set(ret_error, GPUIPC_ERROR_UNREACHABLE, -r, NULL,
                                 "A watch needs three descriptors and could not have them: %s.", strerrordesc_np(-r));
        watch_link(watch);
        *ret_watch = take_ptr(watch);
        return GPUIPC_OK;
}

/* The bell is readable from then on: 0 at once, DEADLINE_NONE not. */
static void bell_set(gpuipc_watch *watch, int64_t usec) {
        struct itimerspec when = { 0 };

        if (usec != DEADLINE_NONE)
                when.it_value = usec_to_timespec(usec < 1 ? 1 : usec);
        (void)timerfd_settime(watch->bell_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

static void watch_ring(gpuipc_watch *watch) {
        bell_set(watch, 0);
}

void gpuipc_watch_stop(gpuipc_watch *watch) {
        if (!watch || !process_is(watch->client->mark))
                return;
        atomic_store(&watch->stopped, true);
        watch_ring(watch);
}

void watch_stop_all(gpuipc_watch *first) {
        for (gpuipc_watch *watch = first; watch; watch = watch->next)
                gpuipc_watch_stop(watch);
}

void gpuipc_watch_free(gpuipc_watch *watch) {
        gpuipc_client *client;

        if (!watch)
                return;
        client = watch->client;
        if (!process_is(client->mark)) {
                watch_unlink_locked(watch);
                /* Another thread of the parent may have been in the midst of an event: then that is left alone. */
                if (watch->conn->busy)
                        watch->reply = (struct reply){ 0 };
                conn_abandon(watch->conn);
                watch_destroy(watch);
                return;
        }
        (void)pthread_mutex_lock(&client->lock);
        process_lock();
        watch_unlink_locked(watch);
        process_unlock();
        (void)pthread_mutex_unlock(&client->lock);
        watch_destroy(watch);
}

int gpuipc_watch_fd(const gpuipc_watch *watch) {
        return watch->epoll_fd;
}

/* ---- events ----------------------------------------------------------------------------------------------- */

static int watch_closed(gpuipc_error *ret_error, const char *by) {
        return error_set(ret_error, GPUIPC_ERROR_CLOSED, 0, NULL, "The watch was ended by %s.", by);
}

/* An event that was received together with the one before, and the end, show nowhere but here. */
static void watch_set_bell(gpuipc_watch *watch) {
        int64_t at = DEADLINE_NONE;

        if (watch->conn->away_usec != 0)
                at = watch->conn->retry_usec;
        else if (!watch->conn->owed || wire_ready(&watch->conn->wire))
                at = 0;
        if (at == watch->bell_usec)
                return;
        watch->bell_usec = at;
        bell_set(watch, at);
        /* What another thread rang for remains. */
        if (atomic_load(&watch->stopped))
                watch_ring(watch);
}

static int watch_take(gpuipc_watch *watch, gpuipc_error *ret_error) {
        struct watch_reply reply;
        int r = message_read(&watch->reply, METHOD_WATCH, &reply, ret_error);

        if (r != GPUIPC_OK)
                return r;
        watch->last = reply.event.sequence;
        watch->event = (gpuipc_event_info){ .sequence = reply.event.sequence, .time_usec = reply.event.time_usec,
                                            .kind = reply.event.kind };
        if (reply.event.buffer) {
                watch->buffer = info_buffer(reply.event.buffer);
                watch->event.buffer = &watch->buffer;
        }
        if (reply.event.lease) {
                watch->lease = info_lease(reply.event.lease);
                watch->event.lease = &watch->lease;
        }
        return GPUIPC_OK;
}

/* Waits until there is something on the socket, or the bell rings. */
static int watch_wait(gpuipc_watch *watch, int64_t deadline, gpuipc_error *ret_error) {
        for (;;) {
                struct pollfd fd = { .fd = watch->epoll_fd, .events = POLLIN };
                struct timespec left = usec_to_timespec(deadline == DEADLINE_NONE ? 0 : deadline - clock_usec());
                int r;

                if (atomic_load(&watch->stopped))
                        return watch_closed(ret_error, "gpuipc_watch_stop()");
                r = ppoll(&fd, 1, deadline == DEADLINE_NONE ? NULL : &left, NULL);
                if (r == 0)
                        return error_set(ret_error, GPUIPC_ERROR_TIMED_OUT, 0, NULL, "No event came in this time.");
                if (r < 0 && errno != EINTR)
                        return error_no_memory(ret_error);
                if (r > 0)
                        return GPUIPC_OK;
        }
}

/* ---- when the daemon is away ------------------------------------------------------------------------------ */

/* The connection broke: when to try again. A daemon that breaks it each time is not asked for ever. */
static int watch_broke(gpuipc_watch *watch, int r) {
        int64_t now = clock_usec();

        if (r != GPUIPC_ERROR_DISCONNECTED || watch->client->restart_ms < 0)
                return r;
        if (now - watch->back_usec >= INT64_C(1000) * OUTAGE_REPEAT_SOON_MS)
                watch->n_breaks = 0;
        if (watch->n_breaks >= OUTAGE_REPEATS_MAX)
                return r;
        watch->conn->away_usec = now;
        watch->conn->n_retries = 0;
        watch->conn->retry_usec = watch->n_breaks > 0 ? now + outage_pause_usec(watch->n_breaks - 1) : 0;
        watch->n_breaks++;
        return GPUIPC_OK;
}

/* Tries once to go on with the event after the last. GPUIPC_OK as well when it is to be tried again. */
static int watch_return(gpuipc_watch *watch, gpuipc_error *ret_error) {
        _cleanup_(bytes_deinit) struct bytes message = { 0 };
        struct conn *conn = watch->conn;
        int r = watch_put(&message, watch->last, ret_error);

        if (r != GPUIPC_OK)
                return r;
        r = outage_try(watch->client, conn, 0, ret_error);
        if (r != GPUIPC_OK)
                return conn->away_usec != 0 ? GPUIPC_OK : r;
        r = conn_send(conn, &message, 0, ret_error);
        if (r == GPUIPC_OK && watch_add_conn(watch) < 0) {
                conn_close(conn);
                r = error_no_memory(ret_error);
        }
        return r == GPUIPC_OK ? r : watch_broke(watch, r);
}

static int watch_receive(gpuipc_watch *watch, int64_t deadline, gpuipc_error *ret_error) {
        for (;;) {
                struct conn *conn = watch->conn;
                gpuipc_error error;
                int r;

                watch_set_bell(watch);
                r = watch_wait(watch, deadline, ret_error);
                if (r != GPUIPC_OK)
                        return r;
                if (!conn_open(conn)) {
                        if (conn->away_usec != 0 && clock_usec() < conn->retry_usec)
                                continue;
                        r = watch_return(watch, ret_error);
                        if (r != GPUIPC_OK)
                                return r;
                        continue;
                }
                if (!conn->owed)
                        return watch_closed(ret_error, "the daemon");
                /* Never waits here: the bell must be heard too. */
                r = conn_receive(conn, 0, &watch->reply, &error);
                if (r == GPUIPC_OK && message_is_stopping(&watch->reply) && outage_is_hopeful(watch->client, conn)) {
                        reply_deinit(&watch->reply);
                        conn->owed = true; /* the end of the connection, which comes next */
                        continue;
                }
                if (r == GPUIPC_ERROR_TIMED_OUT)
                        continue;
                if (r != GPUIPC_OK && watch_broke(watch, r) == GPUIPC_OK)
                        continue;
                if (r != GPUIPC_OK && ret_error)
                        *ret_error = error;
                return r;
        }
}

int gpuipc_watch_next(gpuipc_watch *watch, int timeout_ms, const gpuipc_event_info **ret_event,
                      gpuipc_error *ret_error) {
        int r;

        if (!watch)
                return error_parameter(ret_error, "watch", "one made by gpuipc_watch_new()");
        r = client_check(watch->client, ret_error);
        if (r != GPUIPC_OK)
                return r;
        watch->conn->busy = true;
        reply_deinit(&watch->reply);
        r = watch_receive(watch, deadline_after_ms(timeout_ms), ret_error);
        if (r == GPUIPC_OK)
                r = watch_take(watch, ret_error);
        watch_set_bell(watch);
        watch->conn->busy = false;
        if (r == GPUIPC_OK && ret_event)
                *ret_event = &watch->event;
        return r;
}
