/* SPDX-License-Identifier: Apache-2.0 */
/* Many at once through the library, against a real daemon: threads on one client, waits beside other calls, lists longer
 * than a page, and watching another client's life. Runs on any memory. */
#include <check.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "library.h"
#include "proto/cleanup.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/suite.h"

#define N_LEASES 500
#define N_THREADS 8
#define ROUNDS 60

static struct gpuipcd *daemon_process;

static void setup(void) {
        daemon_process = gpuipcd_start(NULL);
}

static void teardown(void) {
        library_expect_maps(0);
        gpuipcd_wait_idle(daemon_process);
        gpuipcd_stop(daemon_process);
}

/* ---- lists ------------------------------------------------------------------------------------------------ */

struct listing {
        char ids[N_LEASES][24];
        int n, end_after;
        bool sorted;
};

static void listing_add(struct listing *listing, const char *id) {
        long number = atol(id + 1), last = listing->n > 0 ? atol(listing->ids[listing->n - 1] + 1) : 0;

        listing->sorted = listing->sorted && number > last;
        if (listing->n < N_LEASES)
                snprintf(listing->ids[listing->n], sizeof(listing->ids[0]), "%s", id);
        listing->n++;
}

static int list_lease(const gpuipc_lease_info *lease, void *data) {
        struct listing *listing = data;

        listing_add(listing, lease->id);
        ck_assert_int_eq(strcmp(lease->device, "host") == 0, memory_is_host());
        ck_assert_int_eq(lease->size, 1);
        return listing->n == listing->end_after;
}

static int list_buffer(const gpuipc_buffer_info *buffer, void *data) {
        struct listing *listing = data;

        listing_add(listing, buffer->id);
        ck_assert_str_eq(buffer->state, "live");
        ck_assert_int_eq(buffer->leases, 1);
        ck_assert_int_eq(buffer->owner_uid, getuid());
        return 0;
}

static void allocate_many(gpuipc_client *client, gpuipc_buffer **ret) {
        char name[128];

        /* Long names, so that no page holds them all. */
        for (int i = 0; i < N_LEASES; i++) {
                snprintf(name, sizeof(name), "%0100d", i);
                ret[i] = library_allocate(client, 1, name, 0);
        }
}

START_TEST(lists_longer_than_a_page) {
        gpuipc_client *client = library_connect(daemon_process->socket);
        static gpuipc_buffer *buffers[N_LEASES];
        static struct listing leases, all, some;
        gpuipc_list_options options = GPUIPC_LIST_OPTIONS_INIT;
        gpuipc_error error;

        allocate_many(client, buffers);
        leases.sorted = all.sorted = some.sorted = true;
        library_expect(gpuipc_list(client, NULL, list_lease, &leases, &error), GPUIPC_OK, &error);
        library_expect(gpuipc_list_buffers(client, NULL, list_buffer, &all, &error), GPUIPC_OK, &error);
        ck_assert_int_eq(leases.n, N_LEASES);
        ck_assert_int_eq(all.n, N_LEASES);
        ck_assert(leases.sorted && all.sorted);
        for (int i = 0; i < N_LEASES; i++) {
                ck_assert_str_eq(leases.ids[i], gpuipc_buffer_lease(buffers[i]));
                ck_assert_str_eq(all.ids[i], gpuipc_buffer_id(buffers[i]));
        }
        /* One who has seen enough may stop, and the client goes on. */
        some.end_after = 3;
        library_expect(gpuipc_list(client, NULL, list_lease, &some, &error), GPUIPC_OK, &error);
        ck_assert_int_eq(some.n, 3);
        ck_assert_int_eq(library_count_leases(client, gpuipc_buffer_name(buffers[499])), 1);
        ck_assert_int_eq(library_count_buffers(client, "nobodys"), 0);
        options.uid = getuid() + 1;
        some.n = 0;
        library_expect(gpuipc_list(client, &options, list_lease, &some, &error), GPUIPC_OK, &error);
        ck_assert_int_eq(some.n, 0);
        for (int i = 0; i < N_LEASES; i++)
                library_release(buffers[i]);
        gpuipc_client_free(client);
} END_TEST

