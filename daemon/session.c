/* SPDX-License-Identifier: Apache-2.0 */
/* A connection's life. Loop thread only. Reads and writes bytes, knows whose they are, and nothing of what they mean. While a call
 * is under way nothing more is read: back-pressure and order in one rule. */
#include "session.h"

#include <errno.h>
#include <stdlib.h>

#include "alarm.h"
#include "clock.h"
#include "creds.h"
#include "dispatch.h"
#include "farewell.h"
#include "log.h"
#include "outbox.h"
#include "process.h"
#include "proto/cleanup.h"
#include "proto/wire.h"
#include "sender.h"

#define TURN_MESSAGES 32         /* handled before others get their turn */
#define TURN_USEC 500            /* or as many as begin within this time */
#define ROUND_USEC 1000          /* what all sessions of one user together take before others get theirs */
#define TURNED_AWAY_MAX 64       /* connections kept at once only to be told why */
#define TURNED_AWAY_MS 5000      /* and how long each has to ask */
#define SESSION_DESCRIPTORS 3    /* its socket, the sender of the message at hand, a handle on its way; processes count their own */

struct session {
        struct list by_hall, by_ready;
        struct hall *hall;
        struct client *client;   /* NULL when it was not let in: see refusal */
        struct failure refusal;
        struct creds creds;
        struct peer peer;
        struct senders senders;  /* the processes that spoke over it */
        struct wire wire;
        uv_poll_t poll;
        int polled;              /* events asked for */
        struct request *request; /* under way; dispatch clears it through `done` */
        struct farewell *farewell;
        struct outbox outbox;
        struct alarm *patience;  /* with one that was not let in */
        const char *why;         /* it is doomed: closed once its output is written */
        bool half_closed;        /* the peer shut down its writing side */
        bool eof;                /* and everything it wrote was read */
        bool gone;               /* the peer is dead or its socket closed: only what it wrote before is still heard */
        bool crowded;            /* input came while a call was under way, or out of turn: not polled for until it may be read */
        bool strangers;          /* descriptors arrived */
        bool running;            /* its turn is under way */
};

/* ---- end --------------------------------------------------------------------------------------------------- */

/* Gives up the connection. What the peer sent but nobody read may hold descriptors too. */
static void session_hang_up(struct session *session) {
        outbox_deinit(&session->outbox);
        if ((session->hall->sender_refuses && !session->strangers) || wire_shut(&session->wire))
                wire_deinit(&session->wire);
        else
                farewell_send(take_ptr(session->farewell), session->hall->doorman, session->creds.uid, &session->wire);
}

static void session_free(uv_handle_t *handle) {
        struct session *session = handle->data;

        creds_deinit(&session->creds);
        rcstr_unref(session->peer.principal.container);
        farewell_free(session->farewell);
        free(session);
}

void session_close(struct session *session, const char *why) {
        struct registry *registry = &session->hall->house->registry;

        if (uv_is_closing((uv_handle_t *)&session->poll))
                return;
        if (session->client)
                log_line(LOG_DEBUG, NULL, &(struct log_field){"SESSION", rcstr_text(session->client->id)}, 1,
                         "session ends: %s", session->why ? session->why : why);
        if (session->request)
                dispatch_abandon(take_ptr(session->request));
        alarm_cancel(&session->patience);
        uv_close((uv_handle_t *)&session->poll, session_free);
        list_remove(&session->by_hall);
        list_remove(&session->by_ready);
        session_hang_up(session);
        senders_leave(&session->senders);
        if (session->client)
                registry_client_end(registry, take_ptr(session->client), SESSION_DESCRIPTORS, clock_real_usec(),
                                    clock_monotonic_usec());
        else
                session->hall->n_turned_away--;
        senders_deinit(&session->senders);
}

/* ---- output ------------------------------------------------------------------------------------------------ */

static void session_on_stuck(void *arg) {
        struct session *session = arg;

        log_line(LOG_NOTICE, MESSAGE_DROPPED, &(struct log_field){"SESSION", session->client ? rcstr_text(session->client->id) : "-"}, 1,
                 "session dropped: its client does not read");
        session_close(session, "output stayed unread");
}

static void session_mark_ready(struct session *session) {
        if (!session->running && list_empty(&session->by_ready))
                list_append(&session->hall->ready, &session->by_ready);
}

/* The peer is dead or has closed: what it wrote before is still heard, nothing more is said. */
static void session_mark_gone(struct session *session) {
        session->gone = true;
        wire_drop_output(&session->wire);
        session_mark_ready(session);
}

static void session_flush(struct session *session) {
        int r = outbox_flush(&session->outbox);

        if (r == 0 || r == -EAGAIN)
                return;
        if (r != -EPIPE && r != -ECONNRESET && !session->why)
                session->why = "output could not be written"; /* the peer may live, and would wait for it */
        session_mark_gone(session);
}

static void session_on_retry(void *arg) {
        session_flush(arg);
        session_mark_ready(arg);
}

