/* SPDX-License-Identifier: Apache-2.0 */
/* The wire by hand. */
#include "raw.h"

#include <check.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "json.h"
#include "proto/cleanup.h"
#include "wait.h"

struct raw raw_connect(const char *socket_path) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        ck_assert_uint_lt(strlen(socket_path), sizeof(address.sun_path));
        strcpy(address.sun_path, socket_path);
        struct raw raw = { .fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) };
        ck_assert_int_ge(raw.fd, 0);
        ck_assert_msg(connect(raw.fd, (struct sockaddr *)&address, sizeof(address)) == 0, "connect to %s: %m",
                      socket_path);
        return raw;
}

void raw_close(struct raw *raw) {
        fd_closep(&raw->fd);
        for (size_t i = 0; i < raw->n_fds; i++)
                close(raw->fds[i]);
        free(raw->in);
        *raw = (struct raw){ .fd = -1 };
}

int raw_send(struct raw *raw, const void *data, size_t n) {
        return raw_send_fds(raw, data, n, NULL, 0);
}

int raw_send_text(struct raw *raw, const char *text) {
        return raw_send(raw, text, strlen(text) + 1);
}

int raw_send_fds(struct raw *raw, const void *data, size_t n, const int *fds, size_t n_fds) {
        union {
                struct cmsghdr header;
                char space[CMSG_SPACE(RAW_FDS_MAX * sizeof(int))];
        } control = { 0 };
        struct iovec part = { .iov_base = (void *)(uintptr_t)data, .iov_len = n };
        struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
        if (n_fds > 0) {
                message.msg_control = control.space;
                message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
                struct cmsghdr *header = CMSG_FIRSTHDR(&message);
                header->cmsg_level = SOL_SOCKET;
                header->cmsg_type = SCM_RIGHTS;
                header->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
                memcpy(CMSG_DATA(header), fds, n_fds * sizeof(int));
        }
        while (part.iov_len > 0) {
                ssize_t sent = sendmsg(raw->fd, &message, MSG_NOSIGNAL);
                if (sent < 0 && errno == EINTR)
                        continue;
                if (sent < 0)
                        return errno;
                part.iov_base = (char *)part.iov_base + sent;
                part.iov_len -= (size_t)sent;
                message.msg_control = NULL;
                message.msg_controllen = 0;
        }
        return 0;
}

static void keep_fds(struct raw *raw, struct msghdr *message) {
        ck_assert_msg(!(message->msg_flags & MSG_CTRUNC), "descriptors were cut off");
        for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header; header = CMSG_NXTHDR(message, header)) {
                if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
                        continue;
                size_t n = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
                ck_assert_uint_le(raw->n_fds + n, RAW_FDS_MAX);
                memcpy(raw->fds + raw->n_fds, CMSG_DATA(header), n * sizeof(int));
                raw->n_fds += n;
        }
}

/* One recvmsg(): bytes read, 0 when the peer closed, -errno. */
static ssize_t receive(struct raw *raw, int flags) {
        if (raw->capacity - raw->n_in < 65536) {
                raw->capacity = raw->capacity * 2 + 131072;
                raw->in = realloc(raw->in, raw->capacity);
                ck_assert_ptr_nonnull(raw->in);
        }
        union {
                struct cmsghdr header;
                char space[CMSG_SPACE(RAW_FDS_MAX * sizeof(int))];
        } control;
        struct iovec part = { .iov_base = raw->in + raw->n_in, .iov_len = raw->capacity - raw->n_in };
        struct msghdr message = { .msg_iov = &part,
                                  .msg_iovlen = 1,
                                  .msg_control = control.space,
                                  .msg_controllen = sizeof(control.space) };
        ssize_t n;
        do
                n = recvmsg(raw->fd, &message, MSG_CMSG_CLOEXEC | flags);
        while (n < 0 && errno == EINTR);
        if (n < 0)
                return -errno;
        keep_fds(raw, &message);
        raw->n_in += (size_t)n;
        return n;
}

char *raw_read(struct raw *raw) {
        int64_t deadline = deadline_in(WAIT_MS);
        for (;;) {
                char *end = raw->n_in ? memchr(raw->in, 0, raw->n_in) : NULL;
                if (end) {
                        char *text = strdup(raw->in);
                        ck_assert_ptr_nonnull(text);
                        raw->n_in -= (size_t)(end + 1 - raw->in);
                        memmove(raw->in, end + 1, raw->n_in);
                        return text;
                }
                struct pollfd poller = { .fd = raw->fd, .events = POLLIN };
                ck_assert_msg(poll(&poller, 1, deadline_left(deadline)) > 0, "no reply within %d ms", WAIT_MS);
                ssize_t n = receive(raw, 0);
                if (n == 0 || n == -ECONNRESET)
                        return NULL;
                ck_assert_msg(n > 0, "receiving: %s", strerror((int)-n));
        }
}

int raw_take_fd(struct raw *raw) {
        if (raw->n_fds == 0)
                return -1;
        int fd = raw->fds[0];
        raw->n_fds--;
        memmove(raw->fds, raw->fds + 1, raw->n_fds * sizeof(int));
        return fd;
}

char *raw_call(struct raw *raw, const char *method, const char *parameters) {
        _cleanup_free_ char *text = NULL;
        ck_assert_int_gt(asprintf(&text, "{\"method\":\"%s%s\",\"parameters\":%s}",
                                  strchr(method, '.') ? "" : "io.gpuipc.Broker.", method,
                                  parameters ? parameters : "{}"), 0);
        int failure = raw_send_text(raw, text);
        ck_assert_msg(failure == 0, "sending %s: %s", method, strerror(failure));
        char *reply = raw_read(raw);
        ck_assert_msg(reply, "the connection ended at %s %s", method, parameters ? parameters : "");
        return reply;
}

char *raw_call_ok(struct raw *raw, const char *method, const char *parameters) {
        char *reply = raw_call(raw, method, parameters);
        char *error = json_get(reply, "error");
        ck_assert_msg(!error, "%s %s: %s", method, parameters ? parameters : "", reply);
        return reply;
}

void raw_call_error(struct raw *raw, const char *method, const char *parameters, const char *error) {
        _cleanup_free_ char *reply = raw_call(raw, method, parameters), *got = json_get(reply, "error");
        const char *name = got ? strrchr(got, '.') : NULL;
        ck_assert_msg(name && strcmp(name + 1, error) == 0, "%s %s: %s expected, got %s", method,
                      parameters ? parameters : "", error, reply);
}

void raw_expect_closed(struct raw *raw) {
        int64_t deadline = deadline_in(WAIT_MS);
        ssize_t n;
        do {
                struct pollfd poller = { .fd = raw->fd, .events = POLLIN };
                ck_assert_msg(poll(&poller, 1, deadline_left(deadline)) > 0, "the peer did not close");
                raw->n_in = 0;
                n = receive(raw, MSG_DONTWAIT);
        } while (n > 0);
        ck_assert_msg(n == 0 || n == -ECONNRESET || n == -EPIPE, "receiving: %s", strerror((int)-n));
}

bool raw_silent(struct raw *raw) {
        struct pollfd poller = { .fd = raw->fd, .events = POLLIN };
        return raw->n_in == 0 && poll(&poller, 1, 0) == 0;
}

long long raw_status(const char *socket_path, const char *path) {
        struct raw raw = raw_connect(socket_path);
        _cleanup_free_ char *reply = raw_call_ok(&raw, "GetStatus", NULL), *full = NULL;
        ck_assert_int_gt(asprintf(&full, "parameters.%s", path), 0);
        long long value = json_int(reply, full);
        raw_close(&raw);
        return value;
}
