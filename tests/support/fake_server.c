/* SPDX-License-Identifier: Apache-2.0 */
/* The scripted daemon. Its own thread accepts and reads; the test's threads send and look. Never judges what it hears. */
#include "fake_server.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void must(bool good, const char *what) {
        if (!good)
                ck_abort_msg("fake server: %s: %s", what, strerror(errno));
}

/* ---- the thread ------------------------------------------------------------------------------------------- */

static _Thread_local bool is_server;

static void note_call(struct fake *fake, int peer, const char *call) {
        char *line = NULL;

        must(asprintf(&line, "%d %s", peer, call) >= 0, "memory");
        (void)pthread_mutex_lock(&fake->lock);
        fake->calls = reallocarray(fake->calls, fake->n_calls + 1, sizeof(*fake->calls));
        must(fake->calls, "memory");
        fake->calls[fake->n_calls++] = line;
        fake->answering = true;
        (void)pthread_mutex_unlock(&fake->lock);
}

static void note_answered(struct fake *fake) {
        (void)pthread_mutex_lock(&fake->lock);
        fake->answering = false;
        (void)pthread_cond_broadcast(&fake->answered);
        (void)pthread_mutex_unlock(&fake->lock);
}

static void accept_one(struct fake *fake) {
        int fd = accept4(fake->listen_fd, NULL, NULL, SOCK_CLOEXEC);

        if (fd < 0)
                return;
        (void)pthread_mutex_lock(&fake->lock);
        must(fake->n_peers < FAKE_PEERS_MAX, "too many connections");
        fake->fds[fake->n_peers++] = fd;
        (void)pthread_mutex_unlock(&fake->lock);
}

static void answer_all(struct fake *fake, int peer) {
        char *end;

        while ((end = memchr(fake->in[peer].data, '\0', fake->in[peer].n))) {
                size_t n = (size_t)(end - fake->in[peer].data) + 1;
                char *call = strdup(fake->in[peer].data);

                fake->in[peer].n -= n;
                memmove(fake->in[peer].data, end + 1, fake->in[peer].n);
                note_call(fake, peer, call);
                fake->answer(fake, peer, call, fake->data);
                note_answered(fake);
                free(call);
        }
}

