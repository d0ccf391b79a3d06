/* SPDX-License-Identifier: Apache-2.0 */
/* Grants that are right and grants that lie; mappings shared and given up; the end of a lease. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "include/gpuipc.h"
#include "tests/support/fake_server.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"
#include "tests/support/wait.h"

static gpuipc_client *connect_to(struct fake *fake) {
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_client *client;
        gpuipc_error error;

        options.socket_path = fake->path;
        ck_assert_msg(gpuipc_connect(&options, &client, &error) == GPUIPC_OK, "%s", error.message);
        return client;
}

/* ---- grants ----------------------------------------------------------------------------------------------- */

/* What comes in answer to Allocate and Open; everything else is answered with nothing. */
struct grants {
        struct fake_grant grant;
        const char *text; /* in its place */
        int fds[16];
        size_t n_fds;
};

static void grants_answer(struct fake *fake, int peer, const char *call, void *data) {
        const struct grants *grants = data;
        char *text;

        if (!strstr(call, ".Allocate\"") && !strstr(call, ".Open\"")) {
                fake_send(fake, peer, strstr(call, ".GetStatus\"") ? fake_status : "{\"parameters\":{}}");
                return;
        }
        text = grants->text ? strdup(grants->text) : fake_grant(&grants->grant);
        fake_send_fds(fake, peer, text, grants->fds, grants->n_fds);
        free(text);
}

/* Allocates against a daemon that answers so; maps when that works. */
static int try_grant(const struct grants *grants, int *ret_map, gpuipc_error *ret_error, size_t *ret_released) {
        struct fake *fake = fake_start(grants_answer, (void *)(uintptr_t)grants);
        gpuipc_client *client = connect_to(fake);
        gpuipc_buffer *buffer = NULL;
        void *pointer;
        int r = gpuipc_allocate(client, 8192, NULL, &buffer, ret_error);

        if (r == GPUIPC_OK) {
                *ret_map = gpuipc_buffer_map(buffer, &pointer, ret_error);
                if (*ret_map == GPUIPC_OK)
                        memset(pointer, 1, 8192);
                ck_assert_int_eq(gpuipc_release(buffer, NULL), GPUIPC_OK);
        } else {
                ck_assert_ptr_null(buffer);
        }
        *ret_released = fake_count(fake, "Release", "\"l1\"", NULL);
        gpuipc_client_free(client);
        fake_stop(fake);
        return r;
}

START_TEST(grant_is_all_there) {
        struct grants grants = { .grant = { .size = 8192, .allocated = 12288, .offset = 100, .fd = "1" }, .n_fds = 3 };
        gpuipc_buffer *buffer;
        gpuipc_error error;
        void *pointer, *again;

        check_fd_count_begin();
        /* The handle is the second of three; the others are nobody's and are closed. */
        for (int i = 0; i < 3; i++)
                grants.fds[i] = fake_memfd(i == 1 ? 12288 : 1, false);
        struct fake *fake = fake_start(grants_answer, &grants);
        gpuipc_client *client = connect_to(fake);
        ck_assert_msg(gpuipc_allocate(client, 8192, NULL, &buffer, &error) == GPUIPC_OK, "%s", error.message);
        ck_assert_str_eq(gpuipc_buffer_id(buffer), "b1");
        ck_assert_str_eq(gpuipc_buffer_name(buffer), "n");
        ck_assert_str_eq(gpuipc_buffer_lease(buffer), "l1");
        ck_assert_str_eq(gpuipc_buffer_device(buffer), "host");
        ck_assert_str_eq(gpuipc_buffer_handle(buffer), "memfd");
        ck_assert_str_eq(gpuipc_buffer_meta(buffer), "{\"a\":1}");
        ck_assert_int_eq(gpuipc_buffer_size(buffer), 8192);
        ck_assert_int_eq(gpuipc_buffer_allocated(buffer), 12288);
        ck_assert_int_eq(gpuipc_buffer_offset(buffer), 100);
        ck_assert_int_eq(gpuipc_buffer_access(buffer), GPUIPC_RW);
        ck_assert_int_eq(gpuipc_buffer_is_peer(buffer), 0);
        ck_assert_msg(gpuipc_buffer_map(buffer, &pointer, &error) == GPUIPC_OK, "%s", error.message);
        ck_assert_int_eq(gpuipc_buffer_map(buffer, &again, &error), GPUIPC_OK);
        ck_assert_ptr_eq(pointer, again);
        memcpy(pointer, "hello", 5);
        memcpy((char *)pointer + 8191, "!", 1);
        char got[6] = "";
        ck_assert_int_eq(pread(grants.fds[1], got, 5, 100), 5);
        ck_assert_str_eq(got, "hello");
        ck_assert_int_eq(pread(grants.fds[1], got, 1, 100 + 8191), 1);
        ck_assert_int_eq(got[0], '!');
        ck_assert_int_eq(gpuipc_release(buffer, &error), GPUIPC_OK);
        ck_assert_uint_eq(fake_count(fake, "Release", "\"l1\"", NULL), 1);
        gpuipc_client_free(client);
        fake_stop(fake);
        for (int i = 0; i < 3; i++)
                (void)close(grants.fds[i]);
        check_fd_count_end();
}
END_TEST

