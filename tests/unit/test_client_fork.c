/* SPDX-License-Identifier: Apache-2.0 */
/* A child made by fork() may use nothing of its parent's, and takes nothing from it by letting it go. */
#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "include/gpuipc.h"
#include "tests/support/fake_server.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"
#include "tests/support/wait.h"

struct house {
        struct fake_broker broker;
        struct fake *fake;
        gpuipc_client *client;
        gpuipc_buffer *buffer;
        gpuipc_watch *watch;
        void *pointer;
        size_t n_calls; /* before the fork */
};

static gpuipc_client *connect_to(const char *path) {
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_client *client = NULL;

        options.socket_path = path;
        options.timeout_ms = 60000;
        return gpuipc_connect(&options, &client, NULL) == GPUIPC_OK ? client : NULL;
}

/* The watch asks who is there; the fake broker's own answer has no vendor. */
static void house_answer(struct fake *fake, int peer, const char *call, void *data) {
        if (strstr(call, ".GetInfo\""))
                fake_send(fake, peer, "{\"parameters\":{\"vendor\":\"v\",\"product\":\"p\",\"version\":\"1\",\"url\":\"u\","
                                      "\"interfaces\":[]}}");
        else if (!strstr(call, "slow"))
                fake_broker_answer(fake, peer, call, data);
}

static void house_open(struct house *house) {
        gpuipc_error error;

        fake_broker_init(&house->broker, 4096);
        house->fake = fake_start(house_answer, &house->broker);
        house->client = connect_to(house->fake->path);
        ck_assert_ptr_nonnull(house->client);
        ck_assert_int_eq(gpuipc_allocate(house->client, 4096, NULL, &house->buffer, &error), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_buffer_map(house->buffer, &house->pointer, &error), GPUIPC_OK);
        ck_assert_msg(gpuipc_watch_new(house->client, -1, &house->watch, &error) == GPUIPC_OK, "%s", error.message);
        wait_for(fake_count(house->fake, ".Watch\"", NULL) == 1);
        house->n_calls = fake_count(house->fake, "{", NULL);
}

/* Everything still works for the parent, and the daemon heard nothing from the child. */
static void house_close(struct house *house) {
        gpuipc_error error;

        ck_assert_uint_eq(fake_count(house->fake, "{", NULL), house->n_calls);
        ck_assert_uint_eq(fake_open_peers(house->fake), 2);
        ck_assert_msg(gpuipc_seal(house->client, "b0", &error) == GPUIPC_OK, "%s", error.message);
        memcpy(house->pointer, "mine", 5);
        gpuipc_watch_free(house->watch);
        ck_assert_msg(gpuipc_release(house->buffer, &error) == GPUIPC_OK, "%s", error.message);
        gpuipc_client_free(house->client);
        fake_stop(house->fake);
        fake_broker_deinit(&house->broker);
}

/* In a child nothing of Check's may be used: the result is the line that failed. */
#define must(condition)                                                                                      \
        do {                                                                                                 \
                if (!(condition))                                                                            \
                        return __LINE__;                                                           \
        } while (0)

/* The child's result comes by shared memory and the child ends by SIGKILL: an exit would have valgrind count what the
 * parent's threads, which it has not, own. */
static int child_result(pid_t pid, int *shared, int (*child)(struct house *house), struct house *house) {
        int status, result;

        ck_assert_int_ge(pid, 0);
        if (pid == 0) {
                *shared = child(house);
                (void)kill(getpid(), SIGKILL);
                _exit(1);
        }
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "the child ended with %#x", (unsigned)status);
        result = *shared;
        (void)munmap(shared, sizeof(*shared));
        return result;
}

static int *result_room(void) {
        int *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

        ck_assert(shared != MAP_FAILED);
        *shared = -1;
        return shared;
}

static int run_child(int (*child)(struct house *house), struct house *house) {
        int *shared = result_room();
        return child_result(fork(), shared, child, house);
}

