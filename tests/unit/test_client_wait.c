/* SPDX-License-Identifier: Apache-2.0 */
/* Which call goes over which connection: what waits holds nobody up, leases stay where they were made, and threads share
 * one client. */
#include <check.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "client/client.h"
#include "client/owner.h"
#include "include/gpuipc.h"
#include "tests/support/fake_server.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"
#include "tests/support/wait.h"

#define NO_SUCH_BUFFER "{\"error\":\"io.gpuipc.Broker.NoSuchBuffer\"}"
#define TIMED_OUT "{\"error\":\"io.gpuipc.Broker.TimedOut\"}"
#define QUOTA "{\"error\":\"io.gpuipc.Broker.QuotaExceeded\",\"parameters\":{\"scope\":\"bytes_per_uid\",\"limit\":9," \
              "\"used\":8,\"asked\":7}}"

#define SHORT_MS 1500 /* for calls that are not answered; those that are have LONG_MS, however busy the machine is */
#define LONG_MS 60000
#define CALLS 50

static gpuipc_client *connect_to(struct fake *fake, int timeout_ms) {
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_client *client;
        gpuipc_error error;

        options.socket_path = fake->path;
        options.timeout_ms = timeout_ms;
        ck_assert_msg(gpuipc_connect(&options, &client, &error) == GPUIPC_OK, "%s", error.message);
        return client;
}

/* Names are absent and quotas full for those who do not wait; those who wait are answered by the test. Names that begin
 * with "there" are there. */
static void waiting_answer(struct fake *fake, int peer, const char *call, void *data) {
        if (strstr(call, "wait_ms") || strstr(call, "slow"))
                return;
        if (strstr(call, ".Open\"") && !strstr(call, "there"))
                fake_send(fake, peer, NO_SUCH_BUFFER);
        else if (strstr(call, ".Allocate\"") && strstr(call, "full"))
                fake_send(fake, peer, QUOTA);
        else
                fake_broker_answer(fake, peer, call, data);
}

static void grant_to(struct fake *fake, int peer, struct fake_broker *broker) {
        fake_broker_answer(fake, peer, "x.Open\"", broker);
}

/* ---- looking before sleeping ------------------------------------------------------------------------------ */

static _Atomic int n_polls;

/* In place of the C library's. */
int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask) {
        struct timespec left = timeout ? *timeout : (struct timespec){ 0 };

        atomic_fetch_add(&n_polls, 1);
        return (int)syscall(SYS_ppoll, fds, n, timeout ? &left : NULL, mask, _NSIG / 8);
}

static int64_t own_usec(void) {
        struct timespec t;

        ck_assert_int_eq(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t), 0);
        return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void ask_for_nothing(gpuipc_client *client) {
        gpuipc_buffer *buffer;

        ck_assert_int_eq(gpuipc_open_name(client, "absent", NULL, &buffer, NULL), GPUIPC_ERROR_NO_SUCH_BUFFER);
}

static bool most_are_not_slept_for(gpuipc_client *client) {
        int before = atomic_load(&n_polls);

        for (int i = 0; i < CALLS; i++)
                ask_for_nothing(client);
        return atomic_load(&n_polls) - before < CALLS / 2;
}

START_TEST(a_reply_that_is_there_soon_is_not_slept_for) {
        struct fake_broker broker = { 0 };
        struct fake *fake = fake_start(waiting_answer, &broker);
        gpuipc_client *client = connect_to(fake, 0);

        wait_for(most_are_not_slept_for(client));
        gpuipc_client_free(client);
        fake_stop(fake);
}
END_TEST

START_TEST(a_long_wait_takes_no_processor) {
        struct fake_broker broker = { 0 };
        struct fake *fake = fake_start(waiting_answer, &broker);
        gpuipc_client *client = connect_to(fake, LONG_MS);
        gpuipc_buffer *buffer;
        int64_t began, spent;

        ask_for_nothing(client);
        client->timeout_ms = SHORT_MS;
        began = own_usec();
        ck_assert_int_eq(gpuipc_open_name(client, "slow", NULL, &buffer, NULL), GPUIPC_ERROR_TIMED_OUT);
        spent = own_usec() - began;
        ck_assert_int_lt(spent, SHORT_MS * 1000 / 5);
        gpuipc_client_free(client);
        fake_stop(fake);
}
END_TEST

/* ---- one thread waits ------------------------------------------------------------------------------------- */

