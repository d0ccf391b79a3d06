/* SPDX-License-Identifier: Apache-2.0 */
/* Channels through the library, against a real daemon and between processes: flows of many shapes, what is refused, deaths in the thick of
 * it and while the daemon is down. Runs on memory that has descriptors. deadline: 240 s */
#include <check.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "library.h"
#include "proto/cleanup.h"
#include "tests/support/child.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/suite.h"

#define NAME "flow"
#define ACTORS_MAX 8
#define SLOT_BYTES 512

static struct gpuipcd *daemon_process;

/* ---- actors ----------------------------------------------------------------------------------------------- */

/* A process that is one member. Shared with the test. */
struct actor {
        char path[96];
        gpuipc_channel_role role;
        uint64_t id, n_items;   /* a producer's number, and how many it makes */
        uint64_t hold_after;    /* items; 0: never. Then it says 'h', holds one and waits for its end */
        int64_t told_ms;        /* when a consumer was first told of a broken item; 0: never */
        uint64_t n, n_bad, n_broken, sum; /* what came of it */
        uint64_t sleeps, wakes;
        uint64_t last[ACTORS_MAX];
        bool alone;             /* there may be no daemon to say goodbye to */
};
static struct actor *actors;

static gpuipc_client *actor_connect(const char *path) {
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_client *client;

        options.socket_path = path;
        return gpuipc_connect(&options, &client, NULL) == GPUIPC_OK ? client : NULL;
}

static int attach(gpuipc_client *client, gpuipc_channel_role role, gpuipc_channel **ret, gpuipc_error *ret_error) {
        gpuipc_channel_attach_options options = GPUIPC_CHANNEL_ATTACH_OPTIONS_INIT;

        options.role = role;
        options.owner = -2;
        options.wait_ms = WAIT_MS;
        return gpuipc_channel_attach(client, NAME, &options, ret, ret_error);
}

static uint64_t word_of(uint64_t id, uint64_t i) {
        return id << 48 | i;
}

/* One item: its word at the end of the slot, at the start, and as metadata. */
static int make_item(gpuipc_channel *channel, uint64_t word, bool hold, int talk_fd) {
        gpuipc_item item;

        if (gpuipc_channel_begin(channel, NULL, 60000, &item, NULL) != GPUIPC_OK)
                return 1;
        memory_write(item.pointer, 0, &word, sizeof(word));
        memory_write(item.pointer, SLOT_BYTES - 8, &word, sizeof(word));
        if (hold)
                return talk_say(talk_fd, 'h') || talk_hear(talk_fd, 'n');
        return gpuipc_channel_publish(channel, &item, SLOT_BYTES, &word, sizeof(word), NULL, NULL) != GPUIPC_OK;
}

static int produce(struct actor *actor, gpuipc_channel *channel, int talk_fd) {
        for (uint64_t i = 1; i <= actor->n_items; i++) {
                if (make_item(channel, word_of(actor->id, i), i == actor->hold_after, talk_fd) != 0)
                        return 3;
                actor->n++;
        }
        return 0;
}

static void judge(struct actor *actor, const gpuipc_item *item) {
        uint64_t first = 0, last = 0, noted = 0, id, i;

        memory_read(item->pointer, 0, &first, sizeof(first));
        memory_read(item->pointer, SLOT_BYTES - 8, &last, sizeof(last));
        memcpy(&noted, item->meta, sizeof(noted));
        id = noted >> 48;
        i = noted & ((UINT64_C(1) << 48) - 1);
        if (first != noted || last != noted || item->size != SLOT_BYTES || id >= ACTORS_MAX || i <= actor->last[id]) {
                actor->n_bad++;
                return;
        }
        actor->last[id] = i;
        actor->n++;
        actor->sum += noted;
}

static int consume(struct actor *actor, gpuipc_channel *channel, int talk_fd) {
        gpuipc_item item;
        int r;

        while ((r = gpuipc_channel_take(channel, NULL, 60000, &item, NULL)) == GPUIPC_OK) {
                if (item.broken) {
                        actor->told_ms = actor->told_ms ? actor->told_ms : now_ms();
                        actor->n_broken++;
                        continue;
                }
                if (actor->hold_after > 0 && actor->n + 1 == actor->hold_after)
                        return talk_say(talk_fd, 'h') || talk_hear(talk_fd, 'n');
                judge(actor, &item);
                if (gpuipc_channel_release(channel, &item, NULL, NULL) != GPUIPC_OK)
                        return 4;
        }
        return r == GPUIPC_ERROR_CLOSED ? 0 : 5;
}