/* ---- watch ------------------------------------------------------------------------------------------------ */

static gpuipc_watch *watch_from(gpuipc_client *client, int64_t since) {
        gpuipc_watch *watch;
        gpuipc_error error;

        library_expect(gpuipc_watch_new(client, since, &watch, &error), GPUIPC_OK, &error);
        return watch;
}

/* The kinds of events as they come, up to and including the last one, and the first one's number. */
static void expect_events(gpuipc_watch *watch, const char *const *kinds, int64_t *ret_first) {
        const gpuipc_event_info *event;
        gpuipc_error error;
        int64_t last = 0;

        for (; *kinds; kinds++) {
                struct pollfd poller = { .fd = gpuipc_watch_fd(watch), .events = POLLIN };

                ck_assert_int_eq(poll(&poller, 1, (int)deadline_left(deadline_in(WAIT_MS))), 1);
                library_expect(gpuipc_watch_next(watch, WAIT_MS, &event, &error), GPUIPC_OK, &error);
                ck_assert_str_eq(event->kind, *kinds);
                ck_assert(last == 0 || event->sequence == last + 1);
                ck_assert_ptr_nonnull(event->buffer);
                if (last == 0 && ret_first)
                        *ret_first = event->sequence;
                last = event->sequence;
        }
}

START_TEST(watch_sees_another_clients_life_and_resumes) {
        static const char *const life[] = { "created", "opened", "opened", "sealed", "released", "released", "unnamed", "freed",
                                            NULL };
        gpuipc_client *client = library_connect(daemon_process->socket), *other = library_connect(daemon_process->socket);
        gpuipc_watch *watch = watch_from(client, -1), *again;
        const gpuipc_event_info *event;
        gpuipc_buffer *buffer, *reader;
        gpuipc_error error;
        int64_t first = 0;

        library_expect(gpuipc_watch_next(watch, 0, &event, &error), GPUIPC_ERROR_TIMED_OUT, &error);
        buffer = library_allocate(other, 1, "watched", 0);
        reader = library_open(other, "watched", library_reading());
        library_expect(gpuipc_seal(other, gpuipc_buffer_id(buffer), &error), GPUIPC_OK, &error);
        library_release(reader);
        library_release(buffer);
        expect_events(watch, life, &first);
        again = watch_from(client, first - 1);
        expect_events(again, life, NULL);
        gpuipc_watch_free(again);
        again = watch_from(client, first + 2);
        expect_events(again, life + 3, NULL);
        gpuipc_watch_stop(again);
        library_expect(gpuipc_watch_next(again, -1, &event, &error), GPUIPC_ERROR_CLOSED, &error);
        gpuipc_watch_free(again);
        gpuipc_watch_free(watch);
        gpuipc_client_free(other);
        gpuipc_client_free(client);
} END_TEST

START_TEST(watch_that_comes_too_late_is_told) {
        static const char *const args[] = { "--events-max", "4", NULL };
        struct gpuipcd *small = gpuipcd_start(&(struct gpuipcd_options){ .args = args });
        gpuipc_client *client = library_connect(small->socket);
        const gpuipc_event_info *event;
        gpuipc_watch *watch;
        gpuipc_error error;

        for (int i = 0; i < 3; i++)
                library_release(library_allocate(client, 1, NULL, 0));
        wait_for(library_count_buffers(client, NULL) == 0);
        watch = watch_from(client, 0);
        library_expect(gpuipc_watch_next(watch, WAIT_MS, &event, &error), GPUIPC_ERROR_EVENTS_LOST, &error);
        ck_assert_int_ge(error.oldest, 8);
        gpuipc_watch_free(watch);
        watch = watch_from(client, error.oldest - 1);
        library_expect(gpuipc_watch_next(watch, WAIT_MS, &event, &error), GPUIPC_OK, &error);
        gpuipc_watch_free(watch);
        gpuipc_client_free(client);
        gpuipcd_stop(small);
} END_TEST

/* ---- waits ------------------------------------------------------------------------------------------------ */