struct opener {
        pthread_t thread;
        gpuipc_client *client;
        const char *name;
        gpuipc_open_options options;
        gpuipc_buffer *buffer;
        gpuipc_error error;
        int r;
};

static void *open_it(void *arg) {
        struct opener *opener = arg;
        opener->r = gpuipc_open_name(opener->client, opener->name, &opener->options, &opener->buffer, &opener->error);
        return NULL;
}

static void opener_start(struct opener *opener, gpuipc_client *client, const char *name, int64_t owner) {
        *opener = (struct opener){ .client = client, .name = name, .options = GPUIPC_OPEN_OPTIONS_INIT };
        opener->options.wait_ms = 20000;
        opener->options.owner = owner;
        ck_assert_int_eq(pthread_create(&opener->thread, NULL, open_it, opener), 0);
}

static int opener_end(struct opener *opener) {
        ck_assert_int_eq(pthread_join(opener->thread, NULL), 0);
        return opener->r;
}

START_TEST(wait_holds_nobody_up) {
        struct fake_broker broker;
        struct opener opener;
        gpuipc_buffer *buffer, *second;
        gpuipc_error error;

        check_fd_count_begin();
        fake_broker_init(&broker, 4096);
        struct fake *fake = fake_start(waiting_answer, &broker);
        gpuipc_client *client = connect_to(fake, 60000);
        ck_assert_int_eq(gpuipc_allocate(client, 4096, NULL, &buffer, &error), GPUIPC_OK);
        opener_start(&opener, client, "late", 5);
        wait_for(fake_count(fake, "\"late\"", "wait_ms", NULL) == 1);
        /* Asked without waiting first, over the main connection. */
        ck_assert_uint_eq(fake_count(fake, "0 {", "\"late\"", "\"owner\":5", NULL), 1);
        ck_assert_int_eq(fake_peer_of(fake, "wait_ms"), 1);
        /* Meanwhile: release, allocate, list and status all work. */
        ck_assert_msg(gpuipc_release(buffer, &error) == GPUIPC_OK, "%s", error.message);
        ck_assert_int_eq(gpuipc_allocate(client, 4096, NULL, &buffer, &error), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_get_status(client, NULL, NULL, &error), GPUIPC_OK);

        grant_to(fake, 1, &broker);
        ck_assert_msg(opener_end(&opener) == GPUIPC_OK, "%s", opener.error.message);

        /* A second wait does not stand before the Release of the first one's lease. */
        struct opener other;
        opener_start(&other, client, "later", 5);
        wait_for(fake_count(fake, "\"later\"", "wait_ms", NULL) == 1);
        ck_assert_int_eq(fake_peer_of(fake, "\"later\",\"owner\":5,\"wait_ms\""), 2);
        second = opener.buffer;
        char lease[64];
        (void)snprintf(lease, sizeof(lease), "\"%s\"", gpuipc_buffer_lease(second));
        ck_assert_msg(gpuipc_release(second, &error) == GPUIPC_OK, "%s", error.message);
        ck_assert_int_eq(fake_peer_of(fake, lease), 1);
        fake_send(fake, 2, TIMED_OUT);
        ck_assert_int_eq(opener_end(&other), GPUIPC_ERROR_TIMED_OUT);
        ck_assert_str_eq(other.error.name, "io.gpuipc.Broker.TimedOut");

        /* Now that both side connections are idle and empty, the next wait takes one of them. */
        opener_start(&other, client, "latest", 5);
        wait_for(fake_count(fake, "\"latest\"", "wait_ms", NULL) == 1);
        ck_assert_int_eq(fake_peers(fake), 3);
        int peer = fake_peer_of(fake, "\"latest\",\"owner\":5,\"wait_ms\"");
        ck_assert_int_gt(peer, 0);
        grant_to(fake, peer, &broker);
        ck_assert_int_eq(opener_end(&other), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_release(other.buffer, &error), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_release(buffer, &error), GPUIPC_OK);
        gpuipc_client_free(client);
        fake_stop(fake);
        fake_broker_deinit(&broker);
        check_fd_count_end();
}
END_TEST

