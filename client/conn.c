/* SPDX-License-Identifier: Apache-2.0 */
/* The connection. The thread that has it from the pool enters. Never calls the user's code, never locks. */
#include "conn.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "deadline.h"
#include "error.h"
#include "claim.h"
#include "message.h"
#include "proto/cleanup.h"

#define RECEIVE_ANY_MAX 2
#define LOOK_USEC 50 /* before sleeping, at most */

void reply_deinit(struct reply *reply) {
        codec_doc_free(take_ptr(reply->doc));
        fdset_deinit(&reply->fds);
}

struct conn *conn_new(void) {
        struct conn *conn = calloc(1, sizeof(*conn));
        if (!conn)
                return NULL;
        wire_init(&conn->wire, -1, CONN_REPLY_MAX);
        conn->epoll_fd = conn->watched_fd = -1;
        return conn;
}

/* For the daemon as well: it hears nothing of a descriptor closed here while a forked child has it. */
static void hang_up(const struct conn *conn) {
        if (conn_open(conn))
                (void)shutdown(conn->wire.fd, SHUT_RDWR);
}

void conn_free(struct conn *conn) {
        if (!conn)
                return;
        for (struct claim *claim; (claim = claim_left_behind(conn));)
                claim_end(claim, CLAIM_OVER, LOSS_NONE);
        hang_up(conn);
        wire_deinit(&conn->wire);
        free(conn->token);
        free(conn);
}

static void conn_drop(struct conn *conn) {
        conn->epoll_fd = -1;
        wire_deinit(&conn->wire);
        wire_init(&conn->wire, -1, CONN_REPLY_MAX);
}

void conn_close(struct conn *conn) {
        /* By hand: a descriptor that a forked child inherited stays in the set when it is closed here. */
        if (conn->epoll_fd >= 0 && conn_open(conn))
                (void)epoll_ctl(conn->epoll_fd, EPOLL_CTL_DEL, conn->wire.fd, NULL);
        hang_up(conn);
        conn_drop(conn);
        conn->doubtful = conn->doubtful || (conn->owed && conn->token);
        conn->owed = conn->unasked = conn->resuming = false;
}

void conn_abandon(struct conn *conn) {
        conn->epoll_fd = -1; /* the set is the parent's too */
        conn->n_left = 0;    /* and another of its threads may have had the list in hand */
        if (!conn->busy) {
                conn_drop(conn);
                return;
        }
        fd_closep(&conn->wire.fd);
        wire_init(&conn->wire, -1, CONN_REPLY_MAX);
        conn->token = NULL;
}

/* ---- connecting ------------------------------------------------------------------------------------------- */

/* A blocking connect() with SO_SNDTIMEO is the one way to wait for a place in a Unix socket's queue. */
static int connect_by(int fd, const struct sockaddr_un *address, int64_t deadline) {
        for (;;) {
                int64_t left = deadline == DEADLINE_NONE ? 0 : deadline - clock_usec();
                struct timeval timeout = { .tv_sec = left / 1000000, .tv_usec = left % 1000000 };

                if (left < 0 || (left == 0 && deadline != DEADLINE_NONE))
                        timeout = (struct timeval){ .tv_usec = 1 };
                if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) < 0)
                        return -errno;
                if (connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0)
                        return 0;
                if (errno == EAGAIN)
                        return -ETIMEDOUT;
                if (errno != EINTR)
                        return -errno;
        }
}

int conn_connect(struct conn *conn, const char *path, int64_t deadline, gpuipc_error *ret_error) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        _cleanup_fd_ int fd = -1;
        int r;

        if (strlen(path) >= sizeof(address.sun_path))
                return error_connect(ret_error, ENAMETOOLONG, path);
        (void)memcpy(address.sun_path, path, strlen(path) + 1);
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return error_connect(ret_error, errno, path);
        r = connect_by(fd, &address, deadline);
        if (r < 0)
                return error_connect(ret_error, -r, path);
        if (fcntl(fd, F_SETFL, O_RDWR | O_NONBLOCK) < 0)
                return error_connect(ret_error, errno, path);
        conn_close(conn);
        wire_init(&conn->wire, take_fd(&fd), CONN_REPLY_MAX);
        conn->used = true;
        return GPUIPC_OK;
}

int conn_peek(const struct conn *conn) {
        char c;
        ssize_t n = recv(conn->wire.fd, &c, 1, MSG_PEEK | MSG_DONTWAIT);
        if (n > 0)
                return 1;
        return n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -EPIPE;
}

bool conn_alive(struct conn *conn) {
        int r = conn_open(conn) ? conn_peek(conn) : -EPIPE;
        conn->unasked = r > 0 && !conn->owed;
        return r >= 0;
}

bool conn_quiet(struct conn *conn) {
        return conn_alive(conn) && !conn->unasked;
}

/* ---- sending and receiving -------------------------------------------------------------------------------- */

static int lost(struct conn *conn, int system_errno, gpuipc_error *ret_error) {
        conn_close(conn);
        return error_set(ret_error, GPUIPC_ERROR_DISCONNECTED, system_errno, NULL,
                         "The connection to the daemon ended: it has stopped, or it closed this session. Where leases made "
                         "over it cannot be taken up again they are over; what is mapped stays mapped until it is released.");
}

