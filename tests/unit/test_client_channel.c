/* SPDX-License-Identifier: Apache-2.0 */
/* Channels of the library in host memory, granted by a scripted daemon: what is given and refused, waiting, an event loop, forks, and
 * control pages that make no sense. (not under valgrind: it knows no pidfds) */
#include <check.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "channel_house.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"
#include "tests/support/wait.h"

static struct house house;
static gpuipc_channel *producer, *consumer;
static gpuipc_error error;
static gpuipc_item item;

static void begin(const struct house_plan *plan) {
        house_open(&house, plan);
        producer = house_join(&house, GPUIPC_CHANNEL_PRODUCER);
        consumer = house_join(&house, GPUIPC_CHANNEL_CONSUMER);
}

static void leave(gpuipc_channel *channel) {
        ck_assert_msg(gpuipc_channel_free(channel, &error) == GPUIPC_OK, "%s", error.message);
}

static void end(void) {
        leave(producer);
        leave(consumer);
        house_close(&house);
}

static void expect(int status, int expected, const char *word) {
        ck_assert_msg(status == expected, "%s instead of %s: %s", gpuipc_status_name((gpuipc_status)status),
                      gpuipc_status_name((gpuipc_status)expected), status ? error.message : "");
        if (word)
                ck_assert_msg(strstr(error.message, word) || strcmp(error.subject, word) == 0, "no '%s' in: %s", word, error.message);
}

static bool is_readable(int fd) {
        return poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, 0) == 1;
}

/* ---- items ------------------------------------------------------------------------------------------------ */

START_TEST(items_pass) {
        check_fd_count_begin();
        begin(NULL);
        ck_assert_str_eq(gpuipc_channel_id(producer), "c1");
        ck_assert_str_eq(gpuipc_channel_name(producer), "n");
        ck_assert_str_eq(gpuipc_channel_device(producer), "host");
        ck_assert_int_eq(gpuipc_channel_slots(consumer), 4);
        ck_assert_int_eq(gpuipc_channel_slot_bytes(consumer), 256);
        ck_assert_int_eq(gpuipc_channel_meta_bytes(consumer), 64);
        ck_assert_int_eq(gpuipc_channel_get_kind(consumer), GPUIPC_CHANNEL_QUEUE);
        ck_assert_int_eq(gpuipc_channel_get_policy(consumer), GPUIPC_CHANNEL_BLOCK);
        ck_assert_int_eq(gpuipc_channel_get_role(consumer), GPUIPC_CHANNEL_CONSUMER);
        ck_assert_int_eq(gpuipc_channel_number(consumer), 1);
        ck_assert_int_eq(gpuipc_channel_is_synchronous(consumer), 0);
        ck_assert_int_eq(gpuipc_channel_is_peer(consumer), 0);
        ck_assert_int_eq(gpuipc_channel_cuda_device(consumer), -1);
        for (uint64_t i = 0; i < 11; i++) {
                ck_assert_int_eq(gpuipc_channel_begin(producer, NULL, 0, &item, &error), GPUIPC_OK);
                ck_assert_int_eq(item.size, 256);
                ck_assert_uint_eq(item.ticket, i);
                ck_assert_int_eq(item.slot, (int)(i % 4));
                memset(item.pointer, (int)i + 1, (size_t)item.size);
                ck_assert_int_eq(gpuipc_channel_publish(producer, &item, 200 + (int64_t)i, "abc", 3, NULL, &error), GPUIPC_OK);
                ck_assert_int_eq(gpuipc_channel_take(consumer, NULL, 0, &item, &error), GPUIPC_OK);
                ck_assert_uint_eq(item.ticket, i);
                ck_assert_int_eq(item.size, 200 + (int64_t)i);
                ck_assert_int_eq(item.producer, 0);
                ck_assert_int_eq(item.n_meta, 3);
                ck_assert_mem_eq(item.meta, "abc", 3);
                ck_assert_int_eq(((unsigned char *)item.pointer)[199 + i], (int)i + 1);
                ck_assert_int_eq(gpuipc_item_is_broken(consumer, &item), 0);
                ck_assert_int_eq(gpuipc_channel_release(consumer, &item, NULL, &error), GPUIPC_OK);
        }
        ck_assert_int_eq(gpuipc_channel_check(consumer, &error), GPUIPC_OK);
        end();
        check_fd_count_end();
} END_TEST

