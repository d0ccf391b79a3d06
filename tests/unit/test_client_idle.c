/* SPDX-License-Identifier: Apache-2.0 */
/* Restarts of the daemon that no call is caught in: idle clients, by thread and by descriptor; waits, watches and lists; many
 * threads at once; forks. */
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/client.h"
#include "include/gpuipc.h"
#include "proto/verdict.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"
#include "tests/support/wait.h"

#include "restart_broker.h"

#define no_error(call) ck_assert_msg((call) == GPUIPC_OK, "%s", error.message)

static int n_threads(void) {
        char line[128];
        int n = -1;
        FILE *file = fopen("/proc/self/status", "re");

        ck_assert_ptr_nonnull(file);
        while (fgets(line, sizeof(line), file))
                if (sscanf(line, "Threads: %d", &n) == 1)
                        break;
        (void)fclose(file);
        return n;
}

/* ---- idle ------------------------------------------------------------------------------------------------- */

START_TEST(idle_client_comes_back) {
        gpuipc_buffer *buffer;
        gpuipc_error error;

        check_fd_count_begin();
        struct restart_broker *broker = broker_start();
        int before = n_threads();
        gpuipc_client *client = broker_connect(broker, 60000, 0, 0);
        no_error(gpuipc_get_status(client, NULL, NULL, &error));
        ck_assert_int_eq(n_threads(), before); /* nothing to look after */
        ck_assert_int_eq(gpuipc_client_fd(client), -1);
        ck_assert_int_eq(gpuipc_client_dispatch(client, &error), GPUIPC_ERROR_INVALID_PARAMETER);
        buffer = broker_allocate(client);
        ck_assert_int_eq(n_threads(), before + 1);
        for (int i = 1; i <= 5; i++) {
                broker_crash(broker);
                wait_for(gpuipc_client_restarts(client) == i);
                ck_assert_uint_eq(broker_attached(broker), 1);
        }
        ck_assert_uint_eq(broker_resumes(broker), 5);
        /* With the daemon away, and back. */
        fake_down(broker->fake, ECONNREFUSED);
        broker_crash(broker);
        (void)poll(NULL, 0, 100);
        fake_up(broker->fake);
        wait_for(broker_attached(broker) == 1);
        no_error(gpuipc_release(buffer, &error));
        gpuipc_client_free(client);
        wait_for(n_threads() == before);
        broker_stop(broker);
        check_fd_count_end();
}
END_TEST

/* What has nothing to take up waits for the next call. */
START_TEST(idle_client_without_leases_stays_away) {
        gpuipc_error error;

        check_fd_count_begin();
        struct restart_broker *broker = broker_start();
        gpuipc_client *client = broker_connect(broker, 60000, 0, 0);
        no_error(gpuipc_release(broker_allocate(client), &error));
        broker_crash(broker);
        no_error(gpuipc_get_status(client, NULL, NULL, &error));
        ck_assert_int_eq(fake_peers(broker->fake), 2);
        ck_assert_uint_eq(fake_count(broker->fake, ".Resume\"", NULL), 0);
        gpuipc_client_free(client);
        broker_stop(broker);
        check_fd_count_end();
}
END_TEST

/* The end of a connection that carries no token is told without a call, too. */
START_TEST(loss_is_seen_without_a_call) {
        gpuipc_buffer *buffer;
        gpuipc_error error;

        check_fd_count_begin();
        struct restart_broker *broker = broker_start();
        broker->store = STORE_NONE;
        gpuipc_client *client = broker_connect(broker, 60000, 0, 0);
        buffer = broker_allocate(client);
        no_error(gpuipc_buffer_check(buffer, &error));
        broker_crash(broker);
        wait_for(gpuipc_buffer_check(buffer, &error) == GPUIPC_ERROR_LEASE_LOST);
        ck_assert_int_eq(gpuipc_release(buffer, &error), GPUIPC_ERROR_LEASE_LOST);
        gpuipc_client_free(client);
        broker_stop(broker);
        check_fd_count_end();
}
END_TEST