static void read_one(struct fake *fake, int peer) {
        char bytes[4096];
        bool deaf;
        ssize_t n;

        (void)pthread_mutex_lock(&fake->lock);
        deaf = fake->deaf;
        fake->deaf = false;
        (void)pthread_mutex_unlock(&fake->lock);
        n = deaf ? 0 : recv(fake->fds[peer], bytes, sizeof(bytes), MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
                return;
        if (deaf)
                fake->answer(fake, peer, "", fake->data);
        if (n <= 0) {
                (void)pthread_mutex_lock(&fake->lock);
                (void)close(fake->fds[peer]);
                fake->fds[peer] = -1;
                (void)pthread_mutex_unlock(&fake->lock);
                return;
        }
        fake->in[peer].data = realloc(fake->in[peer].data, fake->in[peer].n + (size_t)n);
        must(fake->in[peer].data, "memory");
        memcpy(fake->in[peer].data + fake->in[peer].n, bytes, (size_t)n);
        fake->in[peer].n += (size_t)n;
        answer_all(fake, peer);
}

static void *serve(void *arg) {
        static _Thread_local struct pollfd fds[FAKE_PEERS_MAX + 2];
        struct fake *fake = arg;

        is_server = true;
        for (;;) {
                int n;

                (void)pthread_mutex_lock(&fake->lock);
                n = fake->n_peers;
                for (int i = 0; i < n; i++)
                        fds[i] = (struct pollfd){ .fd = fake->fds[i], .events = POLLIN };
                (void)pthread_mutex_unlock(&fake->lock);
                fds[n] = (struct pollfd){ .fd = fake->listen_fd, .events = POLLIN };
                fds[n + 1] = (struct pollfd){ .fd = fake->stop_fd, .events = POLLIN };
                if (poll(fds, (nfds_t)n + 2, -1) < 0 && errno != EINTR)
                        return NULL;
                if (fds[n + 1].revents)
                        return NULL;
                if (fds[n].revents)
                        accept_one(fake);
                for (int i = 0; i < n; i++)
                        if (fds[i].fd >= 0 && fds[i].revents)
                                read_one(fake, i);
        }
}

/* ---- for the test ----------------------------------------------------------------------------------------- */

struct fake *fake_start(fake_answer *answer, void *data) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        const char *top = getenv("TMPDIR");
        struct fake *fake = calloc(1, sizeof(*fake));

        must(fake, "memory");
        fake->answer = answer;
        fake->data = data;
        for (int i = 0; i < FAKE_PEERS_MAX; i++)
                fake->fds[i] = -1;
        (void)snprintf(fake->directory, sizeof(fake->directory), "%s/fakeXXXXXX",
                       top && strlen(top) < 40 ? top : "/tmp");
        must(mkdtemp(fake->directory), "mkdtemp");
        (void)snprintf(fake->path, sizeof(fake->path), "%s/socket", fake->directory);
        (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", fake->path);
        fake->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        must(bind(fake->listen_fd, (struct sockaddr *)&address, sizeof(address)) == 0, "bind");
        must(listen(fake->listen_fd, 64) == 0, "listen");
        fake->stop_fd = eventfd(0, EFD_CLOEXEC);
        must(fake->stop_fd >= 0, "eventfd");
        (void)pthread_mutex_init(&fake->lock, NULL);
        (void)pthread_cond_init(&fake->answered, NULL);
        must(pthread_create(&fake->thread, NULL, serve, fake) == 0, "pthread_create");
        return fake;
}

void fake_stop(struct fake *fake) {
        uint64_t one = 1;

        must(write(fake->stop_fd, &one, sizeof(one)) == sizeof(one), "eventfd");
        must(pthread_join(fake->thread, NULL) == 0, "pthread_join");
        for (int i = 0; i < FAKE_PEERS_MAX; i++) {
                if (fake->fds[i] >= 0)
                        (void)close(fake->fds[i]);
                free(fake->in[i].data);
        }
        for (size_t i = 0; i < fake->n_calls; i++)
                free(fake->calls[i]);
        free(fake->calls);
        (void)close(fake->listen_fd);
        (void)close(fake->stop_fd);
        (void)unlink(fake->path);
        (void)rmdir(fake->directory);
        (void)pthread_cond_destroy(&fake->answered);
        (void)pthread_mutex_destroy(&fake->lock);
        free(fake);
}

void fake_send_bytes(struct fake *fake, int peer, const void *bytes, size_t n, const int *fds, size_t n_fds) {
        union {
                struct cmsghdr align;
                char bytes[CMSG_SPACE(16 * sizeof(int))];
        } control = { 0 };
        struct iovec vector = { .iov_base = (void *)(uintptr_t)bytes, .iov_len = n };
        struct msghdr message = { .msg_iov = &vector, .msg_iovlen = 1 };

        if (n_fds > 0) {
                struct cmsghdr *header;

                must(n_fds <= 16, "too many descriptors");
                message.msg_control = &control;
                message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
                header = CMSG_FIRSTHDR(&message);
                header->cmsg_level = SOL_SOCKET;
                header->cmsg_type = SCM_RIGHTS;
                header->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
                memcpy(CMSG_DATA(header), fds, n_fds * sizeof(int));
        }
        (void)pthread_mutex_lock(&fake->lock);
        /* The client may have left: that is the test's to find out. */
        if (fake->fds[peer] >= 0)
                (void)sendmsg(fake->fds[peer], &message, MSG_NOSIGNAL);
        (void)pthread_mutex_unlock(&fake->lock);
}

void fake_send(struct fake *fake, int peer, const char *text) {
        fake_send_bytes(fake, peer, text, strlen(text) + 1, NULL, 0);
}

void fake_send_fds(struct fake *fake, int peer, const char *text, const int *fds, size_t n_fds) {
        fake_send_bytes(fake, peer, text, strlen(text) + 1, fds, n_fds);
}

void fake_hang_up(struct fake *fake, int peer) {
        (void)pthread_mutex_lock(&fake->lock);
        if (fake->fds[peer] >= 0)
                (void)shutdown(fake->fds[peer], SHUT_RDWR); /* the thread closes it */
        (void)pthread_mutex_unlock(&fake->lock);
}

void fake_hang_up_all(struct fake *fake) {
        (void)pthread_mutex_lock(&fake->lock);
        for (int i = 0; i < fake->n_peers; i++)
                if (fake->fds[i] >= 0)
                        (void)shutdown(fake->fds[i], SHUT_RDWR);
        (void)pthread_mutex_unlock(&fake->lock);
}

void fake_drop_next(struct fake *fake) {
        (void)pthread_mutex_lock(&fake->lock);
        fake->deaf = true;
        (void)pthread_mutex_unlock(&fake->lock);
}

static void away_path(const struct fake *fake, char path[128]) {
        (void)snprintf(path, 128, "%s/away", fake->directory);
}

void fake_down(struct fake *fake, int error) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        char away[128];
        int fd;

        away_path(fake, away);
        must(rename(fake->path, away) == 0, "rename");
        if (error == ENOENT)
                return;
        (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", fake->path);
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        must(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0, "bind");
        (void)close(fd);
}

void fake_up(struct fake *fake) {
        char away[128];

        away_path(fake, away);
        must(rename(away, fake->path) == 0, "rename");
}

bool fake_is_open(struct fake *fake, int peer) {
        bool open;

        (void)pthread_mutex_lock(&fake->lock);
        open = fake->fds[peer] >= 0;
        (void)pthread_mutex_unlock(&fake->lock);
        return open;
}

int fake_peers(struct fake *fake) {
        int n;

        (void)pthread_mutex_lock(&fake->lock);
        n = fake->n_peers;
        (void)pthread_mutex_unlock(&fake->lock);
        return n;
}

size_t fake_open_peers(struct fake *fake) {
        size_t n = 0;

        (void)pthread_mutex_lock(&fake->lock);
        for (int i = 0; i < fake->n_peers; i++)
                n += fake->fds[i] >= 0;
        (void)pthread_mutex_unlock(&fake->lock);
        return n;
}

/* Locks the calls. What the answer to the last one does beside sending is done by then, unless it is the answer that asks. */
static void lock_calls(struct fake *fake) {
        (void)pthread_mutex_lock(&fake->lock);
        while (fake->answering && !is_server)
                (void)pthread_cond_wait(&fake->answered, &fake->lock);
}

size_t fake_count(struct fake *fake, const char *word, ...) {
        size_t n = 0;

        lock_calls(fake);
        for (size_t i = 0; i < fake->n_calls; i++) {
                bool all = true;
                va_list words;

                va_start(words, word);
                for (const char *w = word; w; w = va_arg(words, const char *))
                        all = all && strstr(fake->calls[i], w);
                va_end(words);
                n += all;
        }
        (void)pthread_mutex_unlock(&fake->lock);
        return n;
}

int fake_peer_of(struct fake *fake, const char *word) {
        int peer = -1;

        lock_calls(fake);
        for (size_t i = 0; i < fake->n_calls; i++)
                if (strstr(fake->calls[i], word))
                        peer = atoi(fake->calls[i]);
        (void)pthread_mutex_unlock(&fake->lock);
        return peer;
}

int fake_memfd(int64_t size, bool unsealed) {
        int fd = memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);

        must(fd >= 0 && ftruncate(fd, size) == 0, "memfd");
        if (!unsealed)
                must(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0, "seals");
        return fd;
}

