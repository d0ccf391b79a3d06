/* SPDX-License-Identifier: Apache-2.0 */
/* A client in want of memory: each allocation of its calls fails, at release also with those that follow it. The call says so and nothing
 * else comes of it: the connection and its leases stand, what was granted meanwhile and what could not be released goes back, no descriptor
 * stays open. The allocator that fails is this program's own, so none fails under a sanitizer. (not under valgrind: it brings its own) */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "include/gpuipc.h"
#include "tests/support/fake_server.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"
#include "tests/support/wait.h"

enum allocator { BY_MALLOC, BY_CALLOC, BY_REALLOC, N_ALLOCATORS };

#define MOST 200 /* allocations of one kind in one life */
#define RUN 3    /* that fail in a row, at most */

/* Of this thread: the calls until one fails; 0: none does. */
static _Thread_local int fail_in[N_ALLOCATORS], n_failing; /* from then on so many */

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
/* For the C library's own calls, too: strdup(), reallocarray(). */
#define EXPORTED __attribute__((visibility("default")))

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *pointer, size_t size);

static bool fails(enum allocator by) {
        if (fail_in[by] == 0 || --fail_in[by] > 0)
                return false;
        fail_in[by] = --n_failing > 0;
        errno = ENOMEM;
        return true;
}

EXPORTED void *malloc(size_t size) {
        return fails(BY_MALLOC) ? NULL : __libc_malloc(size);
}

EXPORTED void *calloc(size_t n, size_t size) {
        return fails(BY_CALLOC) ? NULL : __libc_calloc(n, size);
}

EXPORTED void *realloc(void *pointer, size_t size) {
        return fails(BY_REALLOC) ? NULL : __libc_realloc(pointer, size);
}
#endif

/* Checks allocate. */
static int expect(int status) {
        int kept[N_ALLOCATORS];

        memcpy(kept, fail_in, sizeof(kept));
        memset(fail_in, 0, sizeof(fail_in));
        ck_assert_msg(status == GPUIPC_OK || status == GPUIPC_ERROR_NO_MEMORY, "%s", gpuipc_status_name((gpuipc_status)status));
        memcpy(fail_in, kept, sizeof(kept));
        return status;
}

static void look(const gpuipc_status_info *status, void *data) {
        (void)status, (void)data;
}

static void arm(enum allocator by, int n, int run) {
        n_failing = run;
        fail_in[by] = n;
}

static void use(gpuipc_client *client, enum allocator by, int n, int run) {
        gpuipc_buffer *made = NULL, *opened = NULL;
        gpuipc_error error;
        void *pointer;

        if (run == 1)
                arm(by, n, run);
        if (expect(gpuipc_allocate(client, 4096, NULL, &made, &error)) == GPUIPC_OK)
                (void)expect(gpuipc_buffer_map(made, &pointer, &error));
        if (expect(gpuipc_open_id(client, "b1", NULL, &opened, &error)) == GPUIPC_OK)
                (void)expect(gpuipc_buffer_map(opened, &pointer, &error));
        (void)expect(gpuipc_get_status(client, look, NULL, &error));
        if (made)
                (void)expect(gpuipc_buffer_check(made, &error));
        if (run > 1)
                arm(by, n, run);
        (void)expect(gpuipc_release(made, &error));
        (void)expect(gpuipc_release(opened, &error));
}

/* Whether an allocation failed: there were so many. */
static bool live(enum allocator by, int n, int run) {
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        struct fake_broker broker;
        gpuipc_client *client;
        struct fake *fake;
        bool failed;

        check_fd_count_begin();
        fake_broker_init(&broker, 4096);
        fake = fake_start(fake_broker_answer, &broker);
        options.socket_path = fake->path;
        ck_assert_int_eq(gpuipc_connect(&options, &client, NULL), GPUIPC_OK);
        use(client, by, n, run);
        failed = n_failing < run;
        memset(fail_in, 0, sizeof(fail_in));
        /* What is owed is seen to with the next call; a release whose answer was lost is said again. */
        ck_assert_int_eq(gpuipc_seal(client, "b1", NULL), GPUIPC_OK);
        ck_assert_msg(broker.n_granted <= broker.n_released, "allocation %d of kind %d: %u granted, %u released", n, (int)by,
                      broker.n_granted, broker.n_released);
        ck_assert_msg(fake_peers(fake) == 1, "allocation %d of kind %d cost the connection", n, (int)by);
        gpuipc_client_free(client);
        fake_stop(fake);
        fake_broker_deinit(&broker);
        check_fd_count_end();
        return failed;
}

START_TEST(each_fails) {
        int n = 1;

        while (live((enum allocator)(_i % N_ALLOCATORS), n, 1 + _i / N_ALLOCATORS))
                ck_assert_int_lt(n++, MOST);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
        ck_assert(n > 1 || _i >= N_ALLOCATORS); /* a release takes no memory of calloc()'s */
#endif
}
END_TEST

int main(void) {
        Suite *suite = suite_create("client_memory");
        TCase *tcase = tcase_create("memory");

        tcase_set_timeout(tcase, 120);
        tcase_add_loop_test(tcase, each_fails, 0, N_ALLOCATORS * RUN);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
