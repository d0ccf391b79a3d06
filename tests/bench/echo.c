/* SPDX-License-Identifier: Apache-2.0 */
/* The echo servers, and the one client loop that talks to them and to the daemon alike. */
#include "echo.h"

#include <cJSON.h>
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MESSAGE_MAX 65536

static void send_all(int fd, const char *data, size_t n) {
        while (n > 0) {
                ssize_t sent = send(fd, data, n, MSG_NOSIGNAL);
                if (sent <= 0)
                        _exit(0);
                data += sent;
                n -= (size_t)sent;
        }
}

/* Reads until `n` bytes are there, or, with n 0, until a NUL. */
static size_t receive_request(int fd, char *into, size_t n) {
        size_t got = 0;
        do {
                ssize_t received = recv(fd, into + got, MESSAGE_MAX - got, 0);
                if (received <= 0)
                        _exit(0);
                got += (size_t)received;
        } while (n ? got < n : into[got - 1] != '\0');
        return got;
}

static _Noreturn void serve_raw(int fd, const struct exchange *exchanges, size_t n) {
        static char request[MESSAGE_MAX];
        for (size_t i = 0;; i = (i + 1) % n) {
                receive_request(fd, request, strlen(exchanges[i].request) + 1);
                send_all(fd, exchanges[i].reply, strlen(exchanges[i].reply) + 1);
        }
}

static _Noreturn void serve_json(int fd, const struct exchange *exchanges, size_t n) {
        static char request[MESSAGE_MAX];
        cJSON *replies[8];
        for (size_t i = 0; i < n; i++)
                replies[i] = cJSON_Parse(exchanges[i].reply);
        for (size_t i = 0;; i = (i + 1) % n) {
                receive_request(fd, request, 0);
                cJSON *parsed = cJSON_Parse(request);
                char *text = parsed ? cJSON_PrintUnformatted(replies[i]) : NULL;
                if (!text)
                        _exit(1);
                send_all(fd, text, strlen(text) + 1);
                free(text);
                cJSON_Delete(parsed);
        }
}

struct echo echo_start(enum echo_kind kind, const struct exchange *exchanges, size_t n) {
        int ends[2];
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
        struct echo echo = { .pid = fork(), .fd = ends[0] };
        ck_assert_int_ge(echo.pid, 0);
        if (echo.pid == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                close(ends[0]);
                if (kind == ECHO_RAW)
                        serve_raw(ends[1], exchanges, n);
                serve_json(ends[1], exchanges, n);
        }
        close(ends[1]);
        return echo;
}

void echo_stop(struct echo *echo) {
        close(echo->fd);
        kill(echo->pid, SIGKILL);
        ck_assert_int_eq(waitpid(echo->pid, NULL, 0), echo->pid);
}

static void close_fds(struct msghdr *message) {
        for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header; header = CMSG_NXTHDR(message, header)) {
                if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
                        continue;
                size_t n = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
                for (size_t i = 0; i < n; i++) {
                        int fd;
                        memcpy(&fd, CMSG_DATA(header) + i * sizeof(fd), sizeof(fd));
                        close(fd);
                }
        }
}

void exchange_once(int fd, const char *request, char *reply, size_t size) {
        size_t n = strlen(request) + 1, got = 0;
        ck_assert_int_eq(send(fd, request, n, MSG_NOSIGNAL), (ssize_t)n);
        do {
                union {
                        struct cmsghdr header;
                        char space[CMSG_SPACE(4 * sizeof(int))];
                } control;
                struct iovec part = { .iov_base = reply + got, .iov_len = size - got };
                struct msghdr message = { .msg_iov = &part,
                                          .msg_iovlen = 1,
                                          .msg_control = control.space,
                                          .msg_controllen = sizeof(control.space) };
                ssize_t received = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
                ck_assert_msg(received > 0, "the server went away: %s", received ? strerror(errno) : "closed");
                close_fds(&message);
                got += (size_t)received;
        } while (reply[got - 1] != '\0');
}