START_TEST(what_is_there_needs_no_wait) {
        gpuipc_open_options options = GPUIPC_OPEN_OPTIONS_INIT;
        struct fake_broker broker;
        gpuipc_buffer *buffers[20];
        gpuipc_error error;

        fake_broker_init(&broker, 4096);
        struct fake *fake = fake_start(waiting_answer, &broker);
        gpuipc_client *client = connect_to(fake, 60000);
        options.wait_ms = 10000;
        for (int i = 0; i < 20; i++)
                ck_assert_int_eq(gpuipc_open_name(client, "there", &options, &buffers[i], &error), GPUIPC_OK);
        ck_assert_int_eq(fake_peers(fake), 1);
        ck_assert_uint_eq(fake_count(fake, "wait_ms", NULL), 0);
        for (int i = 0; i < 20; i++)
                ck_assert_int_eq(gpuipc_release(buffers[i], &error), GPUIPC_OK);
        gpuipc_client_free(client);
        fake_stop(fake);
        fake_broker_deinit(&broker);
}
END_TEST

struct allocator {
        pthread_t thread;
        gpuipc_client *client;
        gpuipc_allocate_options options;
        gpuipc_buffer *buffer;
        gpuipc_error error;
        int r;
};

static void *allocate_it(void *arg) {
        struct allocator *a = arg;
        a->r = gpuipc_allocate(a->client, 4096, &a->options, &a->buffer, &a->error);
        return NULL;
}

START_TEST(allocate_waits_only_for_room) {
        struct allocator a = { .options = GPUIPC_ALLOCATE_OPTIONS_INIT };
        gpuipc_buffer *buffer = NULL;
        struct fake_broker broker;
        gpuipc_error error;

        fake_broker_init(&broker, 4096);
        struct fake *fake = fake_start(waiting_answer, &broker);
        gpuipc_client *client = connect_to(fake, 60000);
        a.options.name = "full";
        ck_assert_int_eq(gpuipc_allocate(client, 4096, &a.options, &buffer, &error), GPUIPC_ERROR_QUOTA_EXCEEDED);
        ck_assert_str_eq(error.subject, "bytes_per_uid");
        ck_assert_int_eq(error.limit, 9);
        ck_assert_int_eq(error.used, 8);
        ck_assert_int_eq(error.asked, 7);
        a.options.wait_ms = 1000;
        a.client = client;
        ck_assert_int_eq(pthread_create(&a.thread, NULL, allocate_it, &a), 0);
        wait_for(fake_count(fake, "\"wait_ms\":1000", NULL) == 1);
        grant_to(fake, 1, &broker);
        ck_assert_int_eq(pthread_join(a.thread, NULL), 0);
        ck_assert_int_eq(a.r, GPUIPC_OK);
        ck_assert_int_eq(gpuipc_release(a.buffer, &error), GPUIPC_OK);
        ck_assert_int_eq(fake_peer_of(fake, "Release"), 1);
        gpuipc_client_free(client);
        fake_stop(fake);
        fake_broker_deinit(&broker);
}
END_TEST

/* ---- whose buffer ----------------------------------------------------------------------------------------- */

/* A client of the user 1234, or NULL where there can be none. */
static gpuipc_client *connect_as_other(struct fake *fake) {
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_client *client = NULL;
        gpuipc_error error;
        bool sure;

        if (geteuid() != 0) {
                printf("SKIP owners: needs root to become another user\n");
                return NULL;
        }
        ck_assert_int_eq(chmod(fake->directory, 0755), 0);
        ck_assert_int_eq(chmod(fake->path, 0666), 0);
        options.socket_path = fake->path;
        options.timeout_ms = 60000;
        ck_assert_int_eq(seteuid(1234), 0);
        int r = gpuipc_connect(&options, &client, &error);
        ck_assert_int_eq(owner_uid(&sure), 1234);
        ck_assert_int_eq(seteuid(0), 0);
        if (r != GPUIPC_OK)
                printf("SKIP owners: the socket is out of another user's reach: %s\n", error.message);
        return client;
}

