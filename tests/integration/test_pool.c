/* SPDX-License-Identifier: Apache-2.0 */
/* Pools against a real daemon: whose buffers the blocks are, who finds them, and what stays when one side goes. Runs on any memory. */
#include <check.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "library.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/suite.h"

#define SIZE (INT64_C(5) << 20)

static struct gpuipcd *daemon_process;

static void setup(void) {
        daemon_process = gpuipcd_start(NULL);
}

static void teardown(void) {
        library_expect_maps(0);
        gpuipcd_wait_idle(daemon_process);
        gpuipcd_stop(daemon_process);
}

static int ordinal(void) {
        return memory_is_host() ? -1 : 0;
}

static gpuipc_pool *pool_of(gpuipc_client *client, int64_t keep_ms) {
        gpuipc_pool_options options = GPUIPC_POOL_OPTIONS_INIT;
        gpuipc_pool *pool;
        gpuipc_error error;

        options.handle = memory_handle();
        options.mode = "0640";
        options.keep_ms = keep_ms;
        options.label = "a pool";
        library_expect(gpuipc_pool_new(client, &options, &pool, &error), GPUIPC_OK, &error);
        return pool;
}

static void *take(gpuipc_pool *pool, int64_t size) {
        void *pointer = gpuipc_pool_alloc_function(pool)(size, ordinal(), NULL);
        gpuipc_error error = { 0 };

        (void)gpuipc_pool_failures(pool, &error);
        ck_assert_msg(pointer != NULL, "%s", error.message);
        return pointer;
}

static void give(gpuipc_pool *pool, void *pointer) {
        gpuipc_pool_free_function(pool)(pointer, 0, ordinal(), NULL);
}

static gpuipc_pool_block find(const void *pointer) {
        gpuipc_pool_block block = GPUIPC_POOL_BLOCK_INIT;
        gpuipc_error error;

        library_expect(gpuipc_pool_find(pointer, &block, &error), GPUIPC_OK, &error);
        return block;
}

static bool found(const void *pointer) {
        gpuipc_pool_block block = GPUIPC_POOL_BLOCK_INIT;
        return gpuipc_pool_find(pointer, &block, NULL) == GPUIPC_OK;
}

/* ---- blocks ----------------------------------------------------------------------------------------------- */

static int look(const gpuipc_buffer_info *buffer, void *data) {
        ck_assert_str_eq(buffer->id, data);
        ck_assert_str_eq(buffer->mode, "0640");
        ck_assert_int_eq(buffer->size, SIZE);
        ck_assert_int_eq(strcmp(buffer->device, "host") == 0, memory_is_host());
        ck_assert_ptr_null(buffer->name);
        return 0;
}

START_TEST(a_block_is_a_buffer) {
        gpuipc_client *client = library_connect(daemon_process->socket), *other = library_connect(daemon_process->socket);
        gpuipc_pool *pool = pool_of(client, 0);
        unsigned char *pointer = take(pool, SIZE), *theirs;
        gpuipc_pool_block block = find(pointer);
        gpuipc_buffer *buffer;
        gpuipc_error error;

        ck_assert_ptr_eq(block.pointer, pointer);
        ck_assert_int_eq(block.size, SIZE);
        ck_assert_int_eq(block.cuda_device, ordinal());
        ck_assert_int_eq(gpuipc_pool_bytes(pool), SIZE);
        library_expect(gpuipc_list_buffers(other, NULL, look, block.buffer, &error), GPUIPC_OK, &error);
        ck_assert_str_eq(find(pointer + SIZE - 1).buffer, block.buffer);
        ck_assert(!found(pointer + SIZE) && !found(pointer - 1) && !found(NULL));

        library_expect(gpuipc_open_id(other, block.buffer, NULL, &buffer, &error), GPUIPC_OK, &error);
        theirs = library_map(buffer);
        memory_set(pointer, SIZE - 1, 0x5a);
        ck_assert_int_eq(memory_get(theirs, SIZE - 1), 0x5a);
        give(pool, pointer);
        ck_assert(!found(pointer));
        ck_assert_int_eq(gpuipc_pool_bytes(pool), 0);
        ck_assert_int_eq(memory_get(theirs, SIZE - 1), 0x5a);
        library_release(buffer);
        gpuipc_pool_free(pool);
        gpuipc_client_free(client);
        gpuipc_client_free(other);
} END_TEST