/* A lease whose reply was lost, over a connection that carries none: ended without a call. */
START_TEST(lost_reply_leaves_nothing) {
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_buffer *buffer = NULL;
        gpuipc_client *client;
        gpuipc_error error;

        check_fd_count_begin();
        struct restart_broker *broker = broker_start();
        options.socket_path = broker->fake->path;
        options.timeout_ms = slower_ms(800);
        options.restart_ms = 600000; /* longer than that, on a slow machine too */
        no_error(gpuipc_connect(&options, &client, &error));
        broker->down_at_crash = true;
        broker_plan(broker, (struct broker_plan){ .method = ".Allocate\"", .n_bytes = 20 });
        ck_assert_int_eq(gpuipc_allocate(client, BROKER_BYTES, NULL, &buffer, &error), GPUIPC_ERROR_UNREACHABLE);
        ck_assert_uint_eq(broker_leases(broker), 1);
        fake_up(broker->fake);
        wait_for(broker_leases(broker) == 0);
        gpuipc_client_free(client);
        broker_stop(broker);
        check_fd_count_end();
}
END_TEST

static bool readable(const gpuipc_client *client) {
        struct pollfd fd = { .fd = gpuipc_client_fd(client), .events = POLLIN };
        return poll(&fd, 1, 0) == 1;
}

/* By the caller's own loop. Nothing happens without it. */
static void loop_until_back(gpuipc_client *client, int64_t restarts) {
        struct pollfd fd = { .fd = gpuipc_client_fd(client), .events = POLLIN };
        gpuipc_error error;

        while (gpuipc_client_restarts(client) < restarts) {
                ck_assert_int_eq(poll(&fd, 1, WAIT_MS), 1);
                no_error(gpuipc_client_dispatch(client, &error));
        }
}

START_TEST(loop_in_place_of_the_thread) {
        gpuipc_buffer *buffer;
        gpuipc_error error;

        check_fd_count_begin();
        struct restart_broker *broker = broker_start();
        int before = n_threads();
        gpuipc_client *client = broker_connect(broker, 60000, 0, 1);
        ck_assert_int_ge(gpuipc_client_fd(client), 0);
        buffer = broker_allocate(client);
        ck_assert_int_eq(n_threads(), before);
        ck_assert(!readable(client));
        for (int i = 0; i < 3; i++) {
                if (i > 0)
                        fake_down(broker->fake, i == 1 ? ENOENT : ECONNREFUSED);
                broker_crash(broker);
                wait_for(readable(client));
                ck_assert_uint_eq(broker_attached(broker), 0);
                if (i > 0) {
                        int64_t begun = now_ms();

                        for (int j = 0; j < 4; j++) {
                                wait_for(readable(client));
                                no_error(gpuipc_client_dispatch(client, &error));
                        }
                        /* Pauses between them, half of 10, 20 and 40 at least; of 20, 10 and 20 if it broke soon after it was back. */
                        ck_assert_int_ge(now_ms() - begun, 24);
                        fake_up(broker->fake);
                }
                loop_until_back(client, i + 1);
                ck_assert_uint_eq(broker_attached(broker), 1);
        }
        no_error(gpuipc_release(buffer, &error));
        gpuipc_client_free(client);
        broker_stop(broker);
        check_fd_count_end();
}
END_TEST

/* The daemon is silent: the loop's thread is not held up, and freeing the client is quick. */
START_TEST(nobody_waits_for_a_silent_daemon) {
        gpuipc_buffer *buffer;
        gpuipc_error error;
        int64_t begun;

        check_fd_count_begin();
        struct restart_broker *broker = broker_start();
        gpuipc_client *client = broker_connect(broker, 60000, 0, _i);
        buffer = broker_allocate(client);
        broker->store = STORE_SILENT;
        broker_crash(broker);
        begun = now_ms();
        while (_i == 1 && fake_count(broker->fake, ".Resume\"", NULL) == 0)
                no_error(gpuipc_client_dispatch(client, &error));
        wait_for(fake_count(broker->fake, ".Resume\"", NULL) == 1);
        gpuipc_client_free(client);
        ck_assert_int_lt(now_ms() - begun, 30000); /* half of what it may take */
        ck_assert_int_eq(gpuipc_release(buffer, &error), GPUIPC_ERROR_DISCONNECTED);
        broker_stop(broker);
        check_fd_count_end();
}
END_TEST

