/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon that says what a test tells it to: one thread, a socket in a directory of its own, and a function of the test's
 * for each call that arrives. It also notes every call and the connection it came over. Fails the test (Check) when it
 * cannot be set up. */
#ifndef SUPPORT_FAKE_SERVER_H
#define SUPPORT_FAKE_SERVER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_PEERS_MAX 8192

struct fake;

/* Runs on the server's thread for each whole message; `peer` counts connections in the order they were accepted. */
typedef void fake_answer(struct fake *fake, int peer, const char *call, void *data);

struct fake {
        char directory[64], path[96];
        fake_answer *answer;
        void *data;
        int listen_fd, stop_fd;
        pthread_t thread;

        pthread_mutex_t lock; /* what follows */
        pthread_cond_t answered;
        int fds[FAKE_PEERS_MAX];
        struct {
                char *data;
                size_t n;
        } in[FAKE_PEERS_MAX];
        int n_peers;  /* ever accepted */
        char **calls; /* "PEER {…}" */
        size_t n_calls;
        bool answering; /* the last of them */
        bool deaf;
};

struct fake *fake_start(fake_answer *answer, void *data);
void fake_stop(struct fake *fake);

/* Any thread: bytes as they are; text and a NUL; with descriptors, which stay the caller's. */
void fake_send_bytes(struct fake *fake, int peer, const void *bytes, size_t n, const int *fds, size_t n_fds);
void fake_send(struct fake *fake, int peer, const char *text);
void fake_send_fds(struct fake *fake, int peer, const char *text, const int *fds, size_t n_fds);
void fake_hang_up(struct fake *fake, int peer);

/* The next message is not read: its connection is closed with it, as by a process that dies, and the answer's call is "". */
void fake_drop_next(struct fake *fake);

/* Every connection ends. */
void fake_hang_up_all(struct fake *fake);

/* Nobody can connect, since nothing is at the path (ENOENT) or nobody listens there (ECONNREFUSED), until fake_up(). */
void fake_down(struct fake *fake, int error);
void fake_up(struct fake *fake);

/* Connections that are open now; whether this one is; all that were ever accepted. */
size_t fake_open_peers(struct fake *fake);
bool fake_is_open(struct fake *fake, int peer);
int fake_peers(struct fake *fake);

/* How many calls so far contain all of `words` (NULL-ended list after the first). A call that counts has had its answer. */
size_t fake_count(struct fake *fake, const char *word, ...) __attribute__((sentinel));

/* The peer of the last call that contains `word`, -1 when there is none. */
int fake_peer_of(struct fake *fake, const char *word);

/* A memfd of `size` bytes, sealed against shrinking and growing unless `unsealed`. */
int fake_memfd(int64_t size, bool unsealed);

/* A grant as JSON, heap. */
struct fake_grant {
        const char *id, *lease, *kind;    /* NULL: "b1", "l1", "memfd" */
        int64_t size;
        int64_t handle_size, allocated;   /* 0: size */
        int64_t offset;
        const char *fd;                   /* as JSON; NULL: 0 */
        const char *more;                 /* further members of the reply, with a leading comma; NULL: none */
};
char *fake_grant(const struct fake_grant *grant);

/* A reply to GetStatus, without a token. */
extern const char fake_status[];

/* A broker of few words, for tests that need no script: Allocate and Open give a sealed memfd (one for each name),
 * Release, Seal, Free and Kick succeed, GetStatus, List and ListBuffers answer little, Watch stays silent. */
struct fake_broker {
        pthread_mutex_t lock;
        int64_t size;
        int fd;             /* what every lease refers to; -1: a new one for each Allocate */
        unsigned n_granted, n_released;
};
fake_answer fake_broker_answer;
void fake_broker_init(struct fake_broker *broker, int64_t size);
void fake_broker_deinit(struct fake_broker *broker);

#endif
