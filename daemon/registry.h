/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger: clients, buffers, leases, names, and what is charged to whom. Everything the broker remembers.
 *
 * Loop thread only. Pure: no libuv, sockets, JSON or logging; time is handed in; nothing here blocks. All that can fail is
 * in *_reserve(); *_commit() cannot. What the world must do in consequence is left in three places that the broker looks at
 * after each step: `retiring` (memory to be closed), `room` (those who wait may be tried), `events.next` (news).
 *
 *   buffer:  reserved → live ⇄ kept → draining → gone      lease:  reserved → active → (draining →) gone
 *
 * A buffer is live while it has an active lease or a pin, kept while its keep runs, then draining: its memory is handed out
 * for closing at once, and its bytes stay in the books until the closing is done and its last draining lease has ended. */
#ifndef DAEMON_REGISTRY_H
#define DAEMON_REGISTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "channel.h"
#include "events.h"
#include "keeps.h"
#include "limits.h"
#include "list.h"
#include "map.h"
#include "policy.h"
#include "quota.h"
#include "state.h"
#include "stored.h"

struct backing; /* a buffer's memory; the backend's */

/* A process that asks: leases are held by processes. Owned by whoever watches the process; leases hold references. */
struct holder {
        pid_t pid; /* 0 outside our pid namespace */
        uid_t uid;
        gid_t gid;
        struct rcstr *command, *container;
        bool unplaced; /* see struct principal */
        int pidfd;         /* borrowed from whoever watches it; -1: none */
        uint64_t pidfd_device, pidfd_inode;
        uint64_t identity; /* equal for one process seen over two connections; 0: not known */
        bool ending; /* it runs no more, and its exit is under way */
        bool exited;
        unsigned refs;
        struct list leases;                      /* lease.by_holder */
        struct list members;                     /* member.by_holder: in channels, also after their leases */
        void (*destroy)(struct holder *holder);  /* called when the last reference goes */
};

struct holder *holder_ref(struct holder *holder);
void holder_unref(struct holder *holder);

/* What a session is resumed by: 128 random bits. */
struct token {
        unsigned char bytes[16];
};
#define TOKEN_TEXT_SIZE 33

/* A session, as the ledger knows it. */
struct client {
        struct list by_registry;
        uint64_t serial;
        struct rcstr *id;          /* "s12" */
        struct peer peer;          /* gids borrowed from the session; principal.container a reference */
        struct account *account;
        struct list leases;        /* lease.by_client, oldest first: reserved and active ones */
        int64_t n_leases;
        int64_t bytes;             /* of buffers whose first lease it holds, reserved ones included */
        int64_t n_waits;
        void *session;             /* the session behind it; not the ledger's business */
        bool detached;             /* left by an earlier daemon: in registry.detached, waiting for its Resume */
        uint32_t slot;             /* of its record, SLOT_NONE: none */
        struct token tokens[2];
        unsigned tokens_valid;     /* STATE_TOKEN_FIRST, STATE_TOKEN_SECOND: which may be used */
        unsigned token;            /* index of the one told last */
};

enum buffer_phase { PHASE_RESERVED, PHASE_LIVE, PHASE_KEPT, PHASE_DRAINING };

struct buffer {
        struct list by_registry;   /* age */
        struct list by_retiring;   /* in registry.retiring while its memory waits to be closed */
        uint64_t serial;
        struct rcstr *id;          /* "b7" */
        struct rcstr *name;        /* NULL: none (any more) */
        struct rcstr *meta;
        enum buffer_phase phase;
        int64_t size, allocated;
        const char *handle;        /* static: "memfd" */
        struct principal owner;
        struct account *owner_account; /* a reference */
        struct account *name_account; /* whose names count it, a reference; NULL without a name */
        mode_t mode;
        char mode_text[8];
        bool sealed, ro_enforced;
        bool freed;                /* Free was called: no more opens, no keep */
        int64_t created_usec;      /* realtime */
        int64_t keep_ms;           /* 0: none */
        uint64_t keep_until_usec;  /* monotonic; 0 until the keep has begun */
        size_t keep_place;         /* in registry.keeps while the keep runs, else 0 */
        struct list leases;        /* lease.by_buffer, oldest first, draining ones included */
        int64_t n_active;          /* active leases */
        int64_t n_draining;
        int64_t n_owners;          /* active and draining leases of the owner's uid */
        int64_t n_pins;            /* requests and replies under way that need the memory */
        struct lease *first;       /* the lease its Allocate made, while it lasts: the session's bytes hang on it */
        struct charge charge;
        int64_t n_descriptors;     /* counted in registry.n_descriptors until its memory is closed */
        struct backing *backing;   /* NULL while reserved and after it was handed out */
        struct channel *channel;   /* owned; NULL: it is no channel */
        bool closing;              /* handed out, registry_retired() not yet called */
        bool stored;               /* its descriptors go into the store; counted in registry.n_stored until it is taken out */
        uint32_t slot, parcel;     /* of its record, SLOT_NONE; its descriptor's number in the store */
};