/* What breaks each time it is back, a daemon that ends or whoever took its place, is not asked at once again. */
START_TEST(who_breaks_at_once_is_not_hammered) {
        gpuipc_buffer *buffer;
        gpuipc_error error;
        int64_t begun = now_ms();

        check_fd_count_begin();
        struct restart_broker *broker = broker_start();
        gpuipc_client *client = broker_connect(broker, 60000, 0, 0);
        buffer = broker_allocate(client);
        for (int i = 1; i <= 12; i++) {
                broker_crash(broker);
                wait_for(gpuipc_client_restarts(client) == i);
        }
        ck_assert_int_ge(now_ms() - begun, 150);
        no_error(gpuipc_release(buffer, &error));
        ck_assert_uint_eq(broker_leases(broker), 0);
        gpuipc_client_free(client);
        broker_stop(broker);
        check_fd_count_end();
}
END_TEST

/* ---- waits, watches, lists -------------------------------------------------------------------------------- */

struct opener {
        gpuipc_client *client;
        int64_t owner, wait_ms; /* 0: ten seconds */
        pthread_t thread;
        gpuipc_buffer *buffer;
        gpuipc_error error;
        int r;
};

static void *open_waiting(void *arg) {
        struct opener *opener = arg;
        gpuipc_open_options options = GPUIPC_OPEN_OPTIONS_INIT;

        options.owner = opener->owner;
        options.wait_ms = opener->wait_ms ? opener->wait_ms : 10000;
        opener->r = gpuipc_open_name(opener->client, "late", &options, &opener->buffer, &opener->error);
        return NULL;
}

/* The waits in the call's own words, in order of their coming. */
static int64_t wait_ms_of(struct restart_broker *broker, size_t i) {
        int64_t ms = -1;

        (void)pthread_mutex_lock(&broker->fake->lock);
        for (size_t j = 0; j < broker->fake->n_calls; j++) {
                const char *at = strstr(broker->fake->calls[j], "\"wait_ms\":");
                if (at && i-- == 0)
                        ms = atoll(at + 10);
        }
        (void)pthread_mutex_unlock(&broker->fake->lock);
        return ms;
}

START_TEST(waits_go_on_with_what_is_left) {
        gpuipc_error error;
        size_t n_waits = _i == 0 ? 1 : 2; /* for one owner; for the caller's own and root's at once */

        check_fd_count_begin();
        struct restart_broker *broker = broker_start();
        broker->no_names = true;
        gpuipc_client *client = broker_connect(broker, 60000, 0, 0);
        struct opener opener = { .client = client, .owner = _i == 0 ? 5 : -1 };
        client->uid = 1234; /* so that there are two to wait for, whoever runs this */
        ck_assert_int_eq(pthread_create(&opener.thread, NULL, open_waiting, &opener), 0);
        wait_for(fake_count(broker->fake, "wait_ms", NULL) == n_waits);
        (void)poll(NULL, 0, 50);
        broker_crash(broker);
        wait_for(fake_count(broker->fake, "wait_ms", NULL) == 2 * n_waits);
        ck_assert_int_eq(wait_ms_of(broker, 0), 10000);
        ck_assert_int_le(wait_ms_of(broker, n_waits), 9960);
        ck_assert_int_ge(wait_ms_of(broker, n_waits), 1);
        /* It is told that the daemon stops, and the daemon ends. */
        broker_stopping(broker);
        (void)poll(NULL, 0, 10);
        broker_crash(broker);
        wait_for(fake_count(broker->fake, "wait_ms", NULL) == 3 * n_waits);
        /* The lease is granted and the reply lost; then it comes. */
        broker_grant_waiting(broker, 10);
        wait_for(fake_count(broker->fake, "wait_ms", NULL) == 4 * n_waits);
        broker_grant_waiting(broker, SIZE_MAX);
        ck_assert_int_eq(pthread_join(opener.thread, NULL), 0);
        ck_assert_msg(opener.r == GPUIPC_OK, "%s", opener.error.message);
        ck_assert_uint_eq(broker_leases(broker), 1);
        ck_assert(broker_has(broker, gpuipc_buffer_lease(opener.buffer)));
        broker_crash(broker);
        wait_for(broker_attached(broker) == 1);
        no_error(gpuipc_release(opener.buffer, &error));
        ck_assert_uint_eq(broker_leases(broker), 0);
        gpuipc_client_free(client);
        broker_stop(broker);
        check_fd_count_end();
}
END_TEST

