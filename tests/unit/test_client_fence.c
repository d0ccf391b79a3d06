/* SPDX-License-Identifier: Apache-2.0 */
/* Fences in host memory: what may be asked, waiting and waking in one process and between two, and words that nobody signals. */
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "include/gpuipc.h"
#include "tests/support/child.h"
#include "tests/support/fake_server.h"
#include "tests/support/suite.h"
#include "tests/support/wait.h"

#define SIZE 8192
#define WIDE (UINT64_C(1) << 32)
#define ROUNDS 400

static struct fake_broker broker;
static struct fake *fake;
static gpuipc_client *client;
static gpuipc_buffer *buffer;
static gpuipc_error error;

static gpuipc_buffer *open_one(gpuipc_client *of, gpuipc_access access) {
        gpuipc_open_options options = GPUIPC_OPEN_OPTIONS_INIT;
        gpuipc_buffer *opened = NULL;

        options.access = access;
        return gpuipc_open_id(of, "b0", &options, &opened, NULL) == GPUIPC_OK ? opened : NULL;
}

static gpuipc_client *connect_to(const char *path) {
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_client *connected = NULL;

        options.socket_path = path;
        return gpuipc_connect(&options, &connected, NULL) == GPUIPC_OK ? connected : NULL;
}

static void setup(void) {
        fake_broker_init(&broker, SIZE);
        broker.fd = fake_memfd(SIZE, false);
        fake = fake_start(fake_broker_answer, &broker);
        client = connect_to(fake->path);
        ck_assert_ptr_nonnull(client);
        buffer = open_one(client, GPUIPC_RW);
        ck_assert_ptr_nonnull(buffer);
}

static void teardown(void) {
        ck_assert_int_eq(gpuipc_release(buffer, NULL), GPUIPC_OK);
        gpuipc_client_free(client);
        fake_stop(fake);
        fake_broker_deinit(&broker);
}

static gpuipc_fence *make(int64_t offset) {
        gpuipc_fence *fence;
        ck_assert_msg(gpuipc_fence_new(buffer, offset, &fence, &error) == GPUIPC_OK, "%s", error.message);
        return fence;
}

static uint64_t value_of(gpuipc_fence *fence) {
        uint64_t value;
        ck_assert_int_eq(gpuipc_fence_query(fence, &value, NULL), GPUIPC_OK);
        return value;
}

static void check_refused(int r, const char *parameter, const char *word) {
        ck_assert_int_eq(r, GPUIPC_ERROR_INVALID_PARAMETER);
        ck_assert_str_eq(error.subject, parameter);
        ck_assert_msg(strstr(error.message, word), "%s", error.message);
}

START_TEST(what_is_refused) {
        gpuipc_fence *fence = NULL;

        check_refused(gpuipc_fence_new(NULL, 0, &fence, &error), "buffer", "gpuipc_allocate");
        check_refused(gpuipc_fence_new(buffer, 0, NULL, &error), "ret_fence", "pointer");
        check_refused(gpuipc_fence_new(buffer, -8, &fence, &error), "offset", "inside");
        check_refused(gpuipc_fence_new(buffer, SIZE, &fence, &error), "offset", "inside");
        check_refused(gpuipc_fence_new(buffer, INT64_MAX - 7, &fence, &error), "offset", "inside");
        check_refused(gpuipc_fence_new(buffer, SIZE - 7, &fence, &error), "offset", "inside");
        check_refused(gpuipc_fence_new(buffer, 12, &fence, &error), "offset", "multiple of 8");
        ck_assert_ptr_null(fence);
        check_refused(gpuipc_fence_signal(NULL, 1, &error), "fence", "gpuipc_fence_new");
        check_refused(gpuipc_fence_signal_stream(NULL, NULL, 1, &error), "fence", "gpuipc_fence_new");
        check_refused(gpuipc_fence_wait(NULL, 1, 0, &error), "fence", "gpuipc_fence_new");
        check_refused(gpuipc_fence_wait_stream(NULL, NULL, 1, 0, &error), "fence", "gpuipc_fence_new");
        check_refused(gpuipc_fence_query(NULL, NULL, &error), "fence", "gpuipc_fence_new");
        fence = make(SIZE - 8);
        check_refused(gpuipc_fence_query(fence, NULL, &error), "ret_value", "pointer");
        gpuipc_fence_free(fence);
        gpuipc_fence_free(NULL);
} END_TEST