START_TEST(what_is_no_block_is_left_alone) {
        gpuipc_client *client = library_connect(daemon_process->socket);
        gpuipc_pool *pool = pool_of(client, 0);
        unsigned char *pointer = take(pool, SIZE);

        give(pool, NULL);
        give(pool, pointer + 1);
        give(pool, &pointer);
        ck_assert_int_eq(gpuipc_pool_bytes(pool), SIZE);
        give(pool, pointer);
        give(pool, pointer);
        gpuipc_pool_free(pool);
        gpuipc_pool_free(NULL);
        gpuipc_client_free(client);
} END_TEST

START_TEST(failures_say_why) {
        gpuipc_client *client = library_connect(daemon_process->socket);
        gpuipc_pool *pool = pool_of(client, 0);
        gpuipc_pool_options options = GPUIPC_POOL_OPTIONS_INIT;
        gpuipc_pool_block block = { 0 };
        gpuipc_pool *none = NULL;
        gpuipc_error error = { .status = GPUIPC_OK };

        ck_assert_int_eq(gpuipc_pool_failures(pool, &error), 0);
        ck_assert_int_eq(error.status, GPUIPC_OK);
        ck_assert_ptr_null(gpuipc_pool_alloc_function(pool)(0, ordinal(), NULL));
        ck_assert_int_eq(gpuipc_pool_failures(pool, &error), 1);
        library_expect(error.status, GPUIPC_ERROR_INVALID_PARAMETER, &error);
        ck_assert_ptr_null(gpuipc_pool_alloc_function(pool)(SIZE, 1000, NULL));
        ck_assert_int_eq(gpuipc_pool_failures(pool, &error), 2);
        ck_assert_msg(strstr(error.message, "1000") || memory_is_host(), "%s", error.message);
        ck_assert_ptr_null(gpuipc_pool_alloc_function(pool)(INT64_C(1) << 50, ordinal(), NULL));
        ck_assert_int_eq(gpuipc_pool_failures(pool, &error), 3);
        ck_assert_int_eq(gpuipc_pool_bytes(pool), 0);

        options.keep_ms = -1;
        library_expect(gpuipc_pool_new(client, &options, &none, &error), GPUIPC_ERROR_INVALID_PARAMETER, &error);
        ck_assert_str_eq(error.subject, "keep_ms");
        library_expect(gpuipc_pool_find(pool, &block, &error), GPUIPC_ERROR_INVALID_PARAMETER, &error);
        library_expect(gpuipc_pool_new(client, NULL, NULL, &error), GPUIPC_ERROR_INVALID_PARAMETER, &error);
        ck_assert_ptr_null(none);
        gpuipc_pool_free(pool);
        gpuipc_client_free(client);
} END_TEST

/* Whatever the GPU still has to do with a block is done before that goes. */
START_TEST(work_under_way_is_waited_for) {
        gpuipc_client *client = library_connect(daemon_process->socket);
        gpuipc_pool *pool = pool_of(client, 0);
        void *library = dlopen("libcuda.so.1", RTLD_NOW), *pointer = take(pool, SIZE);
        int (*set)(uint64_t, unsigned char, size_t, void *), (*synchronize)(void);
        int (*host)(void *, int (*)(unsigned), void *);

        memory_set(pointer, 0, 1); /* a context of this thread's own, so that nothing is undone with the block */
        *(void **)&set = dlsym(library, "cuMemsetD8Async");
        *(void **)&synchronize = dlsym(library, "cuCtxSynchronize");
        *(void **)&host = dlsym(library, "cuLaunchHostFunc");
        ck_assert(set && synchronize && host);
        ck_assert_int_eq(host(NULL, (int (*)(unsigned))(void (*)(void))usleep, (void *)(uintptr_t)200000), 0);
        ck_assert_int_eq(set((uint64_t)(uintptr_t)pointer, 7, (size_t)SIZE, NULL), 0);
        give(pool, pointer);
        ck_assert_int_eq(synchronize(), 0);
        (void)dlclose(library);
        gpuipc_pool_free(pool);
        gpuipc_client_free(client);
} END_TEST

/* ---- pools ------------------------------------------------------------------------------------------------ */