START_TEST(owner_is_asked_for) {
        gpuipc_open_options options = GPUIPC_OPEN_OPTIONS_INIT;
        gpuipc_buffer *buffer = NULL;
        struct fake_broker broker;
        gpuipc_error error;

        fake_broker_init(&broker, 4096);
        struct fake *fake = fake_start(waiting_answer, &broker);
        gpuipc_client *client = connect_as_other(fake);
        if (client) {
                ck_assert_int_eq(gpuipc_open_name(client, "n2", NULL, &buffer, &error), GPUIPC_ERROR_NO_SUCH_BUFFER);
                ck_assert_uint_eq(fake_count(fake, "\"n2\"", NULL), 2);
                ck_assert_uint_eq(fake_count(fake, "\"n2\"", "\"owner\":1234", NULL), 1);
                ck_assert_uint_eq(fake_count(fake, "\"n2\"", "\"owner\":0", NULL), 1);
                /* One's own goes first. */
                ck_assert_int_eq(gpuipc_open_name(client, "there", NULL, &buffer, &error), GPUIPC_OK);
                ck_assert_uint_eq(fake_count(fake, "\"there\"", NULL), 1);
                ck_assert_uint_eq(fake_count(fake, "\"there\"", "\"owner\":1234", NULL), 1);
                ck_assert_int_eq(gpuipc_release(buffer, &error), GPUIPC_OK);
                gpuipc_client_free(client);
        }
        /* Root's own is root's: asked for once. */
        client = connect_to(fake, 60000);
        if (geteuid() == 0) {
                ck_assert_int_eq(gpuipc_open_name(client, "n1", NULL, &buffer, &error), GPUIPC_ERROR_NO_SUCH_BUFFER);
                ck_assert_uint_eq(fake_count(fake, "\"n1\"", NULL), 1);
                ck_assert_uint_eq(fake_count(fake, "\"n1\"", "\"owner\":0", NULL), 1);
        }
        options.owner = -2;
        ck_assert_int_eq(gpuipc_open_name(client, "n3", &options, &buffer, &error), GPUIPC_ERROR_NO_SUCH_BUFFER);
        ck_assert_uint_eq(fake_count(fake, "\"n3\"", NULL), 1);
        ck_assert_uint_eq(fake_count(fake, "\"n3\"", "owner", NULL), 0);
        options.owner = 77;
        options.access = GPUIPC_RO;
        options.label = "x";
        ck_assert_int_eq(gpuipc_open_name(client, "n4", &options, &buffer, &error), GPUIPC_ERROR_NO_SUCH_BUFFER);
        ck_assert_uint_eq(fake_count(fake, "\"n4\"", "\"owner\":77", "\"access\":\"ro\"", "\"label\":\"x\"", NULL), 1);
        options.owner = -3;
        ck_assert_int_eq(gpuipc_open_name(client, "n5", &options, &buffer, &error), GPUIPC_ERROR_INVALID_PARAMETER);
        ck_assert_str_eq(error.subject, "owner");
        gpuipc_client_free(client);
        fake_stop(fake);
        fake_broker_deinit(&broker);
}
END_TEST

/* With a wait, both owners at once, and the first to come is taken, whichever it is. */
static void wait_for_two(struct fake *fake, gpuipc_client *client, struct fake_broker *broker, const char *name,
                         int winner_uid, bool loser_answers) {
        char winner[96], loser[96], quoted[24];
        struct opener opener;
        gpuipc_error error;

        (void)snprintf(quoted, sizeof(quoted), "\"%s\"", name);
        (void)snprintf(winner, sizeof(winner), "%s,\"owner\":%d,\"wait_ms\"", quoted, winner_uid);
        (void)snprintf(loser, sizeof(loser), "%s,\"owner\":%d,\"wait_ms\"", quoted, 1234 - winner_uid);
        opener_start(&opener, client, name, -1);
        wait_for(fake_count(fake, quoted, "wait_ms", NULL) == 2);
        int peer = fake_peer_of(fake, winner), other = fake_peer_of(fake, loser);
        ck_assert_int_gt(peer, 0);
        ck_assert_int_gt(other, 0);
        ck_assert_int_ne(peer, other);
        if (loser_answers)
                fake_send(fake, other, TIMED_OUT);
        grant_to(fake, peer, broker);
        ck_assert_msg(opener_end(&opener) == GPUIPC_OK, "%s", opener.error.message);
        ck_assert_int_eq(gpuipc_release(opener.buffer, &error), GPUIPC_OK);
        ck_assert_int_eq(fake_peer_of(fake, "Release"), peer);
        /* The wait that lost ends with its connection, unless it had its answer. */
        if (!loser_answers)
                wait_for(!fake_is_open(fake, other));
}

