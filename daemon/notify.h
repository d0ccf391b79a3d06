/* SPDX-License-Identifier: Apache-2.0 */
/* The service manager: readiness, status, watchdog. Only readiness may block; the rest is sent without blocking and may be
 * lost. Does nothing without $NOTIFY_SOCKET. */
#ifndef DAEMON_NOTIFY_H
#define DAEMON_NOTIFY_H

#include <stdint.h>

void notify_ready(const char *status);
void notify_reloading(void);
void notify_stopping(void);
void notify_status(const char *status);
void notify_watchdog(void);

/* How often to feed the watchdog, half of what the manager asks for; 0: not at all. */
uint64_t notify_watchdog_interval_ms(void);

#endif