static int late(gpuipc_error *ret_error) {
        return error_set(ret_error, GPUIPC_ERROR_TIMED_OUT, 0, NULL,
                         "The daemon did not answer in time: it is busy, stopped or stuck. The time for each call is "
                         "timeout_ms of gpuipc_connect().");
}

/* 0, -ETIMEDOUT, or another -errno. */
static int poll_by(struct pollfd *fds, size_t n, int64_t deadline) {
        for (;;) {
                struct timespec left = usec_to_timespec(deadline == DEADLINE_NONE ? 0 : deadline - clock_usec());
                int r = ppoll(fds, n, deadline == DEADLINE_NONE ? NULL : &left, NULL);
                if (r > 0)
                        return 0;
                if (r == 0)
                        return -ETIMEDOUT;
                if (errno != EINTR)
                        return -errno;
        }
}

/* 0 also when the daemon has closed. */
static int conn_flush(struct conn *conn, int64_t deadline) {
        for (;;) {
                struct pollfd fd = { .fd = conn->wire.fd, .events = POLLOUT };
                int r = wire_flush(&conn->wire);
                if (r != -EAGAIN)
                        return r == -EPIPE || r == -ECONNRESET ? 0 : r;
                r = poll_by(&fd, 1, deadline);
                if (r < 0)
                        return r;
        }
}

int conn_push(struct conn *conn, int64_t deadline, gpuipc_error *ret_error) {
        int r = conn_flush(conn, deadline);
        if (r == -ETIMEDOUT)
                return late(ret_error);
        return r < 0 ? lost(conn, -r, ret_error) : GPUIPC_OK;
}

int conn_send(struct conn *conn, const struct bytes *message, int64_t deadline, gpuipc_error *ret_error) {
        if (!conn_open(conn))
                return lost(conn, 0, ret_error);
        if (wire_put(&conn->wire, message->data, message->n, NULL, 0, NULL, NULL) < 0)
                return error_no_memory(ret_error);
        conn->owed = true;
        return conn_push(conn, deadline, ret_error);
}

static int senseless(struct conn *conn, const char *why, gpuipc_error *ret_error) {
        conn_close(conn);
        return error_protocol(ret_error, "%s", why);
}

static int reply_parse(struct conn *conn, const char *text, size_t n, struct reply *ret, gpuipc_error *ret_error) {
        _cleanup_(codec_doc_freep) struct codec_doc *doc = NULL;
        struct codec_reply head;
        const char *why = "it is not JSON";
        int r = codec_parse(text, n, &doc, &why);

        if (r == 0) {
                why = "it is not a reply";
                r = codec_reply(doc, &head);
        }
        if (r == -ENOMEM) {
                wire_put_back(&conn->wire, n); /* it may be a lease: read again, and given back, when this is next used */
                return error_no_memory(ret_error);
        }
        if (r < 0)
                return senseless(conn, why, ret_error);
        if (!head.continues && conn->wire.in.n > conn->wire.in_used)
                return senseless(conn, "more follows the last reply", ret_error);
        if (!head.continues)
                conn->owed = false;
        *ret = (struct reply){ .doc = take_ptr(doc), .error = head.error, .continues = head.continues,
                               .truncated = conn->wire.truncated, .forgotten = conn->wire.forgotten, .fds = conn->wire.fds };
        conn->wire.fds = (struct fdset){ 0 };
        conn->wire.truncated = conn->wire.forgotten = false;
        return GPUIPC_OK;
}

/* Something that no reply begins with. Whoever speaks otherwise (HTTP, say) may never send the end of a message. */
static bool starts_otherwise(const struct bytes *in, size_t used) {
        return in->n > used && strchr("{ \t\r\n", in->data[used]) == NULL;
}

/* Takes a reply that is already here. -EAGAIN: there is none. */
static int conn_take(struct conn *conn, struct reply *ret, gpuipc_error *ret_error) {
        char *text;
        size_t n;
        int r = wire_next(&conn->wire, &text, &n);
        if (r == 0 && starts_otherwise(&conn->wire.in, conn->wire.in_used))
                return senseless(conn, "it is not JSON", ret_error);
        if (r == 0)
                return -EAGAIN;
        if (r < 0)
                return senseless(conn, "a reply has no end", ret_error);
        return reply_parse(conn, text, n, ret, ret_error);
}

/* Reads once and takes a reply if that made one whole. -EAGAIN: not yet. */
static int conn_pump(struct conn *conn, struct reply *ret, gpuipc_error *ret_error) {
        ssize_t n = wire_fill(&conn->wire);
        if (n == -EAGAIN || n == -EINTR)
                return -EAGAIN;
        if (n == -ENOMEM)
                return error_no_memory(ret_error);
        if (n <= 0)
                return lost(conn, (int)-n, ret_error);
        return conn_take(conn, ret, ret_error);
}