/* The same over the wait's own connection, which nobody uses any more: the call is out of time, and its lease ended all the same. */
START_TEST(wait_that_was_lost_leaves_nothing) {
        gpuipc_open_options options = GPUIPC_OPEN_OPTIONS_INIT;
        gpuipc_error error;

        check_fd_count_begin();
        struct restart_broker *broker = broker_start();
        broker->no_names = true;
        gpuipc_client *client = broker_connect(broker, 60000, 0, 0);
        struct opener opener = { .client = client, .owner = 5 };
        client->timeout_ms = slower_ms(400);
        client->restart_ms = 600000;
        opener.wait_ms = 400;
        ck_assert_int_eq(pthread_create(&opener.thread, NULL, open_waiting, &opener), 0);
        wait_for(fake_count(broker->fake, "wait_ms", NULL) == 1);
        broker->down_at_crash = true;
        broker_grant_waiting(broker, 10);
        ck_assert_int_eq(pthread_join(opener.thread, NULL), 0);
        ck_assert_int_eq(opener.r, GPUIPC_ERROR_UNREACHABLE);
        ck_assert_uint_eq(broker_leases(broker), 1);
        fake_up(broker->fake);
        wait_for(broker_leases(broker) == 0);
        wait_for(fake_open_peers(broker->fake) <= 2);
        options.owner = 5;
        ck_assert_int_eq(gpuipc_open_name(client, "late", &options, &opener.buffer, &error), GPUIPC_ERROR_NO_SUCH_BUFFER);
        gpuipc_client_free(client);
        broker_stop(broker);
        check_fd_count_end();
}
END_TEST

static void send_event(struct restart_broker *broker, int sequence) {
        char text[128];

        (void)snprintf(text, sizeof(text), "{\"parameters\":{\"event\":{\"sequence\":%d,\"time_usec\":1,\"kind\":\"created\"}},"
                       "\"continues\":true}", sequence);
        fake_send(broker->fake, fake_peer_of(broker->fake, ".Watch\""), text);
}

static void expect_event(gpuipc_watch *watch, int sequence) {
        const gpuipc_event_info *event;
        gpuipc_error error;

        no_error(gpuipc_watch_next(watch, WAIT_MS, &event, &error));
        ck_assert_int_eq(event->sequence, sequence);
}