/* What a consumer has mapped is not to be written to. */
START_TEST(a_consumer_only_reads) {
        int status;

        begin(NULL);
        house_put(producer, 1);
        ck_assert_int_eq(gpuipc_channel_take(consumer, NULL, 0, &item, &error), GPUIPC_OK);
        pid_t pid = fork();
        if (pid == 0) {
                (void)signal(SIGSEGV, SIG_DFL);
                *(volatile char *)item.pointer = 1;
                _exit(0);
        }
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
        end();
} END_TEST

START_TEST(what_is_cancelled_is_passed_over) {
        begin(NULL);
        ck_assert_int_eq(gpuipc_channel_begin(producer, NULL, 0, &item, &error), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_channel_cancel(producer, &item, &error), GPUIPC_OK);
        house_put(producer, 7);
        ck_assert_uint_eq(house_get(consumer), 7);
        end();
} END_TEST

/* A mistake of the caller's own is called so, and costs nobody the channel. */
START_TEST(an_item_is_given_back_once) {
        gpuipc_item first;

        begin(NULL);
        ck_assert_int_eq(gpuipc_channel_begin(producer, NULL, 0, &item, &error), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_channel_publish(producer, &item, 1, NULL, 0, NULL, &error), GPUIPC_OK);
        expect(gpuipc_channel_publish(producer, &item, 1, NULL, 0, NULL, &error), GPUIPC_ERROR_INVALID_PARAMETER, "not published");
        expect(gpuipc_channel_cancel(producer, &item, &error), GPUIPC_ERROR_INVALID_PARAMETER, "not published");
        ck_assert_int_eq(gpuipc_channel_begin(producer, NULL, 0, &item, &error), GPUIPC_OK);
        expect(gpuipc_channel_publish(producer, &item, 257, NULL, 0, NULL, &error), GPUIPC_ERROR_INVALID_PARAMETER, "size");
        ck_assert_int_eq(gpuipc_channel_cancel(producer, &item, &error), GPUIPC_OK);
        expect(gpuipc_channel_cancel(producer, &item, &error), GPUIPC_ERROR_INVALID_PARAMETER, "cancelled before");

        ck_assert_int_eq(gpuipc_channel_take(consumer, NULL, 0, &first, &error), GPUIPC_OK);
        ck_assert_int_eq(gpuipc_channel_release(consumer, &first, NULL, &error), GPUIPC_OK);
        expect(gpuipc_channel_release(consumer, &first, NULL, &error), GPUIPC_ERROR_INVALID_PARAMETER, "not released before");
        for (uint64_t i = 0; i < 4; i++) { /* its slot is another item's, in the same hands */
                house_put(producer, i);
                ck_assert_int_eq(gpuipc_channel_take(consumer, NULL, 0, &item, &error), GPUIPC_OK);
                expect(gpuipc_channel_release(consumer, &first, NULL, &error), GPUIPC_ERROR_INVALID_PARAMETER, "not released before");
                ck_assert_int_eq(gpuipc_channel_release(consumer, &item, NULL, &error), GPUIPC_OK);
        }
        ck_assert_int_eq(gpuipc_channel_check(consumer, &error), GPUIPC_OK);
        end();
} END_TEST

