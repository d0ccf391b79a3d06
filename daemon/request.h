/* SPDX-License-Identifier: Apache-2.0 */
/* A request: one call on its way through the operation's beats. It outlives its session: then `client` and `session` are NULL
 * and it ends with abandon instead of finish. Loop thread, except that `work` owns it while its job runs. */
#ifndef DAEMON_REQUEST_H
#define DAEMON_REQUEST_H

#include "alarm.h"
#include "house.h"
#include "lending.h"
#include "proto/codec.h"

struct op;
struct request;

/* Where replies go; what the session gives to dispatch. */
struct sink {
        /* Queues a message with what it lends (NULL: nothing), whose pin and fresh descriptor go with it. False: the session will be
         * closed, pin and descriptor are the caller's still. */
        bool (*send)(void *session, const struct bytes *message, const struct lending *lending);

        /* The request is over and freed; the session may take its next. */
        void (*done)(void *session);

        /* The session is to be closed, after what is queued is written. `why` is static, for the log. */
        void (*drop)(void *session, const char *why);
};

enum request_state { REQUEST_RUNNING, REQUEST_WORKING, REQUEST_STORING, REQUEST_WAITING, REQUEST_STREAMING, REQUEST_PARKED };

struct request {
        struct list by_house;
        struct house *house;
        const struct op *op;
        enum request_state state;
        struct client *client;
        struct holder *holder; /* a reference: the process that asked */
        const struct sink *sink;
        void *session;
        bool more, oneway;
        struct codec_doc *doc; /* owns the strings of params */
        union method_params params;
        union method_reply reply;
        struct failure failure;
        bool continues;        /* finish has more to say */
        uint64_t started_usec; /* monotonic */

        /* What the beats keep from one to the next. */
        struct job job;
        struct workplace *place;
        struct buffer *buffer;
        struct lease *lease;
        struct backing *backing;
        struct backend_detail detail;
        bool pinned;           /* the reply carries a pin on buffer, whose descriptors it lends */
        int lend_fd;           /* what is lent where it is one */
        struct lending lending;
        int fresh_fd;          /* made for this lease alone; owned; -1: the backing's own serves */
        struct errand errand;  /* to the store, between work and finish */
        bool keeps_process;    /* the errand puts the process there */
        int kept;              /* what came of it: 0 or -errno */
        bool no_work;          /* begin found that there is nothing to do on the lane */
        bool tried_again;      /* work has run once more for want of memory */
        struct cursor cursor;  /* List, ListBuffers */
        void *page;            /* items of the reply; freed with the request */
        enum access access;    /* what is asked for */
        bool slots_made;       /* of a channel: the first of its memory is there */
        bool short_of_host;    /* work ended with -ENOMEM of the host, whatever the device */
        char token[TOKEN_TEXT_SIZE]; /* GetStatus, Resume: told in the reply */
        int64_t position;      /* Watch: the last sequence looked at */

        /* Waiting. */
        int64_t wait_ms;       /* set by begin: how long it may wait; 0: not at all */
        struct waitq *queue;   /* set by begin or finish with VERDICT_AGAIN; NULL: for a name */
        int64_t waiting_bytes; /* likewise, for a queue */
        struct waiter waiter;
        struct alarm *deadline;
        uint64_t waiting_since_usec; /* monotonic */
        uint64_t not_before_usec;    /* monotonic: not to be tried again before */
        bool counted;          /* in the client's waits; its time runs */
        bool timed_out;
        void (*on_timeout)(void *request);
};

static inline struct registry *request_registry(struct request *request) {
        return &request->house->registry;
}

/* The peer behind the request. Not to be called once the session is gone. */
static inline const struct peer *request_peer(const struct request *request) {
        return &request->client->peer;
}

/* Whether nothing is being done for it now, and perhaps never will: who is kicked is not waited for. */
static inline bool request_idles(const struct request *request) {
        return request->state == REQUEST_WAITING || request->state == REQUEST_STREAMING || request->state == REQUEST_PARKED;
}

/* Internal with a reference that the log line carries too; `what` says what failed. */
int request_internal(struct request *request, const char *what, int error);

#endif