START_TEST(watch_goes_on) {
        struct pollfd fd = { .events = POLLIN };
        const gpuipc_event_info *event;
        gpuipc_watch *watch;
        gpuipc_error error;

        check_fd_count_begin();
        struct restart_broker *broker = broker_start();
        gpuipc_client *client = broker_connect(broker, 60000, 0, 0);
        no_error(gpuipc_watch_new(client, -1, &watch, &error));
        fd.fd = gpuipc_watch_fd(watch);
        wait_for(fake_count(broker->fake, ".Watch\"", NULL) == 1);
        /* Before the first event: from then on. */
        broker_crash(broker);
        ck_assert_int_eq(poll(&fd, 1, WAIT_MS), 1);
        ck_assert_int_eq(gpuipc_watch_next(watch, 0, &event, &error), GPUIPC_ERROR_TIMED_OUT);
        wait_for(gpuipc_watch_next(watch, 0, &event, &error) == GPUIPC_ERROR_TIMED_OUT &&
                 fake_count(broker->fake, ".Watch\"", NULL) == 2);
        ck_assert_uint_eq(fake_count(broker->fake, ".Watch\"", "since", NULL), 0);
        send_event(broker, 7);
        send_event(broker, 8);
        expect_event(watch, 7);
        expect_event(watch, 8);
        /* After an outage: with the event after the last one; who polls is called when it is time. */
        fake_down(broker->fake, ENOENT);
        broker_crash(broker);
        for (int i = 0; i < 4; i++) {
                ck_assert_int_eq(poll(&fd, 1, WAIT_MS), 1);
                ck_assert_int_eq(gpuipc_watch_next(watch, 0, &event, &error), GPUIPC_ERROR_TIMED_OUT);
        }
        fake_up(broker->fake);
        while (fake_count(broker->fake, ".Watch\"", "\"since\":8", NULL) == 0) {
                ck_assert_int_eq(poll(&fd, 1, 1000) >= 0, 1);
                ck_assert_int_eq(gpuipc_watch_next(watch, 0, &event, &error), GPUIPC_ERROR_TIMED_OUT);
        }
        ck_assert_int_eq(poll(&fd, 1, 0), 0);
        send_event(broker, 9);
        expect_event(watch, 9);
        /* What was lost meanwhile is told. The daemon stops in an orderly way this time. */
        fake_send(broker->fake, fake_peer_of(broker->fake, ".Watch\""), "{\"error\":\"io.gpuipc.Broker.TooManyRequests\",\"parameters\":"
                  "{\"reason\":\"" VERDICT_REASON_STOPPING "\"}}");
        ck_assert_int_eq(gpuipc_watch_next(watch, 50, &event, &error), GPUIPC_ERROR_TIMED_OUT);
        broker_crash(broker);
        wait_for(gpuipc_watch_next(watch, 0, &event, &error) == GPUIPC_ERROR_TIMED_OUT &&
                 fake_count(broker->fake, ".Watch\"", "\"since\":9", NULL) == 1);
        fake_send(broker->fake, fake_peer_of(broker->fake, ".Watch\""),
                  "{\"error\":\"io.gpuipc.Broker.EventsLost\",\"parameters\":{\"oldest\":77}}");
        ck_assert_int_eq(gpuipc_watch_next(watch, WAIT_MS, &event, &error), GPUIPC_ERROR_EVENTS_LOST);
        ck_assert_int_eq(error.oldest, 77);
        gpuipc_watch_free(watch);
        gpuipc_client_free(client);
        broker_stop(broker);
        check_fd_count_end();
}
END_TEST

static void *next_event(void *arg) {
        const gpuipc_event_info *event;
        return (void *)(intptr_t)gpuipc_watch_next(arg, -1, &event, NULL);
}

/* While the daemon is away too. */
START_TEST(watch_is_stopped_while_away) {
        gpuipc_watch *watch;
        gpuipc_error error;
        pthread_t thread;
        void *r;

        check_fd_count_begin();
        struct restart_broker *broker = broker_start();
        gpuipc_client *client = broker_connect(broker, 60000, 0, 0);
        no_error(gpuipc_watch_new(client, 3, &watch, &error));
        fake_down(broker->fake, ENOENT);
        broker_crash(broker);
        ck_assert_int_eq(pthread_create(&thread, NULL, next_event, watch), 0);
        (void)poll(NULL, 0, 30);
        gpuipc_watch_stop(watch);
        ck_assert_int_eq(pthread_join(thread, &r), 0);
        ck_assert_int_eq((intptr_t)r, GPUIPC_ERROR_CLOSED);
        gpuipc_watch_free(watch);
        gpuipc_client_free(client);
        fake_up(broker->fake);
        broker_stop(broker);
        check_fd_count_end();
}
END_TEST

struct told {
        char ids[16][8];
        size_t n;
};

static int note_lease(const gpuipc_lease_info *lease, void *data) {
        struct told *told = data;

        ck_assert_uint_lt(told->n, 16);
        (void)snprintf(told->ids[told->n++], sizeof(told->ids[0]), "%s", lease->id);
        return 0;
}