START_TEST(waits_end) {
        int64_t started;

        begin(NULL);
        expect(gpuipc_channel_take(consumer, NULL, 0, &item, &error), GPUIPC_ERROR_TIMED_OUT, "No item");
        started = now_ms();
        expect(gpuipc_channel_take(consumer, NULL, 40, &item, &error), GPUIPC_ERROR_TIMED_OUT, "40 ms");
        ck_assert_int_ge(now_ms() - started, 40);
        for (uint64_t i = 0; i < 4; i++)
                house_put(producer, i);
        started = now_ms();
        expect(gpuipc_channel_begin(producer, NULL, 40, &item, &error), GPUIPC_ERROR_TIMED_OUT, "No slot");
        ck_assert_int_ge(now_ms() - started, 40);
        ck_assert_int_eq(gpuipc_channel_close(producer, &error), GPUIPC_OK);
        expect(gpuipc_channel_begin(producer, NULL, -1, &item, &error), GPUIPC_ERROR_CLOSED, "closed");
        for (uint64_t i = 0; i < 4; i++)
                ck_assert_uint_eq(house_get(consumer), i);
        expect(gpuipc_channel_take(consumer, NULL, -1, &item, &error), GPUIPC_ERROR_CLOSED, "closed and empty");
        end();
} END_TEST

START_TEST(a_broadcast_drops_the_oldest_and_counts) {
        gpuipc_channel_stats stats = GPUIPC_CHANNEL_STATS_INIT;
        gpuipc_channel *second;

        begin(&(struct house_plan){ .mode = RING_BROADCAST, .policy = RING_DROP_OLDEST });
        ck_assert_int_eq(gpuipc_channel_get_kind(consumer), GPUIPC_CHANNEL_BROADCAST);
        ck_assert_int_eq(gpuipc_channel_get_policy(consumer), GPUIPC_CHANNEL_DROP_OLDEST);
        second = house_join(&house, GPUIPC_CHANNEL_CONSUMER);
        house_put(producer, 0);
        ck_assert_uint_eq(house_get(second), 0);
        for (uint64_t i = 1; i < 7; i++)
                house_put(producer, i);
        ck_assert_uint_eq(house_get(consumer), 3);
        ck_assert_uint_eq(house_get(second), 3);
        ck_assert_int_eq(gpuipc_channel_take(consumer, NULL, 0, &item, &error), GPUIPC_OK);
        expect(gpuipc_channel_take(consumer, NULL, 0, &item, &error), GPUIPC_ERROR_INVALID_PARAMETER, "one at a time");
        ck_assert_int_eq(gpuipc_channel_get_stats(producer, &stats, &error), GPUIPC_OK);
        ck_assert_uint_eq(stats.begun, 7);
        ck_assert_uint_eq(stats.depth, 3);
        ck_assert_int_eq(stats.n_members, 3);
        ck_assert_uint_eq(stats.members[0].items, 7);
        ck_assert_uint_eq(stats.members[0].bytes, 7 * 8);
        ck_assert_uint_eq(stats.members[1].drops, 3);
        ck_assert_uint_eq(stats.members[2].drops, 2);
        ck_assert_uint_eq(stats.members[2].lag, 3);
        ck_assert_int_eq(stats.members[2].role, GPUIPC_CHANNEL_CONSUMER);
        leave(second);
        end();
} END_TEST

/* ---- without the kernel ----------------------------------------------------------------------------------- */

/* Both ends in one thread that the kernel would kill for any call but read and write. Asked with a deadline. */
static int in_strict_mode(int talk_fd) {
        gpuipc_item own;

        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0)
                return 1;
        for (uint64_t i = 0; i < 5000; i++)
                if (gpuipc_channel_begin(producer, NULL, 0, &own, NULL) || gpuipc_channel_publish(producer, &own, 8, &i, 8, NULL, NULL) ||
                    gpuipc_channel_take(consumer, NULL, -1, &own, NULL) || memcmp(own.meta, &i, 8) != 0 ||
                    gpuipc_channel_release(consumer, &own, NULL, NULL))
                        return 2;
        (void)!write(talk_fd, "d", 1);
        syscall(SYS_exit, 0);
        return 3;
}

static void *strict_thread(void *data) {
        (void)in_strict_mode(*(int *)data);
        return NULL;
}

