/* SPDX-License-Identifier: Apache-2.0 */
/* From message to reply. Loop thread only; dispatch_work() alone runs on the pool and touches nothing but its request. Never
 * decides what an operation means: that is in the table's beats. */
#include "dispatch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "fault.h"
#include "keeping.h"
#include "ops.h"
#include "proto/cleanup.h"
#include "report.h"
#include "wait.h"

#define WAKE_TURN 32 /* watchers served before others get their turn */

static const char stopping[] = VERDICT_REASON_STOPPING;

static const char *request_method(const struct request *request) {
        return method_schemas[request->op->method].name;
}

static void request_free(struct request *request) {
        wait_forget(request);
        if (request->cursor.list)
                cursor_deinit(&request->cursor);
        free(request->page);
        if (request->holder)
                holder_unref(request->holder);
        codec_doc_free(request->doc);
        free(request);
}

/* Ends a request whose session is still there. */
static void dispatch_end(struct request *request) {
        const struct sink *sink = request->sink;
        void *session = request->session;

        request_free(request);
        sink->done(session);
}

static void dispatch_drop(struct request *request, const char *why) {
        request->sink->drop(request->session, why);
        dispatch_end(request);
}

/* ---- replies ---------------------------------------------------------------------------------------------- */

static bool dispatch_send(struct request *request, const struct lending *lending) {
        struct bytes *out = &request->house->scratch;

        return !out->failed && request->sink->send(request->session, out, lending);
}

static void scratch_begin(struct house *house) {
        if (house->scratch.failed)
                bytes_deinit(&house->scratch);
        house->scratch.n = 0;
}

static void dispatch_fail(struct request *request, int r) {
        struct house *house = request->house;

        if (r < 0)
                r = request_internal(request, "a request", r);
        request->failure.verdict = r;
        report_refused(request);
        if (!request->oneway) {
                scratch_begin(house);
                codec_put_error(&house->scratch, &request->failure);
                if (!dispatch_send(request, NULL)) {
                        dispatch_drop(request, "a reply could not be queued");
                        return;
                }
        }
        dispatch_end(request);
}

static void dispatch_succeed(struct request *request) {
        struct house *house = request->house;
        const struct method_schema *schema = &method_schemas[request->op->method];
        bool continues = request->continues;

        if (!continues || request->op->answer != OP_STREAM)
                report_done(request);
        if (request->oneway) {
                dispatch_end(request);
                return;
        }
        scratch_begin(house);
        codec_put_reply(&house->scratch, schema->reply, &request->reply, continues);
        request->lending.fresh = request->fresh_fd >= 0;
        request->lending.pinned = request->pinned ? request->buffer : NULL;
        if (!dispatch_send(request, &request->lending)) {
                fd_closep(&request->fresh_fd); /* never the last: the buffer is pinned */
                if (request->pinned)
                        registry_unpin(&house->registry, request->buffer, clock_real_usec(), clock_monotonic_usec());
                dispatch_drop(request, "a reply could not be queued");
                return;
        }
        request->fresh_fd = -1;
        fault_point(request_method(request), "replied");
        if (!continues)
                dispatch_end(request);
        else
                request->state = REQUEST_STREAMING;
}

/* ---- beats ------------------------------------------------------------------------------------------------ */

static void dispatch_on_timeout(void *arg) {
        struct request *request = arg;

        dispatch_fail(request, fail_plain(&request->failure, VERDICT_TIMED_OUT));
}

static void dispatch_deny(struct request *request, enum verdict verdict, const char *reason) {
        fail_reason(&request->failure, verdict, "", "%s", reason);
        dispatch_fail(request, (int)verdict);
}

static void dispatch_park(struct request *request) {
        if (request->house->stopping) {
                dispatch_deny(request, VERDICT_TOO_MANY_REQUESTS, stopping);
                return;
        }
        request->state = REQUEST_PARKED;
        list_append(&request->house->watching, &request->by_house);
}

static void dispatch_finish(struct request *request) {
        int r;

        list_remove(&request->by_house);
        fault_point(request_method(request), "finish");
        r = request->op->finish(request);
        fault_point(request_method(request), "finished");
        if (r == 0) {
                dispatch_succeed(request);
        } else if (r == VERDICT_AGAIN && request->op->answer == OP_STREAM) {
                dispatch_park(request);
        } else if (r == VERDICT_AGAIN) {
                r = wait_begin(request, dispatch_on_timeout);
                if (r != 0)
                        dispatch_fail(request, r);
        } else {
                dispatch_fail(request, r);
        }
}

static int dispatch_work(struct job *job) {
        struct request *request = container_of(job, struct request, job);
        int r;

        fault_point(request_method(request), "work");
        r = request->op->work(request);
        fault_point(request_method(request), "worked");
        return r;
}