/* Refused at the grant, and the lease given back where it can be named. */
START_TEST(lying_grants) {
        const int64_t huge = INT64_C(9007199254740991);
        const struct grants all[] = {
                { .grant = { .size = 8192, .handle_size = 8191 }, .n_fds = 1 },
                { .grant = { .size = 8192, .allocated = 4096 }, .n_fds = 1 },
                { .grant = { .size = 0 }, .n_fds = 1 },
                { .grant = { .size = -1 }, .n_fds = 1 },
                { .grant = { .size = 8192, .offset = -4096 }, .n_fds = 1 },
                { .grant = { .size = huge, .offset = huge }, .n_fds = 1 },
                { .grant = { .size = 8192, .fd = "1" }, .n_fds = 1 },
                { .grant = { .size = 8192, .fd = "0" }, .n_fds = 0 },
                { .grant = { .size = 8192, .fd = "-1" }, .n_fds = 1 },
                { .grant = { .size = 8192, .fd = "253" }, .n_fds = 1 },
                { .grant = { .size = 8192, .fd = "9007199254740991" }, .n_fds = 1 },
                { .grant = { .size = 8192, .id = "" }, .n_fds = 1 },
        };
        gpuipc_error error;
        size_t released;
        int mapped;

        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
                struct grants grants = all[i];
                check_fd_count_begin();
                grants.fds[0] = fake_memfd(8192, false);
                int r = try_grant(&grants, &mapped, &error, &released);
                (void)close(grants.fds[0]);
                ck_assert_msg(r == GPUIPC_ERROR_PROTOCOL, "%zu: %s", i, gpuipc_status_name((gpuipc_status)r));
                /* Some are refused while they are decoded, before there is a lease to give back. */
                ck_assert_msg(released == 1 || strstr(error.message, "of a reply to"), "%zu: %s", i, error.message);
                check_fd_count_end();
        }
}
END_TEST

START_TEST(replies_that_are_no_grant) {
        static const char *const texts[] = {
                "{\"parameters\":{}}",
                "{\"parameters\":{\"buffer\":{},\"lease\":\"l1\",\"handle\":{}}}",
                "{\"parameters\":{\"lease\":\"l1\"}}",
                "{\"error\":\"io.gpuipc.Broker.NameTaken\"}",
        };
        gpuipc_error error;
        size_t released;
        int mapped;

        check_fd_count_begin();
        for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
                struct grants grants = { .text = texts[i], .n_fds = 1 };
                grants.fds[0] = fake_memfd(8192, false);
                ck_assert_int_eq(try_grant(&grants, &mapped, &error, &released), GPUIPC_ERROR_PROTOCOL);
                (void)close(grants.fds[0]);
        }
        check_fd_count_end();
}
END_TEST

