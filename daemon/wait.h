/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that wait: their place in a queue, their deadline, and what they count for. Loop thread only. */
#ifndef DAEMON_WAIT_H
#define DAEMON_WAIT_H

#include "request.h"

/* Puts a request among those who wait, in request->queue (NULL: for a name), or keeps it there. Its time runs from the first
 * call; `on_timeout` is called from the loop when it is over and the request waits. 0 with state REQUEST_WAITING, or a verdict
 * (TIMED_OUT, QUOTA_EXCEEDED), or -ENOMEM. */
int wait_begin(struct request *request, void (*on_timeout)(void *request));

/* It is being tried: out of the queue, but its time runs on. */
void wait_pause(struct request *request);

/* It waits no more. Harmless when it never did. */
void wait_forget(struct request *request);

#endif