static int enough(const gpuipc_lease_info *lease, void *data) {
        (void)lease, (void)data;
        return 1;
}

static int child_tries_all(struct house *house) {
        gpuipc_client *client = house->client;
        const gpuipc_event_info *event;
        gpuipc_buffer *buffer = NULL;
        gpuipc_watch *watch = NULL;
        gpuipc_error error;
        void *pointer;

        must(gpuipc_allocate(client, 1, NULL, &buffer, &error) == GPUIPC_ERROR_FORKED);
        must(strstr(error.message, "gpuipc_connect()"));
        must(strcmp(error.name, "gpuipc.Forked") == 0);
        must(gpuipc_open_name(client, "n", NULL, &buffer, NULL) == GPUIPC_ERROR_FORKED);
        must(gpuipc_open_id(client, "b", NULL, &buffer, NULL) == GPUIPC_ERROR_FORKED);
        must(gpuipc_seal(client, "b", NULL) == GPUIPC_ERROR_FORKED);
        must(gpuipc_free(client, "b", NULL, NULL) == GPUIPC_ERROR_FORKED);
        must(gpuipc_kick(client, "s", NULL) == GPUIPC_ERROR_FORKED);
        must(gpuipc_get_status(client, NULL, NULL, NULL) == GPUIPC_ERROR_FORKED);
        must(gpuipc_list(client, NULL, enough, NULL, NULL) == GPUIPC_ERROR_FORKED);
        must(gpuipc_call_json(client, "a.b", NULL, 0, NULL, NULL, NULL) == GPUIPC_ERROR_FORKED);
        must(gpuipc_watch_new(client, -1, &watch, NULL) == GPUIPC_ERROR_FORKED);
        must(gpuipc_watch_next(house->watch, 0, &event, NULL) == GPUIPC_ERROR_FORKED);
        must(gpuipc_buffer_map(house->buffer, &pointer, NULL) == GPUIPC_ERROR_FORKED);
        gpuipc_watch_stop(house->watch);
        must(strcmp(gpuipc_buffer_id(house->buffer), "b0") == 0);
        return 0;
}

START_TEST(child_is_refused) {
        struct house house = { 0 };

        check_fd_count_begin();
        house_open(&house);
        ck_assert_int_eq(run_child(child_tries_all, &house), 0);
        house_close(&house);
        check_fd_count_end();
}
END_TEST

static size_t count_fds(void) {
        size_t n = 0;
        for (int fd = 0; fd < 1024; fd++)
                n += fcntl(fd, F_GETFD) >= 0;
        return n;
}

static int count_maps(void) {
        FILE *maps = fopen("/proc/self/maps", "re");
        char line[512];
        int n = 0;

        while (maps && fgets(line, sizeof(line), maps))
                n += strstr(line, "memfd:fake") != NULL;
        if (maps)
                (void)fclose(maps);
        return n;
}

/* Its own copies of the descriptors and the mapping go; nothing is sent. */
static int child_frees_all(struct house *house) {
        size_t before = count_fds();

        must(count_maps() == 1);
        must(gpuipc_release(house->buffer, NULL) == GPUIPC_ERROR_FORKED);
        must(count_maps() == 0);
        must(count_fds() == before - 1);
        gpuipc_watch_free(house->watch);
        must(count_fds() == before - 4);
        gpuipc_client_free(house->client);
        must(count_fds() == before - 5);
        return 0;
}

static int child_frees_client_first(struct house *house) {
        gpuipc_client_free(house->client);
        must(gpuipc_release(house->buffer, NULL) == GPUIPC_ERROR_FORKED);
        gpuipc_watch_free(house->watch);
        return 0;
}

