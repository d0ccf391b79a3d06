/* SPDX-License-Identifier: Apache-2.0 */
/* Connecting and calling, against a daemon that answers well, badly, late or not at all. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/client.h"
#include "include/gpuipc.h"
#include "tests/support/fake_server.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"
#include "tests/support/wait.h"

static gpuipc_client *connect_to(const char *path, int timeout_ms) {
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_client *client;
        gpuipc_error error;

        options.socket_path = path;
        options.timeout_ms = timeout_ms;
        ck_assert_msg(gpuipc_connect(&options, &client, &error) == GPUIPC_OK, "%s", error.message);
        return client;
}

static int try_connect(const char *path, int timeout_ms, gpuipc_error *ret_error) {
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_client *client = NULL;

        options.socket_path = path;
        options.timeout_ms = timeout_ms;
        int r = gpuipc_connect(&options, &client, ret_error);
        ck_assert_int_eq(r, (int)ret_error->status);
        ck_assert_ptr_null(client);
        return r;
}

/* ---- connecting ------------------------------------------------------------------------------------------- */

static struct sockaddr_un address_of(const char *path) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
        return address;
}

START_TEST(connect_errors_name_the_cause) {
        char directory[] = "/tmp/connXXXXXX", path[64], longer[256];
        gpuipc_error error;

        check_fd_count_begin();
        ck_assert_ptr_nonnull(mkdtemp(directory));
        (void)snprintf(path, sizeof(path), "%s/socket", directory);
        ck_assert_int_eq(try_connect(path, 0, &error), GPUIPC_ERROR_UNREACHABLE);
        ck_assert_int_eq(error.system_errno, ENOENT);
        ck_assert_str_eq(error.subject, path);
        ck_assert_str_eq(error.name, "gpuipc.Unreachable");
        ck_assert_ptr_nonnull(strstr(error.message, "Is gpuipcd running?"));
        ck_assert_ptr_nonnull(strstr(error.message, path));

        /* A socket left by one that is gone. */
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        struct sockaddr_un address = address_of(path);
        ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
        (void)close(fd);
        ck_assert_int_eq(try_connect(path, 0, &error), GPUIPC_ERROR_UNREACHABLE);
        ck_assert_int_eq(error.system_errno, ECONNREFUSED);
        ck_assert_ptr_nonnull(strstr(error.message, "Nobody listens"));
        (void)unlink(path);

        /* What is no socket at all refuses just so: its path is what is wrong. */
        ck_assert_int_eq(try_connect(directory, 0, &error), GPUIPC_ERROR_UNREACHABLE);
        ck_assert_ptr_nonnull(strstr(error.message, "It is no socket"));
        ck_assert_str_eq(error.code, "G105");

        memset(longer, 'x', sizeof(longer) - 1);
        longer[0] = '/';
        longer[sizeof(longer) - 1] = '\0';
        ck_assert_int_eq(try_connect(longer, 0, &error), GPUIPC_ERROR_UNREACHABLE);
        ck_assert_int_eq(error.system_errno, ENAMETOOLONG);
        (void)rmdir(directory);
        check_fd_count_end();
}
END_TEST

START_TEST(connect_without_permission) {
        struct fake_broker broker;
        gpuipc_error error;

        if (geteuid() != 0) {
                printf("SKIP connect_without_permission: needs root to become another user\n");
                return;
        }
        fake_broker_init(&broker, 4096);
        struct fake *fake = fake_start(fake_broker_answer, &broker);
        ck_assert_int_eq(chmod(fake->directory, 0755), 0);
        ck_assert_int_eq(chmod(fake->path, 0600), 0);
        ck_assert_int_eq(seteuid(65533), 0);
        int r = try_connect(fake->path, 0, &error);
        ck_assert_int_eq(seteuid(0), 0);
        ck_assert_int_eq(r, GPUIPC_ERROR_UNREACHABLE);
        ck_assert_int_eq(error.system_errno, EACCES);
        ck_assert_ptr_nonnull(strstr(error.message, "gpuipc-admin"));
        fake_stop(fake);
        fake_broker_deinit(&broker);
}
END_TEST

