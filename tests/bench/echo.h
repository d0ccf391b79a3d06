/* SPDX-License-Identifier: Apache-2.0 */
/* Servers to measure the daemon against, each a process of its own with a plain blocking loop over one connection. Both
 * answer requests of known kinds with replies of known text. */
#ifndef BENCH_ECHO_H
#define BENCH_ECHO_H

#include <stddef.h>
#include <sys/types.h>

struct exchange {
        const char *request, *reply; /* NUL-ended messages as they went over the wire to and from the daemon */
};

enum echo_kind {
        ECHO_RAW,  /* reads as many bytes as the request has and writes as many as the reply has */
        ECHO_JSON, /* reads up to the NUL, parses the request with cJSON, prints the reply from a cJSON tree */
};

struct echo {
        pid_t pid;
        int fd; /* the client's end */
};

/* Answers the exchanges in turn, over and over. */
struct echo echo_start(enum echo_kind kind, const struct exchange *exchanges, size_t n);
void echo_stop(struct echo *echo);

/* Sends a message and reads the answer up to its NUL, into `reply` of `size` bytes; descriptors are closed. */
void exchange_once(int fd, const char *request, char *reply, size_t size);

#endif