struct waiting {
        gpuipc_client *client;
        _Atomic int status;
};

static void *wait_for_name(void *data) {
        struct waiting *waiting = data;

        atomic_store(&waiting->status, (int)library_try_open(waiting->client, "awaited", library_reading(), 20000));
        return NULL;
}

START_TEST(one_thread_waits_while_another_works) {
        struct waiting waiting = { .client = library_connect(daemon_process->socket), .status = -1 };
        gpuipc_buffer *buffer;
        pthread_t thread;

        ck_assert_int_eq(pthread_create(&thread, NULL, wait_for_name, &waiting), 0);
        /* The wait has a connection of its own: there are two, and one for who asks. */
        wait_for(gpuipcd_status(daemon_process, "sessions") >= 3);
        for (int i = 0; i < 20; i++)
                library_release(library_allocate(waiting.client, 64 * KIB, NULL, 0));
        ck_assert_int_eq(atomic_load(&waiting.status), -1);
        buffer = library_allocate(waiting.client, 1, "awaited", 0);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        ck_assert_int_eq(atomic_load(&waiting.status), GPUIPC_OK);
        library_release(buffer);
        gpuipc_client_free(waiting.client);
} END_TEST

START_TEST(wait_that_ends_by_time) {
        gpuipc_client *client = library_connect(daemon_process->socket);
        int64_t began = now_ms();

        ck_assert_int_eq(library_try_open(client, "never", GPUIPC_RO, 50), GPUIPC_ERROR_TIMED_OUT);
        ck_assert_int_ge(now_ms() - began, 50);
        ck_assert_int_eq(library_try_open(client, "never", GPUIPC_RO, 0), GPUIPC_ERROR_NO_SUCH_BUFFER);
        gpuipc_client_free(client);
} END_TEST

static void *wait_for_memory(void *data) {
        struct waiting *waiting = data;
        gpuipc_allocate_options options = GPUIPC_ALLOCATE_OPTIONS_INIT;
        gpuipc_buffer *buffer;
        int status;

        options.wait_ms = 20000;
        options.handle = memory_handle();
        status = gpuipc_allocate(waiting->client, 2 * memory_page(), &options, &buffer, NULL);
        if (status == GPUIPC_OK)
                status = gpuipc_release(buffer, NULL);
        atomic_store(&waiting->status, status);
        return NULL;
}

START_TEST(wait_for_quota_ends_with_a_release_by_the_same_client) {
        int64_t page = memory_page();
        char limit[32];
        const char *args[] = { "--bytes-per-user", limit, NULL };
        struct waiting waiting = { .status = -1 };
        gpuipc_buffer *buffer, *none;
        struct gpuipcd *small;
        gpuipc_error error;
        pthread_t thread;

        snprintf(limit, sizeof(limit), "%lld", (long long)(2 * page));
        small = gpuipcd_start(&(struct gpuipcd_options){ .args = args });
        waiting.client = library_connect(small->socket);
        buffer = library_allocate(waiting.client, 2 * page, NULL, 0);
        library_expect(gpuipc_allocate(waiting.client, 1, NULL, &none, &error), GPUIPC_ERROR_QUOTA_EXCEEDED, &error);
        ck_assert_str_eq(error.subject, "bytes_per_uid");
        ck_assert_int_eq(error.limit, 2 * page);
        ck_assert_int_eq(error.used, 2 * page);
        ck_assert_int_eq(error.asked, page);
        ck_assert_int_eq(pthread_create(&thread, NULL, wait_for_memory, &waiting), 0);
        wait_for(gpuipcd_status(small, "sessions") >= 3);
        library_release(buffer);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        ck_assert_int_eq(atomic_load(&waiting.status), GPUIPC_OK);
        gpuipc_client_free(waiting.client);
        gpuipcd_wait_idle(small);
        gpuipcd_stop(small);
} END_TEST

/* ---- threads ---------------------------------------------------------------------------------------------- */

struct hammer {
        gpuipc_client *client;
        int number;
        _Atomic int failed; /* the line that did */
};

