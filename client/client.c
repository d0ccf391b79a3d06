/* SPDX-License-Identifier: Apache-2.0 */
/* The client object: its life, and who may use which of its connections. Any thread of the process that made it
 * enters; a forked child only to free. Never holds its lock while it waits for the daemon. */
#include "client.h"

#include <errno.h>
#include <string.h>

#include "deadline.h"
#include "error.h"
#include "outage.h"
#include "owner.h"
#include "proto/cleanup.h"
#include "resume.h"
#include "watch.h"

/* ---- life ------------------------------------------------------------------------------------------------- */

gpuipc_client *client_ref(gpuipc_client *client) {
        atomic_fetch_add(&client->refs, 1);
        return client;
}

static void client_destroy(gpuipc_client *client) {
        while (client->conns) {
                struct conn *conn = client->conns;
                client->conns = conn->next;
                conn_free(conn);
        }
        /* In a child the lock may be held by a thread that does not exist there. */
        if (process_is(client->mark)) {
                (void)pthread_cond_destroy(&client->changed);
                (void)pthread_mutex_destroy(&client->lock);
        }
        warden_deinit(&client->warden);
        free(client->path);
        free(client);
}

void client_unref(gpuipc_client *client) {
        if (client && atomic_fetch_sub(&client->refs, 1) == 1)
                client_destroy(client);
}

static void client_unrefp(gpuipc_client **client) {
        client_unref(*client);
}