/* A daemon that is stopped accepts nobody: its queue fills up. */
START_TEST(connect_has_a_deadline) {
        char directory[] = "/tmp/connXXXXXX", path[64];
        int waiting[64], n = 0;
        gpuipc_error error;

        check_fd_count_begin();
        ck_assert_ptr_nonnull(mkdtemp(directory));
        (void)snprintf(path, sizeof(path), "%s/socket", directory);
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        struct sockaddr_un address = address_of(path);
        ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
        ck_assert_int_eq(listen(fd, 0), 0);
        for (;; n++) {
                ck_assert_int_lt(n, 64);
                waiting[n] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
                if (connect(waiting[n], (struct sockaddr *)&address, sizeof(address)) < 0)
                        break;
        }
        ck_assert_int_eq(errno, EAGAIN);
        int64_t begun = now_ms();
        ck_assert_int_eq(try_connect(path, 100, &error), GPUIPC_ERROR_UNREACHABLE);
        ck_assert_int_eq(error.system_errno, ETIMEDOUT);
        ck_assert_int_ge(now_ms() - begun, 90);
        for (int i = 0; i <= n; i++)
                (void)close(waiting[i]);
        (void)close(fd);
        (void)unlink(path);
        (void)rmdir(directory);
        check_fd_count_end();
}
END_TEST

START_TEST(socket_from_environment) {
        struct fake_broker broker;
        gpuipc_client *client;
        gpuipc_error error;

        fake_broker_init(&broker, 4096);
        struct fake *fake = fake_start(fake_broker_answer, &broker);
        ck_assert_int_eq(setenv("GPUIPC_SOCKET", fake->path, 1), 0);
        ck_assert_msg(gpuipc_connect(NULL, &client, &error) == GPUIPC_OK, "%s", error.message);
        ck_assert_str_eq(gpuipc_client_socket(client), fake->path);
        ck_assert_int_eq(gpuipc_get_status(client, NULL, NULL, &error), GPUIPC_OK);
        gpuipc_client_free(client);
        /* An explicit path goes before it. */
        ck_assert_int_eq(try_connect("/nonexistent/x", 0, &error), GPUIPC_ERROR_UNREACHABLE);
        ck_assert_str_eq(error.subject, "/nonexistent/x");
        (void)unsetenv("GPUIPC_SOCKET");
        fake_stop(fake);
        fake_broker_deinit(&broker);
}
END_TEST

START_TEST(options_are_checked) {
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_client *client = NULL;
        gpuipc_error error;
        struct {
                gpuipc_connect_options options;
                int64_t later;
        } newer = { GPUIPC_CONNECT_OPTIONS_INIT, 0 };

        options.struct_size = 0;
        ck_assert_int_eq(gpuipc_connect(&options, &client, &error), GPUIPC_ERROR_INVALID_PARAMETER);
        ck_assert_str_eq(error.subject, "struct_size");
        options.struct_size = sizeof(options);
        options.timeout_ms = -2;
        ck_assert_int_eq(gpuipc_connect(&options, &client, &error), GPUIPC_ERROR_INVALID_PARAMETER);
        ck_assert_str_eq(error.subject, "timeout_ms");

        /* A program built against a later library: fine as long as it leaves what it added alone. */
        newer.options.struct_size = sizeof(newer);
        newer.options.socket_path = "/nonexistent/x";
        ck_assert_int_eq(gpuipc_connect(&newer.options, &client, &error), GPUIPC_ERROR_UNREACHABLE);
        newer.later = 1;
        ck_assert_int_eq(gpuipc_connect(&newer.options, &client, &error), GPUIPC_ERROR_UNSUPPORTED);
        ck_assert_str_eq(error.subject, "struct_size");
        /* One built against an earlier one, whose struct ended before timeout_ms. */
        options.struct_size = offsetof(gpuipc_connect_options, timeout_ms);
        options.socket_path = "/nonexistent/x";
        ck_assert_int_eq(gpuipc_connect(&options, &client, &error), GPUIPC_ERROR_UNREACHABLE);
        ck_assert_int_eq(gpuipc_seal(NULL, "b", &error), GPUIPC_ERROR_INVALID_PARAMETER);
        ck_assert_ptr_null(client);
}
END_TEST

/* ---- replies ---------------------------------------------------------------------------------------------- */

