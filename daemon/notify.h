/* SPDX-License-Identifier: Apache-2.0 */
/* The service manager: readiness, status, watchdog. Only readiness may block; the rest is sent without blocking and may be
 * lost. Does nothing without $NOTIFY_SOCKET. */
#ifndef DAEMON_NOTIFY_H
#define DAEMON_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

void notify_ready(const char *status);

/* The same after a reload, without waiting. False when the manager cannot take it now: tell it again later. */
bool notify_reloaded(const char *status);

void notify_reloading(void);
void notify_stopping(void);
void notify_status(const char *status);
void notify_watchdog(void);

/* How often to feed the watchdog, half of what the manager asks for; 0: not at all. */
uint64_t notify_watchdog_interval_ms(void);

#endif