START_TEST(the_steady_state_makes_no_call) {
        gpuipc_channel_stats stats = GPUIPC_CHANNEL_STATS_INIT;
        int ends[2];
        pthread_t thread;
        size_t calls;
        char done = 0;

        begin(NULL);
        ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
        wait_for(fake_count(house.fake, ".ChannelParticipants\"", NULL) >= 1);
        (void)pthread_mutex_lock(&house.fake->lock);
        calls = house.fake->n_calls;
        (void)pthread_mutex_unlock(&house.fake->lock);
        ck_assert_int_eq(pthread_create(&thread, NULL, strict_thread, &ends[1]), 0);
        ck_assert(wait_readable(ends[0], WAIT_MS)); /* a thread that was killed takes the process with it */
        ck_assert_int_eq(read(ends[0], &done, 1), 1);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        ck_assert_int_eq(gpuipc_channel_get_stats(consumer, &stats, &error), GPUIPC_OK);
        ck_assert_uint_eq(stats.sleeps + stats.wakes, 0);
        ck_assert_uint_eq(stats.members[1].items, 5000);
        ck_assert_int_eq(gpuipc_channel_get_stats(producer, &stats, &error), GPUIPC_OK);
        ck_assert_uint_eq(stats.sleeps + stats.wakes, 0);
        (void)pthread_mutex_lock(&house.fake->lock);
        ck_assert_uint_le(house.fake->n_calls, calls + 2); /* the watchers' own, of who is there */
        (void)pthread_mutex_unlock(&house.fake->lock);
        (void)close(ends[0]);
        (void)close(ends[1]);
        end();
} END_TEST

/* ---- an event loop ---------------------------------------------------------------------------------------- */

static void *put_slowly(void *data) {
        for (uint64_t i = 0; i < 200; i++) {
                gpuipc_item own;
                if (gpuipc_channel_begin(producer, NULL, WAIT_MS, &own, NULL) ||
                    gpuipc_channel_publish(producer, &own, 8, &i, 8, NULL, NULL))
                        return data;
                if (i % 50 == 0)
                        wait_pause(&(unsigned){ 2000 });
        }
        return NULL;
}

START_TEST(a_poll_loop_gets_everything) {
        struct house_plan plan = { .mode = _i ? RING_BROADCAST : RING_QUEUE };
        uint64_t next = 0;
        pthread_t thread;
        void *failed;
        int fd, r;

        check_fd_count_begin();
        begin(&plan);
        fd = gpuipc_channel_fd(consumer);
        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(gpuipc_channel_fd(consumer), fd);
        ck_assert_int_eq(pthread_create(&thread, NULL, put_slowly, &next), 0);
        while (next < 200) {
                ck_assert_msg(wait_readable(fd, WAIT_MS), "after %llu items", (unsigned long long)next);
                while ((r = gpuipc_channel_take(consumer, NULL, 0, &item, &error)) == GPUIPC_OK) {
                        ck_assert_mem_eq(item.meta, &next, 8);
                        next++;
                        ck_assert_int_eq(gpuipc_channel_release(consumer, &item, NULL, &error), GPUIPC_OK);
                }
                expect(r, GPUIPC_ERROR_TIMED_OUT, NULL);
        }
        ck_assert_int_eq(pthread_join(thread, &failed), 0);
        ck_assert_ptr_null(failed);
        ck_assert(!is_readable(fd));
        ck_assert_int_eq(gpuipc_channel_close(producer, &error), GPUIPC_OK);
        ck_assert(wait_readable(fd, WAIT_MS));
        expect(gpuipc_channel_take(consumer, NULL, 0, &item, &error), GPUIPC_ERROR_CLOSED, NULL);
        ck_assert(is_readable(fd));
        end();
        check_fd_count_end();
} END_TEST

START_TEST(a_producer_polls_for_room) {
        int fd;

        begin(NULL);
        fd = gpuipc_channel_fd(producer);
        ck_assert(wait_readable(fd, WAIT_MS));
        for (uint64_t i = 0; i < 4; i++)
                house_put(producer, i);
        expect(gpuipc_channel_begin(producer, NULL, 0, &item, &error), GPUIPC_ERROR_TIMED_OUT, NULL);
        ck_assert(!is_readable(fd));
        ck_assert_uint_eq(house_get(consumer), 0);
        ck_assert(wait_readable(fd, WAIT_MS));
        house_put(producer, 4);
        end();
} END_TEST