START_TEST(two_owners_are_waited_for_at_once) {
        struct fake_broker broker;

        check_fd_count_begin();
        fake_broker_init(&broker, 4096);
        struct fake *fake = fake_start(waiting_answer, &broker);
        gpuipc_client *client = connect_as_other(fake);
        if (client) {
                wait_for_two(fake, client, &broker, "w0", 1234, false);
                wait_for_two(fake, client, &broker, "w1", 0, true);
                wait_for_two(fake, client, &broker, "w2", 0, false);
        }
        gpuipc_client_free(client);
        fake_stop(fake);
        fake_broker_deinit(&broker);
        check_fd_count_end();
}
END_TEST

START_TEST(uid_through_the_namespace_map) {
        static const struct {
                const char *map;
                int64_t uid, outside;
                bool sure;
        } cases[] = {
                { "         0          0 4294967295\n", 1000, 1000, true },
                { "0 100000 65536\n", 0, 100000, false },
                { "0 1000 1\n1 100000 65535\n", 0, 1000, false },
                { "0 1000 1\n1 100000 65535\n", 33, 100032, false },
                { "0 1000 1\n", 5, 5, false },
                { "0 0 65536\n", 5, 5, false },
                { "", 5, 5, false },
                { "nonsense", 5, 5, false },
        };

        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                bool sure = !cases[i].sure;
                ck_assert_int_eq(owner_map_uid(cases[i].map, cases[i].uid, &sure), cases[i].outside);
                ck_assert_msg(sure == cases[i].sure, "case %zu", i);
        }
}
END_TEST

/* Tells who it takes the caller for, but only once "old" was asked for. */
static void knowing_answer(struct fake *fake, int peer, const char *call, void *data) {
        if (strstr(call, ".GetStatus\"") && fake_count(fake, "\"old\"", NULL) > 0)
                fake_send(fake, peer, "{\"parameters\":{\"version\":\"1\",\"backend\":\"host\",\"uptime_usec\":1,\"session\":\"s1\","
                                      "\"features\":[],\"devices\":[],\"buffers\":2,\"leases\":3,\"sessions\":4,\"limits\":{},"
                                      "\"uid\":777}}");
        else
                waiting_answer(fake, peer, call, data);
}

/* Who is in a user namespace cannot know of another one around it, and asks; once. An older daemon does not tell. */
START_TEST(uid_is_asked_for_in_a_user_namespace) {
        gpuipc_buffer *buffer = NULL;
        struct fake_broker broker;

        fake_broker_init(&broker, 4096);
        struct fake *fake = fake_start(knowing_answer, &broker);
        for (int i = 1; i <= 2; i++) {
                gpuipc_client *client = connect_to(fake, 60000);
                unsigned asked = 0, before = fake_count(fake, ".GetStatus\"", NULL);
                client->uid = 555;
                client->uid_sure = false;
                for (int times = 0; times < 2; times++) {
                        ck_assert_int_eq(gpuipc_open_name(client, i == 1 ? "old" : "new", NULL, &buffer, NULL),
                                         GPUIPC_ERROR_NO_SUCH_BUFFER);
                        if (times == 0)
                                asked = fake_count(fake, ".GetStatus\"", NULL);
                }
                ck_assert_uint_gt(asked, before);
                ck_assert_uint_eq(fake_count(fake, ".GetStatus\"", NULL), asked);
                gpuipc_client_free(client);
        }
        ck_assert_uint_eq(fake_count(fake, "\"old\"", "\"owner\":555", NULL), 2);
        ck_assert_uint_eq(fake_count(fake, "\"new\"", "\"owner\":777", NULL), 2);
        fake_stop(fake);
        fake_broker_deinit(&broker);
}
END_TEST

/* ---- a release that cannot be sent now -------------------------------------------------------------------- */

static void *seal_slowly(void *arg) {
        return (void *)(intptr_t)gpuipc_seal(arg, "slow", NULL);
}