static int client_init_lock(gpuipc_client *client) {
        pthread_condattr_t attributes;
        int r = pthread_condattr_init(&attributes);
        if (r != 0)
                return r;
        (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        r = pthread_cond_init(&client->changed, &attributes);
        (void)pthread_condattr_destroy(&attributes);
        return r != 0 ? r : pthread_mutex_init(&client->lock, NULL);
}

static const char *socket_path(const gpuipc_connect_options *options) {
        const char *path = options->socket_path;
        if (!path)
                path = secure_getenv("GPUIPC_SOCKET");
        return path && *path ? path : GPUIPC_DEFAULT_SOCKET;
}

static gpuipc_client *client_new(const gpuipc_connect_options *options) {
        gpuipc_client *client = calloc(1, sizeof(*client));

        if (!client)
                return NULL;
        client->path = strdup(socket_path(options));
        client->main = client->conns = conn_new();
        if (!client->path || !client->main || client_init_lock(client) != 0) {
                free(client->path);
                conn_free(client->main);
                free(client);
                return NULL;
        }
        client->refs = 1;
        client->mark = process_mark();
        client->warden = (struct warden){ .epoll_fd = -1, .timer_fd = -1 };
        client->restart_ms = options->restart_ms == 0 ? OUTAGE_RESTART_MS : options->restart_ms;
        client->no_thread = options->no_thread != 0;
        client->timeout_ms = options->timeout_ms == 0 ? CLIENT_TIMEOUT_MS : options->timeout_ms;
        client->uid = owner_uid(&client->uid_sure);
        return client;
}

int gpuipc_connect(const gpuipc_connect_options *options, gpuipc_client **ret_client, gpuipc_error *ret_error) {
        _cleanup_(client_unrefp) gpuipc_client *client = NULL;
        gpuipc_connect_options o = GPUIPC_CONNECT_OPTIONS_INIT;
        int r;

        if (!ret_client)
                return error_parameter(ret_error, "ret_client", "a pointer to where the client goes");
        r = client_options(&o, sizeof(o), options, ret_error);
        if (r != GPUIPC_OK)
                return r;
        if (o.timeout_ms < -1)
                return error_parameter(ret_error, "timeout_ms", "milliseconds, 0 for 30 seconds or -1 for none");
        if (o.restart_ms < -1)
                return error_parameter(ret_error, "restart_ms", "milliseconds, 0 for 30 seconds or -1 for not at all");
        client = client_new(&o);
        if (!client)
                return error_no_memory(ret_error);
        r = conn_connect(client->main, client->path, client_deadline(client), ret_error);
        if (r == GPUIPC_OK && client->no_thread)
                r = warden_start(client, ret_error); /* so that there is a descriptor to wait for from the start */
        if (r != GPUIPC_OK)
                return r;
        *ret_client = take_ptr(client);
        return GPUIPC_OK;
}

void gpuipc_client_free(gpuipc_client *client) {
        if (!client)
                return;
        if (!process_is(client->mark)) {
                for (struct conn *conn = client->conns; conn; conn = conn->next)
                        conn_abandon(conn);
                warden_deinit(&client->warden);
                client_unref(client);
                return;
        }
        (void)pthread_mutex_lock(&client->lock);
        client->closed = true;
        (void)pthread_mutex_unlock(&client->lock);
        warden_stop(client);
        (void)pthread_mutex_lock(&client->lock);
        for (struct conn *conn = client->conns; conn; conn = conn->next) {
                conn_close(conn);
                claim_end_all(conn, LOSS_CLIENT_FREED);
        }
        watch_stop_all(client->watches);
        (void)pthread_mutex_unlock(&client->lock);
        warden_deinit(&client->warden);
        client_unref(client);
}

int64_t gpuipc_client_restarts(const gpuipc_client *client) {
        return atomic_load(&client->restarts);
}

const char *gpuipc_client_socket(const gpuipc_client *client) {
        return client->path;
}

const char *gpuipc_version(void) {
        return GPUIPC_VERSION;
}

int client_check(const gpuipc_client *client, gpuipc_error *ret_error) {
        if (!client)
                return error_parameter(ret_error, "client", "one made by gpuipc_connect()");
        if (!process_is(client->mark))
                return error_set(ret_error, GPUIPC_ERROR_FORKED, 0, NULL,
                                 "This client was made before fork() and belongs to the parent process. Call "
                                 "gpuipc_connect() in the child.");
        return GPUIPC_OK;
}

int64_t client_deadline(const gpuipc_client *client) {
        return deadline_after_ms(client->timeout_ms);
}

int client_options(void *to, size_t size, const void *options, gpuipc_error *ret_error) {
        size_t given;

        if (!options)
                return GPUIPC_OK;
        (void)memcpy(&given, options, sizeof(given));
        if (given < sizeof(given) || given > 4096)
                return error_parameter(ret_error, "struct_size", "the size of the options struct: start from its _INIT");
        /* A newer program's further members are beyond this library; only their defaults can be honoured. */
        for (size_t i = size; i < given; i++)
                if (((const char *)options)[i] != 0)
                        return error_set(ret_error, GPUIPC_ERROR_UNSUPPORTED, 0, "struct_size",
                                         "The program uses an option that this version of the library (" GPUIPC_VERSION
                                         ") does not know. Install a newer libgpuipc.");
        (void)memcpy(to, options, given < size ? given : size);
        return GPUIPC_OK;
}

/* ---- the pool --------------------------------------------------------------------------------------------- */

static int client_ended(gpuipc_error *ret_error) {
        return error_set(ret_error, GPUIPC_ERROR_DISCONNECTED, 0, NULL,
                         "The client was freed, and its leases ended with it. Release buffers before gpuipc_client_free().");
}

/* Waits, under the lock, until *conn is not busy, and makes it so. It may become NULL meanwhile. */
static int take_locked(gpuipc_client *client, struct conn *const *conn, int64_t deadline, gpuipc_error *ret_error) {
        struct timespec until = usec_to_timespec(deadline);

        while (*conn && (*conn)->busy && !client->closed) {
                int r = deadline == DEADLINE_NONE ? pthread_cond_wait(&client->changed, &client->lock)
                                                  : pthread_cond_timedwait(&client->changed, &client->lock, &until);
                if (r == ETIMEDOUT && *conn && (*conn)->busy)
                        return error_set(ret_error, GPUIPC_ERROR_TIMED_OUT, 0, NULL,
                                         "Another thread's call on this client was not answered in time, so this one could "
                                         "not be made.");
        }
        if (client->closed)
                return client_ended(ret_error);
        if (*conn)
                (*conn)->busy = true;
        return GPUIPC_OK;
}

int client_take_leaving(gpuipc_client *client, struct claim *claim, int64_t deadline, struct conn **ret_conn,
                        gpuipc_error *ret_error) {
        int r;

        (void)pthread_mutex_lock(&client->lock);
        /* From here on, so that whoever takes the session up again meanwhile does it without this lease. */
        if (claim->stand == CLAIM_STANDS)
                claim->stand = CLAIM_LEAVING;
        r = take_locked(client, &claim->conn, deadline, ret_error);
        *ret_conn = r == GPUIPC_OK ? claim->conn : NULL;
        if (r == GPUIPC_ERROR_TIMED_OUT)
                claim_leave_behind(claim);
        (void)pthread_mutex_unlock(&client->lock);
        return r;
}

int client_check_claim(gpuipc_client *client, const struct claim *claim, gpuipc_error *ret_error) {
        struct conn *conn;
        enum claim_loss why;

        (void)pthread_mutex_lock(&client->lock);
        conn = claim->conn;
        /* Where nothing brings a connection back, and nobody looks after it, its end may not have been noticed. */
        if (conn && !conn->busy && !conn->token && (!conn_open(conn) || conn_peek(conn) < 0)) {
                conn_close(conn);
                claim_end_all(conn, resume_loss(client));
        }
        why = claim->stand == CLAIM_LOST ? claim->why : LOSS_NONE;
        (void)pthread_mutex_unlock(&client->lock);
        return why == LOSS_NONE ? GPUIPC_OK : claim_lost(why, ret_error);
}

/* A new object in the list, busy, not connected; under the lock. NULL: no memory. */
static struct conn *add_locked(gpuipc_client *client) {
        struct conn *conn = conn_new();
        if (!conn)
                return NULL;
        conn->busy = true;
        process_lock();
        conn->next = client->conns;
        client->conns = conn;
        process_unlock();
        return conn;
}

static void remove_locked(gpuipc_client *client, struct conn *conn) {
        process_lock();
        for (struct conn **link = &client->conns; *link; link = &(*link)->next)
                if (*link == conn) {
                        *link = conn->next;
                        break;
                }
        process_unlock();
}

/* Sees to it that what the caller has busy is connected; gives it back on failure. */
static int mend_or_put(gpuipc_client *client, struct conn *conn, int64_t deadline, struct conn **ret_conn,
                       gpuipc_error *ret_error) {
        int r = outage_mend(client, conn, deadline, ret_error);
        if (r != GPUIPC_OK) {
                client_put(client, conn);
                return r;
        }
        *ret_conn = conn;
        return GPUIPC_OK;
}

int client_take_main(gpuipc_client *client, int64_t deadline, struct conn **ret_conn, gpuipc_error *ret_error) {
        struct conn *conn;
        int r;

        (void)pthread_mutex_lock(&client->lock);
        r = take_locked(client, &client->main, deadline, ret_error);
        conn = client->main;
        (void)pthread_mutex_unlock(&client->lock);
        if (r != GPUIPC_OK)
                return r;
        if (conn->resuming || !conn_alive(conn))
                return mend_or_put(client, conn, deadline, ret_conn, ret_error);
        *ret_conn = conn;
        return GPUIPC_OK;
}

int client_take_side(gpuipc_client *client, int64_t deadline, struct conn **ret_conn, gpuipc_error *ret_error) {
        struct conn *conn;

        (void)pthread_mutex_lock(&client->lock);
        for (conn = client->conns; conn; conn = conn->next)
                if (conn != client->main && !conn->busy && conn->n_claims == 0)
                        break;
        if (conn)
                conn->busy = true;
        else
                conn = add_locked(client);
        (void)pthread_mutex_unlock(&client->lock);
        if (!conn)
                return error_no_memory(ret_error);
        if (conn->resuming || !conn_quiet(conn)) {
                if (!conn->resuming)
                        conn_close(conn);
                return mend_or_put(client, conn, deadline, ret_conn, ret_error);
        }
        *ret_conn = conn;
        return GPUIPC_OK;
}

/* Whether a side connection that carries no lease is worth keeping. */
static bool keep_locked(const gpuipc_client *client, const struct conn *conn) {
        size_t spares = 0;

        if (resume_wanted(conn) && !conn_open(conn))
                return true; /* what a lost reply granted is still to be ended */
        if (!conn_open(conn) || conn->owed)
                return false;
        for (const struct conn *other = client->conns; other; other = other->next)
                spares += other != conn && other != client->main && !other->busy && other->n_claims == 0;
        return spares < CLIENT_SPARES_MAX;
}

/* Gives back what could not be when its buffer object went. Under the lock, let go meanwhile. */
static void release_left_locked(gpuipc_client *client, struct conn *conn, int64_t deadline) {
        struct claim *claim;
        bool done = true;

        while (done && conn_open(conn) && !conn->owed && (claim = claim_left_behind(conn))) {
                claim_leave(claim);
                (void)pthread_mutex_unlock(&client->lock);
                done = conn_return_lease(conn, claim->id, deadline);
                (void)pthread_mutex_lock(&client->lock);
                if (done)
                        free(claim);
                else
                        claim_join(claim, conn);
        }
}

/* Whether the warden is to go on with it. */
static bool wants_warden(const struct conn *conn) {
        return conn->look || conn->resuming || (resume_wanted(conn) && !conn_open(conn));
}

void client_put_by(gpuipc_client *client, struct conn *conn, int64_t deadline) {
        _cleanup_(conn_freep) struct conn *gone = NULL;
        bool replies;

        (void)pthread_mutex_lock(&client->lock);
        release_left_locked(client, conn, deadline);
        replies = conn->owed && (conn->resuming || conn->n_left > 0);
        if (conn->epoll_fd >= 0 && conn->watched_in != replies) {
                (void)pthread_mutex_unlock(&client->lock);
                (void)warden_watch(client, conn, replies, NULL);
                (void)pthread_mutex_lock(&client->lock);
        }
        if (wants_warden(conn))
                warden_ring_locked(client);
        conn->busy = false;
        if (conn != client->main && conn->n_claims == 0 && !keep_locked(client, conn)) {
                remove_locked(client, conn);
                conn_close(conn);
                gone = conn;
        }
        (void)pthread_cond_broadcast(&client->changed);
        (void)pthread_mutex_unlock(&client->lock);
}

void client_put(gpuipc_client *client, struct conn *conn) {
        client_put_by(client, conn, client_deadline(client));
}