/* One answer to every call. */
struct script {
        const char *bytes;
        size_t n;
        bool one_by_one, then_hang_up;
};

static void script_answer(struct fake *fake, int peer, const char *call, void *data) {
        const struct script *script = data;

        (void)call;
        for (size_t i = 0; script->one_by_one && i < script->n; i++)
                fake_send_bytes(fake, peer, script->bytes + i, 1, NULL, 0);
        if (!script->one_by_one && script->n > 0)
                fake_send_bytes(fake, peer, script->bytes, script->n, NULL, 0);
        if (script->then_hang_up)
                fake_hang_up(fake, peer);
}

static int answer_of(struct script script, gpuipc_error *ret_error) {
        struct fake *fake = fake_start(script_answer, &script);
        gpuipc_client *client = connect_to(fake->path, 0);
        int r = gpuipc_seal(client, "b1", ret_error);

        gpuipc_client_free(client);
        fake_stop(fake);
        return r;
}

#define TEXT(text) .bytes = (text), .n = sizeof(text) /* with its NUL */
#define PART(text) .bytes = (text), .n = sizeof(text) - 1

START_TEST(good_replies) {
        static const struct script scripts[] = {
                { TEXT("{\"parameters\":{}}") },
                { TEXT("{}") },
                { TEXT("{\"parameters\":{\"later\":[1,{\"x\":null}]},\"also\":true}") },
                { TEXT("{\"parameters\":{}}"), .one_by_one = true },
                { TEXT("{\"parameters\":{}}"), .then_hang_up = true },
                { TEXT("{\"parameters\":{},\"continues\":false}") },
        };
        gpuipc_error error;

        check_fd_count_begin();
        for (size_t i = 0; i < sizeof(scripts) / sizeof(scripts[0]); i++)
                ck_assert_msg(answer_of(scripts[i], &error) == GPUIPC_OK, "%zu: %s", i, error.message);
        check_fd_count_end();
}
END_TEST

START_TEST(senseless_replies) {
        static const struct script scripts[] = {
                { TEXT("") },
                { TEXT("[]") },
                { TEXT("{\"parameters\":{}") },
                { TEXT("{\"parameters\":{}}}") },
                { TEXT("{\"error\":7}") },
                { TEXT("{\"parameters\":{},\"continues\":true}") },
                { TEXT("{\"parameters\":{}}\0{\"parameters\":{}}") },
                { TEXT("{\"error\":\"org.varlink.service.InvalidParameter\",\"parameters\":{\"parameter\":1}}") },
                { TEXT("{\"error\":\"io.gpuipc.Broker.QuotaExceeded\",\"parameters\":{\"scope\":\"x\"}}") },
                { TEXT("{\"error\":\"io.example.Later\",\"parameters\":{\"x\":1}}") },
                { TEXT("\xff\xfe") },
                /* Another protocol, whose words never end in a NUL. */
                { PART("HTTP/1.1 400 Bad Request\r\n\r\n"), .then_hang_up = true },
                { PART("SSH-2.0-OpenSSH_9.2\r\n") },
        };
        gpuipc_error error;

        check_fd_count_begin();
        for (size_t i = 0; i < sizeof(scripts) / sizeof(scripts[0]); i++) {
                int r = answer_of(scripts[i], &error);
                ck_assert_msg(r == GPUIPC_ERROR_PROTOCOL, "%zu: %s", i, gpuipc_status_name((gpuipc_status)r));
                ck_assert_int_eq(error.status, GPUIPC_ERROR_PROTOCOL);
                ck_assert_str_eq(error.name, "gpuipc.Protocol");
                ck_assert_uint_gt(strlen(error.message), 20);
        }
        check_fd_count_end();
}
END_TEST

START_TEST(connection_ends) {
        static const struct script scripts[] = {
                { .then_hang_up = true },
                { PART("{\"parameters\":"), .then_hang_up = true },
                { PART("{\"parameters\":{}}"), .then_hang_up = true },
                { PART(" {"), .then_hang_up = true },
        };
        gpuipc_error error;

        check_fd_count_begin();
        for (size_t i = 0; i < sizeof(scripts) / sizeof(scripts[0]); i++) {
                ck_assert_int_eq(answer_of(scripts[i], &error), GPUIPC_ERROR_DISCONNECTED);
                ck_assert_ptr_nonnull(strstr(error.message, "connection to the daemon ended"));
        }
        check_fd_count_end();
}
END_TEST