START_TEST(as_many_as_there_are) {
        gpuipc_client *client = library_connect(daemon_process->socket);
        gpuipc_pool *pools[GPUIPC_POOLS], *one_more;
        void *pointers[GPUIPC_POOLS];
        gpuipc_error error;

        for (int i = 0; i < GPUIPC_POOLS; i++) {
                pools[i] = pool_of(client, 0);
                pointers[i] = take(pools[i], 4096);
                for (int k = 0; k < i; k++)
                        ck_assert(gpuipc_pool_alloc_function(pools[k]) != gpuipc_pool_alloc_function(pools[i]));
        }
        library_expect(gpuipc_pool_new(client, NULL, &one_more, &error), GPUIPC_ERROR_QUOTA_EXCEEDED, &error);
        /* A pool that is gone while a block is out gives out no more, and no other takes its place. */
        gpuipc_pool_alloc_fn stale = gpuipc_pool_alloc_function(pools[3]);
        gpuipc_pool_free_fn free_function = gpuipc_pool_free_function(pools[3]);
        gpuipc_pool_free(pools[3]);
        ck_assert_ptr_null(stale(4096, ordinal(), NULL));
        library_expect(gpuipc_pool_new(client, NULL, &one_more, &error), GPUIPC_ERROR_QUOTA_EXCEEDED, &error);
        ck_assert(found(pointers[3]));
        free_function(pointers[3], 4096, ordinal(), NULL);
        ck_assert_ptr_null(stale(4096, ordinal(), NULL));
        pools[3] = pool_of(client, 0);
        ck_assert(gpuipc_pool_alloc_function(pools[3]) == stale);
        for (int i = 0; i < GPUIPC_POOLS; i++) {
                if (i != 3)
                        give(pools[i], pointers[i]);
                gpuipc_pool_free(pools[i]);
        }
        gpuipc_client_free(client);
} END_TEST

/* In a process of its own: what it never said it unmapped is in the books until it ends. */
static int free_the_client_first(int talk_fd, void *data) {
        gpuipc_client *client = library_connect(data);
        gpuipc_pool *pool = pool_of(client, 0);
        void *pointer = take(pool, SIZE);
        gpuipc_error error;

        (void)talk_fd;
        gpuipc_client_free(client);
        memory_set(pointer, 0, 1);
        if (gpuipc_pool_alloc_function(pool)(SIZE, ordinal(), NULL))
                return 1;
        if (gpuipc_pool_failures(pool, &error) != 1 || error.status != GPUIPC_ERROR_DISCONNECTED)
                return 2;
        give(pool, pointer);
        gpuipc_pool_free(pool);
        return 0;
}

START_TEST(client_freed_first) {
        struct child child = child_start(NULL, free_the_client_first, daemon_process->socket);
        child_expect_exit(&child, 0);
} END_TEST

struct worker {
        pthread_t thread;
        gpuipc_pool *pool;
};

static void *work(void *data) {
        struct worker *worker = data;

        for (int i = 0; i < 40; i++) {
                unsigned char *a = take(worker->pool, 4096), *b = take(worker->pool, 8192);
                ck_assert_ptr_eq(find(b + 8191).pointer, b);
                give(worker->pool, a);
                give(worker->pool, b);
        }
        return NULL;
}