char *fake_grant(const struct fake_grant *grant) {
        const char *id = grant->id ? grant->id : "b1", *kind = grant->kind ? grant->kind : "memfd";
        int64_t size = grant->size, handle_size = grant->handle_size ? grant->handle_size : size;
        char *text = NULL;

        must(asprintf(&text,
                      "{\"parameters\":{\"buffer\":{\"id\":\"%s\",\"name\":\"n\",\"size\":%lld,\"allocated\":%lld,"
                      "\"device\":\"host\",\"handle\":\"%s\",\"owner_uid\":0,\"owner_gid\":0,\"mode\":\"0600\",\"sealed\":"
                      "false,\"ro_enforced\":true,\"state\":\"live\",\"created_usec\":1,\"leases\":1,\"charged_uid\":0,"
                      "\"meta\":{\"a\":1}},\"lease\":\"%s\",\"handle\":{\"kind\":\"%s\",\"fd\":%s,\"offset\":%lld,"
                      "\"size\":%lld,\"device\":\"host\"}%s}}",
                      id, (long long)size, (long long)(grant->allocated ? grant->allocated : size), kind,
                      grant->lease ? grant->lease : "l1", kind, grant->fd ? grant->fd : "0", (long long)grant->offset,
                      (long long)handle_size, grant->more ? grant->more : "") >= 0, "memory");
        return text;
}