static int act(int talk_fd, void *data) {
        struct actor *actor = data;
        gpuipc_channel_stats stats = GPUIPC_CHANNEL_STATS_INIT;
        gpuipc_error error = { .message = "" };
        gpuipc_channel *channel;
        gpuipc_client *client;
        int r;

        if (talk_hear(talk_fd, 'p') != 0 || !(client = actor_connect(actor->path)))
                return 1;
        if (attach(client, actor->role, &channel, &error) != GPUIPC_OK) {
                fprintf(stderr, "an actor: %s\n", error.message);
                return 2;
        }
        if (talk_say(talk_fd, 'r') != 0 || talk_hear(talk_fd, 'g') != 0)
                return 1;
        r = actor->role == GPUIPC_CHANNEL_PRODUCER ? produce(actor, channel, talk_fd) : consume(actor, channel, talk_fd);
        (void)gpuipc_channel_get_stats(channel, &stats, NULL);
        actor->sleeps = stats.sleeps;
        actor->wakes = stats.wakes;
        if (gpuipc_channel_free(channel, &error) != GPUIPC_OK && r == 0 && !actor->alone) {
                fprintf(stderr, "an actor leaves: %s\n", error.message);
                r = 6;
        }
        gpuipc_client_free(client);
        return r;
}

/* ---- a stage ---------------------------------------------------------------------------------------------- */

static struct child children[ACTORS_MAX];
static int n_producers, n_actors;
static gpuipc_client *client;
static gpuipc_channel *closer; /* the test's own: it makes the channel, and closes it */
static gpuipc_error error;