START_TEST(threads) {
        gpuipc_client *client = library_connect(daemon_process->socket);
        gpuipc_pool *pools[2] = { pool_of(client, 0), pool_of(client, 0) };
        struct worker workers[4];

        for (int i = 0; i < 4; i++) {
                workers[i].pool = pools[i % 2];
                ck_assert_int_eq(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
        }
        for (int i = 0; i < 4; i++)
                ck_assert_int_eq(pthread_join(workers[i].thread, NULL), 0);
        for (int i = 0; i < 2; i++) {
                ck_assert_int_eq(gpuipc_pool_bytes(pools[i]), 0);
                gpuipc_pool_free(pools[i]);
        }
        gpuipc_client_free(client);
} END_TEST

/* ---- other processes -------------------------------------------------------------------------------------- */

struct inheritance {
        gpuipc_pool *pool;
        void *pointer;
};

static int inherit(int talk_fd, void *data) {
        struct inheritance *inheritance = data;
        gpuipc_error error;

        (void)talk_fd;
        if (gpuipc_pool_alloc_function(inheritance->pool)(SIZE, ordinal(), NULL))
                return 1;
        if (gpuipc_pool_failures(inheritance->pool, &error) != 1 || error.status != GPUIPC_ERROR_FORKED)
                return 3;
        if (found(inheritance->pointer))
                return 2;
        give(inheritance->pool, inheritance->pointer);
        gpuipc_pool_free(inheritance->pool);
        return 0;
}

START_TEST(a_forked_child_has_none) {
        gpuipc_client *client = library_connect(daemon_process->socket);
        gpuipc_pool *pool = pool_of(client, 0);
        struct inheritance inheritance = { .pool = pool, .pointer = take(pool, SIZE) };

        struct child child = child_start(NULL, inherit, &inheritance);
        child_expect_exit(&child, 0);
        ck_assert_int_eq(library_count_leases(client, NULL), 1);
        memory_set(inheritance.pointer, 0, 1);
        give(pool, inheritance.pointer);
        ck_assert_int_eq(library_count_leases(client, NULL), 0);
        gpuipc_pool_free(pool);
        gpuipc_client_free(client);
} END_TEST

static int leave_behind(int talk_fd, void *data) {
        gpuipc_pool *pool = pool_of(library_connect(data), 60000);

        memory_set(take(pool, SIZE), 0, 0x77);
        give(pool, take(pool, 2 * SIZE)); /* this one is given back, and not kept */
        return talk_say(talk_fd, 'r') || talk_hear(talk_fd, 'e');
}

#define BIG (INT64_C(64) << 20)

/* Address space of this process. */
static size_t space(void) {
        size_t pages = 0;
        FILE *file = fopen("/proc/self/statm", "re");

        if (!file || fscanf(file, "%zu", &pages) != 1)
                pages = 0;
        if (file)
                (void)fclose(file);
        return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* In a process of its own, which has no room to map what it is granted, and some for all else. */
static int map_nothing(int talk_fd, void *data) {
        gpuipc_client *client = library_connect(data);
        gpuipc_pool *pool = pool_of(client, 60000);
        struct rlimit all, none;
        gpuipc_error error;
        void *pointer;

        (void)talk_fd;
        if (getrlimit(RLIMIT_AS, &all) != 0)
                return 1;
        none = all;
        none.rlim_cur = space() + (size_t)BIG / 2;
        if (setrlimit(RLIMIT_AS, &none) != 0)
                return 2;
        pointer = gpuipc_pool_alloc_function(pool)(BIG, ordinal(), NULL);
        if (setrlimit(RLIMIT_AS, &all) != 0)
                return 3;
        if (pointer || gpuipc_pool_failures(pool, &error) != 1 || error.status != GPUIPC_ERROR_MAP)
                return 4;
        gpuipc_pool_free(pool);
        gpuipc_client_free(client);
        return 0;
}

struct memory {
        char id[68];
        int kept, n;
};

static int remember(const gpuipc_buffer_info *buffer, void *data) {
        struct memory *memory = data;

        memory->n++;
        memory->kept += strcmp(buffer->state, "kept") == 0;
        strcpy(memory->id, buffer->id);
        return 0;
}

static bool one_is_kept(gpuipc_client *client, struct memory *memory) {
        gpuipc_error error;

        *memory = (struct memory){ .n = 0 };
        library_expect(gpuipc_list_buffers(client, NULL, remember, memory, &error), GPUIPC_OK, &error);
        return memory->n == 1 && memory->kept == 1;
}

START_TEST(kept_when_left_behind) {
        struct child child = child_start(NULL, leave_behind, daemon_process->socket);
        struct memory memory;
        gpuipc_client *client;
        gpuipc_buffer *buffer;
        gpuipc_error error;

        child_hear(&child, 'r');
        child_kill(&child);
        client = library_connect(daemon_process->socket);
        wait_for(one_is_kept(client, &memory));
        library_expect(gpuipc_open_id(client, memory.id, NULL, &buffer, &error), GPUIPC_OK, &error);
        ck_assert_int_eq(memory_get(library_map(buffer), 0), 0x77);
        library_expect(gpuipc_free(client, memory.id, NULL, &error), GPUIPC_OK, &error);
        library_release(buffer);
        gpuipc_client_free(client);
} END_TEST

/* What could not be given out is not kept; it goes as soon as it is closed. */
START_TEST(not_kept_when_it_cannot_be_mapped) {
        struct child child = child_start(NULL, map_nothing, daemon_process->socket);
        gpuipc_client *client;
        struct memory memory;

        child_expect_exit(&child, 0);
        client = library_connect(daemon_process->socket);
        ck_assert_msg(!one_is_kept(client, &memory), "%s is kept", memory.id);
        gpuipc_client_free(client);
} END_TEST

int main(void) {
        Suite *suite = suite_create("pool");
        TCase *tcase = tcase_create("pool");

        tcase_set_timeout(tcase, 60);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, a_block_is_a_buffer);
        tcase_add_test(tcase, what_is_no_block_is_left_alone);
        tcase_add_test(tcase, failures_say_why);
        tcase_add_test(tcase, as_many_as_there_are);
        tcase_add_test(tcase, client_freed_first);
        tcase_add_test(tcase, threads);
        tcase_add_test(tcase, a_forked_child_has_none);
        tcase_add_test(tcase, kept_when_left_behind);
        if (memory_is_host())
                tcase_add_test(tcase, not_kept_when_it_cannot_be_mapped);
        if (!memory_is_host())
                tcase_add_test(tcase, work_under_way_is_waited_for);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
