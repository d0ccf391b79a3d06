/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's part of a channel as far as members see it: the pages, the numbers and the pidfds. The fake server's thread and the test's
 * own enter. */
#include "channel_house.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/support/fds.h"
#include "tests/support/wait.h"

#define FENCES_BYTES (2 << 20)

/* ---- the daemon ------------------------------------------------------------------------------------------- */

static int pidfd_of(struct fake *fake, int peer) {
        struct ucred who;
        socklen_t n = sizeof(who);

        if (getsockopt(fake->fds[peer], SOL_SOCKET, SO_PEERCRED, &who, &n) < 0)
                return -1;
        return (int)syscall(SYS_pidfd_open, who.pid, 0);
}

/* The first number that is free, with the next generation. With the lock. */
static unsigned admit(struct house *house, struct fake *fake, int peer, enum ring_role role) {
        unsigned n = 0;

        while (n < RING_MEMBERS - 1 && house->members[n].generation > 0 &&
               !ring_page_is_reaped(house->page, n, house->members[n].generation))
                n++;
        if (house->members[n].pidfd >= 0)
                (void)close(house->members[n].pidfd);
        house->members[n].generation++;
        house->members[n].role = role;
        house->members[n].pidfd = pidfd_of(fake, peer);
        ring_page_admit(house->page, n, house->members[n].generation, role);
        return n;
}

/* Participants as JSON, with their descriptors, but for one; −1: all. With the lock. */
static void participants(const struct house *house, int but, char *text, size_t size, int *fds, size_t *n_fds) {
        size_t at = 0;

        text[0] = 0;
        for (unsigned i = 0; i < RING_MEMBERS; i++) {
                if (house->members[i].generation == 0 || (int)i == but || *n_fds > 12)
                        continue;
                at += (size_t)snprintf(text + at, size - at,
                                       "%s{\"number\":%u,\"generation\":%u,\"role\":\"%s\",\"fd\":%zu,\"pid\":1,\"uid\":0,"
                                       "\"state\":\"attached\"}",
                                       at ? "," : "", i, house->members[i].generation,
                                       house->members[i].role == RING_PRODUCER ? "producer" : "consumer", *n_fds);
                fds[(*n_fds)++] = house->members[i].pidfd;
        }
}

static bool lies(const struct house *house, const char *what) {
        return house->wrong && strcmp(house->wrong, what) == 0;
}

/* The channel's facts, as JSON on the heap; perhaps not the true ones. */
static char *facts_of(const struct house *house, size_t size, const char *device, const char *kind) {
        const struct ring_geometry *geometry = &house->geometry;
        char *text = NULL;

        ck_assert_int_ge(
                asprintf(&text,
                         "{\"id\":\"c1\",\"name\":\"n\",\"kind\":\"%s\",\"policy\":\"%s\",\"slots\":%u,\"slot_bytes\":%llu,"
                         "\"meta_bytes\":%u,\"size\":%zu,\"allocated\":%zu,\"control_bytes\":1,\"device\":\"%s\",\"handle\":\"%s\","
                         "\"owner_uid\":0,\"owner_gid\":0,\"mode\":\"0600\",\"participants\":1,\"created_usec\":1}",
                         geometry->mode == RING_QUEUE ? "queue" : "broadcast", geometry->policy == RING_BLOCK ? "block" : "drop_oldest",
                         lies(house, "slots") ? 9999999u : geometry->n_slots,
                         lies(house, "slot bytes") ? 1ull << 40 : (unsigned long long)geometry->slot_bytes,
                         geometry->meta_bytes + (lies(house, "meta") ? 1u : 0u), size - (lies(house, "stride") ? 255u : 0u), size, device,
                         kind), 0);
        return text;
}

/* A handle as JSON. */
static void handle_put(char *text, size_t n, const char *kind, int fd, size_t size, const char *device) {
        (void)snprintf(text, n, "{\"kind\":\"%s\",\"fd\":%d,\"offset\":0,\"size\":%zu,\"device\":\"%s\"}", kind, fd, size, device);
}

static const char a_wrong_participant[] =
        "{\"number\":-1,\"generation\":1,\"role\":\"producer\",\"pid\":1,\"uid\":0,\"state\":\"attached\"}";