/* Taken, but not mapped: whatever the descriptor is, it must hold what was promised and go on holding it. */
START_TEST(handles_that_cannot_be_mapped) {
        static const char *const reasons[] = { "smaller than", "sealed against", "not a file", "no descriptor",
                                               "cannot map a handle", "smaller than" };
        gpuipc_error error;
        size_t released;
        int mapped;

        for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
                struct grants grants = { .grant = { .size = 8192 }, .n_fds = 1 };
                int pipes[2] = { -1, -1 };

                check_fd_count_begin();
                grants.fds[0] = fake_memfd(i == 0 ? 8191 : 8192, i == 1);
                if (i == 2) {
                        (void)close(grants.fds[0]);
                        ck_assert_int_eq(pipe2(pipes, O_CLOEXEC), 0);
                        grants.fds[0] = pipes[0];
                }
                if (i == 3)
                        grants.grant.fd = "null";
                if (i == 4)
                        grants.grant.kind = "teleport";
                if (i == 5)
                        grants.grant.offset = 1;
                int r = try_grant(&grants, &mapped, &error, &released);
                ck_assert_msg(r == GPUIPC_OK, "%zu: %s", i, error.message);
                ck_assert_msg(mapped == GPUIPC_ERROR_MAP, "%zu", i);
                ck_assert_msg(strstr(error.message, reasons[i]), "%zu: %s", i, error.message);
                ck_assert_uint_eq(released, 1);
                (void)close(grants.fds[0]);
                if (pipes[1] >= 0)
                        (void)close(pipes[1]);
                check_fd_count_end();
        }
}
END_TEST

/* Without a free descriptor the kernel drops what arrives: said so, and the lease does not stay behind. */
START_TEST(no_descriptor_free) {
        struct grants grants = { .grant = { .size = 8192 }, .n_fds = 1 };
        struct rlimit limit, tight;
        gpuipc_buffer *buffer = NULL;
        gpuipc_error error;

        if (strstr(getenv("LD_PRELOAD") ? getenv("LD_PRELOAD") : "", "valgrind")) {
                printf("SKIP no_descriptor_free: valgrind keeps the kernel's limit to itself\n");
                return;
        }
        check_fd_count_begin();
        grants.fds[0] = fake_memfd(8192, false);
        struct fake *fake = fake_start(grants_answer, &grants);
        gpuipc_client *client = connect_to(fake);
        ck_assert_int_eq(gpuipc_seal(client, "b1", &error), GPUIPC_OK);
        ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
        int next = dup(0);
        (void)close(next);
        tight = (struct rlimit){ .rlim_cur = (rlim_t)next, .rlim_max = limit.rlim_max };
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &tight), 0);
        int r = gpuipc_allocate(client, 8192, NULL, &buffer, &error);
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
        ck_assert_int_eq(r, GPUIPC_ERROR_MAP);
        ck_assert_int_eq(error.system_errno, EMFILE);
        ck_assert_uint_eq(fake_count(fake, "Release", "\"l1\"", NULL), 1);
        ck_assert_int_eq(gpuipc_allocate(client, 8192, NULL, &buffer, &error), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_release(buffer, &error), GPUIPC_OK);
        gpuipc_client_free(client);
        fake_stop(fake);
        (void)close(grants.fds[0]);
        check_fd_count_end();
}
END_TEST

