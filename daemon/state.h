/* SPDX-License-Identifier: Apache-2.0 */
/* What must outlive the daemon, in one memfd mapped shared: numbers that only grow, and records of buffers, leases, sessions and
 * processes. It makes sense at every instant: a record is written into a free slot and then published by one store of its word; what
 * changes later is one word each. So whoever reads it after a SIGKILL anywhere finds each change whole or not at all.
 *
 *   page 0   header: what kind of file, how big records are, numbers
 *   then     extents of 64 KiB, each of records of one kind
 *   record   word | length | sum | words that change | fixed part | texts
 *
 * Sizes are in the header: a later daemon may add to the fixed parts and reads the shorter ones of an earlier. Loop thread; pure
 * memory, but for growing by an extent, which may fail and is asked for beforehand (state_reserve). */
#ifndef DAEMON_STATE_H
#define DAEMON_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STATE_VERSION 1

enum state_kind { STATE_BUFFER, STATE_LEASE, STATE_SESSION, STATE_PROCESS, N_STATE_KINDS };

/* What a record is worth. Anything else is damage. */
enum state_word {
        STATE_FREE = 0,
        STATE_PENDING = 0x50454e44,  /* nobody has been told of it: dropped after a restart */
        STATE_LIVE = 0x4c495645,
        STATE_DRAINING = 0x4452414e, /* of a lease: its session is over, its process is not */
        STATE_DYING = 0x4459494e,    /* its descriptor is being taken out of the store; leases may still drain on it */
};

enum state_number { STATE_NEXT_EVENT, STATE_LAST_SESSION, STATE_LAST_BUFFER, STATE_LAST_LEASE, N_STATE_NUMBERS };

/* Words of a record that change while it is live. */
enum {
        STATE_FLAGS = 0, /* of a buffer: two halves that deny each other, against damage */
        STATE_KEEP_UNTIL = 1,
        STATE_TOKENS = 0, /* of a session: which of the two tokens count, likewise in two halves */
        STATE_TOKEN = 1,  /* the first of four words: two tokens of two */
        N_STATE_LIVE = 6,
};

enum { STATE_SEALED = 1, STATE_FREED = 2 };            /* STATE_FLAGS */
enum { STATE_TOKEN_FIRST = 1, STATE_TOKEN_SECOND = 2 }; /* STATE_TOKENS */

#define SLOT_NONE UINT32_MAX
#define STATE_TEXTS_MAX 5

/* Fixed parts. `parcel` is the descriptor's number in the store, 0 for none; `fd_device` and `fd_inode` tell whether it is the one
 * meant, 0 when unknown. New members go to the end. */
struct state_buffer {
        uint64_t serial, first_lease;
        int64_t size, allocated, created_usec, keep_ms;
        uint32_t parcel, mode, uid, gid;
        uint32_t ro_enforced, unplaced; /* the latter as in struct principal */
        uint64_t fd_device, fd_inode;
        uint32_t mode_of_channel, policy, n_slots, meta_bytes; /* enum ring_mode; 0: it is no channel */
        uint64_t slot_bytes;
        int64_t fences_bytes, control_bytes;
        uint32_t fences, control; /* slots of the records below and 1; 0: none */
        uint32_t piece;           /* enum state_piece */
        uint32_t unused;
};

/* A channel has three descriptors: a record for each, so that each has its number in the store. Those of the pieces have the channel's
 * serial and count as long as its own record names them. */
enum state_piece { PIECE_WHOLE, PIECE_FENCES, PIECE_CONTROL, N_PIECES };
enum { BUFFER_HANDLE, BUFFER_DEVICE, BUFFER_NAME, BUFFER_META, BUFFER_CONTAINER, N_BUFFER_TEXTS };

