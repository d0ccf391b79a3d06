/* SPDX-License-Identifier: Apache-2.0 */
/* What a hostile daemon can do to a client: the input is what it sends, whenever it is asked something.
 *
 * The input is a row of pieces. Each begins with a byte: its low bits say how many descriptors come with it, and of what
 * kind; 0x40 sends it without waiting for the next question, 0x80 hangs up after it. The piece goes to the next newline.
 * "@" in a piece becomes a NUL, "^" a reply that grants a lease. After each input the process owns as many descriptors and
 * as much mapped memory as before. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/client.h"
#include "include/gpuipc.h"

#define FDS_MAX 3
#define GRANT                                                                                                \
        "{\"parameters\":{\"buffer\":{\"id\":\"b\",\"size\":4096,\"allocated\":4096,\"device\":\"host\",\"handle\":\"memfd\"," \
        "\"owner_uid\":0,\"owner_gid\":0,\"mode\":\"0600\",\"sealed\":false,\"ro_enforced\":true,\"state\":\"live\"," \
        "\"created_usec\":1,\"leases\":1,\"charged_uid\":0},\"lease\":\"l\",\"handle\":{\"kind\":\"memfd\",\"fd\":0," \
        "\"offset\":0,\"size\":4096,\"device\":\"host\"}}}"

static struct {
        char path[64];
        int listen_fd;
        sem_t begin, done;
        int good_fd, small_fd, odd_fd; /* a sealed memfd, one too small, one that is no memory */
        const uint8_t *data;           /* what is left to send */
        size_t n;
        int stop_fds[2];               /* readable when the client is through */
} daemon_;

static void must(bool good, const char *what) {
        if (!good) {
                perror(what);
                abort();
        }
}

/* ---- the daemon ------------------------------------------------------------------------------------------- */

