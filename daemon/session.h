/* SPDX-License-Identifier: Apache-2.0 */
/* A session: one connection, from accept to its end. It reads messages, hands them to dispatch one at a time, writes replies, and
 * undoes all its client did when it ends. Loop thread only. */
#ifndef DAEMON_SESSION_H
#define DAEMON_SESSION_H

#include <stdbool.h>

#include "hall.h"

struct session;

/* Takes an accepted, non-blocking connection. Whoever may not in gets a session too, which answers its first message in words and
 * ends. On -errno the connection is closed. */
int session_new(struct hall *hall, int fd_take, bool admin);

/* Ends it at once: leases end or drain, replies not written are lost. The session is freed by the loop. */
void session_close(struct session *session, const char *why);

/* Ends it once what is queued is written; for struct house's kick. */
void session_kick(void *session);

/* Runs sessions that have work without a poll to announce it; true while some remain. */
bool sessions_run(struct hall *hall);

/* Ends all of them. */
void sessions_close_all(struct hall *hall, const char *why);

/* Whether every session has written its replies; if not `patient`, whether only what nobody reads is left: replies and streams. */
bool sessions_flushed(const struct hall *hall, bool patient);

#endif