static bool session_send(void *arg, const struct bytes *message, const struct lending *lending) {
        struct session *session = arg;

        if (session->gone) {
                if (lending && lending->fresh)
                        (void)close(lending->fds[0]);
                if (lending && lending->pinned)
                        registry_unpin(&session->hall->house->registry, lending->pinned, clock_real_usec(), clock_monotonic_usec());
                return true;
        }
        if (outbox_put(&session->outbox, message, lending) < 0)
                return false;
        session_flush(session);
        session_mark_ready(session); /* what to poll for, or to say next, may have changed */
        return true;
}

static void session_done(void *arg) {
        struct session *session = arg;

        session->request = NULL;
        session_mark_ready(session);
}

static void session_drop(void *arg, const char *why) {
        struct session *session = arg;

        if (!session->why)
                session->why = why;
}

static const struct sink session_sink = {session_send, session_done, session_drop};

void session_kick(void *arg) {
        session_drop(arg, "kicked");
        session_mark_ready(arg);
}

/* ---- input ------------------------------------------------------------------------------------------------- */

/* Descriptors came: refused, whatever the message asks, and before its end, lest more of them come. */
static void session_refuse_strangers(struct session *session) {
        struct failure failure = {0};

        session->strangers = true;
        fail_reason(&failure, VERDICT_ACCESS_DENIED, "", "this service takes no descriptors; send the call without them");
        dispatch_refuse(session->hall->house, &failure, &session_sink, session);
        session_drop(session, "descriptors were sent");
}

static void session_message(struct session *session, const char *text, size_t n) {
        struct house *house = session->hall->house;
        struct failure failure = {0};
        struct holder *holder;
        int r;

        if (!session->client) {
                dispatch_refuse(house, &session->refusal, &session_sink, session);
                session_drop(session, "not let in");
                return;
        }
        r = senders_find(&session->senders, house, &session->creds, &session->wire.sender, &holder, &failure);
        if (r > 0)
                dispatch_refuse(house, &failure, &session_sink, session);
        if (r != 0) {
                session_drop(session, r > 0 ? verdict_sentence((enum verdict)r) : "a message's sender could not be told");
                return;
        }
        if (session->wire.in.n == session->wire.in_used)
                fd_closep(&session->wire.sender.pidfd); /* it is in no book of descriptors, and the next read brings its own */
        dispatch_call(house, session->client, holder, &session_sink, session, text, n, &session->request);
}

/* Takes one message out of what was received: false when there is none, or the stream is of no further use. */
static bool session_step(struct session *session) {
        char *text;
        size_t n;
        int r;

        r = wire_next(&session->wire, &text, &n);
        if (r == 1) {
                session_message(session, text, n);
                return true;
        }
        if (r < 0)
                session_drop(session, wire_fault(r));
        return false;
}

/* One read. False when nothing came. */
static bool session_fill(struct session *session) {
        ssize_t n = wire_fill(&session->wire);

        if (n > 0 && (session->wire.fds.n > 0 || session->wire.truncated || session->wire.forgotten))
                session_refuse_strangers(session);
        if (n > 0)
                return true;
        if (n == 0)
                session->eof = true;
        else if (n != -EAGAIN) {
                session_mark_gone(session);
                session->eof = true;
        }
        return false;
}

/* ---- the turn ---------------------------------------------------------------------------------------------- */

static void session_on_poll(uv_poll_t *poll, int status, int events);

static void session_poll(struct session *session) {
        int events = UV_PRIORITIZED; /* no client sends out-of-band data, but this keeps hang-up watched */

        if (!session->eof && !session->crowded && !session->why)
                events |= UV_READABLE;
        if (!session->half_closed)
                events |= UV_DISCONNECT;
        if (wire_pending(&session->wire) > 0 && !session->outbox.held)
                events |= UV_WRITABLE;
        if (events == session->polled)
                return;
        session->polled = events;
        uv_poll_start(&session->poll, events, session_on_poll);
}

/* Whether it has ended: nothing more will be heard or said. A half-closed peer keeps its session while it holds leases. */
static bool session_over(const struct session *session) {
        if (session->gone)
                return session->eof || session->why || session->request;
        if (session->request && !(session->why && request_idles(session->request)))
                return false;
        if (wire_pending(&session->wire) > 0)
                return false;
        return session->why || (session->eof && (!session->client || list_empty(&session->client->leases)));
}

/* One thing to do: more of a stream, a message, or (if the socket is known to have some) a read. False when there is none. */
static bool session_advance(struct session *session, bool *readable) {
        bool read = *readable || session->gone;

        if (session->request) {
                if (session->request->state != REQUEST_STREAMING || session->gone)
                        return false;
                dispatch_continue(session->request);
                return true;
        }
        session->crowded = false;
        if (session_step(session))
                return true;
        if (!read || session->eof || session->why)
                return false;
        *readable = false; /* polling will tell again */
        return session_fill(session);
}

/* Its user has had enough of this round. */
static void session_defer(struct session *session, bool readable) {
        session->crowded = session->crowded || readable;
        if (list_empty(&session->by_ready))
                list_append(&session->hall->late, &session->by_ready);
        session_poll(session);
}