START_TEST(what_is_sent) {
        gpuipc_allocate_options options = GPUIPC_ALLOCATE_OPTIONS_INIT;
        gpuipc_buffer *buffer = NULL;
        struct fake_broker broker;
        char *meta = malloc(5000);
        gpuipc_error error;

        fake_broker_init(&broker, 8192);
        struct fake *fake = fake_start(fake_broker_answer, &broker);
        gpuipc_client *client = connect_to(fake);
        /* Only what was set. */
        ck_assert_int_eq(gpuipc_allocate(client, 8192, &options, &buffer, &error), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_release(buffer, &error), GPUIPC_OK);
        ck_assert_uint_eq(fake_count(fake, "\"parameters\":{\"size\":8192}", NULL), 1);
        options.device = "GPU-1";
        options.name = "a/b";
        options.handle = "memfd";
        options.mode = "0640";
        options.meta = "{ \"shape\": [2, 3] }";
        options.keep_ms = 5;
        options.label = "me";
        ck_assert_int_eq(gpuipc_allocate(client, 8192, &options, &buffer, &error), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_release(buffer, &error), GPUIPC_OK);
        ck_assert_uint_eq(fake_count(fake, "\"device\":\"GPU-1\"", "\"name\":\"a/b\"", "\"handle\":\"memfd\"",
                                     "\"mode\":\"0640\"", "\"shape\"", "\"keep_ms\":5", "\"label\":\"me\"", NULL), 1);
        /* A meta that would break the message, or the daemon's rules for one, is not sent. */
        static const char *const bad[] = { "", "[]", "{", "{},\"size\":1", "{} {}", "{\"a\":1,\"a\":2}", "nonsense" };
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
                options.meta = bad[i];
                ck_assert_msg(gpuipc_allocate(client, 1, &options, &buffer, &error) == GPUIPC_ERROR_INVALID_PARAMETER,
                              "%s", bad[i]);
                ck_assert_str_eq(error.subject, "meta");
        }
        /* 16 deep is the message's own limit, and meta lies two deep in it. */
        options.meta = "{\"a\":[[[[[[[[[[[[[]]]]]]]]]]]]]}";
        ck_assert_int_eq(gpuipc_allocate(client, 8192, &options, &buffer, &error), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_release(buffer, &error), GPUIPC_OK);
        options.meta = "{\"a\":[[[[[[[[[[[[[[]]]]]]]]]]]]]]}";
        ck_assert_int_eq(gpuipc_allocate(client, 8192, &options, &buffer, &error), GPUIPC_ERROR_INVALID_PARAMETER);
        ck_assert_str_eq(error.subject, "meta");
        memset(meta, ' ', 5000);
        meta[0] = '{';
        meta[4096] = '}';
        meta[4097] = '\0';
        options.meta = meta;
        ck_assert_int_eq(gpuipc_allocate(client, 8192, &options, &buffer, &error), GPUIPC_ERROR_INVALID_PARAMETER);
        free(meta);
        gpuipc_client_free(client);
        fake_stop(fake);
        fake_broker_deinit(&broker);
}
END_TEST

/* ---- mappings --------------------------------------------------------------------------------------------- */

/* Lines of /proc/self/maps for memfds named "fake", with these permissions. */
static int count_maps(const char *permissions) {
        FILE *maps = fopen("/proc/self/maps", "re");
        char line[512];
        int n = 0;

        ck_assert_ptr_nonnull(maps);
        while (fgets(line, sizeof(line), maps))
                n += strstr(line, "memfd:fake") && strstr(line, permissions);
        (void)fclose(maps);
        return n;
}

