/* SPDX-License-Identifier: Apache-2.0 */
/* One-shot timers that own themselves: cancel and forget, the handle is freed when the loop has closed it. */
#ifndef DAEMON_ALARM_H
#define DAEMON_ALARM_H

#include <stdint.h>
#include <uv.h>

struct alarm;

/* Calls `ring(arg)` once, from the loop, when ms milliseconds have passed, never before; the alarm is over then, and *where (the
 * caller's own pointer to it) is NULL before `ring` runs. -ENOMEM. */
int alarm_new(uv_loop_t *loop, uint64_t ms, void (*ring)(void *arg), void *arg, struct alarm **where);

/* Cancels; harmless on NULL. */
void alarm_cancel(struct alarm **where);

#endif