enum lease_phase { LEASE_PHASE_RESERVED, LEASE_PHASE_ACTIVE, LEASE_PHASE_DRAINING };

struct lease {
        struct list by_registry;   /* age */
        struct list by_buffer, by_client, by_holder;
        uint64_t serial;
        struct rcstr *id;          /* "l31" */
        struct buffer *buffer;
        struct client *client;     /* NULL once it drains or the session is over */
        struct rcstr *session;     /* the session's id, which outlives it */
        struct account *account;   /* of the session's uid, a reference: who pays when the owner has left */
        struct holder *holder;     /* a reference */
        enum access access;
        enum lease_phase phase;
        struct rcstr *label;
        int64_t since_usec;        /* realtime */
        bool detached;             /* left by an earlier daemon, not taken up again yet */
        struct stored *stored;     /* a reference: its process in the store; NULL when a restart ends the lease */
        uint32_t slot;             /* of its record, SLOT_NONE */
        struct member *member;     /* of a channel: its number there */
        uint32_t generation;       /* its own of that number; once it drains, somebody else may have the number, with another */
};

struct registry {
        struct limits limits;
        struct policy policy;
        struct accounts accounts;
        struct events events;
        struct list clients, buffers, leases, devices; /* oldest first */
        struct list retiring;                          /* buffers whose memory is to be closed */
        struct list cursors;
        struct list detached;                          /* clients left by an earlier daemon */
        struct list leaving;                           /* stored.by_leaving: to be taken out of the store */
        struct state *state;                           /* borrowed; NULL: a restart keeps nothing */
        struct map stored, tokens;                     /* by key; by token, both of each client */
        int64_t n_stored;                              /* descriptors in the store, or on their way there */
        struct keeps keeps;                            /* buffers whose keep runs */
        struct map buffers_by_id, buffers_by_name, leases_by_id, clients_by_id;
        int64_t n_clients, n_buffers, n_leases;        /* n_buffers counts reserved ones; n_leases does not */
        int64_t n_shown_buffers;                       /* not reserved */
        int64_t n_descriptors;                         /* in use by sessions, processes and buffers */
        int64_t n_spares;                              /* devices with memory made ahead, which has a descriptor each */
        uint64_t last_client, last_buffer, last_lease; /* serials given */
        bool room;                                     /* bytes, a slot or a name came free, or a name appeared */
};

/* The limits are copied (descriptors 0 becomes the hard RLIMIT_NOFILE), the policy is taken. -ENOMEM, nothing taken. */
int registry_init(struct registry *registry, const struct limits *limits, struct policy *policy_take);

/* Every client must have ended; buffers left are dropped. registry_expire() at UINT64_MAX ends all keeps beforehand. */
void registry_deinit(struct registry *registry);

/* New limits and policy (reload); what exists stays, even over its limit. -ENOMEM, nothing changed. */
int registry_reload(struct registry *registry, const struct limits *limits, struct policy *policy_take);

/* ---- devices ---- */

/* Borrowed for the registry's life; nobody may wait for it yet. */
void registry_add_device(struct registry *registry, struct device *device);
struct device *registry_find_device(const struct registry *registry, const char *uuid);
struct device *registry_default_device(const struct registry *registry); /* the only GPU, else host */
void registry_set_degraded(struct registry *registry, struct device *device, bool degraded, int64_t now_usec);

/* Memory made ahead is in no sum but the device's spare_bytes and counts against no limit: it gives way. One at a time per device. */
void registry_spare_begin(struct registry *registry, struct device *device, int64_t bytes);
void registry_spare_end(struct registry *registry, struct device *device);

/* Descriptors that buffers may still take, less those of memory made ahead. May be negative. */
int64_t registry_spare_descriptors(const struct registry *registry);

/* ---- clients ---- */

/* 0; VERDICT_ACCESS_DENIED, VERDICT_QUOTA_EXCEEDED (clients, clients_per_uid, descriptors); -ENOMEM. `peer` is copied, its
 * container gets a reference. n_descriptors: what the session itself uses. Administrators are counted, but not turned away for
 * the number of clients: who floods the daemon does not lock them out. */