static void send_bytes(int fd, const char *bytes, size_t n, unsigned kinds) {
        const int all[] = { daemon_.good_fd, daemon_.small_fd, daemon_.odd_fd };
        size_t n_fds = kinds & 3;
        union {
                struct cmsghdr align;
                char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
        } control = { 0 };
        struct iovec vector = { .iov_base = (void *)(uintptr_t)bytes, .iov_len = n };
        struct msghdr message = { .msg_iov = &vector, .msg_iovlen = 1 };

        if (n_fds > 0) {
                struct cmsghdr *header;
                message.msg_control = &control;
                message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
                header = CMSG_FIRSTHDR(&message);
                header->cmsg_level = SOL_SOCKET;
                header->cmsg_type = SCM_RIGHTS;
                header->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
                for (size_t i = 0; i < n_fds; i++)
                        memcpy(CMSG_DATA(header) + i * sizeof(int), &all[(i + (kinds >> 2)) % 3], sizeof(int));
        }
        (void)sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Sends pieces until one waits for a question. False: hang up. */
static bool answer(int fd) {
        while (daemon_.n > 0) {
                uint8_t how = daemon_.data[0];
                const uint8_t *text = daemon_.data + 1;
                size_t left = daemon_.n - 1, n = 0, used = 0;
                static char bytes[200000];

                for (; used < left && text[used] != '\n' && n + sizeof(GRANT) < sizeof(bytes); used++) {
                        if (text[used] == '^') {
                                memcpy(bytes + n, GRANT, sizeof(GRANT) - 1);
                                n += sizeof(GRANT) - 1;
                        } else {
                                bytes[n++] = text[used] == '@' ? '\0' : (char)text[used];
                        }
                }
                used += used < left;
                daemon_.data = text + used;
                daemon_.n = left - used;
                if (n > 0)
                        send_bytes(fd, bytes, n, how & 0xf);
                if (how & 0x80)
                        return false;
                if (!(how & 0x40))
                        return true;
        }
        return false; /* it has no more to say */
}

/* Serves one connection after the other until the client is through with them. */
static void serve(void) {
        struct pollfd fds[18] = { { .fd = daemon_.listen_fd, .events = POLLIN },
                                  { .fd = daemon_.stop_fds[0], .events = POLLIN } };
        char bytes[65536];
        size_t n = 2;

        for (;;) {
                must(poll(fds, n, -1) > 0 || errno == EINTR, "poll");
                if (fds[0].revents && n < 18) {
                        int fd = accept4(daemon_.listen_fd, NULL, NULL, SOCK_CLOEXEC);
                        if (fd >= 0)
                                fds[n++] = (struct pollfd){ .fd = fd, .events = POLLIN };
                }
                for (size_t i = 2; i < n; i++) {
                        if (!fds[i].revents)
                                continue;
                        ssize_t got = recv(fds[i].fd, bytes, sizeof(bytes), MSG_DONTWAIT);
                        bool whole = got > 0 && bytes[got - 1] == '\0';
                        if (got > 0 && (!whole || answer(fds[i].fd)))
                                continue;
                        (void)close(fds[i].fd);
                        fds[i] = fds[--n];
                        fds[i].revents = 0;
                        i--;
                }
                if (fds[1].revents)
                        break;
        }
        while (n > 2)
                (void)close(fds[--n].fd);
        must(read(daemon_.stop_fds[0], bytes, 1) == 1, "read");
        /* What was connected and never accepted. */
        for (;;) {
                int fd = accept4(daemon_.listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
                if (fd < 0)
                        return;
                (void)close(fd);
        }
}

static void *run(void *arg) {
        (void)arg;
        for (;;) {
                (void)sem_wait(&daemon_.begin);
                serve();
                (void)sem_post(&daemon_.done);
        }
        return NULL;
}

static int memfd(int64_t size) {
        int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        must(fd >= 0 && ftruncate(fd, size) == 0, "memfd_create");
        must(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0, "F_ADD_SEALS");
        return fd;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        pthread_t thread;

        (void)argc, (void)argv;
        (void)snprintf(daemon_.path, sizeof(daemon_.path), "/tmp/fuzz-client-%ld", (long)getpid());
        (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", daemon_.path);
        daemon_.listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)unlink(daemon_.path);
        must(bind(daemon_.listen_fd, (struct sockaddr *)&address, sizeof(address)) == 0, "bind");
        must(listen(daemon_.listen_fd, 64) == 0, "listen");
        daemon_.good_fd = memfd(8192);
        daemon_.small_fd = memfd(1);
        must(pipe2(daemon_.stop_fds, O_CLOEXEC) == 0, "pipe2");
        daemon_.odd_fd = daemon_.stop_fds[1];
        must(sem_init(&daemon_.begin, 0, 0) == 0 && sem_init(&daemon_.done, 0, 0) == 0, "sem_init");
        must(pthread_create(&thread, NULL, run, NULL) == 0, "pthread_create");
        return 0;
}

/* ---- the client ------------------------------------------------------------------------------------------- */

static size_t count_fds(void) {
        size_t n = 0;
        for (int fd = 0; fd < 64; fd++)
                n += fcntl(fd, F_GETFD) >= 0;
        return n;
}

/* Mappings of what the daemon hands out. */
static size_t count_maps(void) {
        FILE *maps = fopen("/proc/self/maps", "re");
        char line[512];
        size_t n = 0;

        must(maps, "/proc/self/maps");
        while (fgets(line, sizeof(line), maps))
                n += strstr(line, "memfd:fuzz") != NULL;
        (void)fclose(maps);
        return n;
}

static bool mapped; /* by this input */

static size_t length(const char *text) {
        return text ? strlen(text) : 0;
}

static int see_lease(const gpuipc_lease_info *lease, void *data) {
        size_t *sum = data;
        *sum += length(lease->id) + length(lease->buffer) + length(lease->name) + length(lease->device) +
                length(lease->access) + length(lease->state) + length(lease->session) + length(lease->command) +
                length(lease->container) + length(lease->label);
        return 0;
}

static int see_buffer(const gpuipc_buffer_info *buffer, void *data) {
        size_t *sum = data;
        *sum += length(buffer->id) + length(buffer->name) + length(buffer->device) + length(buffer->handle) +
                length(buffer->mode) + length(buffer->state) + length(buffer->meta);
        return buffer->leases == 7;
}

static void see_status(const gpuipc_status_info *status, void *data) {
        size_t *sum = data;
        *sum += length(status->version) + length(status->backend) + length(status->session) + length(status->limits);
        for (size_t i = 0; status->features[i]; i++)
                *sum += length(status->features[i]);
        for (size_t i = 0; i < status->n_devices; i++)
                for (size_t j = 0; status->devices[i].handles[j]; j++)
                        *sum += length(status->devices[i].handles[j]) + length(status->devices[i].uuid) +
                                length(status->devices[i].kind);
}

static int see_text(const char *text, void *data) {
        size_t *sum = data;
        *sum += length(text);
        return 0;
}

static void use_buffer(gpuipc_buffer *buffer, size_t *sum) {
        void *pointer;

        *sum += length(gpuipc_buffer_id(buffer)) + length(gpuipc_buffer_name(buffer)) +
                length(gpuipc_buffer_lease(buffer)) + length(gpuipc_buffer_meta(buffer));
        if (gpuipc_buffer_map(buffer, &pointer, NULL) == GPUIPC_OK) {
                const volatile unsigned char *bytes = pointer;
                mapped = true;
                *sum += bytes[0] + bytes[gpuipc_buffer_size(buffer) - 1];
        }
}

static void use_watch(gpuipc_client *client, size_t *sum) {
        const gpuipc_event_info *event;
        gpuipc_watch *watch;

        if (gpuipc_watch_new(client, 3, &watch, NULL) != GPUIPC_OK)
                return;
        for (int i = 0; i < 4 && gpuipc_watch_next(watch, 2, &event, NULL) == GPUIPC_OK; i++) {
                *sum += length(event->kind);
                if (event->buffer)
                        (void)see_buffer(event->buffer, sum);
                if (event->lease)
                        (void)see_lease(event->lease, sum);
        }
        gpuipc_watch_free(watch);
}

static void use_client(gpuipc_client *client, unsigned order, size_t *sum) {
        gpuipc_allocate_options allocate = GPUIPC_ALLOCATE_OPTIONS_INIT;
        gpuipc_open_options open_options = GPUIPC_OPEN_OPTIONS_INIT;
        gpuipc_buffer *buffers[3] = { NULL };
        gpuipc_error error;

        allocate.wait_ms = 2;
        open_options.access = GPUIPC_RO;
        open_options.wait_ms = 2;
        for (unsigned i = 0; i < 6; i++)
                switch ((order + i) % 6) {
                case 0:
                        if (gpuipc_allocate(client, 4096, &allocate, &buffers[0], &error) == GPUIPC_OK)
                                use_buffer(buffers[0], sum);
                        break;
                case 1:
                        client->uid = order & 8 ? 1000 : 0; /* two waits at once, or one */
                        if (gpuipc_open_name(client, "n", &open_options, &buffers[1], &error) == GPUIPC_OK)
                                use_buffer(buffers[1], sum);
                        break;
                case 2: gpuipc_get_status(client, see_status, sum, &error); break;
                case 3:
                        gpuipc_list(client, NULL, see_lease, sum, &error);
                        gpuipc_list_buffers(client, NULL, see_buffer, sum, &error);
                        break;
                case 4: gpuipc_call_json(client, "a.b.C", NULL, 1, see_text, sum, &error); break;
                case 5: use_watch(client, sum); break;
                }
        if (order & 16) {
                (void)gpuipc_release(buffers[0], NULL);
                buffers[0] = NULL;
                if (gpuipc_open_id(client, "b", NULL, &buffers[2], &error) == GPUIPC_OK)
                        use_buffer(buffers[2], sum);
        }
        for (int i = 0; i < 3; i++)
                (void)gpuipc_release(buffers[i], &error);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_client *client;
        size_t before = count_fds(), sum = 0;

        if (n == 0)
                return 0;
        daemon_.data = data + 1;
        daemon_.n = n - 1;
        mapped = false;
        (void)sem_post(&daemon_.begin);
        options.socket_path = daemon_.path;
        options.timeout_ms = 4;
        if (gpuipc_connect(&options, &client, NULL) == GPUIPC_OK) {
                use_client(client, data[0], &sum);
                gpuipc_client_free(client);
        }
        must(write(daemon_.stop_fds[1], "x", 1) == 1, "write");
        (void)sem_wait(&daemon_.done);
        must(count_fds() == before, "descriptors are left open");
        must(!mapped || count_maps() == 0, "memory is left mapped");
        return sum == SIZE_MAX;
}