START_TEST(values_grow) {
        static const uint64_t values[] = { 1, UINT32_MAX, WIDE, WIDE + 1, UINT64_MAX >> 1, UINT64_MAX, 0, 3 };
        gpuipc_fence *fence = make(16), *same = make(16), *other = make(24);

        ck_assert_int_eq(gpuipc_fence_is_synchronous(fence), 1);
        ck_assert_uint_eq(value_of(fence), 0);
        for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
                ck_assert_int_eq(gpuipc_fence_wait(same, values[i], 0, NULL), GPUIPC_ERROR_TIMED_OUT);
                ck_assert_int_eq(_i ? gpuipc_fence_signal(fence, values[i], NULL)
                                    : gpuipc_fence_signal_stream(fence, NULL, values[i], NULL), GPUIPC_OK);
                ck_assert_uint_eq(value_of(same), values[i]);
                ck_assert_int_eq(gpuipc_fence_wait(same, values[i], -1, NULL), GPUIPC_OK);
                ck_assert_int_eq(gpuipc_fence_wait_stream(same, NULL, values[i] - 1, -1, NULL), GPUIPC_OK);
        }
        ck_assert_uint_eq(value_of(other), 0);
        gpuipc_fence_free(fence);
        gpuipc_fence_free(same);
        gpuipc_fence_free(other);
} END_TEST

START_TEST(waits_end_in_time) {
        gpuipc_fence *fence = make(0);
        int64_t started = now_ms();

        ck_assert_int_eq(gpuipc_fence_signal(fence, 4, NULL), GPUIPC_OK);
        ck_assert_int_eq(_i ? gpuipc_fence_wait(fence, 5, 50, &error) : gpuipc_fence_wait_stream(fence, NULL, 5, 50, &error),
                         GPUIPC_ERROR_TIMED_OUT);
        ck_assert_int_ge(now_ms() - started, 50);
        ck_assert_str_eq(error.name, "gpuipc.TimedOut");
        ck_assert_ptr_nonnull(strstr(error.message, "has not reached 5 within 50 ms, it is at 4"));
        gpuipc_fence_free(fence);
} END_TEST

struct side {
        gpuipc_fence *hear, *say;
        int failed;
};

/* Answers each value by its own. */
static void *answer(void *data) {
        struct side *side = data;

        for (uint64_t i = 1; i <= ROUNDS && !side->failed; i++)
                side->failed = gpuipc_fence_wait(side->hear, WIDE + i, WAIT_MS, NULL) || gpuipc_fence_signal(side->say, i, NULL);
        return NULL;
}

/* Were nobody woken, most rounds would take the pause between two looks, 20 ms. Some may, while others want the processor. */
static void ask(gpuipc_fence *say, gpuipc_fence *hear) {
        int n_slow = 0;

        for (uint64_t i = 1; i <= ROUNDS; i++) {
                int64_t started = now_usec();

                ck_assert_int_eq(gpuipc_fence_signal(say, WIDE + i, NULL), GPUIPC_OK);
                ck_assert_int_eq(gpuipc_fence_wait(hear, i, WAIT_MS, NULL), GPUIPC_OK);
                n_slow += now_usec() - started >= slower_ms(15) * INT64_C(1000);
        }
        ck_assert_int_lt(n_slow, ROUNDS / 2);
}

START_TEST(between_threads) {
        struct side side = { .hear = make(0), .say = make(8) };
        pthread_t thread;

        ck_assert_int_eq(pthread_create(&thread, NULL, answer, &side), 0);
        ask(side.hear, side.say); /* one object, two threads */
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        ck_assert_int_eq(side.failed, 0);
        gpuipc_fence_free(side.hear);
        gpuipc_fence_free(side.say);
} END_TEST

static int answer_there(int talk_fd, void *data) {
        gpuipc_client *own = connect_to(data);
        gpuipc_buffer *mine = own ? open_one(own, GPUIPC_RW) : NULL;
        struct side side = { .failed = 0 };

        if (!mine || gpuipc_fence_new(mine, 0, &side.hear, NULL) || gpuipc_fence_new(mine, 8, &side.say, NULL) ||
            talk_say(talk_fd, 'r') != 0)
                return 1;
        answer(&side);
        gpuipc_fence_free(side.hear);
        gpuipc_fence_free(side.say);
        if (side.failed || gpuipc_release(mine, NULL) != GPUIPC_OK)
                return 1;
        gpuipc_client_free(own);
        return 0;
}

START_TEST(between_processes) {
        struct child child = child_start(NULL, answer_there, fake->path);
        gpuipc_fence *say = make(0), *hear = make(8);

        child_hear(&child, 'r');
        ask(say, hear);
        child_expect_exit(&child, 0);
        gpuipc_fence_free(say);
        gpuipc_fence_free(hear);
} END_TEST

struct store {
        _Atomic uint64_t *word;
        uint64_t value;
        pid_t waiter; /* thread id */
};

static bool sleeps(pid_t thread) {
        char path[64], state = '?';

        (void)snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)thread);
        FILE *file = fopen(path, "re");
        if (!file || fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
                state = '?';
        if (file)
                (void)fclose(file);
        return state == 'S';
}