const char fake_status[] =
        "{\"parameters\":{\"version\":\"1\",\"backend\":\"host\",\"uptime_usec\":1,"
        "\"session\":\"s1\",\"features\":[\"x\",\"y\"],\"devices\":[{\"uuid\":\"host\",\"name\":"
        "\"Host\",\"kind\":\"host\",\"free_bytes\":7,\"brokered_bytes\":5,\"draining_bytes\":0,"
        "\"handles\":[\"memfd\"],\"zeroed\":\"driver\",\"degraded\":false}],\"buffers\":2,"
        "\"leases\":3,\"sessions\":4,\"limits\":{\"clients\":9}}}";

/* ---- the broker of few words ------------------------------------------------------------------------------ */

void fake_broker_init(struct fake_broker *broker, int64_t size) {
        *broker = (struct fake_broker){ .size = size, .fd = fake_memfd(size, false) };
        (void)pthread_mutex_init(&broker->lock, NULL);
}

void fake_broker_deinit(struct fake_broker *broker) {
        if (broker->fd >= 0)
                (void)close(broker->fd);
        (void)pthread_mutex_destroy(&broker->lock);
}

static void broker_grant(struct fake *fake, int peer, struct fake_broker *broker) {
        char id[32], lease[32], *text;
        int fd = broker->fd;
        unsigned n;

        (void)pthread_mutex_lock(&broker->lock);
        n = ++broker->n_granted;
        (void)pthread_mutex_unlock(&broker->lock);
        (void)snprintf(lease, sizeof(lease), "l%u", n);
        (void)snprintf(id, sizeof(id), "b%u", broker->fd >= 0 ? 0 : n);
        if (fd < 0)
                fd = fake_memfd(broker->size, false);
        text = fake_grant(&(struct fake_grant){ .id = id, .lease = lease, .size = broker->size });
        fake_send_fds(fake, peer, text, &fd, 1);
        free(text);
        if (broker->fd < 0)
                (void)close(fd);
}

void fake_broker_answer(struct fake *fake, int peer, const char *call, void *data) {
        struct fake_broker *broker = data;

        if (strstr(call, ".Allocate\"") || strstr(call, ".Open\"")) {
                broker_grant(fake, peer, broker);
        } else if (strstr(call, ".Watch\"")) {
                return;
        } else if (strstr(call, ".ListBuffers\"")) {
                fake_send(fake, peer, "{\"parameters\":{\"buffers\":[]}}");
        } else if (strstr(call, ".List\"")) {
                fake_send(fake, peer, "{\"parameters\":{\"leases\":[]}}");
        } else if (strstr(call, ".GetStatus\"")) {
                fake_send(fake, peer, fake_status);
        } else {
                if (strstr(call, ".Release\"")) {
                        (void)pthread_mutex_lock(&broker->lock);
                        broker->n_released++;
                        (void)pthread_mutex_unlock(&broker->lock);
                }
                fake_send(fake, peer, "{\"parameters\":{}}");
        }
}
