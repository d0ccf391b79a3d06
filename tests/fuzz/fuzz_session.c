/* SPDX-License-Identifier: Apache-2.0 */
/* What a hostile client sends, to the daemon's own rooms from session to host memory, over a real socket. The first byte says how
 * the input is cut into writes. After each input every reply is a message, the books add up, and nothing is left. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/clock.h"
#include "daemon/creds.h"
#include "daemon/log.h"
#include "daemon/session.h"
#include "proto/codec.h"

#define CAPACITY_BYTES (INT64_C(4) << 20)
#define TURNS_MAX 100000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct world {
        uv_loop_t loop;
        struct house house;
        struct hall hall;
        struct workplace place;
        char *text; /* replies, not yet a whole message */
        size_t n, capacity;
};

static void must(bool good, const char *what) {
        if (good)
                return;
        fprintf(stderr, "fuzz_session: %s\n", what);
        abort();
}

static void world_kick(void *session) {
        session_kick(session);
}

static void world_init(struct world *world) {
        struct limits limits = {
                .clients = 4, .clients_per_uid = 4, .leases_per_session = 16, .leases_per_uid = 64, .bytes_per_uid = CAPACITY_BYTES,
                .bytes_per_session = CAPACITY_BYTES, .host_bytes = CAPACITY_BYTES, .buffers = 16, .names_per_uid = 8,
                .waits_per_session = 1, .waits_per_uid = 4, .wait_ms = 5, .keep_ms = 5, .message_bytes = 65536, .events = 32,
                .unread_bytes = 65536, .unread_ms = 1000, .descriptors = 1000,
        };
        struct policy policy = {.trust_release = true};
        struct backend_device **devices;

        memset(world, 0, sizeof(*world));
        must(uv_loop_init(&world->loop) == 0, "no loop");
        list_init(&world->house.waiting);
        list_init(&world->house.watching);
        list_init(&world->house.woken);
        list_init(&world->hall.sessions);
        list_init(&world->hall.ready);
        list_init(&world->hall.late);
        world->house.loop = &world->loop;
        world->house.kick = world_kick;
        world->house.backend_name = "host";
        world->house.limits_json = strdup("{}");
        world->house.pump_usec = UINT64_MAX;
        world->hall.house = &world->house;
        world->hall.overflow_uid = creds_overflow_uid();
        must(registry_init(&world->house.registry, &limits, &policy) == 0, "no registry");
        world->house.news_seen = world->house.registry.events.next;
        must(backend_host.probe(&backend_host, &devices) == 1, "no host memory");
        must(workplace_init(&world->place, &world->loop, &world->house.registry, &backend_host, devices[0], CAPACITY_BYTES) == 0,
             "no workplace");
        world->house.places = &world->place;
        world->house.n_places = 1;
        must(lane_new(&world->loop, "doorman", 60000, NULL, NULL, &world->hall.doorman) == 0, "no doorman");
}

static void close_handle(uv_handle_t *handle, void *arg) {
        (void)arg;
        if (!uv_is_closing(handle))
                uv_close(handle, NULL);
}

static void world_deinit(struct world *world) {
        registry_deinit(&world->house.registry);
        workplace_deinit(&world->place);
        lane_close(world->hall.doorman);
        uv_run(&world->loop, UV_RUN_NOWAIT);
        uv_walk(&world->loop, close_handle, NULL);
        uv_run(&world->loop, UV_RUN_DEFAULT);
        must(uv_loop_close(&world->loop) == 0, "a handle is left");
        bytes_deinit(&world->house.scratch);
        free(world->house.limits_json);
        free(world->text);
}

/* Reads what came and checks each whole message. */
static void world_read(struct world *world, int fd) {
        for (;;) {
                struct codec_doc *doc;
                struct codec_reply reply;
                char *end;
                ssize_t n;

                if (world->capacity - world->n < 65536) {
                        world->capacity += 131072;
                        world->text = realloc(world->text, world->capacity);
                        must(world->text, "out of memory");
                }
                n = read(fd, world->text + world->n, world->capacity - world->n); /* descriptors are dropped by the kernel */
                if (n <= 0)
                        return;
                world->n += (size_t)n;
                while ((end = memchr(world->text, '\0', world->n))) {
                        size_t length = (size_t)(end - world->text);

                        must(codec_parse(world->text, length, &doc, NULL) == 0, "a reply is not JSON");
                        must(codec_reply(doc, &reply) == 0, "a reply is none");
                        codec_doc_free(doc);
                        world->n -= length + 1;
                        memmove(world->text, end + 1, world->n);
                }
        }
}

/* One turn of the daemon's loop; true when there is more to come without anybody doing anything. */
static bool world_turn(struct world *world) {
        uint64_t next_usec;
        bool more;

        uv_run(&world->loop, UV_RUN_NOWAIT);
        more = hall_settle(&world->hall, &next_usec);
        return more || next_usec != UINT64_MAX || !workplace_idle(&world->place) ||
               !lane_idle(world->hall.doorman) || !list_empty(&world->house.waiting);
}

static void world_feed(struct world *world, int fd, const uint8_t *data, size_t size, size_t piece) {
        while (size > 0) {
                size_t n = piece < size ? piece : size;
                ssize_t sent = send(fd, data, n, MSG_DONTWAIT | MSG_NOSIGNAL);

                if (sent < 0 && errno != EAGAIN)
                        return;
                if (sent > 0) {
                        data += sent;
                        size -= (size_t)sent;
                }
                world_turn(world);
                world_read(world, fd);
        }
}

static void world_run(struct world *world, const uint8_t *data, size_t size) {
        int fds[2], enable = 1;

        must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0, "no sockets");
        must(setsockopt(fds[0], SOL_SOCKET, SO_PASSCRED, &enable, sizeof(enable)) == 0, "no credentials");
        must(session_new(&world->hall, fds[0], data[0] & 1) == 0, "no session");
        world_feed(world, fds[1], data + 1, size - 1, (size_t)(data[0] >> 1) * 8 + 1);
        for (int i = 0; i < TURNS_MAX && world_turn(world); i++)
                world_read(world, fds[1]);
        must(registry_check(&world->house.registry), "the books do not add up");

        close(fds[1]);
        for (int i = 0; i < TURNS_MAX && (world_turn(world) || !list_empty(&world->hall.sessions)); i++)
                ;
        must(list_empty(&world->hall.sessions), "a session outlived its connection");
        must(registry_check(&world->house.registry), "the books do not add up afterwards");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        struct world world;

        if (size < 2)
                return 0;
        log_set_level(-1);
        world_init(&world);
        world_run(&world, data, size);
        world_deinit(&world);
        return 0;
}