static void *store_later(void *data) {
        struct store *store = data;

        while (!sleeps(store->waiter))
                ;
        *store->word = store->value;
        return NULL;
}

/* A store that wakes nobody; and one that leaves the lower half as it was, which a futex cannot tell. */
START_TEST(plain_stores_are_seen) {
        struct store store = { .waiter = gettid(), .value = _i ? WIDE : 1 };
        gpuipc_fence *fence = make(8);
        pthread_t thread;
        int64_t started;
        void *pointer;

        ck_assert_int_eq(gpuipc_buffer_map(buffer, &pointer, NULL), GPUIPC_OK);
        store.word = (_Atomic uint64_t *)pointer + 1;
        ck_assert_int_eq(pthread_create(&thread, NULL, store_later, &store), 0);
        started = now_ms();
        ck_assert_int_eq(gpuipc_fence_wait(fence, store.value, WAIT_MS, NULL), GPUIPC_OK);
        ck_assert_int_lt(now_ms() - started, WAIT_MS / 2);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        gpuipc_fence_free(fence);
} END_TEST

static void *signal_later(void *data) {
        return gpuipc_fence_signal(data, 1, NULL) == GPUIPC_OK ? NULL : data;
}

START_TEST(read_only_waits_and_does_not_signal) {
        gpuipc_buffer *ro = open_one(client, GPUIPC_RO);
        gpuipc_fence *fence, *signals = make(0);
        pthread_t thread;
        void *failed;

        ck_assert_int_eq(gpuipc_fence_new(ro, 0, &fence, NULL), GPUIPC_OK);
        check_refused(gpuipc_fence_signal(fence, 1, &error), "fence", "opened ro");
        check_refused(gpuipc_fence_signal_stream(fence, NULL, 1, &error), "fence", "opened ro");
        ck_assert_int_eq(pthread_create(&thread, NULL, signal_later, signals), 0);
        ck_assert_int_eq(gpuipc_fence_wait(fence, 1, WAIT_MS, NULL), GPUIPC_OK);
        ck_assert_int_eq(pthread_join(thread, &failed), 0);
        ck_assert_ptr_null(failed);
        gpuipc_fence_free(fence);
        gpuipc_fence_free(signals);
        ck_assert_int_eq(gpuipc_release(ro, NULL), GPUIPC_OK);
} END_TEST

START_TEST(a_fence_outlives_its_buffer) {
        gpuipc_buffer *short_lived = open_one(client, GPUIPC_RW);
        gpuipc_fence *fence;

        ck_assert_int_eq(gpuipc_release(buffer, NULL), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_fence_new(short_lived, 0, &fence, NULL), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_release(short_lived, NULL), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_fence_signal(fence, 9, NULL), GPUIPC_OK);
        ck_assert_uint_eq(value_of(fence), 9);
        gpuipc_fence_free(fence);
        buffer = open_one(client, GPUIPC_RW);
} END_TEST

START_TEST(a_forked_child) {
        gpuipc_fence *fence = make(0);
        uint64_t value;
        int status;
        pid_t pid = fork();

        if (pid == 0) {
                bool good = gpuipc_fence_signal(fence, 1, NULL) == GPUIPC_ERROR_FORKED &&
                            gpuipc_fence_signal_stream(fence, NULL, 1, NULL) == GPUIPC_ERROR_FORKED &&
                            gpuipc_fence_wait(fence, 0, 0, NULL) == GPUIPC_ERROR_FORKED &&
                            gpuipc_fence_wait_stream(fence, NULL, 0, 0, NULL) == GPUIPC_ERROR_FORKED &&
                            gpuipc_fence_query(fence, &value, NULL) == GPUIPC_ERROR_FORKED;
                gpuipc_fence_free(fence);
                _exit(good ? 0 : 1);
        }
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_int_eq(status, 0);
        ck_assert_uint_eq(value_of(fence), 0);
        gpuipc_fence_free(fence);
} END_TEST

int main(void) {
        Suite *suite = suite_create("client_fence");
        TCase *tcase = tcase_create("host");

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, what_is_refused);
        tcase_add_loop_test(tcase, values_grow, 0, 2);
        tcase_add_loop_test(tcase, waits_end_in_time, 0, 2);
        tcase_add_test(tcase, between_threads);
        tcase_add_test(tcase, between_processes);
        tcase_add_loop_test(tcase, plain_stores_are_seen, 0, 2);
        tcase_add_test(tcase, read_only_waits_and_does_not_signal);
        tcase_add_test(tcase, a_fence_outlives_its_buffer);
        tcase_add_test(tcase, a_forked_child);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