static void dispatch_abandon_now(struct request *request) {
        if (request->op->abandon)
                request->op->abandon(request);
        request_free(request);
}

static void dispatch_kept(struct errand *errand) {
        struct request *request = container_of(errand, struct request, errand);

        keeping_end(request);
        if (!request->session) {
                dispatch_abandon_now(request);
                return;
        }
        request->state = REQUEST_RUNNING;
        dispatch_finish(request);
}

/* Nobody is told of a lease before what a restart needs of it is on its way. */
static void dispatch_keep(struct request *request) {
        if (!request->house->store || !request->op->keeps || !keeping_begin(request)) {
                dispatch_finish(request);
                return;
        }
        fault_point(request_method(request), "keep");
        request->state = REQUEST_STORING;
        request->errand.done = dispatch_kept;
        store_send(request->house->store, &request->errand);
}

static bool dispatch_ready(struct job *job) {
        struct request *request = container_of(job, struct request, job);

        return request->op->ready && request->op->ready(request);
}

static void dispatch_worked(struct job *job);

static void dispatch_submit(struct request *request) {
        request->state = REQUEST_WORKING;
        request->job.uid = request->client->peer.principal.uid;
        request->job.needless = dispatch_ready;
        request->job.work = dispatch_work;
        request->job.done = dispatch_worked;
        lane_submit(request->place->lane, &request->job);
}

static bool dispatch_again(struct request *request) {
        if (request->job.result != -ENOMEM || request->tried_again || !request->op->again)
                return false;
        request->tried_again = request->op->again(request);
        return request->tried_again;
}

static void dispatch_worked(struct job *job) {
        struct request *request = container_of(job, struct request, job);

        if (!request->session) {
                dispatch_abandon_now(request);
                return;
        }
        if (dispatch_again(request)) {
                dispatch_submit(request);
                return;
        }
        request->state = REQUEST_RUNNING;
        dispatch_keep(request);
}

/* Runs begin and what follows; also for a request that has waited. */
static void dispatch_begin(struct request *request) {
        int r = 0;

        request->queue = NULL;
        request->no_work = request->tried_again = false;
        fault_point(request_method(request), "begin");
        if (request->op->begin)
                r = request->op->begin(request);
        fault_point(request_method(request), "begun");
        if (r == VERDICT_AGAIN) {
                r = wait_begin(request, dispatch_on_timeout);
                if (r == 0)
                        return;
        }
        wait_pause(request);
        request->state = REQUEST_RUNNING;
        if (r != 0) {
                dispatch_fail(request, r);
                return;
        }
        request->job.result = 0;
        if (request->op->lane == OP_LEDGER || request->no_work) {
                dispatch_keep(request);
                return;
        }
        dispatch_submit(request);
}

/* ---- messages --------------------------------------------------------------------------------------------- */

/* Refuses a message that is no call; the sender can't be trusted to frame the next one either. */
static void dispatch_malformed(struct request *request, const char *why) {
        fail_parameter(&request->failure, "message");
        dispatch_refuse(request->house, &request->failure, request->sink, request->session);
        dispatch_drop(request, why);
}

void dispatch_refuse(struct house *house, const struct failure *failure, const struct sink *sink, void *session) {
        scratch_begin(house);
        codec_put_error(&house->scratch, failure);
        if (house->scratch.failed || !sink->send(session, &house->scratch, NULL))
                sink->drop(session, "a reply could not be queued");
}

/* Decides how the call may be made. 0, a verdict, or −EPROTO: close. */
static int dispatch_check(struct request *request) {
        const struct op *op = request->op;

        if (request->oneway && !op->oneway)
                return -EPROTO;
        if (op->answer == OP_STREAM && !request->more)
                return fail_plain(&request->failure, VERDICT_EXPECTED_MORE);
        if (op->permission == OP_OWNERS && request_peer(request)->overflow)
                return fail_reason(&request->failure, VERDICT_ACCESS_DENIED, "",
                                   "the kernel maps this user to the overflow uid, which owns and opens nothing; map the user in "
                                   "the user namespace the daemon runs in");
        if (request->house->stopping)
                return fail_reason(&request->failure, VERDICT_TOO_MANY_REQUESTS, "", "%s", stopping);
        if (request->house->held && !op->always)
                return fail_reason(&request->failure, VERDICT_TOO_MANY_REQUESTS, "", "%s", request->house->held);
        return 0;
}

static struct request *request_new(struct house *house, struct client *client, struct holder *holder,
                                   const struct sink *sink, void *session) {
        struct request *request = calloc(1, sizeof(*request));

        if (!request)
                return NULL;
        request->house = house;
        request->client = client;
        request->holder = holder_ref(holder);
        request->sink = sink;
        request->session = session;
        request->lend_fd = request->fresh_fd = -1;
        request->started_usec = clock_monotonic_usec();
        list_init(&request->by_house);
        waiter_init(&request->waiter);
        return request;
}