/* A reply that never ends is given up before it fills memory. */
static void endless_answer(struct fake *fake, int peer, const char *call, void *data) {
        static char spaces[65536];
        atomic_size_t *sent = data;

        (void)call;
        memset(spaces, ' ', sizeof(spaces));
        while (fake_open_peers(fake) > 0 && *sent < (size_t)64 << 20) {
                fake_send_bytes(fake, peer, spaces, sizeof(spaces), NULL, 0);
                *sent += sizeof(spaces);
        }
}

START_TEST(endless_reply) {
        atomic_size_t sent = 0;
        gpuipc_error error;
        struct fake *fake = fake_start(endless_answer, &sent);
        gpuipc_client *client = connect_to(fake->path, 0);

        ck_assert_int_eq(gpuipc_seal(client, "b1", &error), GPUIPC_ERROR_PROTOCOL);
        ck_assert_ptr_nonnull(strstr(error.message, "no end"));
        gpuipc_client_free(client);
        fake_stop(fake);
}
END_TEST

/* What a daemon that turns a client away says before it is asked. */
static void unasked_answer(struct fake *fake, int peer, const char *call, void *data) {
        (void)fake, (void)peer, (void)call, (void)data;
}

static int unasked(const char *text, gpuipc_error *ret_error) {
        struct fake *fake = fake_start(unasked_answer, NULL);
        gpuipc_client *client = connect_to(fake->path, 0);
        int r;

        wait_for(fake_open_peers(fake) == 1);
        fake_send(fake, 0, text);
        r = gpuipc_seal(client, "b1", ret_error);
        gpuipc_client_free(client);
        fake_stop(fake);
        return r;
}

START_TEST(words_before_the_call) {
        gpuipc_error error;

        check_fd_count_begin();
        ck_assert_int_eq(unasked("{\"error\":\"io.gpuipc.Broker.AccessDenied\",\"parameters\":{\"reason\":\"You may not.\"}}",
                                 &error), GPUIPC_ERROR_ACCESS_DENIED);
        ck_assert_str_eq(error.message, "You may not.");
        ck_assert_int_eq(unasked("{\"parameters\":{}}", &error), GPUIPC_ERROR_PROTOCOL);
        check_fd_count_end();
}
END_TEST

/* ---- a connection's life ---------------------------------------------------------------------------------- */

START_TEST(main_connection_is_made_anew) {
        struct fake_broker broker;
        gpuipc_error error;

        check_fd_count_begin();
        fake_broker_init(&broker, 4096);
        struct fake *fake = fake_start(fake_broker_answer, &broker);
        gpuipc_client *client = connect_to(fake->path, 0);
        ck_assert_int_eq(gpuipc_seal(client, "b1", &error), GPUIPC_OK);
        fake_hang_up(fake, 0);
        ck_assert_int_eq(gpuipc_seal(client, "b2", &error), GPUIPC_OK);
        ck_assert_int_eq(fake_peer_of(fake, "b2"), 1);
        wait_for(fake_open_peers(fake) == 1);
        gpuipc_client_free(client);
        wait_for(fake_open_peers(fake) == 0);
        fake_stop(fake);
        fake_broker_deinit(&broker);
        check_fd_count_end();
}
END_TEST

/* Answers only when it is told to. */
static void silent_answer(struct fake *fake, int peer, const char *call, void *data) {
        atomic_bool *silent = data;

        if (!*silent || !strstr(call, "Seal"))
                fake_send(fake, peer, "{\"parameters\":{}}");
}

