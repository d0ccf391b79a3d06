/* SPDX-License-Identifier: Apache-2.0 */
/* What the ledger's own rooms (registry, client, buffer, lease, reserve, cursor, audit) share. Nobody else includes this. */
#ifndef DAEMON_LEDGER_H
#define DAEMON_LEDGER_H

#include "registry.h"

/* Of the descriptors allowed, so many are left when buffers have taken theirs: for sessions, processes and replies. */
#define DESCRIPTORS_FOR_SESSIONS 64

/* And so many when sessions and processes have: to accept a connection and turn it away politely. */
#define DESCRIPTORS_FOR_REFUSALS 16

/* ---- registry ---- */

/* An id: a letter and a serial. NULL: out of memory. */
struct rcstr *id_new(char kind, uint64_t serial);

/* Whether n more descriptors leave `n_left` of those allowed: 0 or VERDICT_QUOTA_EXCEEDED. */
int descriptors_check(const struct registry *registry, int64_t n, int64_t n_left, struct failure *failure);

/* ---- buffer ---- */

/* Frees a buffer without leases that is in no list. Also one half made. */
void buffer_free(struct registry *registry, struct buffer *buffer);

/* Takes it out of lists, maps and sums, and frees it. Tells nobody. */
void buffer_forget(struct registry *registry, struct buffer *buffer);

/* Takes its name away, if it has one. Tells nobody. */
void buffer_drop_name(struct registry *registry, struct buffer *buffer);

/* Hands its memory out for closing. */
void buffer_retire_memory(struct registry *registry, struct buffer *buffer);

/* What it takes of all devices. */
int64_t buffer_bytes(const struct buffer *buffer);

/* How many descriptors it has in the store when it is stored. */
int64_t buffer_n_parcels(const struct buffer *buffer);

/* Who is to pay by the rules; NULL: whoever pays now. */
struct account *buffer_payer(const struct buffer *buffer);
void buffer_recharge(struct registry *registry, struct buffer *buffer);

/* Draws the consequences of a lease or pin that is over: what phase the buffer is in, who pays. The buffer may be gone
 * afterwards. */
void buffer_settle(struct registry *registry, struct buffer *buffer, int64_t now_usec, uint64_t monotonic_usec);

/* ---- lease ---- */

/* 0 or VERDICT_QUOTA_EXCEEDED (leases_per_session, leases_per_uid). */
int lease_check_room(const struct registry *registry, const struct client *client, struct failure *failure);

/* A reserved lease that is in no list yet; lease_link() puts it into all, and needs room in registry.leases_by_id. */
struct lease *lease_new(struct registry *registry, struct client *client, struct holder *holder, struct buffer *buffer,
                        enum access access, const char *label);
void lease_link(struct registry *registry, struct lease *lease);

/* Frees a lease that is in no list. Also one half made. */
void lease_free(struct registry *registry, struct lease *lease);

/* Whether its number in a channel still is its own. */
bool lease_has_number(const struct lease *lease);

/* Takes it out of lists, maps and sums, and frees it. Tells nobody, settles nothing. */
void lease_forget(struct registry *registry, struct lease *lease);

/* Reserved → active. Tells nobody. */
void lease_activate(struct registry *registry, struct lease *lease, int64_t now_usec);

/* The session's part in it is over. */
void lease_leave_client(struct lease *lease);

/* Active → draining, or → gone; tells, and settles the buffer. */
void lease_drain(struct registry *registry, struct lease *lease, int64_t now_usec, uint64_t monotonic_usec);
void lease_end(struct registry *registry, struct lease *lease, int64_t now_usec, uint64_t monotonic_usec);

/* ---- record ---- */

/* Each mirrors one change; none can fail; nothing where there is no record. */
void record_process(struct registry *registry, const struct stored *stored, const struct holder *holder);
void record_buffer_word(struct registry *registry, const struct buffer *buffer, enum state_word word);
void record_buffer_flags(struct registry *registry, const struct buffer *buffer);
void record_buffer_keep(struct registry *registry, const struct buffer *buffer);
void record_buffer_over(struct registry *registry, struct buffer *buffer);
void record_lease(struct registry *registry, const struct lease *lease);
void record_lease_draining(struct registry *registry, const struct lease *lease);
void record_lease_over(struct registry *registry, struct lease *lease);
void record_session_over(struct registry *registry, struct client *client);
void record_number(struct registry *registry, enum state_number number, uint64_t value);

/* A token beside the one that was `used` (0 or 1). -errno, nothing changed. */
int client_new_token(struct registry *registry, struct client *client, unsigned used);
void token_forget(struct registry *registry, struct client *client, unsigned index);

/* Whether the state says what the ledger says. */
bool audit_state(const struct registry *registry);

/* ---- client ---- */

/* Takes a client that has no lease out of everything and frees it. */
void client_forget(struct registry *registry, struct client *client, int64_t n_descriptors);

/* ---- cursor ---- */

/* An entry is about to leave its list. */
void cursors_pass(struct registry *registry, const struct list *link);

#endif
