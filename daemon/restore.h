/* SPDX-License-Identifier: Apache-2.0 */
/* The way back: from records of the state to a ledger that is empty yet. Processes first, then sessions, buffers, leases; then
 * registry_restored(). Limits are not asked: what was there is there. -EBADMSG: the record cannot be true; nothing was changed, and
 * its slot is the caller's to give back. Loop thread, part of the ledger. */
#ifndef DAEMON_RESTORE_H
#define DAEMON_RESTORE_H

#include "registry.h"

/* Numbers go on where they were; `state` is told from here on. */
void registry_restore_numbers(struct registry *registry, struct state *state);

/* A process in the store. Its references are the leases': without one it is dropped by registry_restored(). */
int registry_restore_process(struct registry *registry, uint32_t slot, const struct state_process *fixed, const struct holder *holder,
                             struct stored **ret);

int registry_restore_session(struct registry *registry, uint32_t slot, const struct state_session *fixed, const char *const *texts);

/* What a channel's record says of it; false: it is none, or that cannot be. */
bool restore_channel_spec(const struct registry *registry, const struct state_buffer *fixed, struct channel_spec *ret);

/* `backing_take` NULL: its memory is given up already and leases drain on it. With `dying` it is to be closed. `page` is that of a channel
 * which goes on. */
int registry_restore_buffer(struct registry *registry, uint32_t slot, const struct state_buffer *fixed, const char *const *texts,
                            struct device *device, const char *handle, struct backing *backing_take, struct ring_page *page, bool dying);

int registry_restore_lease(struct registry *registry, uint32_t slot, const struct state_lease *fixed, const char *const *texts,
                           struct holder *holder, struct stored *stored);

/* Whether there is a live or draining buffer of that serial. */
struct buffer *registry_restored_buffer(const struct registry *registry, uint64_t serial);

/* All is there: draws the consequences of what is missing. */
void registry_restored(struct registry *registry, int64_t now_usec, uint64_t monotonic_usec);

#endif