int registry_client_new(struct registry *registry, const struct peer *peer, int64_t n_descriptors,
                        struct client **ret, struct failure *failure);

/* The session is over: its leases end, or drain where the holder lives, and the client is freed. What is still reserved stays
 * so, without a client, until it is cancelled; it must not be committed. */
void registry_client_end(struct registry *registry, struct client *client, int64_t n_descriptors, int64_t now_usec,
                         uint64_t monotonic_usec);
struct client *registry_find_client(const struct registry *registry, const char *id);

/* A process ended: its leases end, in every session. The flag is set here. */
void registry_holder_exited(struct registry *registry, struct holder *holder, int64_t now_usec, uint64_t monotonic_usec);

/* ---- buffers and leases ---- */
struct buffer_spec {
        int64_t size, allocated;
        struct device *device;
        const char *handle;   /* static */
        const char *name, *meta, *label; /* may be NULL; copied */
        mode_t mode;
        bool ro_enforced;
        int64_t keep_ms;
        int64_t n_descriptors; /* the buffer will use */
        bool stored;           /* a restart is to keep it */
        const struct channel_spec *channel; /* NULL: it is none */
        enum access access;    /* of the first lease */
};

/* Checks every limit and the name, charges, and makes a reserved buffer with its first lease. 0; NAME_TAKEN,
 * ACCESS_DENIED (reserved name), QUOTA_EXCEEDED, OUT_OF_MEMORY; -ENOMEM. Written on a verdict: *ret_never, whether waiting cannot
 * help, and *ret_queue, the queue to wait in, else NULL. Does not look at who waits: see waitq_may_try(). */
int registry_allocate_reserve(struct registry *registry, struct client *client, struct holder *holder,
                              const struct buffer_spec *spec, struct buffer **ret_buffer, struct lease **ret_lease,
                              bool *ret_never, struct waitq **ret_queue, struct failure *failure);

/* The memory is there: live, both events told. Takes backing. A channel's page must be set. The holder must not have
 * exited, nor the session be over. */
void registry_allocate_commit(struct registry *registry, struct buffer *buffer, struct backing *backing_take,
                              int64_t now_usec);

/* Undoes a reservation. With `backing_take` (the memory came into being but nobody wants it) the buffer goes to `retiring`
 * and its bytes stay reserved until it is closed; without, it is gone at once. The lease is gone either way. */
void registry_allocate_cancel(struct registry *registry, struct buffer *buffer, struct backing *backing_take);

/* By id or name (exactly one), of `owner` (SCHEMA_UNSET: anyone), as far as `peer` may open it. NULL: no such buffer, or with
 * *ret_sealed (always written) it is there but sealed against rw. */
struct buffer *registry_find_openable(struct registry *registry, const struct peer *peer, const char *id,
                                      const char *name, int64_t owner, enum access access, bool *ret_sealed);

/* Any buffer by id or name that is live or kept; no question of rights. NULL: none. */
struct buffer *registry_find_buffer(const struct registry *registry, const char *id, const char *name);

/* A reserved lease, which pins the buffer. 0; QUOTA_EXCEEDED (leases_per_session, against which a process's draining leases count
 * too, lest it make them without end; leases_per_uid); -ENOMEM. */
int registry_open_reserve(struct registry *registry, struct client *client, struct holder *holder,
                          struct buffer *buffer, enum access access, const char *label, struct lease **ret_lease,
                          struct failure *failure);

/* The holder must not have exited, nor the session be over. */
void registry_open_commit(struct registry *registry, struct lease *lease, int64_t now_usec);
void registry_open_cancel(struct registry *registry, struct lease *lease, int64_t now_usec, uint64_t monotonic_usec);

/* A request or reply needs the memory for a while longer. */
void buffer_pin(struct buffer *buffer);
void registry_unpin(struct registry *registry, struct buffer *buffer, int64_t now_usec, uint64_t monotonic_usec);

/* The client's own active lease of that id; NULL. */
struct lease *registry_find_lease(const struct registry *registry, const struct client *client, const char *id);

/* Release: ends the lease, or with TrustRelease=no turns it draining while its holder lives. */
void registry_release(struct registry *registry, struct lease *lease, int64_t now_usec, uint64_t monotonic_usec);