/* Broken off after a page: begun anew, and nothing is told twice. */
START_TEST(list_is_begun_anew) {
        struct told told = { 0 };
        gpuipc_buffer *buffers[6];
        gpuipc_error error;

        check_fd_count_begin();
        struct restart_broker *broker = broker_start();
        gpuipc_client *client = broker_connect(broker, 60000, 0, 0);
        for (int i = 0; i < 6; i++)
                buffers[i] = broker_allocate(client);
        broker->page = 2;
        for (size_t n = 0; n < 3; n++) {
                told.n = 0;
                broker->break_after_pages = n;
                broker_plan(broker, (struct broker_plan){ .method = ".List\"", .n_bytes = SIZE_MAX });
                no_error(gpuipc_list(client, NULL, note_lease, &told, &error));
                ck_assert_uint_eq(told.n, 6);
                for (size_t i = 0; i < told.n; i++)
                        for (size_t j = 0; j < i; j++)
                                ck_assert_str_ne(told.ids[i], told.ids[j]);
        }
        for (int i = 0; i < 6; i++)
                no_error(gpuipc_release(buffers[i], &error));
        gpuipc_client_free(client);
        broker_stop(broker);
        check_fd_count_end();
}
END_TEST

/* ---- many at once ----------------------------------------------------------------------------------------- */

enum { N_WORKERS = 8 };

struct worker {
        gpuipc_client *client;
        pthread_t thread;
        atomic_bool *stop;
        unsigned n;
        gpuipc_buffer *held;
        gpuipc_error error;
        const char *what; /* failed */
};

#define step(call, name) if ((call) != GPUIPC_OK) { worker->what = (name); return NULL; }

static void *work(void *arg) {
        struct worker *worker = arg;

        for (; !atomic_load(worker->stop); worker->n++) {
                gpuipc_buffer *buffer = NULL;
                void *pointer;
                unsigned n = 0;

                step(gpuipc_allocate(worker->client, BROKER_BYTES, NULL, &buffer, &worker->error), "allocate");
                step(gpuipc_buffer_map(buffer, &pointer, &worker->error), "map");
                step(gpuipc_seal(worker->client, "b0", &worker->error), "seal");
                step(gpuipc_buffer_check(worker->held, &worker->error), "check");
                step(gpuipc_list_buffers(worker->client, NULL, NULL, NULL, NULL) == GPUIPC_ERROR_INVALID_PARAMETER ? 0 : 1, "list");
                step(gpuipc_get_status(worker->client, NULL, &n, &worker->error), "status");
                step(gpuipc_release(buffer, &worker->error), "release");
        }
        return NULL;
}