START_TEST(mappings_are_shared_by_access) {
        gpuipc_open_options ro = GPUIPC_OPEN_OPTIONS_INIT;
        struct fake_broker broker;
        gpuipc_buffer *buffers[5];
        void *pointers[5];
        gpuipc_error error;

        check_fd_count_begin();
        ro.access = GPUIPC_RO;
        fake_broker_init(&broker, 1 << 16);
        struct fake *fake = fake_start(fake_broker_answer, &broker);
        /* Two clients of one process share as well. */
        gpuipc_client *clients[2] = { connect_to(fake), connect_to(fake) };
        for (int i = 0; i < 5; i++) {
                ck_assert_int_eq(gpuipc_open_id(clients[i % 2], "b0", i < 3 ? NULL : &ro, &buffers[i], &error), GPUIPC_OK);
                ck_assert_msg(gpuipc_buffer_map(buffers[i], &pointers[i], &error) == GPUIPC_OK, "%s", error.message);
        }
        ck_assert_int_eq(count_maps("rw-s"), 1);
        ck_assert_int_eq(count_maps("r--s"), 1);
        ck_assert_ptr_eq(pointers[0], pointers[1]);
        ck_assert_ptr_eq(pointers[0], pointers[2]);
        ck_assert_ptr_eq(pointers[3], pointers[4]);
        ck_assert_ptr_ne(pointers[0], pointers[3]);
        memcpy(pointers[0], "shared", 7);
        ck_assert_str_eq(pointers[3], "shared");

        ck_assert_int_eq(gpuipc_release(buffers[0], &error), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_release(buffers[1], &error), GPUIPC_OK);
        ck_assert_int_eq(count_maps("rw-s"), 1);
        ck_assert_str_eq(pointers[2], "shared");
        ck_assert_int_eq(gpuipc_release(buffers[2], &error), GPUIPC_OK);
        ck_assert_int_eq(count_maps("rw-s"), 0);
        ck_assert_int_eq(count_maps("r--s"), 1);
        ck_assert_int_eq(gpuipc_release(buffers[3], &error), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_release(buffers[4], &error), GPUIPC_OK);
        ck_assert_int_eq(count_maps("s"), 0);
        ck_assert_uint_eq(broker.n_released, 5);
        gpuipc_client_free(clients[0]);
        gpuipc_client_free(clients[1]);
        fake_stop(fake);
        fake_broker_deinit(&broker);
        check_fd_count_end();
}
END_TEST

/* Two daemons may use one id for different memory. */
START_TEST(mappings_of_two_daemons_stay_apart) {
        struct fake_broker brokers[2];
        struct fake *fakes[2];
        gpuipc_client *clients[2];
        gpuipc_buffer *buffers[2];
        void *pointers[2];
        gpuipc_error error;

        for (int i = 0; i < 2; i++) {
                fake_broker_init(&brokers[i], 4096);
                fakes[i] = fake_start(fake_broker_answer, &brokers[i]);
                clients[i] = connect_to(fakes[i]);
                ck_assert_int_eq(gpuipc_open_id(clients[i], "b0", NULL, &buffers[i], &error), GPUIPC_OK);
                ck_assert_int_eq(gpuipc_buffer_map(buffers[i], &pointers[i], &error), GPUIPC_OK);
        }
        ck_assert_str_eq(gpuipc_buffer_id(buffers[0]), gpuipc_buffer_id(buffers[1]));
        ck_assert_ptr_ne(pointers[0], pointers[1]);
        for (int i = 0; i < 2; i++) {
                ck_assert_int_eq(gpuipc_release(buffers[i], &error), GPUIPC_OK);
                gpuipc_client_free(clients[i]);
                fake_stop(fakes[i]);
                fake_broker_deinit(&brokers[i]);
        }
        ck_assert_int_eq(count_maps("s"), 0);
}
END_TEST

/* Unmapped and closed before the daemon is told. */
static void release_answer(struct fake *fake, int peer, const char *call, void *data) {
        struct fake_broker *broker = data;

        /* The broker's own descriptor and, until it is closed, the client's. */
        if (strstr(call, ".Release\"") && count_maps("s") > 0)
                fake_send(fake, peer, "{\"error\":\"io.gpuipc.Broker.Internal\",\"parameters\":{\"reference\":\"mapped\"}}");
        else
                fake_broker_answer(fake, peer, call, broker);
}