void registry_seal(struct registry *registry, struct buffer *buffer, int64_t now_usec);
void registry_free(struct registry *registry, struct buffer *buffer, int64_t now_usec, uint64_t monotonic_usec);

/* Ends keeps that are over; the monotonic time of the next one to end, UINT64_MAX when none runs. */
uint64_t registry_expire(struct registry *registry, int64_t now_usec, uint64_t monotonic_usec);

/* Takes the next buffer off `retiring`, and its memory out of it; NULL when there is none. */
struct buffer *registry_take_retiring(struct registry *registry, struct backing **ret_backing);

/* Its memory is closed: the buffer goes when no draining lease is left. */
void registry_retired(struct registry *registry, struct buffer *buffer, int64_t now_usec);

/* A request was refused; for those who watch. buffer may be NULL. */
void registry_refused(struct registry *registry, const struct buffer *buffer, int64_t now_usec);

/* ---- restart ---- */

/* What tells a descriptor from others. */
struct fd_identity {
        uint64_t device, inode;
};

/* Writes down what must outlive a restart once the lease, and the buffer if it is new, are committed; needs a state. Nothing of it
 * counts before the commit. -ENOMEM, -errno: the reservation is to be cancelled. The identities are those of the buffer's descriptors,
 * by enum state_piece. */
int registry_record(struct registry *registry, struct lease *lease, const struct fd_identity ids[N_PIECES], int64_t now_usec);

/* Writes the session down, with a first token, if it is not yet and there is a state. -ENOMEM, -errno. */
int registry_record_session(struct registry *registry, struct client *client);
void client_token_text(const struct client *client, char ret[TOKEN_TEXT_SIZE]);

/* The client has made a call since its last Resume: it knows its token, the one before is of no further use. */
void registry_confirm_token(struct registry *registry, struct client *client);

/* Nothing is written down any more: what the state says now is what the next daemon finds. */
void registry_freeze(struct registry *registry);

/* The session of that token, for `client`, which has no lease, to take up: one that is detached, or `client` itself while it has
 * detached leases. 0; VERDICT_NO_SUCH_SESSION, VERDICT_ACCESS_DENIED. */
int registry_find_resumable(struct registry *registry, const struct client *client, const char *token, struct client **ret,
                            struct failure *failure);

/* `client` becomes the detached session `left` (which is freed, unless it is the same): its id, its leases, and a new token. Detached
 * leases that `holds(arg, id)` knows are active again; with `last` the others are released. -errno, nothing changed. */
int registry_resume(struct registry *registry, struct client *client, struct client *left, const char *token,
                    bool (*holds)(void *arg, const char *lease), void *arg, bool last, int64_t now_usec, uint64_t monotonic_usec);

/* The grace time is over: detached sessions end, and detached leases of others. */
void registry_end_detached(struct registry *registry, int64_t now_usec, uint64_t monotonic_usec);

/* A call begins or ends waiting: 0 or VERDICT_QUOTA_EXCEEDED (waits_per_session, waits_per_uid). */
int registry_wait_begin(struct registry *registry, struct client *client, struct failure *failure);
void registry_wait_end(struct registry *registry, struct client *client);

/* n may be negative. 0 or VERDICT_QUOTA_EXCEEDED (descriptors); giving back never fails. */
int registry_use_descriptors(struct registry *registry, int64_t n, struct failure *failure);

/* ---- looking ---- */
void buffer_describe(const struct buffer *buffer, struct buffer_info *ret);
void lease_describe(const struct lease *lease, struct lease_info *ret);

/* Whether `peer` may see a lease: its own, or one on a buffer it may see. */
bool lease_visible(const struct policy *policy, const struct peer *peer, const struct lease *lease);

/* A place in the list of leases or of buffers (not reserved ones), kept valid while entries come and go. */
struct cursor {
        struct list by_registry;
        struct list *next; /* link of the entry that comes next, or the list's head */
        struct list *list; /* NULL: not in use */
        bool of_leases;
};
void cursor_init_leases(struct cursor *cursor, struct registry *registry);
void cursor_init_buffers(struct cursor *cursor, struct registry *registry);
void cursor_deinit(struct cursor *cursor); /* harmless twice, and on one that is all zero */

/* The next entry, or NULL at the end; cursor_step() passes it. */
struct lease *cursor_lease(const struct cursor *cursor);
struct buffer *cursor_buffer(const struct cursor *cursor);
void cursor_step(struct cursor *cursor);

/* Compares every sum in the books with the lists; false when they differ. For tests and the fault build. */
bool registry_check(const struct registry *registry);

#endif