struct state_lease {
        uint64_t serial, buffer, session; /* serials */
        uint32_t process, uid;            /* the process's slot; the session's uid, which pays */
        uint32_t access;
        uint32_t member; /* of a channel: its number there and 1; 0: it is none */
        int64_t since_usec;
        uint32_t generation, unused;
};
enum { LEASE_LABEL, N_LEASE_TEXTS };

struct state_session {
        uint64_t serial;
        uint32_t uid, gid;
        uint32_t admin, unplaced;
};
enum { SESSION_CONTAINER, N_SESSION_TEXTS };

struct state_process {
        uint32_t parcel, pid, uid, gid;
        uint64_t fd_device, fd_inode;
        uint32_t unplaced, unused;
};
enum { PROCESS_COMMAND, PROCESS_CONTAINER, N_PROCESS_TEXTS };

/* How a file is laid out. */
struct state_layout {
        uint32_t version;
        uint32_t record_bytes[N_STATE_KINDS], fixed_bytes[N_STATE_KINDS];
};
extern const struct state_layout state_layout;

struct state;

/* A new, empty one. -errno. `layout` is state_layout, but for tests. */
int state_new(const struct state_layout *layout, uint64_t generation, struct state **ret);

/* Takes the memfd, also on failure. 0; -EBADMSG when it is none of ours, of a later version or damaged at its head, with the
 * reason in ret_why; -errno. */
#define STATE_WHY_MAX 160
int state_open(int fd_take, struct state **ret, char ret_why[STATE_WHY_MAX]);

/* A new file of this daemon's layout with all that is in `old`, and a generation more. -errno. */
int state_convert(const struct state *old, struct state **ret);

/* Unmaps and closes; the memfd lives on elsewhere, or not. Harmless on NULL. */
void state_free(struct state *state);

int state_fd(const struct state *state); /* borrowed */
uint64_t state_generation(const struct state *state);
bool state_is_current(const struct state *state); /* laid out as this daemon would */
uint32_t state_n_damaged(const struct state *state); /* extents left out for their damage */

/* ---- records ---- */

/* A free slot, the caller's from now on; still free as a reader sees it. -ENOMEM, -ENOSPC. */
int state_reserve(struct state *state, enum state_kind kind, uint32_t *ret_slot);

/* Gives a slot back, whatever was in it. */
void state_give(struct state *state, enum state_kind kind, uint32_t slot);

/* Fills a reserved slot: fixed part of the kind's size, texts in the kind's order (NULL: none). Not published yet. */
void state_write(struct state *state, enum state_kind kind, uint32_t slot, const void *fixed, const char *const *texts);

void state_set_word(struct state *state, enum state_kind kind, uint32_t slot, enum state_word word);
enum state_word state_word(const struct state *state, enum state_kind kind, uint32_t slot);

void state_set_live(struct state *state, enum state_kind kind, uint32_t slot, unsigned index, uint64_t value);
uint64_t state_live(const struct state *state, enum state_kind kind, uint32_t slot, unsigned index);

/* Words in two halves. Reading: UINT32_MAX when they do not fit. */
void state_set_flags(struct state *state, enum state_kind kind, uint32_t slot, uint32_t flags);
uint32_t state_flags(const struct state *state, enum state_kind kind, uint32_t slot);

void state_set_number(struct state *state, enum state_number number, uint64_t value);
uint64_t state_number(const struct state *state, enum state_number number);

/* The number under which the descriptor of the buffer or process in a reserved slot goes into the store: no other slot has it, nor had
 * this one lately. 0: the slot's number is too high for that. */
uint32_t state_next_parcel(const struct state *state, enum state_kind kind, uint32_t slot);

/* ---- reading one that was found ---- */

/* How many slots there are of a kind. */
uint32_t state_n_slots(const struct state *state, enum state_kind kind);

/* Reads a record that is not free. The fixed part is filled up with zeros; texts are borrowed from the mapping until the slot is given
 * back. False: damaged. */
bool state_read(const struct state *state, enum state_kind kind, uint32_t slot, void *ret_fixed, const char **ret_texts);

#endif