START_TEST(release_behind_a_stuck_call) {
        struct fake_broker broker;
        gpuipc_buffer *buffer;
        gpuipc_error error;
        pthread_t thread;
        void *r;

        check_fd_count_begin();
        fake_broker_init(&broker, 4096);
        struct fake *fake = fake_start(waiting_answer, &broker);
        gpuipc_client *client = connect_to(fake, LONG_MS);
        ck_assert_int_eq(gpuipc_allocate(client, 4096, NULL, &buffer, &error), GPUIPC_OK);
        client->timeout_ms = SHORT_MS;
        ck_assert_int_eq(pthread_create(&thread, NULL, seal_slowly, client), 0);
        wait_for(fake_count(fake, "slow", NULL) == 1);
        ck_assert_int_eq(gpuipc_release(buffer, &error), GPUIPC_ERROR_TIMED_OUT);
        ck_assert_int_eq(pthread_join(thread, &r), 0);
        ck_assert_int_eq((int)(intptr_t)r, GPUIPC_ERROR_TIMED_OUT);
        ck_assert_uint_eq(fake_count(fake, "Release", NULL), 0);
        /* The daemon recovers; the lease is not forgotten. */
        fake_send(fake, 0, "{}");
        client->timeout_ms = LONG_MS;
        ck_assert_msg(gpuipc_seal(client, "b1", &error) == GPUIPC_OK, "%s", error.message);
        ck_assert_uint_eq(broker.n_released, 1);
        gpuipc_client_free(client);
        fake_stop(fake);
        fake_broker_deinit(&broker);
        check_fd_count_end();
}
END_TEST

START_TEST(release_behind_an_owed_reply) {
        struct fake_broker broker;
        gpuipc_buffer *buffer;
        gpuipc_error error;

        fake_broker_init(&broker, 4096);
        struct fake *fake = fake_start(waiting_answer, &broker);
        gpuipc_client *client = connect_to(fake, LONG_MS);
        ck_assert_int_eq(gpuipc_allocate(client, 4096, NULL, &buffer, &error), GPUIPC_OK);
        client->timeout_ms = SHORT_MS;
        ck_assert_int_eq(gpuipc_seal(client, "slow", &error), GPUIPC_ERROR_TIMED_OUT);
        ck_assert_int_eq(gpuipc_release(buffer, &error), GPUIPC_ERROR_TIMED_OUT);
        ck_assert_uint_eq(fake_count(fake, "Release", NULL), 0);
        fake_send(fake, 0, "{}");
        client->timeout_ms = LONG_MS;
        ck_assert_msg(gpuipc_seal(client, "b1", &error) == GPUIPC_OK, "%s", error.message);
        ck_assert_uint_eq(broker.n_released, 1);
        gpuipc_client_free(client);
        fake_stop(fake);
        fake_broker_deinit(&broker);
}
END_TEST

/* Nor is a lease that comes after its caller has given up. */
START_TEST(grant_that_comes_too_late) {
        gpuipc_allocate_options options = GPUIPC_ALLOCATE_OPTIONS_INIT;
        struct fake_broker broker;
        gpuipc_buffer *buffer = NULL;
        gpuipc_error error;

        check_fd_count_begin();
        fake_broker_init(&broker, 4096);
        struct fake *fake = fake_start(waiting_answer, &broker);
        gpuipc_client *client = connect_to(fake, LONG_MS);
        client->timeout_ms = SHORT_MS;
        options.name = "slow";
        ck_assert_int_eq(gpuipc_allocate(client, 4096, &options, &buffer, &error), GPUIPC_ERROR_TIMED_OUT);
        grant_to(fake, 0, &broker);
        client->timeout_ms = LONG_MS;
        ck_assert_msg(gpuipc_seal(client, "b1", &error) == GPUIPC_OK, "%s", error.message);
        ck_assert_uint_eq(broker.n_granted, 1);
        ck_assert_uint_eq(broker.n_released, 1);
        gpuipc_client_free(client);
        fake_stop(fake);
        fake_broker_deinit(&broker);
        check_fd_count_end();
}
END_TEST

/* ---- many threads ----------------------------------------------------------------------------------------- */

#define N_THREADS 8
#define N_ROUNDS 60

struct worker {
        pthread_t thread;
        gpuipc_client *client;
        gpuipc_error error;
        int r;
};

static void *work(void *arg) {
        struct worker *worker = arg;
        gpuipc_open_options ro = GPUIPC_OPEN_OPTIONS_INIT;

        ro.access = GPUIPC_RO;
        ro.wait_ms = 1000;
        for (int i = 0; i < N_ROUNDS && worker->r == GPUIPC_OK; i++) {
                gpuipc_buffer *a = NULL, *b = NULL;
                void *rw, *shared;

                worker->r = gpuipc_allocate(worker->client, 4096, NULL, &a, &worker->error);
                if (worker->r == GPUIPC_OK)
                        worker->r = gpuipc_open_name(worker->client, "there", &ro, &b, &worker->error);
                if (worker->r == GPUIPC_OK)
                        worker->r = gpuipc_buffer_map(a, &rw, &worker->error);
                if (worker->r == GPUIPC_OK)
                        worker->r = gpuipc_buffer_map(b, &shared, &worker->error);
                if (worker->r == GPUIPC_OK && i % 8 == 0)
                        worker->r = gpuipc_get_status(worker->client, NULL, NULL, &worker->error);
                if (worker->r == GPUIPC_OK)
                        worker->r = gpuipc_release(a, &worker->error);
                if (worker->r == GPUIPC_OK)
                        worker->r = gpuipc_release(b, &worker->error);
        }
        return NULL;
}

