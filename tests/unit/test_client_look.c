/* SPDX-License-Identifier: Apache-2.0 */
/* Status, lists, watches and raw calls. */
#include <check.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "include/gpuipc.h"
#include "tests/support/fake_server.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"
#include "tests/support/wait.h"

#define LEASE(id) "{\"id\":\"" id "\",\"buffer\":\"b1\",\"name\":\"n\",\"size\":10,\"device\":\"host\",\"access\":\"ro\",\"state\":" \
                  "\"draining\",\"session\":\"s1\",\"pid\":7,\"uid\":8,\"gid\":9,\"command\":\"cat\",\"since_usec\":11}"
#define BUFFER(id) "{\"id\":\"" id "\",\"size\":10,\"allocated\":4096,\"device\":\"host\",\"handle\":\"memfd\",\"owner_uid\":1," \
                   "\"owner_gid\":2,\"mode\":\"0640\",\"sealed\":true,\"ro_enforced\":true,\"state\":\"kept\",\"created_usec\":3," \
                   "\"leases\":4,\"charged_uid\":5,\"later\":{}}"
#define EVENT(n, more) "{\"parameters\":{\"event\":{\"sequence\":" n ",\"time_usec\":1,\"kind\":\"opened\"" more "}}," \
                       "\"continues\":true}"
#define INFO "{\"parameters\":{\"vendor\":\"v\",\"product\":\"p\",\"version\":\"1\",\"url\":\"u\",\"interfaces\":[]}}"

static gpuipc_client *connect_to(struct fake *fake) {
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_client *client;
        gpuipc_error error;

        options.socket_path = fake->path;
        ck_assert_msg(gpuipc_connect(&options, &client, &error) == GPUIPC_OK, "%s", error.message);
        return client;
}

/* ---- status and lists ------------------------------------------------------------------------------------- */

static void see_status(const gpuipc_status_info *status, void *data) {
        int *seen = data;

        ck_assert_str_eq(status->version, "1");
        ck_assert_str_eq(status->backend, "host");
        ck_assert_str_eq(status->session, "s1");
        ck_assert_int_eq(status->buffers, 2);
        ck_assert_int_eq(status->leases, 3);
        ck_assert_int_eq(status->sessions, 4);
        ck_assert_str_eq(status->features[0], "x");
        ck_assert_str_eq(status->features[1], "y");
        ck_assert_ptr_null(status->features[2]);
        ck_assert_str_eq(status->limits, "{\"clients\":9}");
        ck_assert_uint_eq(status->n_devices, 1);
        ck_assert_str_eq(status->devices[0].uuid, "host");
        ck_assert_str_eq(status->devices[0].kind, "host");
        ck_assert_str_eq(status->devices[0].zeroed, "driver");
        ck_assert_int_eq(status->devices[0].total_bytes, -1);
        ck_assert_int_eq(status->devices[0].free_bytes, 7);
        ck_assert_int_eq(status->devices[0].brokered_bytes, 5);
        ck_assert_str_eq(status->devices[0].handles[0], "memfd");
        ck_assert_ptr_null(status->devices[0].handles[1]);
        (*seen)++;
}

START_TEST(status) {
        struct fake_broker broker;
        gpuipc_error error;
        int seen = 0;

        fake_broker_init(&broker, 4096);
        struct fake *fake = fake_start(fake_broker_answer, &broker);
        gpuipc_client *client = connect_to(fake);
        ck_assert_msg(gpuipc_get_status(client, see_status, &seen, &error) == GPUIPC_OK, "%s", error.message);
        ck_assert_int_eq(seen, 1);
        gpuipc_client_free(client);
        fake_stop(fake);
        fake_broker_deinit(&broker);
}
END_TEST

/* Replies in order; the last has no "continues". */
static void pages_answer(struct fake *fake, int peer, const char *call, void *data) {
        (void)call;
        for (const char *const *page = data; *page; page++)
                fake_send(fake, peer, *page);
}

static int take_lease(const gpuipc_lease_info *lease, void *data) {
        int *n = data;

        ck_assert_str_eq(lease->buffer, "b1");
        ck_assert_str_eq(lease->access, "ro");
        ck_assert_str_eq(lease->state, "draining");
        ck_assert_int_eq(lease->pid, 7);
        ck_assert_str_eq(lease->command, "cat");
        ck_assert_ptr_null(lease->container);
        ck_assert_ptr_null(lease->label);
        (*n)++;
        return *n == 3 ? 1 : 0;
}