static void setup(void) {
        static const char *const args[] = { "--backend", "auto", NULL }; /* what keeps a channel in order is host memory */
        const struct gpuipcd_options options = { .args = args };

        daemon_process = gpuipcd_start(memory_is_host() ? NULL : &options);
        actors = mmap(NULL, ACTORS_MAX * sizeof(*actors), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        ck_assert_ptr_ne(actors, MAP_FAILED);
}

static void teardown(void) {
        library_expect_maps(0);
        gpuipcd_wait_idle(daemon_process);
        gpuipcd_stop(daemon_process);
        (void)munmap(actors, ACTORS_MAX * sizeof(*actors));
}

static gpuipc_channel_create_options options_of(gpuipc_channel_kind kind, int64_t slots) {
        gpuipc_channel_create_options options = GPUIPC_CHANNEL_CREATE_OPTIONS_INIT;

        options.name = NAME;
        options.kind = kind;
        options.slots = slots;
        options.slot_bytes = SLOT_BYTES;
        options.meta_bytes = 8;
        return options;
}

/* Actors are forked before this process has a thread or a GPU. */
static void stage(int producers, int consumers, uint64_t n_items, gpuipc_channel_kind kind, int64_t slots) {
        gpuipc_channel_create_options options = options_of(kind, slots);

        n_producers = producers;
        n_actors = producers + consumers;
        for (int i = 0; i < n_actors; i++) {
                actors[i].role = i < producers ? GPUIPC_CHANNEL_PRODUCER : GPUIPC_CHANNEL_CONSUMER;
                actors[i].id = (uint64_t)i;
                actors[i].n_items = n_items;
                (void)snprintf(actors[i].path, sizeof(actors[i].path), "%s", daemon_process->socket);
                children[i] = child_start(NULL, act, &actors[i]);
        }
        client = library_connect(daemon_process->socket);
        library_expect(gpuipc_channel_create(client, &options, &closer, &error), GPUIPC_OK, &error);
        for (int i = 0; i < n_actors; i++)
                child_say(&children[i], 'p');
        for (int i = 0; i < n_actors; i++)
                child_hear(&children[i], 'r');
}

static void start(int from, int to) {
        for (int i = from; i < to; i++)
                child_say(&children[i], 'g');
}

/* Producers end by themselves, consumers when the channel is closed. `gone` is one that was killed; −1. */
static void finish(int gone) {
        for (int i = 0; i < n_producers; i++)
                if (i != gone)
                        child_expect_exit(&children[i], 0);
        library_expect(gpuipc_channel_close(closer, &error), GPUIPC_OK, &error);
        for (int i = n_producers; i < n_actors; i++)
                if (i != gone)
                        child_expect_exit(&children[i], 0);
        library_expect(gpuipc_channel_free(closer, &error), GPUIPC_OK, &error);
        gpuipc_client_free(client);
}

static uint64_t total(size_t offset) {
        uint64_t sum = 0;

        for (int i = n_producers; i < n_actors; i++)
                sum += *(uint64_t *)((char *)&actors[i] + offset);
        return sum;
}
#define TOTAL(member) total(offsetof(struct actor, member))

static uint64_t expected_sum(uint64_t n_items) {
        uint64_t sum = 0;

        for (int p = 0; p < n_producers; p++)
                for (uint64_t i = 1; i <= n_items; i++)
                        sum += word_of((uint64_t)p, i);
        return sum;
}

/* Fewer where each takes longer. */
static uint64_t many(uint64_t n) {
        n = memory_is_host() ? n : n / 100;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
        n /= 20;
#endif
        return n;
}

/* ---- flows ------------------------------------------------------------------------------------------------ */

static const struct {
        int producers, consumers;
        uint64_t n_items;
        gpuipc_channel_kind kind;
        int64_t slots;
} flows[] = {
        { 1, 1, 1000000, GPUIPC_CHANNEL_QUEUE, 64 },   { 3, 3, 60000, GPUIPC_CHANNEL_QUEUE, 8 }, { 4, 1, 40000, GPUIPC_CHANNEL_QUEUE, 1 },
        { 1, 1, 200000, GPUIPC_CHANNEL_BROADCAST, 16 }, { 2, 3, 50000, GPUIPC_CHANNEL_BROADCAST, 8 },
};

START_TEST(each_item_comes_whole_and_once) {
        uint64_t n_items = many(flows[_i].n_items), copies = flows[_i].kind == GPUIPC_CHANNEL_BROADCAST ? (uint64_t)flows[_i].consumers : 1;
        int64_t started;

        stage(flows[_i].producers, flows[_i].consumers, n_items, flows[_i].kind, flows[_i].slots);
        start(0, n_actors);
        started = now_ms();
        finish(-1);
        printf("%d to %d, %s of %d: %llu items in %lld ms\n", flows[_i].producers, flows[_i].consumers, copies > 1 ? "broadcast" : "queue",
               (int)flows[_i].slots, (unsigned long long)n_items * (unsigned)flows[_i].producers, (long long)(now_ms() - started));
        ck_assert_uint_eq(TOTAL(n_bad), 0);
        ck_assert_uint_eq(TOTAL(n_broken), 0);
        ck_assert_uint_eq(TOTAL(n), copies * n_items * (uint64_t)n_producers);
        ck_assert_uint_eq(TOTAL(sum), copies * expected_sum(n_items));
} END_TEST

/* ---- deaths ----------------------------------------------------------------------------------------------- */

static int count_pidfds(void) {
        struct fds fds = fds_of(0);
        int n = 0;

        for (const char *at = fds.text; (at = strstr(at, "[pidfd]")); at++)
                n++;
        fds_deinit(&fds);
        return n;
}

/* Dead, and yet to be waited for. */
static void end_daemon(void) {
        siginfo_t info;

        ck_assert_int_eq(kill(daemon_process->pid, SIGKILL), 0);
        ck_assert_int_eq(waitid(P_PID, (id_t)daemon_process->pid, &info, WEXITED | WNOWAIT), 0);
}

/* One is killed holding an item, the daemon perhaps before it. The others are told, and nothing but that is lost. */
static void die(int producers, int consumers, int victim, bool without_daemon) {
        uint64_t n_items = many(20000), hold_after;
        int64_t died;

        stage(producers, consumers, n_items, GPUIPC_CHANNEL_QUEUE, 4);
        if (without_daemon)
                wait_for(count_pidfds() >= 2 * n_actors + 1); /* the channel's watcher knows them all, before any can have left */
        hold_after = victim < producers ? n_items / 2 : 2; /* a consumer may get few */
        actors[victim].hold_after = hold_after;
        for (int i = 0; i < n_actors; i++)
                actors[i].alone = without_daemon;
        start(0, producers);
        if (victim < producers)
                start(producers, n_actors);
        else
                start(victim, victim + 1); /* the first to take anything */
        child_hear(&children[victim], 'h');
        for (int i = producers; victim >= producers && i < n_actors; i++)
                if (i != victim)
                        start(i, i + 1);
        if (without_daemon)
                end_daemon();
        child_kill(&children[victim]);
        died = now_ms();
        if (!without_daemon) {
                finish(victim);
        } else {
                for (int i = 0; i < n_actors; i++) {
                        if (i == n_producers)
                                (void)gpuipc_channel_close(closer, NULL);
                        if (i != victim)
                                child_expect_exit(&children[i], 0);
                }
                (void)gpuipc_channel_free(closer, NULL);
                gpuipc_client_free(client);
        }
        ck_assert_uint_eq(TOTAL(n_bad), 0);
        if (victim < producers) {
                ck_assert_uint_eq(TOTAL(n_broken), 1);
                for (int i = producers; i < n_actors; i++)
                        if (actors[i].told_ms > 0)
                                ck_assert_int_le(actors[i].told_ms - died, deadline_in(100) - now_ms());
        }
        ck_assert_uint_eq(TOTAL(n), (uint64_t)(producers - (victim < producers)) * n_items +
                                            (victim < producers ? hold_after - 1 : 0) - (victim >= producers ? 1 : 0));
}

START_TEST(a_producer_dies_holding) {
        die(_i + 1, 2, 0, false);
} END_TEST

START_TEST(a_consumer_dies_holding) {
        die(1, 2, 2, false);
} END_TEST

/* ---- what is refused -------------------------------------------------------------------------------------- */

static void begin(gpuipc_channel_kind kind) {
        gpuipc_channel_create_options options = options_of(kind, 4);

        client = library_connect(daemon_process->socket);
        library_expect(gpuipc_channel_create(client, &options, &closer, &error), GPUIPC_OK, &error);
}

static void end(void) {
        library_expect(gpuipc_channel_free(closer, &error), GPUIPC_OK, &error);
        gpuipc_client_free(client);
}

START_TEST(a_channel_is_listed_and_not_opened) {
        gpuipc_channel_create_options options = options_of(GPUIPC_CHANNEL_QUEUE, 4);
        gpuipc_channel *other;
        gpuipc_buffer *buffer;

        begin(GPUIPC_CHANNEL_QUEUE);
        ck_assert_int_eq(library_count_buffers(client, NAME), 1);
        ck_assert_int_eq(library_count_leases(client, NAME), 1);
        ck_assert_int_ne(gpuipc_open_name(client, NAME, NULL, &buffer, &error), GPUIPC_OK);
        printf("%s\n", error.message);
        library_expect(gpuipc_channel_create(client, &options, &other, &error), GPUIPC_ERROR_NAME_TAKEN, &error);
        library_expect(attach(client, GPUIPC_CHANNEL_CONSUMER, &other, &error), GPUIPC_OK, &error);
        ck_assert_int_eq(library_count_leases(client, NAME), 2);
        ck_assert_str_eq(gpuipc_channel_id(other), gpuipc_channel_id(closer));
        library_expect(gpuipc_channel_free(other, &error), GPUIPC_OK, &error);
        end();
} END_TEST

START_TEST(a_buffer_is_no_channel) {
        gpuipc_channel_attach_options options = GPUIPC_CHANNEL_ATTACH_OPTIONS_INIT;
        gpuipc_buffer *buffer;
        gpuipc_channel *other;

        client = library_connect(daemon_process->socket);
        buffer = library_allocate(client, 4096, NAME, 0);
        library_expect(gpuipc_channel_attach(client, NAME, &options, &other, &error), GPUIPC_ERROR_NO_SUCH_BUFFER, &error);
        options.wait_ms = 30;
        library_expect(gpuipc_channel_attach(client, "none", &options, &other, &error), GPUIPC_ERROR_TIMED_OUT, &error);
        library_release(buffer);
        gpuipc_client_free(client);
} END_TEST

START_TEST(at_most_64_members) {
        gpuipc_channel *members[63], *other;

        begin(GPUIPC_CHANNEL_BROADCAST);
        for (int i = 0; i < 63; i++)
                library_expect(attach(client, GPUIPC_CHANNEL_CONSUMER, &members[i], &error), GPUIPC_OK, &error);
        ck_assert_int_eq(gpuipc_channel_number(members[62]), 63);
        library_expect(gpuipc_channel_attach(client, NAME, NULL, &other, &error), GPUIPC_ERROR_QUOTA_EXCEEDED, &error);
        ck_assert_str_eq(error.subject, "channel_participants");
        library_expect(gpuipc_channel_free(members[10], &error), GPUIPC_OK, &error);
        library_expect(gpuipc_channel_attach(client, NAME, NULL, &members[10], &error), GPUIPC_OK, &error);
        ck_assert_int_eq(gpuipc_channel_number(members[10]), 11);
        for (int i = 0; i < 63; i++)
                library_expect(gpuipc_channel_free(members[i], &error), GPUIPC_OK, &error);
        end();
} END_TEST

/* Its lease drains until this process ends. */
START_TEST(one_that_is_kicked_is_told) {
        gpuipc_channel *other;
        gpuipc_client *kicker;
        char *session;
        gpuipc_item item;
        int r;

        begin(GPUIPC_CHANNEL_QUEUE);
        session = library_session(client);
        kicker = library_connect(daemon_process->socket);
        library_expect(attach(kicker, GPUIPC_CHANNEL_CONSUMER, &other, &error), GPUIPC_OK, &error);
        library_expect(gpuipc_kick(kicker, session, &error), GPUIPC_OK, &error);
        while ((r = gpuipc_channel_begin(closer, NULL, WAIT_MS, &item, &error)) == GPUIPC_OK)
                (void)gpuipc_channel_cancel(closer, &item, NULL);
        library_expect(r, GPUIPC_ERROR_LEASE_LOST, &error);
        library_expect(gpuipc_channel_free(other, &error), GPUIPC_OK, &error);
        (void)gpuipc_channel_free(closer, NULL);
        gpuipc_client_free(client);
        gpuipc_client_free(kicker);
        free(session);
} END_TEST

START_TEST(figures_from_outside) {
        gpuipc_channel_stats stats = GPUIPC_CHANNEL_STATS_INIT;
        gpuipc_client *onlooker;

        begin(GPUIPC_CHANNEL_QUEUE);
        for (uint64_t i = 1; i <= 3; i++)
                ck_assert_int_eq(make_item(closer, i, false, -1), 0);
        onlooker = library_connect(daemon_process->socket);
        library_expect(gpuipc_channel_look(onlooker, gpuipc_channel_id(closer), &stats, &error), GPUIPC_OK, &error);
        ck_assert_uint_eq(stats.begun, 3);
        ck_assert_uint_eq(stats.depth, 3);
        ck_assert_int_eq(stats.n_members, 1);
        library_expect(gpuipc_channel_look(onlooker, "b99", &stats, &error), GPUIPC_ERROR_NO_SUCH_BUFFER, &error);
        gpuipc_client_free(onlooker);
        end();
} END_TEST

/* ---- without a daemon ------------------------------------------------------------------------------------- */

static void teardown_alone(void) {
        gpuipcd_kill(daemon_process);
        (void)munmap(actors, ACTORS_MAX * sizeof(*actors));
}

START_TEST(deaths_while_the_daemon_is_down) {
        die(2, 2, _i, true);
} END_TEST

int main(void) {
        Suite *suite = suite_create("channel");
        TCase *tests = tcase_create("channel"), *alone = tcase_create("alone");

        tcase_set_timeout(tests, 120);
        tcase_add_checked_fixture(tests, setup, teardown);
        tcase_add_loop_test(tests, each_item_comes_whole_and_once, 0, (int)ELEMENTSOF(flows));
        tcase_add_loop_test(tests, a_producer_dies_holding, 0, 2);
        tcase_add_test(tests, a_consumer_dies_holding);
        tcase_add_test(tests, a_channel_is_listed_and_not_opened);
        tcase_add_test(tests, a_buffer_is_no_channel);
        tcase_add_test(tests, at_most_64_members);
        tcase_add_test(tests, figures_from_outside);
        suite_add_tcase(suite, tests);
        tcase_set_timeout(alone, 120);
        tcase_add_checked_fixture(alone, setup, teardown_alone);
        tcase_add_test(alone, one_that_is_kicked_is_told);
        tcase_add_loop_test(alone, deaths_while_the_daemon_is_down, 0, 3);
        suite_add_tcase(suite, alone);
        return suite_run(suite);
}