/* A consumer of a broadcast that holds an item is not told of the next before it has let go. */
START_TEST(who_holds_an_item_is_told_when_it_lets_go) {
        int fd;

        begin(&(struct house_plan){ .mode = RING_BROADCAST });
        house_put(producer, 1);
        house_put(producer, 2);
        ck_assert_int_eq(gpuipc_channel_take(consumer, NULL, 0, &item, &error), GPUIPC_OK);
        fd = gpuipc_channel_fd(consumer);
        ck_assert(!wait_readable(fd, 50));
        ck_assert_int_eq(gpuipc_channel_release(consumer, &item, NULL, &error), GPUIPC_OK);
        ck_assert(wait_readable(fd, WAIT_MS));
        ck_assert_uint_eq(house_get(consumer), 2);
        end();
} END_TEST

/* ---- what is refused -------------------------------------------------------------------------------------- */

START_TEST(parameters_are_checked) {
        static const struct {
                const char *name;
                int kind, policy, role;
                int64_t slots, slot_bytes, meta_bytes, wait_ms;
        } bad[] = {
                { "kind", 2, 0, 0, 4, 8, 0, 0 },
                { "policy", 0, 2, 0, 4, 8, 0, 0 },
                { "role", 0, 0, 2, 4, 8, 0, 0 },
                { "slots", 0, 0, 0, 0, 8, 0, 0 },
                { "slots", 0, 0, 0, 65537, 8, 0, 0 },
                { "slot_bytes", 0, 0, 0, 4, 0, 0, 0 },
                { "slot_bytes", 0, 0, 0, 4, INT64_MAX / 2, 0, 0 },
                { "meta_bytes", 0, 0, 0, 4, 8, 1025, 0 },
                { "meta_bytes", 0, 0, 0, 4, 8, -1, 0 },
                { "wait_ms", 0, 0, 0, 4, 8, 0, -1 },
        };
        gpuipc_channel_create_options options = GPUIPC_CHANNEL_CREATE_OPTIONS_INIT;
        gpuipc_channel_attach_options attach = GPUIPC_CHANNEL_ATTACH_OPTIONS_INIT;
        gpuipc_channel *channel;

        house_open(&house, NULL);
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
                options.kind = (gpuipc_channel_kind)bad[i].kind;
                options.policy = (gpuipc_channel_policy)bad[i].policy;
                options.role = (gpuipc_channel_role)bad[i].role;
                options.slots = bad[i].slots;
                options.slot_bytes = bad[i].slot_bytes;
                options.meta_bytes = bad[i].meta_bytes;
                options.wait_ms = bad[i].wait_ms;
                expect(gpuipc_channel_create(house.client, &options, &channel, &error), GPUIPC_ERROR_INVALID_PARAMETER, NULL);
                ck_assert_str_eq(error.subject, bad[i].name);
        }
        expect(gpuipc_channel_create(house.client, NULL, &channel, &error), GPUIPC_ERROR_INVALID_PARAMETER, "options");
        expect(gpuipc_channel_attach(house.client, NULL, NULL, &channel, &error), GPUIPC_ERROR_INVALID_PARAMETER, "name");
        attach.owner = -3;
        expect(gpuipc_channel_attach(house.client, "n", &attach, &channel, &error), GPUIPC_ERROR_INVALID_PARAMETER, "owner");
        expect(gpuipc_channel_attach(NULL, "n", NULL, &channel, &error), GPUIPC_ERROR_INVALID_PARAMETER, "client");
        expect(gpuipc_channel_attach(house.client, "n", NULL, NULL, &error), GPUIPC_ERROR_INVALID_PARAMETER, "ret_channel");
        ck_assert_uint_eq(fake_count(house.fake, ".Channel", NULL), 0);
        ck_assert_int_eq(gpuipc_channel_free(NULL, &error), GPUIPC_OK);
        house_close(&house);
} END_TEST