START_TEST(list_streams_and_stops) {
        static const char *const two[] = {
                "{\"parameters\":{\"leases\":[" LEASE("l1") "]},\"continues\":true}",
                "{\"parameters\":{\"leases\":[" LEASE("l2") "]}}",
                NULL,
        };
        static const char *const five[] = {
                "{\"parameters\":{\"leases\":[" LEASE("l1") "," LEASE("l2") "]},\"continues\":true}",
                "{\"parameters\":{\"leases\":[]},\"continues\":true}",
                "{\"parameters\":{\"leases\":[" LEASE("l3") "," LEASE("l4") "]},\"continues\":true}",
                "{\"parameters\":{\"leases\":[" LEASE("l5") "]}}",
                NULL,
        };
        gpuipc_list_options options = GPUIPC_LIST_OPTIONS_INIT;
        gpuipc_error error;
        int n = 0;

        check_fd_count_begin();
        struct fake *fake = fake_start(pages_answer, (void *)(uintptr_t)two);
        gpuipc_client *client = connect_to(fake);
        ck_assert_msg(gpuipc_list(client, NULL, take_lease, &n, &error) == GPUIPC_OK, "%s", error.message);
        ck_assert_int_eq(n, 2);
        ck_assert_uint_eq(fake_count(fake, "\"parameters\":{}", "\"more\":true", NULL), 1);
        gpuipc_client_free(client);
        fake_stop(fake);

        fake = fake_start(pages_answer, (void *)(uintptr_t)five);
        client = connect_to(fake);
        n = 0;
        options.uid = 5;
        options.name = "n";
        ck_assert_int_eq(gpuipc_list(client, &options, take_lease, &n, &error), GPUIPC_OK);
        ck_assert_int_eq(n, 3);
        ck_assert_uint_eq(fake_count(fake, "\"uid\":5", "\"name\":\"n\"", NULL), 1);
        /* What was not read went with its connection, which was not the main one. */
        wait_for(fake_peers(fake) == 2 && fake_open_peers(fake) == 1);
        gpuipc_client_free(client);
        fake_stop(fake);
        check_fd_count_end();
}
END_TEST

static int take_buffer(const gpuipc_buffer_info *buffer, void *data) {
        int *n = data;

        ck_assert_ptr_null(buffer->name);
        ck_assert_ptr_null(buffer->meta);
        ck_assert_str_eq(buffer->state, "kept");
        ck_assert_str_eq(buffer->mode, "0640");
        ck_assert_int_eq(buffer->sealed, 1);
        ck_assert_int_eq(buffer->charged_uid, 5);
        (*n)++;
        return 0;
}

START_TEST(list_buffers) {
        static const char *const pages[] = {
                "{\"parameters\":{\"buffers\":[" BUFFER("b1") "]},\"continues\":true}",
                "{\"parameters\":{\"buffers\":[" BUFFER("b2") "," BUFFER("b3") "]}}",
                NULL,
        };
        static const char *const broken[] = {
                "{\"parameters\":{\"buffers\":[" BUFFER("b1") "]},\"continues\":true}",
                "{\"error\":\"io.gpuipc.Broker.Internal\",\"parameters\":{\"reference\":\"r7\"}}",
                NULL,
        };
        gpuipc_error error;
        int n = 0;

        check_fd_count_begin();
        struct fake *fake = fake_start(pages_answer, (void *)(uintptr_t)pages);
        gpuipc_client *client = connect_to(fake);
        ck_assert_int_eq(gpuipc_list_buffers(client, NULL, take_buffer, &n, &error), GPUIPC_OK);
        ck_assert_int_eq(n, 3);
        /* The connection is used again. */
        ck_assert_int_eq(gpuipc_list_buffers(client, NULL, take_buffer, &n, &error), GPUIPC_OK);
        ck_assert_int_eq(n, 6);
        ck_assert_int_eq(fake_peers(fake), 2);
        ck_assert_int_eq(gpuipc_list_buffers(client, NULL, NULL, &n, &error), GPUIPC_ERROR_INVALID_PARAMETER);
        gpuipc_client_free(client);
        fake_stop(fake);

        fake = fake_start(pages_answer, (void *)(uintptr_t)broken);
        client = connect_to(fake);
        n = 0;
        ck_assert_int_eq(gpuipc_list_buffers(client, NULL, take_buffer, &n, &error), GPUIPC_ERROR_INTERNAL);
        ck_assert_str_eq(error.subject, "r7");
        ck_assert_int_eq(n, 1);
        gpuipc_client_free(client);
        fake_stop(fake);
        check_fd_count_end();
}
END_TEST

/* ---- any method ------------------------------------------------------------------------------------------- */

static int take_text(const char *parameters, void *data) {
        char *all = data;

        strcat(all, parameters);
        return strlen(all) > 12;
}