START_TEST(threads_share_a_client) {
        struct worker workers[N_THREADS];
        struct fake_broker broker;

        check_fd_count_begin();
        fake_broker_init(&broker, 4096);
        struct fake *fake = fake_start(waiting_answer, &broker);
        gpuipc_client *client = connect_to(fake, 60000);
        for (int i = 0; i < N_THREADS; i++) {
                workers[i] = (struct worker){ .client = client };
                ck_assert_int_eq(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
        }
        for (int i = 0; i < N_THREADS; i++) {
                ck_assert_int_eq(pthread_join(workers[i].thread, NULL), 0);
                ck_assert_msg(workers[i].r == GPUIPC_OK, "%s", workers[i].error.message);
        }
        ck_assert_uint_eq(broker.n_granted, N_THREADS * N_ROUNDS * 2);
        ck_assert_uint_eq(broker.n_released, N_THREADS * N_ROUNDS * 2);
        ck_assert_int_eq(fake_peers(fake), 1);
        gpuipc_client_free(client);
        fake_stop(fake);
        fake_broker_deinit(&broker);
        check_fd_count_end();
}
END_TEST

/* As many waits at once as threads: all are granted, their connections do not pile up afterwards. */
START_TEST(many_wait_at_once) {
        struct opener openers[N_THREADS];
        struct fake_broker broker;
        gpuipc_error error;

        check_fd_count_begin();
        fake_broker_init(&broker, 4096);
        struct fake *fake = fake_start(waiting_answer, &broker);
        gpuipc_client *client = connect_to(fake, 60000);
        for (int i = 0; i < N_THREADS; i++)
                opener_start(&openers[i], client, "late", 5);
        wait_for(fake_count(fake, "wait_ms", NULL) == N_THREADS);
        ck_assert_uint_eq(fake_open_peers(fake), N_THREADS + 1);
        for (int i = 1; i <= N_THREADS; i++)
                grant_to(fake, i, &broker);
        for (int i = 0; i < N_THREADS; i++)
                ck_assert_int_eq(opener_end(&openers[i]), GPUIPC_OK);
        ck_assert_uint_eq(fake_open_peers(fake), N_THREADS + 1);
        for (int i = 0; i < N_THREADS; i++)
                ck_assert_int_eq(gpuipc_release(openers[i].buffer, &error), GPUIPC_OK);
        wait_for(fake_open_peers(fake) == 3); /* the main one and two spares */
        gpuipc_client_free(client);
        fake_stop(fake);
        fake_broker_deinit(&broker);
        check_fd_count_end();
}
END_TEST

int main(void) {
        Suite *suite = suite_create("client_wait");
        TCase *tcase = tcase_create("waits");

        tcase_set_timeout(tcase, 30);
        tcase_add_test(tcase, a_reply_that_is_there_soon_is_not_slept_for);
        tcase_add_test(tcase, a_long_wait_takes_no_processor);
        tcase_add_test(tcase, wait_holds_nobody_up);
        tcase_add_test(tcase, what_is_there_needs_no_wait);
        tcase_add_test(tcase, allocate_waits_only_for_room);
        tcase_add_test(tcase, owner_is_asked_for);
        tcase_add_test(tcase, two_owners_are_waited_for_at_once);
        tcase_add_test(tcase, uid_through_the_namespace_map);
        tcase_add_test(tcase, uid_is_asked_for_in_a_user_namespace);
        tcase_add_test(tcase, release_behind_a_stuck_call);
        tcase_add_test(tcase, release_behind_an_owed_reply);
        tcase_add_test(tcase, grant_that_comes_too_late);
        suite_add_tcase(suite, tcase);
        tcase = tcase_create("threads");
        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, threads_share_a_client);
        tcase_add_test(tcase, many_wait_at_once);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