/* A daemon with nothing else to do answers sooner than a sleeper wakes. Whoever wants this processor gets it. */
static int conn_look(struct conn *conn, int64_t deadline, struct reply *ret, gpuipc_error *ret_error) {
        int64_t until = clock_usec() + LOOK_USEC;

        if (until > deadline)
                until = deadline;
        for (;;) {
                int r = conn_pump(conn, ret, ret_error);

                if (r != -EAGAIN || clock_usec() >= until)
                        return r;
                (void)sched_yield();
        }
}

int conn_receive_any(struct conn *const *conns, size_t n, int64_t deadline, size_t *ret_which,
                     struct reply *ret_reply, gpuipc_error *ret_error) {
        struct pollfd fds[RECEIVE_ANY_MAX];
        int r;

        for (size_t i = 0; i < n; i++) {
                *ret_which = i;
                if (!conn_open(conns[i]))
                        return lost(conns[i], 0, ret_error);
                r = conn_take(conns[i], ret_reply, ret_error);
                if (r != -EAGAIN)
                        return r;
                fds[i] = (struct pollfd){ .fd = conns[i]->wire.fd, .events = POLLIN };
        }
        r = n == 1 ? conn_look(conns[0], deadline, ret_reply, ret_error) : -EAGAIN;
        if (r != -EAGAIN)
                return r;
        for (;;) {
                r = poll_by(fds, n, deadline);
                if (r == -ETIMEDOUT)
                        return late(ret_error);
                if (r < 0)
                        return error_no_memory(ret_error);
                for (size_t i = 0; i < n; i++) {
                        if (!fds[i].revents)
                                continue;
                        *ret_which = i;
                        r = conn_pump(conns[i], ret_reply, ret_error);
                        if (r != -EAGAIN)
                                return r;
                }
        }
}

int conn_receive(struct conn *conn, int64_t deadline, struct reply *ret_reply, gpuipc_error *ret_error) {
        size_t which;
        return conn_receive_any(&conn, 1, deadline, &which, ret_reply, ret_error);
}

/* ---- calls ------------------------------------------------------------------------------------------------ */

const char *conn_lease_of(const struct reply *reply) {
        struct channel_reply channel;
        struct grant_reply grant;

        if (reply->error)
                return NULL;
        if (codec_reply_params(reply->doc, method_schemas[METHOD_ALLOCATE].reply, &grant, NULL) == 0)
                return grant.lease;
        if (codec_reply_params(reply->doc, method_schemas[METHOD_CHANNEL_CREATE].reply, &channel, NULL) == 0)
                return channel.lease;
        return NULL;
}

int conn_settle(struct conn *conn, int64_t deadline, gpuipc_error *ret_error) {
        while (conn->owed) {
                _cleanup_(reply_deinit) struct reply reply = { 0 };
                const char *lease;
                int r = conn_push(conn, deadline, ret_error);
                if (r == GPUIPC_OK)
                        r = conn_receive(conn, deadline, &reply, ret_error);
                if (r != GPUIPC_OK)
                        return r;
                lease = conn->owed ? NULL : conn_lease_of(&reply);
                if (lease)
                        (void)conn_return_lease(conn, lease, deadline);
        }
        return GPUIPC_OK;
}

int conn_call(struct conn *conn, const struct bytes *message, int64_t deadline, struct reply *ret_reply,
              gpuipc_error *ret_error) {
        _cleanup_(reply_deinit) struct reply reply = { 0 };
        bool unasked = conn->unasked;
        int r = conn_settle(conn, deadline, ret_error);

        if (r != GPUIPC_OK)
                return r;
        conn->unasked = false;
        r = conn_send(conn, message, deadline, ret_error);
        if (r == GPUIPC_OK)
                r = conn_receive(conn, deadline, &reply, ret_error);
        if (r != GPUIPC_OK)
                return r;
        /* A daemon that turns a client away may say so before it is asked. */
        if (unasked && !reply.error)
                return senseless(conn, "it came before the call", ret_error);
        if (reply.continues)
                return senseless(conn, "it goes on where one reply is due", ret_error);
        if (unasked)
                conn_close(conn);
        conn->back_usec = 0;
        *ret_reply = reply;
        reply = (struct reply){ 0 };
        return GPUIPC_OK;
}

bool conn_return_lease(struct conn *conn, const char *lease, int64_t deadline) {
        _cleanup_(bytes_deinit) struct bytes message = { 0 };
        _cleanup_(reply_deinit) struct reply reply = { 0 };
        struct release_params params = { .lease = lease };
        int r = message_put(&message, METHOD_RELEASE, &params, false, NULL);

        if (r == GPUIPC_OK)
                r = conn_call(conn, &message, deadline, &reply, NULL);
        return r != GPUIPC_ERROR_NO_MEMORY;
}

int conn_no_descriptor(const struct reply *reply, const char *whose, gpuipc_error *ret_error) {
        if (reply->forgotten)
                return error_no_memory(ret_error);
        if (reply->truncated)
                return error_set(ret_error, GPUIPC_ERROR_MAP, EMFILE, NULL,
                                 "%s could not be received: this process has too many open. Close some or raise the limit (ulimit -n).",
                                 whose);
        return error_protocol(ret_error, "a descriptor is missing");
}