static const char *const bad_spins[] = { "-1", "10001", "5x", "x", " 5", "99999999999999999999" };

START_TEST(how_long_waits_look_is_the_environments_choice) {
        gpuipc_channel_stats stats = GPUIPC_CHANNEL_STATS_INIT;
        gpuipc_channel *other;

        check_fd_count_begin();
        begin(NULL);
        for (size_t i = 0; i < sizeof(bad_spins) / sizeof(bad_spins[0]); i++) {
                (void)setenv("GPUIPC_CHANNEL_SPIN_USEC", bad_spins[i], 1);
                expect(house_try_join(&house, GPUIPC_CHANNEL_CONSUMER, &other, &error), GPUIPC_ERROR_INVALID_PARAMETER, "0 to 10000");
                ck_assert_str_eq(error.subject, "$GPUIPC_CHANNEL_SPIN_USEC");
        }
        for (int i = 0; i < 2; i++) {
                (void)setenv("GPUIPC_CHANNEL_SPIN_USEC", i ? "10000" : "0", 1);
                other = house_join(&house, GPUIPC_CHANNEL_CONSUMER);
                for (int64_t until = deadline_in(WAIT_MS); now_ms() < until; ) { /* its time may pass before it gets to sleep */
                        expect(gpuipc_channel_take(other, NULL, 5, &item, &error), GPUIPC_ERROR_TIMED_OUT, NULL);
                        expect(gpuipc_channel_get_stats(other, &stats, &error), GPUIPC_OK, NULL);
                        if (i || stats.sleeps > 0)
                                break;
                }
                ck_assert_int_eq(stats.sleeps > 0, i == 0);
                leave(other);
        }
        (void)setenv("GPUIPC_CHANNEL_SPIN_USEC", "", 1);
        leave(house_join(&house, GPUIPC_CHANNEL_CONSUMER));
        end();
        check_fd_count_end();
} END_TEST

START_TEST(a_client_without_threads_has_no_channels) {
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_channel *channel;
        gpuipc_client *client;

        house_open(&house, NULL);
        options.socket_path = house.fake->path;
        options.no_thread = 1;
        ck_assert_int_eq(gpuipc_connect(&options, &client, &error), GPUIPC_OK);
        expect(gpuipc_channel_attach(client, "n", NULL, &channel, &error), GPUIPC_ERROR_INVALID_PARAMETER, "no_thread");
        gpuipc_client_free(client);
        house_close(&house);
} END_TEST

START_TEST(calls_are_checked) {
        gpuipc_item other = { .pointer = NULL };

        begin(NULL);
        expect(gpuipc_channel_take(producer, NULL, 0, &item, &error), GPUIPC_ERROR_INVALID_PARAMETER, "as a consumer");
        expect(gpuipc_channel_begin(consumer, NULL, 0, &item, &error), GPUIPC_ERROR_INVALID_PARAMETER, "as a producer");
        expect(gpuipc_channel_begin(producer, NULL, -2, &item, &error), GPUIPC_ERROR_INVALID_PARAMETER, "timeout_ms");
        expect(gpuipc_channel_begin(producer, NULL, 0, NULL, &error), GPUIPC_ERROR_INVALID_PARAMETER, "ret_item");
        expect(gpuipc_channel_begin(NULL, NULL, 0, &item, &error), GPUIPC_ERROR_INVALID_PARAMETER, "channel");
        ck_assert_int_eq(gpuipc_channel_begin(producer, NULL, 0, &item, &error), GPUIPC_OK);
        expect(gpuipc_channel_publish(producer, &item, 257, NULL, 0, NULL, &error), GPUIPC_ERROR_INVALID_PARAMETER, "size");
        expect(gpuipc_channel_publish(producer, &item, -1, NULL, 0, NULL, &error), GPUIPC_ERROR_INVALID_PARAMETER, "size");
        expect(gpuipc_channel_publish(producer, &item, 0, &other, 65, NULL, &error), GPUIPC_ERROR_INVALID_PARAMETER, "n_meta");
        expect(gpuipc_channel_publish(producer, &item, 0, NULL, 1, NULL, &error), GPUIPC_ERROR_INVALID_PARAMETER, "meta");
        expect(gpuipc_channel_publish(producer, &other, 0, NULL, 0, NULL, &error), GPUIPC_ERROR_INVALID_PARAMETER, "item");
        expect(gpuipc_channel_release(consumer, &item, NULL, &error), GPUIPC_ERROR_INVALID_PARAMETER, "item");
        ck_assert_int_eq(gpuipc_channel_publish(producer, &item, 256, NULL, 0, NULL, &error), GPUIPC_OK);
        end();
} END_TEST