START_TEST(call_json) {
        static const char *const pages[] = { "{\"parameters\":{\"a\":1},\"continues\":true}",
                                             "{\"parameters\":{\"b\":[]},\"continues\":true}", "{}", NULL };
        static const char *const errors[] = {
                "{\"error\":\"org.varlink.service.InvalidParameter\",\"parameters\":{\"parameter\":\"size\"}}", NULL
        };
        gpuipc_error error;
        char all[64] = "";

        check_fd_count_begin();
        struct fake *fake = fake_start(pages_answer, (void *)(uintptr_t)pages);
        gpuipc_client *client = connect_to(fake);
        ck_assert_int_eq(gpuipc_call_json(client, "a.b.C", "{\"x\":2}", 1, take_text, all, &error), GPUIPC_OK);
        ck_assert_str_eq(all, "{\"a\":1}{\"b\":[]}");
        ck_assert_uint_eq(fake_count(fake, "1 {", "\"method\":\"a.b.C\"", "{\"x\":2}", "\"more\":true", NULL), 1);
        ck_assert_int_eq(gpuipc_call_json(client, "a.b.C", NULL, 0, NULL, NULL, &error), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_call_json(client, "a.b.C", "{\"x\":2", 0, NULL, NULL, &error),
                         GPUIPC_ERROR_INVALID_PARAMETER);
        ck_assert_str_eq(error.subject, "parameters");
        ck_assert_int_eq(gpuipc_call_json(client, NULL, NULL, 0, NULL, NULL, &error), GPUIPC_ERROR_INVALID_PARAMETER);
        wait_for(fake_open_peers(fake) == 1);
        gpuipc_client_free(client);
        fake_stop(fake);

        fake = fake_start(pages_answer, (void *)(uintptr_t)errors);
        client = connect_to(fake);
        ck_assert_int_eq(gpuipc_call_json(client, "io.gpuipc.Broker.Allocate", "{}", 0, NULL, NULL, &error),
                         GPUIPC_ERROR_INVALID_PARAMETER);
        ck_assert_str_eq(error.subject, "size");
        ck_assert_str_eq(error.name, "org.varlink.service.InvalidParameter");
        ck_assert_ptr_nonnull(strstr(error.message, "bytes")); /* the hint for Allocate's size */
        gpuipc_client_free(client);
        fake_stop(fake);
        check_fd_count_end();
}
END_TEST

/* ---- watches ---------------------------------------------------------------------------------------------- */

static void watch_answer(struct fake *fake, int peer, const char *call, void *data) {
        (void)data;
        if (strstr(call, ".GetInfo\""))
                fake_send(fake, peer, INFO);
}

static bool readable(const gpuipc_watch *watch) {
        struct pollfd fd = { .fd = gpuipc_watch_fd(watch), .events = POLLIN };
        return poll(&fd, 1, 0) == 1;
}

static gpuipc_watch *watch_start(struct fake *fake, gpuipc_client *client, int64_t since) {
        gpuipc_watch *watch;
        gpuipc_error error;

        ck_assert_msg(gpuipc_watch_new(client, since, &watch, &error) == GPUIPC_OK, "%s", error.message);
        wait_for(fake_count(fake, ".Watch\"", "\"more\":true", NULL) == 1);
        return watch;
}

START_TEST(watch_gives_events) {
        static const char both[] = EVENT("5", ",\"buffer\":" BUFFER("b1") ",\"lease\":" LEASE("l1")) "\0" EVENT("6", "");
        const gpuipc_event_info *event;
        gpuipc_error error;

        check_fd_count_begin();
        struct fake *fake = fake_start(watch_answer, NULL);
        gpuipc_client *client = connect_to(fake);
        gpuipc_watch *watch = watch_start(fake, client, 4);
        ck_assert_uint_eq(fake_count(fake, "\"since\":4", NULL), 1);
        ck_assert_int_eq(gpuipc_watch_next(watch, 0, &event, &error), GPUIPC_ERROR_TIMED_OUT);
        ck_assert_int_eq(gpuipc_watch_next(watch, 20, &event, &error), GPUIPC_ERROR_TIMED_OUT);
        ck_assert(!readable(watch));
        fake_send_bytes(fake, 1, both, sizeof(both), NULL, 0);
        wait_for(readable(watch));
        ck_assert_msg(gpuipc_watch_next(watch, -1, &event, &error) == GPUIPC_OK, "%s", error.message);
        ck_assert_int_eq(event->sequence, 5);
        ck_assert_str_eq(event->kind, "opened");
        ck_assert_str_eq(event->buffer->id, "b1");
        ck_assert_str_eq(event->lease->id, "l1");
        /* The second came with the first: the socket no longer shows it, the watch does. */
        ck_assert(readable(watch));
        ck_assert_int_eq(gpuipc_watch_next(watch, 0, &event, &error), GPUIPC_OK);
        ck_assert_int_eq(event->sequence, 6);
        ck_assert_ptr_null(event->buffer);
        ck_assert_ptr_null(event->lease);
        ck_assert(!readable(watch));
        gpuipc_watch_free(watch);
        gpuipc_watch_free(NULL);
        wait_for(fake_open_peers(fake) == 1);
        gpuipc_client_free(client);
        fake_stop(fake);
        check_fd_count_end();
}
END_TEST