/* Does what there is to do, up to a turn's worth. */
static void session_turn(struct session *session, bool readable) {
        struct account *account = session->client && !session->peer.admin ? session->client->account : NULL;
        uint64_t began = clock_monotonic_usec(), now = began;
        bool more = true;

        if (account && account_turn_usec(account, session->hall->round) >= ROUND_USEC) {
                session_defer(session, readable);
                return;
        }
        session->running = true;
        for (int i = 0; i < TURN_MESSAGES && more && now - began < TURN_USEC; i++) {
                more = !session->why && !outbox_full(&session->outbox) && session_advance(session, &readable);
                now = clock_monotonic_usec();
        }
        session->running = false;
        if (account)
                account->turn_usec += now - began;
        if (session_over(session)) {
                session_close(session, session->gone ? "hang-up" : "end of stream");
                return;
        }
        if (more)
                session_mark_ready(session);
        session_poll(session);
}

static void session_on_poll(uv_poll_t *poll, int status, int events) {
        struct session *session = poll->data;

        if (status < 0 || (events & (UV_DISCONNECT | UV_PRIORITIZED))) {
                if (status < 0 || wire_hung_up(&session->wire))
                        session_mark_gone(session);
                else if (events & UV_DISCONNECT)
                        session->half_closed = true;
                else
                        session_drop(session, "out-of-band data was sent");
                if (status < 0)
                        session->polled = 0; /* libuv stopped polling */
        }
        if (events & UV_WRITABLE)
                session_flush(session);
        if ((events & UV_READABLE) && session->request)
                session->crowded = true;
        session_turn(session, events & UV_READABLE);
}

bool sessions_run(struct hall *hall) {
        struct list turn;
        struct session *session;

        list_move_all(&hall->ready, &turn);
        while (!list_empty(&turn)) {
                session = container_of(list_first(&turn), struct session, by_ready);
                list_remove(&session->by_ready);
                session_turn(session, session->crowded);
        }
        return !list_empty(&hall->ready);
}

void sessions_close_all(struct hall *hall, const char *why) {
        while (!list_empty(&hall->sessions))
                session_close(container_of(list_first(&hall->sessions), struct session, by_hall), why);
}

bool sessions_flushed(const struct hall *hall, bool patient) {
        struct session *session;

        list_for_each(session, &hall->sessions, by_hall)
                if (patient ? session->request || wire_pending(&session->wire) > 0 : session->request && !request_idles(session->request))
                        return false;
        return true;
}

/* ---- beginning --------------------------------------------------------------------------------------------- */

static void session_on_patience(void *arg) {
        session_close(arg, "it did not ask why it was not let in");
}

/* Lets it in, or notes why not. -errno when it can't even be told. */
static int session_admit(struct session *session) {
        struct hall *hall = session->hall;
        struct registry *registry = &hall->house->registry;
        int r;

        r = senders_init(&session->senders, hall->house, &session->creds, &session->refusal);
        if (r == 0) {
                session->peer.principal.container = rcstr_ref(session->senders.peer->holder.container);
                session->peer.principal.unplaced = session->senders.peer->holder.unplaced;
                r = policy_admit(&registry->policy, &session->peer, &session->refusal);
        }
        if (r == 0)
                r = registry_client_new(registry, &session->peer, SESSION_DESCRIPTORS, &session->client, &session->refusal);
        if (r < 0)
                return r;
        if (r == 0) {
                session->client->session = session;
                return 0;
        }
        if (hall->n_turned_away >= TURNED_AWAY_MAX)
                return -EBUSY;
        r = alarm_new(hall->house->loop, TURNED_AWAY_MS, session_on_patience, session, &session->patience);
        if (r == 0)
                hall->n_turned_away++;
        return r;
}

/* Undoes session_new() from any point before the poll handle was made. */
static void session_discard(struct session *session) {
        senders_deinit(&session->senders);
        wire_deinit(&session->wire);
        rcstr_unref(session->peer.principal.container);
        creds_deinit(&session->creds);
        farewell_free(session->farewell);
        free(session);
}

int session_new(struct hall *hall, int fd_take, bool admin) {
        struct session *session = calloc(1, sizeof(*session));
        int r;

        if (!session) {
                fd_closep(&fd_take);
                return -ENOMEM;
        }
        session->hall = hall;
        session->creds.pidfd = -1;
        list_init(&session->by_hall);
        list_init(&session->by_ready);
        wire_init(&session->wire, fd_take, (size_t)hall->house->registry.limits.message_bytes);
        outbox_init(&session->outbox, hall->house, &session->wire, session_on_stuck, session_on_retry, session);
        session->farewell = farewell_new();
        r = session->farewell ? creds_read(fd_take, &session->creds) : -ENOMEM;
        if (r == 0)
                r = uv_poll_init(hall->house->loop, &session->poll, fd_take);
        if (r < 0) {
                session_discard(session);
                return r;
        }
        session->poll.data = session;
        session->peer = senders_identify(&session->creds, admin, hall->overflow_uid);
        list_append(&hall->sessions, &session->by_hall);
        r = session_admit(session);
        if (r < 0) {
                hall->n_turned_away++; /* session_close() takes it off again */
                session_close(session, "it could not be admitted");
                return r;
        }
        session_poll(session);
        return 0;
}