START_TEST(threads_ride_it_out_together) {
        static struct worker workers[N_WORKERS];
        atomic_bool stop = false;
        gpuipc_error error;

        check_fd_count_begin();
        struct restart_broker *broker = broker_start();
        gpuipc_client *clients[2] = { broker_connect(broker, 60000, 0, 0), broker_connect(broker, 60000, 0, 0) };
        for (int i = 0; i < N_WORKERS; i++) {
                workers[i] = (struct worker){ .client = clients[i % 2], .stop = &stop, .held = broker_allocate(clients[i % 2]) };
                ck_assert_int_eq(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
        }
        for (int i = 0; i < 40; i++) {
                size_t n = fake_count(broker->fake, ".Release\"", NULL);

                if (i % 8 == 0)
                        fake_down(broker->fake, ENOENT);
                broker_crash(broker);
                if (i % 8 == 0) {
                        (void)poll(NULL, 0, 20);
                        fake_up(broker->fake);
                }
                wait_for(fake_count(broker->fake, ".Release\"", NULL) > n + 4);
        }
        atomic_store(&stop, true);
        for (int i = 0; i < N_WORKERS; i++) {
                ck_assert_int_eq(pthread_join(workers[i].thread, NULL), 0);
                ck_assert_msg(!workers[i].what, "%s: %s", workers[i].what, workers[i].error.message);
        }
        /* What is held is all there is. */
        wait_for(broker_attached(broker) == N_WORKERS);
        wait_for(broker_leases(broker) == N_WORKERS);
        for (int i = 0; i < N_WORKERS; i++)
                no_error(gpuipc_release(workers[i].held, &error));
        ck_assert_uint_eq(broker_leases(broker), 0);
        gpuipc_client_free(clients[0]);
        gpuipc_client_free(clients[1]);
        broker_stop(broker);
        check_fd_count_end();
}
END_TEST

/* A child made during the outage is no client, and the parent's session is none of its business. */
START_TEST(fork_during_the_outage) {
        int *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        gpuipc_buffer *buffer;
        gpuipc_error error;
        pid_t pid;
        int status;

        ck_assert(shared != MAP_FAILED);
        struct restart_broker *broker = broker_start();
        gpuipc_client *client = broker_connect(broker, 60000, 0, _i);
        buffer = broker_allocate(client);
        fake_down(broker->fake, ENOENT);
        broker_crash(broker);
        (void)poll(NULL, 0, 30);
        pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0) {
                *shared = gpuipc_seal(client, "b0", NULL) == GPUIPC_ERROR_FORKED &&
                          gpuipc_buffer_check(buffer, NULL) == GPUIPC_ERROR_FORKED &&
                          gpuipc_client_dispatch(client, NULL) == GPUIPC_ERROR_FORKED &&
                          gpuipc_release(buffer, NULL) == GPUIPC_ERROR_FORKED;
                gpuipc_client_free(client);
                (void)kill(getpid(), SIGKILL);
                _exit(1);
        }
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_int_eq(*shared, 1);
        fake_up(broker->fake);
        if (_i == 1)
                loop_until_back(client, 1);
        wait_for(broker_attached(broker) == 1);
        ck_assert_uint_eq(broker_resumes(broker), 1);
        ck_assert_int_eq(fake_peers(broker->fake), 2);
        no_error(gpuipc_release(buffer, &error));
        gpuipc_client_free(client);
        broker_stop(broker);
        (void)munmap(shared, sizeof(*shared));
}
END_TEST

/* A child that has inherited the connection does not keep its end from being seen. */
START_TEST(child_keeps_nothing_open) {
        gpuipc_buffer *buffer;
        gpuipc_error error;
        int status;

        struct restart_broker *broker = broker_start();
        gpuipc_client *client = broker_connect(broker, 60000, 0, 0);
        buffer = broker_allocate(client);
        pid_t pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0) {
                for (;;)
                        (void)pause();
        }
        for (int i = 1; i <= 3; i++) {
                broker_crash(broker);
                wait_for(broker_attached(broker) == 1);
                no_error(gpuipc_seal(client, "b0", &error));
        }
        ck_assert_int_eq(kill(pid, SIGKILL), 0);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        no_error(gpuipc_release(buffer, &error));
        gpuipc_client_free(client);
        broker_stop(broker);
}
END_TEST

static TCase *case_add(Suite *suite, const char *name) {
        TCase *tcase = tcase_create(name);

        tcase_set_timeout(tcase, 60);
        suite_add_tcase(suite, tcase);
        return tcase;
}

int main(void) {
        Suite *suite = suite_create("client_idle");
        TCase *idle = case_add(suite, "idle"), *waiting = case_add(suite, "waiting"), *many = case_add(suite, "many");

        tcase_add_test(idle, idle_client_comes_back);
        tcase_add_test(idle, idle_client_without_leases_stays_away);
        tcase_add_test(idle, loss_is_seen_without_a_call);
        tcase_add_test(idle, lost_reply_leaves_nothing);
        tcase_add_test(idle, loop_in_place_of_the_thread);
        tcase_add_loop_test(idle, nobody_waits_for_a_silent_daemon, 0, 2);
        tcase_add_test(idle, who_breaks_at_once_is_not_hammered);
        tcase_add_loop_test(waiting, waits_go_on_with_what_is_left, 0, 2);
        tcase_add_test(waiting, wait_that_was_lost_leaves_nothing);
        tcase_add_test(waiting, watch_goes_on);
        tcase_add_test(waiting, watch_is_stopped_while_away);
        tcase_add_test(waiting, list_is_begun_anew);
        tcase_add_test(many, threads_ride_it_out_together);
        tcase_add_loop_test(many, fork_during_the_outage, 0, 2);
        tcase_add_test(many, child_keeps_nothing_open);
        return suite_run(suite);
}