static const char *const lies[] = { "slots",   "slot bytes", "meta",       "stride",     "number", "generation",
                                    "data fd", "control fd", "participants" };

/* A grant that cannot be used is given back, and nothing of it stays. */
START_TEST(grants_are_checked) {
        gpuipc_channel *channel;
        int r;

        check_fd_count_begin();
        house_open(&house, NULL);
        house.wrong = lies[_i];
        r = house_try_join(&house, GPUIPC_CHANNEL_CONSUMER, &channel, &error);
        ck_assert_msg(r == GPUIPC_ERROR_PROTOCOL || r == GPUIPC_ERROR_CORRUPT || r == GPUIPC_ERROR_LEASE_LOST, "%s: %s",
                      gpuipc_status_name((gpuipc_status)r), error.message);
        wait_for(fake_count(house.fake, ".Release\"", "l0", NULL) == 1);
        house.wrong = NULL;
        channel = house_join(&house, GPUIPC_CHANNEL_CONSUMER);
        leave(channel);
        house_close(&house);
        check_fd_count_end();
} END_TEST

START_TEST(a_page_that_is_scribbled_on_costs_the_channel) {
        char *slots;

        begin(NULL);
        house_put(producer, 1);
        slots = (char *)(house.page + 1);
        memset(slots, 0xff, house.page_bytes - sizeof(*house.page));
        expect(gpuipc_channel_take(consumer, NULL, -1, &item, &error), GPUIPC_ERROR_CORRUPT, "wrote over its control page");
        ck_assert_str_eq(error.code, "G701");
        ck_assert_str_eq(error.name, "gpuipc.Corrupt");
        expect(gpuipc_channel_take(consumer, NULL, 0, &item, &error), GPUIPC_ERROR_CORRUPT, NULL);
        expect(gpuipc_channel_check(consumer, &error), GPUIPC_ERROR_CORRUPT, NULL);
        end();
} END_TEST

START_TEST(one_declared_gone_is_told) {
        begin(NULL);
        ring_page_mark_left(house.page, 1, 1);
        expect(gpuipc_channel_take(consumer, NULL, -1, &item, &error), GPUIPC_ERROR_LEASE_LOST, "attach anew");
        ck_assert_str_eq(error.code, "G702");
        expect(gpuipc_channel_check(consumer, &error), GPUIPC_ERROR_LEASE_LOST, NULL);
        end();
} END_TEST

START_TEST(a_forked_child_may_only_free) {
        int status;
        pid_t pid;

        begin(NULL);
        ck_assert_int_ge(gpuipc_channel_fd(consumer), 0);
        house_put(producer, 1);
        pid = fork();
        if (pid == 0) {
                gpuipc_item own = { .pointer = NULL };
                int r = gpuipc_channel_take(consumer, NULL, 0, &own, NULL) != GPUIPC_ERROR_FORKED ||
                        gpuipc_channel_begin(producer, NULL, 0, &own, NULL) != GPUIPC_ERROR_FORKED ||
                        gpuipc_channel_close(producer, NULL) != GPUIPC_ERROR_FORKED || gpuipc_channel_fd(consumer) != -1 ||
                        gpuipc_channel_free(consumer, NULL) != GPUIPC_ERROR_FORKED ||
                        gpuipc_channel_free(producer, NULL) != GPUIPC_ERROR_FORKED;
                _exit(r);
        }
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_int_eq(status, 0);
        ck_assert_uint_eq(house_get(consumer), 1);
        house_put(producer, 2);
        ck_assert_uint_eq(house_get(consumer), 2);
        end();
} END_TEST

