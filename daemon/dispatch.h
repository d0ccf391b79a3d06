/* SPDX-License-Identifier: Apache-2.0 */
/* From message to reply: decodes a call, runs its operation's beats, encodes what comes of it, and keeps those who wait. The only
 * place where verdicts become bytes. Loop thread; it drives the lanes but never enters the pool. */
#ifndef DAEMON_DISPATCH_H
#define DAEMON_DISPATCH_H

#include "request.h"

/* Takes one message (n bytes, NUL-ended, valid during the call only) from a client. The holder is the process that sent it.
 * *where is the request from now until sink->done, which may come before the function returns. */
void dispatch_call(struct house *house, struct client *client, struct holder *holder, const struct sink *sink, void *session,
                   const char *text, size_t n, struct request **where);

/* Answers a message with one error and nothing else, whatever it asks: for peers that were not let in. */
void dispatch_refuse(struct house *house, const struct failure *failure, const struct sink *sink, void *session);

/* The session is gone: nothing is sent any more and sink is not called again. */
void dispatch_abandon(struct request *request);

/* Output has drained: a request in state REQUEST_STREAMING says more. */
void dispatch_continue(struct request *request);

/* The process that sent a request has exited: a waiting request is forgotten, a running one sees it in finish. */
void dispatch_holder_exited(struct house *house, const struct holder *holder);

/* Something came free: tries those who wait, longest first. Returns when to call again without anything coming free, monotonic
 * microseconds; UINT64_MAX: never. */
uint64_t dispatch_pump(struct house *house);

/* There are new events: those who watch are to look. */
void dispatch_news(struct house *house);

/* Lets some of them look; true when others have yet to. */
bool dispatch_wake(struct house *house);

/* The daemon stops: waiting requests are refused in words, streams end. */
void dispatch_stop(struct house *house);

#endif
