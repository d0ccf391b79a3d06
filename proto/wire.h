/* SPDX-License-Identifier: Apache-2.0 */
/* One non-blocking stream socket as a sequence of NUL-ended messages with descriptors, both ways.
 *
 * No event loop: the owner polls the descriptor and calls wire_fill() or wire_flush(). Both ends use it. It
 * decodes nothing and logs nothing. */
#ifndef PROTO_WIRE_H
#define PROTO_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "bytes.h"
#include "fdset.h"

#define WIRE_MESSAGE_MAX ((size_t)65536) /* bytes of one message to the daemon, without its NUL */

/* Not in the headers of older systems. */
#ifndef SO_PASSPIDFD
#define SO_PASSPIDFD 76
#endif
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif
#ifndef SCM_PIDFD
#define SCM_PIDFD 0x04
#endif

/* Who wrote the bytes of the message at hand, as the kernel told (SCM_CREDENTIALS, SCM_PIDFD). */
struct wire_sender {
        bool known;   /* false where the kernel gives no credentials */
        pid_t pid;    /* 0 for a process outside our pid namespace */
        uid_t uid;    /* real uid */
        gid_t gid;    /* real gid */
        int pidfd;    /* owned by the wire; -1 where there is none */
        bool dead;    /* the kernel could make no pidfd: the sender was already reaped */
};

struct wire_out; /* a message waiting to be written */

struct wire {
        int fd;                    /* owned */
        struct bytes in;           /* received, not yet consumed */
        size_t scanned;            /* bytes of `in` known to hold no NUL */
        size_t in_used;            /* bytes of `in` that wire_next() handed out */
        size_t max_message;        /* longest message accepted, without its NUL; 0 = unlimited */
        struct fdset fds;          /* received descriptors, in order */
        struct wire_sender sender; /* of the bytes in `in` that were handed out last or are incomplete */
        bool mixed;                /* the pieces of one message came from two processes */
        bool truncated;            /* the kernel dropped descriptors; those that came are in `fds` */
        bool forgotten;            /* some came that there was no memory for, and were closed */
        struct wire_out *out_first, *out_last;
        size_t out_pending;        /* bytes queued and not yet written */
        size_t unread_max;         /* descriptors go out only while the peer has at most so many bytes unread, since
                                    * those under way count against a limit of the whole user; 0 = always */
};

/* Takes fd, which must be non-blocking; -1 is allowed (a wire for tests, fed by hand). */
void wire_init(struct wire *wire, int fd_take, size_t max_message);

/* Drops what is queued (calling each message's release), closes received descriptors and fd. */
void wire_deinit(struct wire *wire);

/* Ends the conversation, which the peer sees at once; fd stays open. Whether wire_deinit() closes none of the peer's
 * descriptors then, neither received nor unread ones. */
bool wire_shut(struct wire *wire);

/* Whether the peer is gone, or the socket broken. */
bool wire_hung_up(const struct wire *wire);

/* One recvmsg(). Returns the bytes read (> 0), 0 at end of stream, -EAGAIN when nothing is there, another
 * -errno when the stream broke. Descriptors are received CLOEXEC, with room for FDSET_MAX, and added to `fds`. Not
 * to be called while a complete message is waiting (wire_next() first): it keeps at most one message's bytes
 * plus one read ahead. */
ssize_t wire_fill(struct wire *wire);

/* The next complete message, NUL-ended text of n bytes inside the wire's own buffer, valid until the next
 * wire_fill() or wire_next(); the caller may write into it. Returns 1, 0 when none is complete, -EMSGSIZE when
 * one is longer than max_message, -EPERM when its pieces came from two processes. After an error the stream is
 * of no further use. */
int wire_next(struct wire *wire, char **ret_text, size_t *ret_n);

/* The message of n bytes that was handed out last is to be handed out again. Before any further wire_fill(). */
void wire_put_back(struct wire *wire, size_t n);

/* What wire_next() found. */
const char *wire_fault(int r);

/* Whether a complete message is already received. */
bool wire_ready(const struct wire *wire);

/* Queues a message of n bytes (NUL is appended) with borrowed descriptors. `release` (may be NULL) is called
 * once with `arg` when the descriptors are no longer needed: sent, or dropped. The data is copied. -ENOMEM,
 * or -EINVAL for more than FDSET_MAX descriptors: nothing queued, release not called. */
int wire_put(struct wire *wire, const char *text, size_t n, const int *fds, size_t n_fds,
             void (*release)(void *arg), void *arg);

/* Writes what it can. 0 when all is out, -EAGAIN when the socket is full, -EBUSY when the next message carries descriptors
 * and the peer has to read first (no poll tells when it has), another -errno when it broke. */
int wire_flush(struct wire *wire);

/* Drops what is queued, calling each message's release. */
void wire_drop_output(struct wire *wire);

/* Bytes queued and not yet written. */
static inline size_t wire_pending(const struct wire *wire) {
        return wire->out_pending;
}

#endif