START_TEST(release_comes_last) {
        struct fake_broker broker;
        gpuipc_buffer *buffer;
        gpuipc_error error;
        void *pointer;

        fake_broker_init(&broker, 4096);
        struct fake *fake = fake_start(release_answer, &broker);
        gpuipc_client *client = connect_to(fake);
        ck_assert_int_eq(gpuipc_allocate(client, 4096, NULL, &buffer, &error), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_buffer_map(buffer, &pointer, &error), GPUIPC_OK);
        ck_assert_msg(gpuipc_release(buffer, &error) == GPUIPC_OK, "%s", error.message);
        ck_assert_int_eq(gpuipc_release(NULL, &error), GPUIPC_OK);
        gpuipc_client_free(client);
        fake_stop(fake);
        fake_broker_deinit(&broker);
}
END_TEST

START_TEST(lease_ends_with_its_connection) {
        struct fake_broker broker;
        gpuipc_buffer *old, *fresh;
        gpuipc_error error;
        void *pointer;

        check_fd_count_begin();
        fake_broker_init(&broker, 4096);
        struct fake *fake = fake_start(fake_broker_answer, &broker);
        gpuipc_client *client = connect_to(fake);
        ck_assert_int_eq(gpuipc_allocate(client, 4096, NULL, &old, &error), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_buffer_map(old, &pointer, &error), GPUIPC_OK);
        fake_hang_up(fake, 0);
        /* Other calls go on over a new connection, the lease's own does not. */
        ck_assert_int_eq(gpuipc_allocate(client, 4096, NULL, &fresh, &error), GPUIPC_OK);
        memcpy(pointer, "still here", 11);
        ck_assert_int_eq(gpuipc_release(old, &error), GPUIPC_ERROR_LEASE_LOST);
        ck_assert_ptr_nonnull(strstr(error.message, "no store"));
        ck_assert_int_eq(gpuipc_release(fresh, &error), GPUIPC_OK);
        ck_assert_uint_eq(fake_count(fake, "Release", NULL), 1);
        ck_assert_int_eq(fake_peer_of(fake, "Release"), 1);
        ck_assert_int_eq(count_maps("s"), 0);
        gpuipc_client_free(client);
        fake_stop(fake);
        fake_broker_deinit(&broker);
        check_fd_count_end();
}
END_TEST

START_TEST(buffer_outlives_its_client) {
        struct fake_broker broker;
        gpuipc_buffer *buffer;
        gpuipc_error error;
        void *pointer;

        check_fd_count_begin();
        fake_broker_init(&broker, 4096);
        struct fake *fake = fake_start(fake_broker_answer, &broker);
        gpuipc_client *client = connect_to(fake);
        ck_assert_int_eq(gpuipc_allocate(client, 4096, NULL, &buffer, &error), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_buffer_map(buffer, &pointer, &error), GPUIPC_OK);
        gpuipc_client_free(client);
        wait_for(fake_open_peers(fake) == 0);
        memcpy(pointer, "still here", 11);
        ck_assert_int_eq(count_maps("rw-s"), 1);
        ck_assert_int_eq(gpuipc_release(buffer, &error), GPUIPC_ERROR_DISCONNECTED);
        ck_assert_int_eq(count_maps("s"), 0);
        fake_stop(fake);
        fake_broker_deinit(&broker);
        check_fd_count_end();
}
END_TEST

int main(void) {
        Suite *suite = suite_create("client_buffer");
        TCase *tcase = tcase_create("grants");

        tcase_set_timeout(tcase, 30);
        tcase_add_test(tcase, grant_is_all_there);
        tcase_add_test(tcase, lying_grants);
        tcase_add_test(tcase, replies_that_are_no_grant);
        tcase_add_test(tcase, handles_that_cannot_be_mapped);
        tcase_add_test(tcase, no_descriptor_free);
        tcase_add_test(tcase, what_is_sent);
        suite_add_tcase(suite, tcase);
        tcase = tcase_create("mappings");
        tcase_add_test(tcase, mappings_are_shared_by_access);
        tcase_add_test(tcase, mappings_of_two_daemons_stay_apart);
        tcase_add_test(tcase, release_comes_last);
        tcase_add_test(tcase, lease_ends_with_its_connection);
        tcase_add_test(tcase, buffer_outlives_its_client);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