START_TEST(a_channel_outlives_its_client) {
        begin(NULL);
        gpuipc_client_free(house.client);
        house_put(producer, 5);
        ck_assert_uint_eq(house_get(consumer), 5);
        expect(gpuipc_channel_free(producer, &error), GPUIPC_ERROR_DISCONNECTED, NULL);
        expect(gpuipc_channel_free(consumer, &error), GPUIPC_ERROR_DISCONNECTED, NULL);
        house.client = NULL;
        house_close(&house);
} END_TEST

START_TEST(figures_without_being_a_member) {
        gpuipc_channel_stats stats = GPUIPC_CHANNEL_STATS_INIT;

        check_fd_count_begin();
        begin(NULL);
        house_put(producer, 1);
        house_put(producer, 2);
        ck_assert_uint_eq(house_get(consumer), 1);
        ck_assert_msg(gpuipc_channel_look(house.client, "c1", &stats, &error) == GPUIPC_OK, "%s", error.message);
        ck_assert_uint_eq(stats.begun, 2);
        ck_assert_uint_eq(stats.depth, 1);
        ck_assert_int_eq(stats.n_members, 2);
        ck_assert_uint_eq(stats.members[1].items, 1);
        house.wrong = "no control";
        expect(gpuipc_channel_look(house.client, "c1", &stats, &error), GPUIPC_ERROR_ACCESS_DENIED, "owner");
        house.wrong = NULL;
        expect(gpuipc_channel_look(house.client, NULL, &stats, &error), GPUIPC_ERROR_INVALID_PARAMETER, "id");
        stats.struct_size = 8;
        expect(gpuipc_channel_look(house.client, "c1", &stats, &error), GPUIPC_ERROR_INVALID_PARAMETER, "stats");
        house.page->n_slots = 0;
        stats.struct_size = sizeof(stats);
        expect(gpuipc_channel_look(house.client, "c1", &stats, &error), GPUIPC_ERROR_CORRUPT, NULL);
        end();
        check_fd_count_end();
} END_TEST

int main(void) {
        Suite *suite = suite_create("client_channel");
        TCase *tests = tcase_create("channel");

        tcase_set_timeout(tests, 60);
        tcase_add_test(tests, items_pass);
        tcase_add_test(tests, a_consumer_only_reads);
        tcase_add_test(tests, what_is_cancelled_is_passed_over);
        tcase_add_test(tests, an_item_is_given_back_once);
        tcase_add_test(tests, waits_end);
        tcase_add_test(tests, a_broadcast_drops_the_oldest_and_counts);
        if (getenv("GPUIPC_SANITIZER"))
                printf("SKIP the_steady_state_makes_no_call: a sanitizer makes its own\n");
        else
                tcase_add_test(tests, the_steady_state_makes_no_call);
        tcase_add_loop_test(tests, a_poll_loop_gets_everything, 0, 2);
        tcase_add_test(tests, a_producer_polls_for_room);
        tcase_add_test(tests, who_holds_an_item_is_told_when_it_lets_go);
        tcase_add_test(tests, parameters_are_checked);
        tcase_add_test(tests, how_long_waits_look_is_the_environments_choice);
        tcase_add_test(tests, a_client_without_threads_has_no_channels);
        tcase_add_test(tests, calls_are_checked);
        tcase_add_loop_test(tests, grants_are_checked, 0, (int)(sizeof(lies) / sizeof(lies[0])));
        tcase_add_test(tests, a_page_that_is_scribbled_on_costs_the_channel);
        tcase_add_test(tests, one_declared_gone_is_told);
        tcase_add_test(tests, a_forked_child_may_only_free);
        tcase_add_test(tests, a_channel_outlives_its_client);
        tcase_add_test(tests, figures_without_being_a_member);
        suite_add_tcase(suite, tests);
        return suite_run(suite);
}