START_TEST(watch_ends) {
        const gpuipc_event_info *event;
        gpuipc_error error;

        check_fd_count_begin();
        struct fake *fake = fake_start(watch_answer, NULL);
        gpuipc_client *client = connect_to(fake);
        gpuipc_watch *watch = watch_start(fake, client, -1);
        ck_assert_uint_eq(fake_count(fake, "since", NULL), 0);
        fake_send(fake, 1, "{\"error\":\"io.gpuipc.Broker.EventsLost\",\"parameters\":{\"oldest\":77}}");
        ck_assert_int_eq(gpuipc_watch_next(watch, -1, &event, &error), GPUIPC_ERROR_EVENTS_LOST);
        ck_assert_int_eq(error.oldest, 77);
        ck_assert(readable(watch));
        ck_assert_int_eq(gpuipc_watch_next(watch, -1, &event, &error), GPUIPC_ERROR_CLOSED);
        gpuipc_watch_free(watch);

        ck_assert_int_eq(gpuipc_watch_new(client, -1, &watch, &error), GPUIPC_OK);
        fake_send(fake, 2, "{\"parameters\":{\"event\":{\"sequence\":1}},\"continues\":true}");
        ck_assert_int_eq(gpuipc_watch_next(watch, -1, &event, &error), GPUIPC_ERROR_PROTOCOL);
        /* The client goes first. */
        gpuipc_client_free(client);
        ck_assert_int_eq(gpuipc_watch_next(watch, -1, &event, &error), GPUIPC_ERROR_CLOSED);
        gpuipc_watch_free(watch);
        fake_stop(fake);
        check_fd_count_end();
}
END_TEST

/* Without patience the end of the connection is the watch's. */
START_TEST(watch_ends_with_its_connection) {
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        const gpuipc_event_info *event;
        gpuipc_client *client;
        gpuipc_watch *watch;
        gpuipc_error error;

        check_fd_count_begin();
        struct fake *fake = fake_start(watch_answer, NULL);
        options.socket_path = fake->path;
        options.restart_ms = -1;
        ck_assert_int_eq(gpuipc_connect(&options, &client, &error), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_watch_new(client, -1, &watch, &error), GPUIPC_OK);
        fake_hang_up(fake, 1);
        ck_assert_int_eq(gpuipc_watch_next(watch, -1, &event, &error), GPUIPC_ERROR_DISCONNECTED);
        ck_assert(readable(watch));
        gpuipc_watch_free(watch);
        gpuipc_client_free(client);
        fake_stop(fake);
        check_fd_count_end();
}
END_TEST

static void *next_event(void *arg) {
        const gpuipc_event_info *event;
        return (void *)(intptr_t)gpuipc_watch_next(arg, -1, &event, NULL);
}

START_TEST(watch_is_stopped_by_another_thread) {
        struct fake *fake = fake_start(watch_answer, NULL);
        gpuipc_client *client = connect_to(fake);
        gpuipc_watch *watch = watch_start(fake, client, -1);
        pthread_t thread;
        void *r;

        ck_assert_int_eq(pthread_create(&thread, NULL, next_event, watch), 0);
        gpuipc_watch_stop(watch);
        ck_assert_int_eq(pthread_join(thread, &r), 0);
        ck_assert_int_eq((int)(intptr_t)r, GPUIPC_ERROR_CLOSED);
        /* And stays so. */
        fake_send(fake, 1, EVENT("5", ""));
        ck_assert_int_eq((int)(intptr_t)next_event(watch), GPUIPC_ERROR_CLOSED);
        gpuipc_watch_stop(NULL);
        gpuipc_watch_free(watch);
        gpuipc_client_free(client);
        fake_stop(fake);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("client_look");
        TCase *tcase = tcase_create("look");

        tcase_set_timeout(tcase, 30);
        tcase_add_test(tcase, status);
        tcase_add_test(tcase, list_streams_and_stops);
        tcase_add_test(tcase, list_buffers);
        tcase_add_test(tcase, call_json);
        tcase_add_test(tcase, watch_gives_events);
        tcase_add_test(tcase, watch_ends);
        tcase_add_test(tcase, watch_ends_with_its_connection);
        tcase_add_test(tcase, watch_is_stopped_by_another_thread);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
