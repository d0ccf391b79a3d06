/* SPDX-License-Identifier: Apache-2.0 */
/* A client that sends what it is told, however wrong: bytes, descriptors, halves of messages. Fails the test on
 * what it did not expect; nothing of the code under test is in it. */
#ifndef SUPPORT_RAW_H
#define SUPPORT_RAW_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define RAW_FDS_MAX 253

struct raw {
        int fd;
        char *in;       /* received and not yet read */
        size_t n_in, capacity;
        int fds[RAW_FDS_MAX]; /* received and not yet taken, in order */
        size_t n_fds;
};

struct raw raw_connect(const char *socket_path);
void raw_close(struct raw *raw);

/* Sends all bytes; returns 0 or the errno of the failure. raw_send_text() adds the NUL that ends a message. */
int raw_send(struct raw *raw, const void *data, size_t n);
int raw_send_text(struct raw *raw, const char *text);
int raw_send_fds(struct raw *raw, const void *data, size_t n, const int *fds, size_t n_fds);

/* The next message, heap; NULL when the peer closed. Fails the test when nothing comes in time. */
char *raw_read(struct raw *raw);

/* Takes the oldest descriptor received; -1 when there is none. */
int raw_take_fd(struct raw *raw);

/* Sends a call and gives its reply, heap. Parameters are JSON text, NULL for none; a method without a dot is
 * io.gpuipc.Broker's. */
char *raw_call(struct raw *raw, const char *method, const char *parameters);

/* As raw_call(), and fails the test unless the reply is no error, or is that error ("NoSuchBuffer"). */
char *raw_call_ok(struct raw *raw, const char *method, const char *parameters);
void raw_call_error(struct raw *raw, const char *method, const char *parameters, const char *error);

/* Waits for the peer to close; data that arrives before is dropped. */
void raw_expect_closed(struct raw *raw);

/* Whether nothing has arrived so far. */
bool raw_silent(struct raw *raw);

/* One integer of GetStatus over a connection of its own: "leases", "devices.0.brokered_bytes". */
long long raw_status(const char *socket_path, const char *path);

#endif