static void grant(struct fake *fake, int peer, const char *call, struct house *house) {
        bool produces = strstr(call, "\"producer\"") != NULL, gpu = house->plan.fences_fd > 0;
        const char *device = house->plan.device ? house->plan.device : "host", *kind = house->plan.kind ? house->plan.kind : "memfd";
        size_t n_fds = 3, size = (size_t)house->geometry.n_slots * ring_data_stride(house->geometry.slot_bytes);
        char people[8192], path[64], data[256], control[256], fences[256] = "null", *text = NULL;
        char *facts = facts_of(house, size, device, kind);
        int fds[16] = { house->data_fd, house->control_fd, gpu ? house->plan.fences_fd : house->control_fd };
        unsigned number;
        int ro = -1;

        (void)pthread_mutex_lock(&house->lock);
        number = admit(house, fake, peer, produces ? RING_PRODUCER : RING_CONSUMER);
        if (!produces && !gpu) {
                (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", house->data_fd);
                fds[0] = ro = open(path, O_RDONLY | O_CLOEXEC);
        }
        participants(house, (int)number, people, sizeof(people), fds, &n_fds); /* who comes is not told of itself */
        handle_put(data, sizeof(data), kind, lies(house, "data fd") ? 99 : 0, size, device);
        handle_put(control, sizeof(control), "memfd", lies(house, "control fd") ? 98 : 1, house->page_bytes, "host");
        if (gpu)
                handle_put(fences, sizeof(fences), kind, lies(house, "fences fd") ? 77 : 2, lies(house, "fences size") ? 504 : FENCES_BYTES,
                           device);
        ck_assert_int_ge(asprintf(&text,
                                  "{\"parameters\":{\"channel\":%s,\"lease\":\"l%u\",\"number\":%u,\"generation\":%u,\"data\":%s,"
                                  "\"fences\":%s,\"control\":%s,\"participants\":[%s]}}",
                                  facts, number, lies(house, "number") ? 64u : number,
                                  house->members[number].generation + (lies(house, "generation") ? 1u : 0u), data, fences, control,
                                  lies(house, "participants") ? a_wrong_participant : people), 0);
        (void)pthread_mutex_unlock(&house->lock);
        fake_send_fds(fake, peer, text, fds, n_fds);
        free(facts);
        free(text);
        if (ro >= 0)
                (void)close(ro);
}

static void tell_participants(struct fake *fake, int peer, struct house *house) {
        char people[8192], path[64], *text = NULL;
        int fds[16];
        size_t n_fds = 1;

        (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", house->control_fd);
        fds[0] = open(path, O_RDONLY | O_CLOEXEC);
        (void)pthread_mutex_lock(&house->lock);
        participants(house, -1, people, sizeof(people), fds, &n_fds);
        (void)pthread_mutex_unlock(&house->lock);
        ck_assert_int_ge(asprintf(&text, "{\"parameters\":{\"participants\":[%s]%s}}", people,
                                  lies(house, "no control") ? "" : ",\"control\":{\"kind\":\"memfd\",\"fd\":0,\"offset\":0,\"size\":4096,"
                                                                   "\"device\":\"host\"}"), 0);
        fake_send_fds(fake, peer, text, fds, n_fds);
        free(text);
        (void)close(fds[0]);
}

static void answer(struct fake *fake, int peer, const char *call, void *data) {
        struct house *house = data;

        if (strstr(call, ".ChannelCreate\"") || strstr(call, ".ChannelAttach\""))
                grant(fake, peer, call, house);
        else if (strstr(call, ".ChannelParticipants\""))
                tell_participants(fake, peer, house);
        else if (strstr(call, ".GetStatus\""))
                fake_send(fake, peer, fake_status);
        else
                fake_send(fake, peer, "{\"parameters\":{}}");
}

/* ---- the house -------------------------------------------------------------------------------------------- */

static gpuipc_client *connect_to(const char *path, gpuipc_error *ret_error) {
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_client *client;

        options.socket_path = path;
        options.timeout_ms = WAIT_MS;
        return gpuipc_connect(&options, &client, ret_error) == GPUIPC_OK ? client : NULL;
}

void house_open(struct house *house, const struct house_plan *plan) {
        gpuipc_error error;

        memset(house, 0, sizeof(*house));
        if (plan)
                house->plan = *plan;
        house->geometry = (struct ring_geometry){
                .mode = house->plan.mode ? house->plan.mode : RING_QUEUE,
                .policy = house->plan.policy ? house->plan.policy : RING_BLOCK,
                .n_slots = house->plan.n_slots ? house->plan.n_slots : 4,
                .meta_bytes = house->plan.meta_bytes ? house->plan.meta_bytes : 64,
                .slot_bytes = house->plan.slot_bytes ? house->plan.slot_bytes : 256,
        };
        for (int i = 0; i < RING_MEMBERS; i++)
                house->members[i].pidfd = -1;
        house->page_bytes = ring_page_bytes(&house->geometry);
        house->control_fd = fake_memfd((int64_t)house->page_bytes, false);
        house->page = mmap(NULL, house->page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, house->control_fd, 0);
        ck_assert_ptr_ne(house->page, MAP_FAILED);
        ring_page_init(house->page, &house->geometry);
        house->data_fd = house->plan.data_fd > 0
                                 ? house->plan.data_fd
                                 : fake_memfd((int64_t)(house->geometry.n_slots * ring_data_stride(house->geometry.slot_bytes)), false);
        (void)pthread_mutex_init(&house->lock, NULL);
        house->fake = fake_start(answer, house);
        house->client = connect_to(house->fake->path, &error);
        ck_assert_msg(house->client != NULL, "%s", error.message);
}

void house_close(struct house *house) {
        gpuipc_client_free(house->client);
        fake_stop(house->fake);
        for (int i = 0; i < RING_MEMBERS; i++)
                if (house->members[i].pidfd >= 0)
                        (void)close(house->members[i].pidfd);
        if (house->plan.data_fd <= 0)
                (void)close(house->data_fd);
        (void)munmap(house->page, house->page_bytes);
        (void)close(house->control_fd);
        (void)pthread_mutex_destroy(&house->lock);
}

static int join(gpuipc_client *client, gpuipc_channel_role role, gpuipc_channel **ret, gpuipc_error *ret_error) {
        gpuipc_channel_attach_options options = GPUIPC_CHANNEL_ATTACH_OPTIONS_INIT;

        options.role = role;
        options.owner = -2;
        return gpuipc_channel_attach(client, "n", &options, ret, ret_error);
}

int house_try_join(struct house *house, gpuipc_channel_role role, gpuipc_channel **ret, gpuipc_error *ret_error) {
        return join(house->client, role, ret, ret_error);
}

gpuipc_channel *house_join(struct house *house, gpuipc_channel_role role) {
        gpuipc_channel *channel;
        gpuipc_error error;

        ck_assert_msg(house_try_join(house, role, &channel, &error) == GPUIPC_OK, "%s", error.message);
        return channel;
}

/* ---- peers ------------------------------------------------------------------------------------------------ */

struct house_order {
        char path[96];
        gpuipc_channel_role role;
        house_script *script;
};

static int be_peer(int talk_fd, void *data) {
        const struct house_order *order = data;
        gpuipc_error error = { .message = "" };
        gpuipc_channel *channel = NULL;
        gpuipc_client *client;
        int r;

        if (talk_hear(talk_fd, 'p') != 0)
                return 91;
        client = connect_to(order->path, &error);
        if (!client || join(client, order->role, &channel, &error) != GPUIPC_OK) {
                fprintf(stderr, "the peer: %s\n", error.message);
                return 92;
        }
        if (talk_say(talk_fd, 'r') != 0)
                return 93;
        r = order->script(channel, talk_fd);
        if (gpuipc_channel_free(channel, &error) != GPUIPC_OK) {
                fprintf(stderr, "the peer leaves: %s\n", error.message);
                r = r ? r : 94;
        }
        gpuipc_client_free(client);
        return r;
}

struct house_peer house_fork(gpuipc_channel_role role, house_script *script) {
        struct house_peer peer;

        peer.order = mmap(NULL, sizeof(*peer.order), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        ck_assert_ptr_ne(peer.order, MAP_FAILED);
        peer.order->role = role;
        peer.order->script = script;
        peer.child = child_start(NULL, be_peer, peer.order);
        return peer;
}

void house_let_in(struct house *house, struct house_peer *peer) {
        (void)snprintf(peer->order->path, sizeof(peer->order->path), "%s", house->fake->path);
        child_say(&peer->child, 'p');
        child_hear(&peer->child, 'r');
}

static int count_pidfds(void) {
        struct fds fds = fds_of(0);
        int n = 0;

        for (const char *at = fds.text; (at = strstr(at, "[pidfd]")); at++)
                n++;
        fds_deinit(&fds);
        return n;
}

void house_let_in_known(struct house *house, struct house_peer *peer, int n_members) {
        int before = count_pidfds();

        house_let_in(house, peer);
        wait_for(count_pidfds() >= before + 1 + n_members); /* the house has it too */
}

void house_peer_done(struct house_peer *peer) {
        child_expect_exit(&peer->child, 0);
        ck_assert_int_eq(munmap(peer->order, sizeof(*peer->order)), 0);
}

void house_peer_kill(struct house_peer *peer) {
        child_kill(&peer->child);
        ck_assert_int_eq(munmap(peer->order, sizeof(*peer->order)), 0);
}

/* ---- items ------------------------------------------------------------------------------------------------ */

void house_put(gpuipc_channel *channel, uint64_t number) {
        gpuipc_error error;
        gpuipc_item item;

        ck_assert_msg(gpuipc_channel_begin(channel, NULL, 0, &item, &error) == GPUIPC_OK, "%s", error.message);
        memcpy(item.pointer, &number, sizeof(number));
        ck_assert_msg(gpuipc_channel_publish(channel, &item, sizeof(number), &number, sizeof(number), NULL, &error) == GPUIPC_OK, "%s",
                      error.message);
}

uint64_t house_get(gpuipc_channel *channel) {
        uint64_t number, noted;
        gpuipc_error error;
        gpuipc_item item;

        ck_assert_msg(gpuipc_channel_take(channel, NULL, 0, &item, &error) == GPUIPC_OK, "%s", error.message);
        ck_assert_int_eq(item.broken, 0);
        ck_assert_int_eq(item.size, sizeof(number));
        ck_assert_int_eq(item.n_meta, sizeof(noted));
        memcpy(&number, item.pointer, sizeof(number));
        memcpy(&noted, item.meta, sizeof(noted));
        ck_assert_uint_eq(number, noted);
        ck_assert_msg(gpuipc_channel_release(channel, &item, NULL, &error) == GPUIPC_OK, "%s", error.message);
        return number;
}
