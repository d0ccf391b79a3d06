/* SPDX-License-Identifier: Apache-2.0 */
/* A broker that keeps its books over a crash: sessions with tokens, leases that are detached until Resume, and a plan of when
 * to crash. It runs on the scripted server; its books are the test's measure of what the library has done. */
#ifndef UNIT_RESTART_BROKER_H
#define UNIT_RESTART_BROKER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "include/gpuipc.h"
#include "tests/support/fake_server.h"

#define BROKER_SESSIONS_MAX 8192
#define BROKER_LEASES_MAX 32768
#define BROKER_BYTES 4096

enum broker_store {
        STORE_KEEPS,
        STORE_NONE,      /* no tokens */
        STORE_FORGETS,   /* tokens, but nothing is known after a crash */
        STORE_DENIES,    /* Resume is refused: AccessDenied */
        STORE_OLD,       /* tokens, but Resume is not known afterwards */
        STORE_SILENT,    /* Resume is not answered until broker_answer_resumes() */
        STORE_BUSY_ONCE, /* the first Resume is refused: TooManyRequests */
};

/* When to crash: at the next call of a method, before anything is done, or with so many bytes of its reply sent. */
struct broker_plan {
        const char *method; /* ".Seal\""; NULL: no plan */
        bool before;
        size_t n_bytes;
};

struct restart_broker {
        struct fake *fake;
        int fd; /* what every buffer is made of */

        pthread_mutex_t lock; /* what follows */
        enum broker_store store;
        struct broker_plan plan;
        const char *always; /* a method that crashes it each time */
        bool stopping;      /* as after SIGTERM: every call is refused, until the crash */
        bool down_at_crash; /* nothing is at the path from then on */
        bool no_names;      /* an Open by name is not found, or waits for broker_grant_waiting() */
        size_t page;        /* leases in one reply of a list; 0: all */
        size_t break_after_pages;
        int waiting[8];     /* peers */
        size_t n_waiting;
        bool strict_seal; /* a second Seal is AlreadySealed, a second Free NoSuchBuffer, a second Kick NoSuchSession */
        bool sealed, freed, kicked;
        const char *omit; /* a lease that does not outlive a crash */
        size_t reply_bytes; /* of the last call that was answered whole */
        unsigned n_crashes, n_resumes, n_sessions, n_leases;
        int n_dead; /* peers below this number belong to an earlier life */
        struct {
                unsigned token;  /* changes at each Resume */
                unsigned before; /* serves too until the client has shown that it knows the new one */
                int peer;       /* -1: detached */
                bool known;
                bool partly; /* resumed, with more to follow */
        } sessions[BROKER_SESSIONS_MAX];
        struct {
                unsigned session;
                bool live, listed; /* in the Resume that is not whole yet */
        } leases[BROKER_LEASES_MAX]; /* by number */
        char *held_call; /* STORE_SILENT: the Resume that waits, and whose */
        int held_peer;
};

struct restart_broker *broker_start(void);
void broker_stop(struct restart_broker *broker);

/* A client of it, and a buffer of BROKER_BYTES. The last three are those of gpuipc_connect_options. */
gpuipc_client *broker_connect(struct restart_broker *broker, int timeout_ms, int restart_ms, int no_thread);
gpuipc_buffer *broker_allocate(gpuipc_client *client);

void broker_plan(struct restart_broker *broker, struct broker_plan plan);
void broker_stopping(struct restart_broker *broker);
void broker_always(struct restart_broker *broker, const char *method);
bool broker_planned(struct restart_broker *broker); /* still to come */

/* As SIGKILL and a start would: every connection ends, sessions are detached. */
void broker_crash(struct restart_broker *broker);
/* And again, as planned. */
void broker_crash_planning(struct restart_broker *broker, struct broker_plan plan);
/* The first that waits is granted its lease; with less than the whole reply the daemon crashes then. */
void broker_grant_waiting(struct restart_broker *broker, size_t n_bytes);
void broker_answer_resumes(struct restart_broker *broker);

/* Leases in the books, and of those the ones that a connection stands for. */
size_t broker_leases(struct restart_broker *broker);
size_t broker_attached(struct restart_broker *broker);
bool broker_has(struct restart_broker *broker, const char *lease);
unsigned broker_resumes(struct restart_broker *broker);
size_t broker_reply_bytes(struct restart_broker *broker);

#endif