/* Fills a request from a parsed call. 0, a verdict, -errno. */
static int dispatch_decode(struct request *request, const struct codec_call *call) {
        bool interface_known = false;
        enum method method = schema_method(call->method, &interface_known);
        int r;

        request->more = call->more;
        request->oneway = call->oneway;
        if (method == N_METHODS) {
                char interface[128] = "";
                const char *dot = strrchr(call->method, '.');

                if (interface_known)
                        return fail_subject(&request->failure, VERDICT_METHOD_NOT_FOUND, call->method);
                if (dot && (size_t)(dot - call->method) < sizeof(interface))
                        memcpy(interface, call->method, (size_t)(dot - call->method));
                return fail_subject(&request->failure, VERDICT_INTERFACE_NOT_FOUND, interface);
        }
        request->op = &ops[method];
        r = dispatch_check(request);
        if (r != 0)
                return r;
        return codec_call_params(request->doc, method_schemas[method].params, &request->params, &request->failure);
}

/* Parses and decodes. 0, a verdict, -errno; −EPROTO: close; −EBADMSG: it is no call, `ret_why` says why. */
static int dispatch_read(struct request *request, const char *text, size_t n, const char **ret_why) {
        struct codec_call call;
        int r;

        r = codec_parse(text, n, &request->doc, ret_why);
        if (r == 0)
                r = codec_call(request->doc, &call, ret_why);
        return r == 0 ? dispatch_decode(request, &call) : r;
}

void dispatch_call(struct house *house, struct client *client, struct holder *holder, const struct sink *sink, void *session,
                   const char *text, size_t n, struct request **where) {
        struct request *request = request_new(house, client, holder, sink, session);
        const char *why = NULL;
        int r;

        if (!request) {
                sink->drop(session, "out of memory");
                sink->done(session);
                return;
        }
        *where = request;
        registry_confirm_token(&house->registry, client);
        r = dispatch_read(request, text, n, &why);
        if (r == -EPROTO)
                dispatch_drop(request, "a call that needs its reply was made oneway");
        else if (r == -EBADMSG)
                dispatch_malformed(request, why);
        else if (r != 0)
                dispatch_fail(request, r);
        else
                dispatch_begin(request);
}

/* ---- what happens meanwhile ------------------------------------------------------------------------------- */

void dispatch_abandon(struct request *request) {
        wait_forget(request);
        request->session = NULL;
        request->client = NULL;
        if (request->state == REQUEST_STORING || (request->state == REQUEST_WORKING && !lane_withdraw(&request->job)))
                return;
        dispatch_abandon_now(request);
}

void dispatch_continue(struct request *request) {
        if (request->state == REQUEST_STREAMING)
                dispatch_finish(request);
}

void dispatch_news(struct house *house) {
        while (!list_empty(&house->watching)) {
                struct list *link = list_first(&house->watching);

                list_remove(link);
                list_append(&house->woken, link);
        }
}

/* Who has nothing to say goes back to those who watch. */
bool dispatch_wake(struct house *house) {
        for (int i = 0; i < WAKE_TURN && !list_empty(&house->woken); i++)
                dispatch_finish(container_of(list_first(&house->woken), struct request, by_house));
        return !list_empty(&house->woken);
}

void dispatch_holder_exited(struct house *house, const struct holder *holder) {
        struct request *request;

        list_for_each(request, &house->waiting, by_house)
                if (request->holder == holder)
                        dispatch_deny(request, VERDICT_ACCESS_DENIED, "the process that asked has exited meanwhile");
}

/* When a waiting request may succeed although nothing came free. */
static uint64_t dispatch_next_try(const struct request *request, uint64_t now) {
        uint64_t next = request->waiter.queue ? waitq_next_change(request->waiter.queue, now) : UINT64_MAX;

        if (request->not_before_usec > now && request->not_before_usec < next)
                next = request->not_before_usec;
        return next;
}

uint64_t dispatch_pump(struct house *house) {
        uint64_t next = UINT64_MAX, now = clock_monotonic_usec();
        struct request *request;

        list_for_each(request, &house->waiting, by_house)
                if (request->not_before_usec <= now)
                        dispatch_begin(request);
        list_for_each(request, &house->waiting, by_house) {
                uint64_t next_try = dispatch_next_try(request, now);

                next = next_try < next ? next_try : next;
        }
        return next;
}

void dispatch_stop(struct house *house) {
        struct request *request;

        list_for_each(request, &house->waiting, by_house)
                dispatch_deny(request, VERDICT_TOO_MANY_REQUESTS, stopping);
        dispatch_news(house);
        list_for_each(request, &house->woken, by_house)
                dispatch_deny(request, VERDICT_TOO_MANY_REQUESTS, stopping);
}