START_TEST(child_frees_its_copies) {
        struct house house = { 0 };

        check_fd_count_begin();
        house_open(&house);
        ck_assert_int_eq(run_child(child_frees_all, &house), 0);
        ck_assert_int_eq(run_child(child_frees_client_first, &house), 0);
        ck_assert_int_eq(count_maps(), 1);
        house_close(&house);
        check_fd_count_end();
}
END_TEST

/* A child may have clients of its own, and what it inherited is not shared with them. */
static int child_connects_anew(struct house *house) {
        gpuipc_client *client = connect_to(house->fake->path);
        gpuipc_buffer *buffer;
        void *pointer;

        must(client);
        must(gpuipc_open_id(client, "b0", NULL, &buffer, NULL) == GPUIPC_OK);
        must(gpuipc_buffer_map(buffer, &pointer, NULL) == GPUIPC_OK);
        must(pointer != house->pointer);
        must(gpuipc_release(house->buffer, NULL) == GPUIPC_ERROR_FORKED);
        memcpy(pointer, "child", 6);
        must(gpuipc_release(buffer, NULL) == GPUIPC_OK);
        gpuipc_client_free(client);
        return 0;
}

START_TEST(child_connects) {
        struct house house = { 0 };

        house_open(&house);
        ck_assert_int_eq(run_child(child_connects_anew, &house), 0);
        ck_assert_str_eq(house.pointer, "child");
        wait_for(fake_open_peers(house.fake) == 2);
        house.n_calls = fake_count(house.fake, "{", NULL);
        house_close(&house);
}
END_TEST

static int child_seals(struct house *house) {
        return gpuipc_seal(house->client, "b0", NULL);
}

/* Without any of the handlers that fork() runs: the pid tells. */
START_TEST(raw_clone_is_noticed) {
        struct house house = { 0 };
        int *shared = result_room();
        pid_t pid;

        house_open(&house);
        pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        ck_assert_int_eq(child_result(pid, shared, child_seals, &house), GPUIPC_ERROR_FORKED);
        house_close(&house);
}
END_TEST