START_TEST(late_reply_is_not_taken_for_another) {
        atomic_bool silent = true;
        gpuipc_error error;
        struct fake *fake = fake_start(silent_answer, &silent);
        gpuipc_client *client = connect_to(fake->path, 500);

        ck_assert_int_eq(gpuipc_seal(client, "b1", &error), GPUIPC_ERROR_TIMED_OUT);
        ck_assert_str_eq(error.name, "gpuipc.TimedOut");
        /* The next waits for what is owed first, and sends nothing while that does not come. */
        ck_assert_int_eq(gpuipc_free(client, "b2", NULL, &error), GPUIPC_ERROR_TIMED_OUT);
        ck_assert_uint_eq(fake_count(fake, "Free", NULL), 0);
        client->timeout_ms = 60000;
        fake_send(fake, 0, "{\"error\":\"io.gpuipc.Broker.NoSuchBuffer\",\"parameters\":{}}");
        ck_assert_msg(gpuipc_free(client, "b3", NULL, &error) == GPUIPC_OK, "%s", error.message);
        ck_assert_int_eq(fake_peer_of(fake, "b3"), 0);
        gpuipc_client_free(client);
        fake_stop(fake);
}
END_TEST

START_TEST(too_long_a_call_is_not_sent) {
        struct fake_broker broker;
        gpuipc_error error;
        char *longer = malloc(70000);

        fake_broker_init(&broker, 4096);
        struct fake *fake = fake_start(fake_broker_answer, &broker);
        gpuipc_client *client = connect_to(fake->path, 0);
        memset(longer, 'a', 69999);
        longer[69999] = '\0';
        ck_assert_int_eq(gpuipc_seal(client, longer, &error), GPUIPC_ERROR_INVALID_PARAMETER);
        ck_assert_int_eq(gpuipc_seal(client, "b1", &error), GPUIPC_OK);
        ck_assert_int_eq(fake_peer_of(fake, "b1"), 0);
        ck_assert_uint_eq(fake_count(fake, "aaaa", NULL), 0);
        free(longer);
        gpuipc_client_free(client);
        fake_stop(fake);
        fake_broker_deinit(&broker);
}
END_TEST

START_TEST(descriptors_are_close_on_exec) {
        unsigned char bytes[GPUIPC_IPC_HANDLE_SIZE];
        struct fake_broker broker;
        gpuipc_buffer *buffer;

        fake_broker_init(&broker, 4096);
        struct fake *fake = fake_start(fake_broker_answer, &broker);
        gpuipc_client *client = connect_to(fake->path, 0);
        ck_assert_int_eq(gpuipc_allocate(client, 4096, NULL, &buffer, NULL), GPUIPC_OK);
        for (int fd = 3; fd < 256; fd++) {
                int flags = fcntl(fd, F_GETFD);
                char link[64], what[128] = "";
                (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
                (void)!readlink(link, what, sizeof(what) - 1);
                /* Check's own pipe apart. */
                ck_assert_msg(flags < 0 || (flags & FD_CLOEXEC) || strncmp(what, "socket:", 7) != 0, "%d %s", fd, what);
        }
        ck_assert(fcntl(gpuipc_buffer_fd(buffer), F_GETFD) & FD_CLOEXEC);
        ck_assert_int_eq(gpuipc_buffer_ipc_handle(buffer, bytes, NULL), GPUIPC_ERROR_HANDLE_UNSUPPORTED);
        ck_assert_int_eq(gpuipc_release(buffer, NULL), GPUIPC_OK);
        gpuipc_client_free(client);
        fake_stop(fake);
        fake_broker_deinit(&broker);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("client_conn");
        TCase *tcase = tcase_create("connect");

        tcase_add_test(tcase, connect_errors_name_the_cause);
        tcase_add_test(tcase, connect_without_permission);
        tcase_add_test(tcase, connect_has_a_deadline);
        tcase_add_test(tcase, socket_from_environment);
        tcase_add_test(tcase, options_are_checked);
        suite_add_tcase(suite, tcase);
        tcase = tcase_create("replies");
        tcase_set_timeout(tcase, 30);
        tcase_add_test(tcase, good_replies);
        tcase_add_test(tcase, senseless_replies);
        tcase_add_test(tcase, connection_ends);
        tcase_add_test(tcase, endless_reply);
        tcase_add_test(tcase, words_before_the_call);
        suite_add_tcase(suite, tcase);
        tcase = tcase_create("life");
        tcase_add_test(tcase, main_connection_is_made_anew);
        tcase_add_test(tcase, late_reply_is_not_taken_for_another);
        tcase_add_test(tcase, too_long_a_call_is_not_sent);
        tcase_add_test(tcase, descriptors_are_close_on_exec);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