#define hammer_check(condition)                                                                              \
        do {                                                                                                 \
                if (!(condition)) {                                                                          \
                        atomic_store(&hammer->failed, __LINE__);                                             \
                        return NULL;                                                                         \
                }                                                                                            \
        } while (0)

static void count_status(const gpuipc_status_info *status, void *data) {
        *(int64_t *)data = status->leases;
}

/* Makes, writes, opens by name and by id, looks, frees and releases, and finds its own bytes every time. */
static void *hammer_run(void *data) {
        struct hammer *hammer = data;
        gpuipc_allocate_options options = GPUIPC_ALLOCATE_OPTIONS_INIT;
        gpuipc_open_options ro = GPUIPC_OPEN_OPTIONS_INIT;
        gpuipc_buffer *buffer, *by_name, *by_id;
        unsigned char here[5000], there[5000];
        void *memory, *seen;
        int64_t leases = 0;
        char name[32];

        ro.access = library_reading();
        options.name = name;
        options.handle = memory_handle();
        memset(here, hammer->number + 1, sizeof(here));
        for (int i = 0; i < ROUNDS; i++) {
                snprintf(name, sizeof(name), "h%d.%d", hammer->number, i);
                hammer_check(gpuipc_allocate(hammer->client, 5000 + i, &options, &buffer, NULL) == GPUIPC_OK);
                hammer_check(gpuipc_buffer_map(buffer, &memory, NULL) == GPUIPC_OK);
                memory_write(memory, 0, here, sizeof(here));
                hammer_check(gpuipc_open_name(hammer->client, name, &ro, &by_name, NULL) == GPUIPC_OK);
                hammer_check(gpuipc_buffer_map(by_name, &seen, NULL) == GPUIPC_OK);
                memory_read(seen, 0, there, sizeof(there));
                hammer_check(memcmp(here, there, sizeof(here)) == 0);
                hammer_check(gpuipc_open_id(hammer->client, gpuipc_buffer_id(buffer), NULL, &by_id, NULL) == GPUIPC_OK);
                hammer_check(gpuipc_get_status(hammer->client, count_status, &leases, NULL) == GPUIPC_OK && leases >= 3);
                hammer_check(gpuipc_free(hammer->client, NULL, name, NULL) == GPUIPC_OK);
                hammer_check(gpuipc_release(buffer, NULL) == GPUIPC_OK);
                hammer_check(memory_get(seen, 0) == hammer->number + 1);
                hammer_check(gpuipc_release(by_id, NULL) == GPUIPC_OK);
                hammer_check(gpuipc_release(by_name, NULL) == GPUIPC_OK);
        }
        return NULL;
}

START_TEST(threads_share_one_client) {
        gpuipc_client *client = library_connect(daemon_process->socket);
        struct hammer hammers[N_THREADS];
        pthread_t threads[N_THREADS];

        for (int i = 0; i < N_THREADS; i++) {
                hammers[i] = (struct hammer){ .client = client, .number = i };
                ck_assert_int_eq(pthread_create(&threads[i], NULL, hammer_run, &hammers[i]), 0);
        }
        for (int i = 0; i < N_THREADS; i++)
                ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        for (int i = 0; i < N_THREADS; i++)
                ck_assert_msg(hammers[i].failed == 0, "thread %d failed at line %d", i, hammers[i].failed);
        ck_assert_int_eq(library_count_leases(client, NULL), 0);
        gpuipc_client_free(client);
} END_TEST

int main(void) {
        Suite *suite = suite_create("library_many");
        TCase *tcase = tcase_create("many");

        tcase_set_timeout(tcase, 60);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, lists_longer_than_a_page);
        tcase_add_test(tcase, watch_sees_another_clients_life_and_resumes);
        tcase_add_test(tcase, watch_that_comes_too_late_is_told);
        tcase_add_test(tcase, one_thread_waits_while_another_works);
        tcase_add_test(tcase, wait_that_ends_by_time);
        tcase_add_test(tcase, wait_for_quota_ends_with_a_release_by_the_same_client);
        tcase_add_test(tcase, threads_share_one_client);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