/* Process 1 of a pid namespace, with a client, forks process 1 of another. */
static int first_process(struct house *house) {
        gpuipc_client *client = connect_to(house->fake->path);
        int status, r;
        pid_t pid;

        must(getpid() == 1 && client);
        must(unshare(CLONE_NEWPID) == 0);
        pid = fork();
        if (pid == 0)
                _exit(getpid() == 1 ? gpuipc_seal(client, "b0", NULL) : 1);
        must(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
        r = gpuipc_seal(client, "b0", NULL);
        gpuipc_client_free(client);
        return r == GPUIPC_OK ? WEXITSTATUS(status) : 2;
}

static int child_in_namespaces(struct house *house) {
        int status;
        pid_t pid;

        must(unshare(CLONE_NEWPID) == 0);
        pid = fork();
        if (pid == 0)
                _exit(first_process(house));
        must(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
        return WEXITSTATUS(status);
}

START_TEST(child_with_its_parents_pid) {
        struct house house = { 0 };

        if (geteuid() != 0) {
                printf("SKIP child_with_its_parents_pid: needs root to make pid namespaces\n");
                return;
        }
        house_open(&house);
        ck_assert_int_eq(run_child(child_in_namespaces, &house), GPUIPC_ERROR_FORKED);
        wait_for(fake_open_peers(house.fake) == 2);
        house.n_calls++; /* its own, from process 1 */
        house_close(&house);
}
END_TEST

static void *call_slowly(void *arg) {
        struct house *house = arg;
        return (void *)(intptr_t)gpuipc_seal(house->client, "slow", NULL);
}

static void *watch_slowly(void *arg) {
        struct house *house = arg;
        const gpuipc_event_info *event;
        return (void *)(intptr_t)gpuipc_watch_next(house->watch, -1, &event, NULL);
}

/* Other threads are in the midst of a call and of a watch: their locks and buffers mean nothing in the child. */
START_TEST(fork_during_calls) {
        struct house house = { 0 };
        pthread_t caller, watcher;
        void *r;

        house_open(&house);
        ck_assert_int_eq(pthread_create(&caller, NULL, call_slowly, &house), 0);
        ck_assert_int_eq(pthread_create(&watcher, NULL, watch_slowly, &house), 0);
        wait_for(fake_count(house.fake, "slow", NULL) == 1);
        for (int i = 0; i < 20; i++) {
                ck_assert_int_eq(run_child(child_tries_all, &house), 0);
                ck_assert_int_eq(run_child(child_frees_all, &house), 0);
        }
        fake_send(house.fake, 0, "{}");
        ck_assert_int_eq(pthread_join(caller, &r), 0);
        ck_assert_int_eq((int)(intptr_t)r, GPUIPC_OK);
        gpuipc_watch_stop(house.watch);
        ck_assert_int_eq(pthread_join(watcher, &r), 0);
        ck_assert_int_eq((int)(intptr_t)r, GPUIPC_ERROR_CLOSED);
        house.n_calls++;
        house_close(&house);
}
END_TEST

/* A child that lives on has the connections' descriptors, too. */
START_TEST(parent_ends_beside_its_child) {
        struct house house = { 0 };
        int status;
        pid_t pid;

        house_open(&house);
        pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0) {
                (void)pause();
                _exit(1);
        }
        gpuipc_watch_free(house.watch);
        wait_for(fake_open_peers(house.fake) == 1);
        gpuipc_client_free(house.client);
        wait_for(fake_open_peers(house.fake) == 0);
        ck_assert_int_eq(kill(pid, SIGKILL), 0);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_int_eq(gpuipc_release(house.buffer, NULL), GPUIPC_ERROR_DISCONNECTED);
        fake_stop(house.fake);
        fake_broker_deinit(&house.broker);
}
END_TEST

struct churn {
        struct house *house;
        atomic_bool stop;
        atomic_int r;
};

static void *churn(void *arg) {
        struct churn *churn = arg;

        while (!churn->stop && churn->r == GPUIPC_OK) {
                gpuipc_buffer *buffer;
                void *pointer;
                churn->r = gpuipc_open_id(churn->house->client, "b0", NULL, &buffer, NULL);
                if (churn->r == GPUIPC_OK)
                        churn->r = gpuipc_buffer_map(buffer, &pointer, NULL);
                if (churn->r == GPUIPC_OK)
                        churn->r = gpuipc_release(buffer, NULL);
        }
        return NULL;
}

static int child_frees_in_any_case(struct house *house) {
        must(gpuipc_release(house->buffer, NULL) == GPUIPC_ERROR_FORKED);
        gpuipc_watch_free(house->watch);
        gpuipc_client_free(house->client);
        return 0;
}

START_TEST(fork_at_any_moment) {
        struct house house = { 0 };
        struct churn state = { .house = &house };
        pthread_t threads[3];

        house_open(&house);
        for (int i = 0; i < 3; i++)
                ck_assert_int_eq(pthread_create(&threads[i], NULL, churn, &state), 0);
        for (int i = 0; i < 100; i++)
                ck_assert_int_eq(run_child(child_frees_in_any_case, &house), 0);
        state.stop = true;
        for (int i = 0; i < 3; i++)
                ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        ck_assert_int_eq(state.r, GPUIPC_OK);
        house.n_calls = fake_count(house.fake, "{", NULL);
        house_close(&house);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("client_fork");
        TCase *tcase = tcase_create("fork");

        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, child_is_refused);
        tcase_add_test(tcase, child_frees_its_copies);
        tcase_add_test(tcase, child_connects);
        tcase_add_test(tcase, raw_clone_is_noticed);
        tcase_add_test(tcase, child_with_its_parents_pid);
        tcase_add_test(tcase, fork_during_calls);
        tcase_add_test(tcase, parent_ends_beside_its_child);
        tcase_add_test(tcase, fork_at_any_moment);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
