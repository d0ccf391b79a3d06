/* SPDX-License-Identifier: Apache-2.0 */
/* A consumer at half the producer's speed, in two processes: the producer is held to its pace, nothing is lost, and nothing grows: memory,
 * descriptors, what the broker answers for. $CHANNEL_PACE_S says for how many seconds. Runs on memory that has descriptors.
 * deadline: 240 s */
#include <check.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "library.h"
#include "tests/support/child.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/suite.h"

#define NAME "pace"
#define SLOTS 4
#define SLOT_BYTES 65536
#define PRODUCER_USEC 500 /* of work for an item */
#define CONSUMER_USEC 1000
#define SECONDS 3
#define WINDOWS 4    /* of that time: what is lost with each item shows in all of them, what an allocator or a driver takes once does not */
#define GROWTH_KB 64 /* of a process in the window in which it grows least; each has some 750 items */

/* What the processes tell each other. */
static struct shared {
        char path[96];
        _Atomic bool enough;                    /* the producer is to stop */
        _Atomic uint64_t published, released;   /* the second is counted before it is so */
        _Atomic uint64_t most_ahead, n_bad;
        _Atomic int64_t blocked_usec, elapsed_usec;
} *shared;

static struct gpuipcd *daemon_process;
static gpuipc_error error;

static gpuipc_channel *join(gpuipc_channel_role role, gpuipc_client **ret_client) {
        gpuipc_channel_attach_options options = GPUIPC_CHANNEL_ATTACH_OPTIONS_INIT;
        gpuipc_connect_options connect = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_channel *channel;

        connect.socket_path = shared->path;
        options.role = role;
        options.wait_ms = WAIT_MS;
        if (gpuipc_connect(&connect, ret_client, NULL) != GPUIPC_OK ||
            gpuipc_channel_attach(*ret_client, NAME, &options, &channel, NULL) != GPUIPC_OK)
                return NULL;
        return channel;
}

/* What computing would take, and leaves the processor to others. */
static void work(long usec) {
        struct timespec left = { .tv_nsec = usec * 1000 };

        while (nanosleep(&left, &left) < 0 && errno == EINTR)
                ;
}

static int leave(gpuipc_channel *channel, gpuipc_client *client) {
        int r = gpuipc_channel_free(channel, NULL);

        gpuipc_client_free(client);
        return r != GPUIPC_OK;
}

static int produce(int talk_fd, void *data) {
        gpuipc_client *client;
        gpuipc_channel *channel;
        int64_t started;
        uint64_t i;

        (void)data;
        if (talk_hear(talk_fd, 'p') != 0 || !(channel = join(GPUIPC_CHANNEL_PRODUCER, &client)) || talk_say(talk_fd, 'r') != 0 ||
            talk_hear(talk_fd, 'g') != 0)
                return 1;
        started = now_usec();
        for (i = 1; !shared->enough; i++) {
                int64_t asked = now_usec();
                gpuipc_item item;
                uint64_t ahead;

                if (gpuipc_channel_begin(channel, NULL, 60000, &item, NULL) != GPUIPC_OK)
                        return 2;
                shared->blocked_usec += now_usec() - asked;
                ahead = i - shared->released;
                if (ahead > shared->most_ahead)
                        shared->most_ahead = ahead;
                memory_write(item.pointer, 0, &i, sizeof(i));
                memory_write(item.pointer, SLOT_BYTES - 8, &i, sizeof(i));
                work(PRODUCER_USEC);
                if (gpuipc_channel_publish(channel, &item, SLOT_BYTES, &i, sizeof(i), NULL, NULL) != GPUIPC_OK)
                        return 3;
                shared->published = i;
        }
        shared->elapsed_usec = now_usec() - started;
        return talk_say(talk_fd, 'd') || talk_hear(talk_fd, 'e') || leave(channel, client);
}

static int consume(int talk_fd, void *data) {
        gpuipc_client *client;
        gpuipc_channel *channel;
        gpuipc_item item;
        int r;

        (void)data;
        if (talk_hear(talk_fd, 'p') != 0 || !(channel = join(GPUIPC_CHANNEL_CONSUMER, &client)) || talk_say(talk_fd, 'r') != 0)
                return 1;
        while ((r = gpuipc_channel_take(channel, NULL, 60000, &item, NULL)) == GPUIPC_OK) {
                uint64_t first = 0, last = 0, noted = 0;

                memory_read(item.pointer, 0, &first, sizeof(first));
                work(CONSUMER_USEC / 2);
                memory_read(item.pointer, SLOT_BYTES - 8, &last, sizeof(last));
                memcpy(&noted, item.meta, sizeof(noted));
                shared->released++;
                if (item.broken || noted != shared->released || first != noted || last != noted)
                        shared->n_bad++;
                if (gpuipc_channel_release(channel, &item, NULL, NULL) != GPUIPC_OK)
                        return 2;
                work(CONSUMER_USEC / 2); /* with nothing in hand, so that the oldest item is nobody's */
        }
        if (r != GPUIPC_ERROR_CLOSED)
                return 3;
        return leave(channel, client);
}

/* ---- looking on ------------------------------------------------------------------------------------------- */

#define PROCESSES 4

/* All that could grow. */
struct sizes {
        long kb[PROCESSES];
        size_t fds[PROCESSES];
        long long brokered;
};

static long long brokered(void) {
        return gpuipcd_status(daemon_process, "devices.0.brokered_bytes") +
               (memory_is_host() ? 0 : gpuipcd_status(daemon_process, "devices.1.brokered_bytes"));
}

static long resident_kb(pid_t pid) {
        char path[64], line[256];
        long kb = -1;
        FILE *file;

        (void)snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
        file = fopen(path, "re");
        ck_assert_ptr_nonnull(file);
        while (fgets(line, sizeof(line), file))
                if (sscanf(line, "VmRSS: %ld", &kb) == 1)
                        break;
        (void)fclose(file);
        return kb;
}

static struct sizes sizes_now(const pid_t pids[PROCESSES]) {
        struct sizes sizes;

        for (int i = 0; i < PROCESSES; i++) {
                sizes.kb[i] = resident_kb(pids[i]);
                sizes.fds[i] = fds_count(pids[i]);
        }
        sizes.brokered = brokered(); /* asked over a connection of its own, which is a descriptor too */
        return sizes;
}

static void expect_no_growth(const struct sizes sizes[WINDOWS + 1]) {
        for (int i = 0; i < PROCESSES; i++) {
                long least = sizes[1].kb[i] - sizes[0].kb[i];

                printf("pace: %ld KB, and in each window more:", sizes[0].kb[i]);
                for (int w = 0; w < WINDOWS; w++) {
                        long grown = sizes[w + 1].kb[i] - sizes[w].kb[i];

                        printf(" %ld", grown);
                        least = grown < least ? grown : least;
                }
                printf("\n");
                (void)fflush(stdout);
                ck_assert_uint_eq(sizes[0].fds[i], sizes[WINDOWS].fds[i]);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) /* which remember what was */
                ck_assert_int_le(least, GROWTH_KB);
#endif
        }
        ck_assert_int_eq(sizes[0].brokered, sizes[WINDOWS].brokered);
}

static uint64_t items_of(const gpuipc_channel_stats *stats, gpuipc_channel_role role) {
        uint64_t n = 0;

        for (int i = 0; i < stats->n_members; i++)
                if (stats->members[i].role == role)
                        n += stats->members[i].items;
        return n;
}

/* At any moment. */
static void look(gpuipc_channel *channel) {
        gpuipc_channel_stats stats = GPUIPC_CHANNEL_STATS_INIT;

        ck_assert_int_eq(gpuipc_channel_get_stats(channel, &stats, &error), GPUIPC_OK);
        ck_assert_uint_le(stats.depth, SLOTS);
        ck_assert_int_eq(stats.n_members, 3);
        for (int i = 0; i < stats.n_members; i++)
                ck_assert_uint_eq(stats.members[i].drops + stats.members[i].broken, 0);
        /* Its figures follow the slots, and those of the consumer are looked at later: one item may be let go and yet to be counted. */
        ck_assert_int_le((int64_t)(items_of(&stats, GPUIPC_CHANNEL_PRODUCER) - items_of(&stats, GPUIPC_CHANNEL_CONSUMER)), SLOTS + 1);
}

static int64_t seconds(void) {
        const char *text = getenv("CHANNEL_PACE_S");
        return text ? atoll(text) : SECONDS;
}

/* Items that a consumer of that speed can have let go in that time. */
static uint64_t most_items(int64_t usec) {
        return (uint64_t)(usec / CONSUMER_USEC) + SLOTS + 1;
}

static gpuipc_channel *make(gpuipc_client **ret_client) {
        gpuipc_channel_create_options options = GPUIPC_CHANNEL_CREATE_OPTIONS_INIT;
        gpuipc_channel *channel;

        *ret_client = library_connect(daemon_process->socket);
        options.name = NAME;
        options.slots = SLOTS;
        options.slot_bytes = SLOT_BYTES;
        options.meta_bytes = 8;
        library_expect(gpuipc_channel_create(*ret_client, &options, &channel, &error), GPUIPC_OK, &error);
        return channel;
}

/* Until all are known to all, and every slot was used. */
static struct sizes settled(gpuipc_channel *channel, const pid_t pids[PROCESSES]) {
        struct sizes sizes;
        uint64_t from;

        wait_for(shared->released > 8 * SLOTS);
        for (;;) {
                from = shared->released;
                sizes = sizes_now(pids);
                wait_for(shared->released >= from + 200);
                look(channel);
                if (memcmp(sizes.fds, sizes_now(pids).fds, sizeof(sizes.fds)) == 0)
                        return sizes;
        }
}

START_TEST(a_producer_is_held_to_its_consumers_pace) {
        struct child producer, consumer;
        struct sizes sizes[WINDOWS + 1];
        gpuipc_channel *channel;
        gpuipc_client *client;
        int64_t until;

        (void)snprintf(shared->path, sizeof(shared->path), "%s", daemon_process->socket);
        producer = child_start(NULL, produce, NULL);
        consumer = child_start(NULL, consume, NULL);
        channel = make(&client);
        child_say(&producer, 'p');
        child_hear(&producer, 'r');
        child_say(&consumer, 'p');
        child_hear(&consumer, 'r');
        child_say(&producer, 'g');
        const pid_t pids[PROCESSES] = { producer.pid, consumer.pid, getpid(), daemon_process->pid };
        sizes[0] = settled(channel, pids);
        for (int w = 1; w <= WINDOWS; w++) {
                for (until = now_ms() + seconds() * 1000 / WINDOWS; now_ms() < until; look(channel))
                        ck_assert_msg(!wait_readable(producer.talk_fd, 50), "the producer has ended");
                sizes[w] = sizes_now(pids);
        }
        shared->enough = true;
        child_hear(&producer, 'd');
        wait_for(fds_count(daemon_process->pid) == sizes[0].fds[PROCESSES - 1]); /* who asked last is let go of */
        sizes[WINDOWS] = sizes_now(pids);
        library_expect(gpuipc_channel_close(channel, &error), GPUIPC_OK, &error);
        child_expect_exit(&consumer, 0);
        child_say(&producer, 'e');
        child_expect_exit(&producer, 0);
        printf("pace: %.1f s: %llu items published, %llu released, at most %llu ahead; the producer waited for %.1f s\n",
               (double)shared->elapsed_usec / 1e6, (unsigned long long)shared->published, (unsigned long long)shared->released,
               (unsigned long long)shared->most_ahead, (double)shared->blocked_usec / 1e6);
        ck_assert_uint_eq(shared->n_bad, 0);
        ck_assert_uint_gt(shared->published, 0);
        ck_assert_uint_eq(shared->published, shared->released);
        ck_assert_uint_le(shared->most_ahead, SLOTS);
        ck_assert_uint_le(shared->published, most_items(shared->elapsed_usec));
        ck_assert_int_gt(shared->blocked_usec, shared->elapsed_usec / 10);
        expect_no_growth(sizes);
        library_expect(gpuipc_channel_free(channel, &error), GPUIPC_OK, &error);
        gpuipc_client_free(client);
} END_TEST

static void setup(void) {
        static const char *const args[] = { "--backend", "auto", NULL };
        const struct gpuipcd_options options = { .args = args };

        daemon_process = gpuipcd_start(memory_is_host() ? NULL : &options);
        shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        ck_assert_ptr_ne(shared, MAP_FAILED);
}

static void teardown(void) {
        library_expect_maps(0);
        gpuipcd_wait_idle(daemon_process);
        gpuipcd_stop(daemon_process);
        (void)munmap(shared, sizeof(*shared));
}

int main(void) {
        Suite *suite = suite_create("channel_pace");
        TCase *tests = tcase_create("pace");

        tcase_set_timeout(tests, 200);
        tcase_add_checked_fixture(tests, setup, teardown);
        tcase_add_test(tests, a_producer_is_held_to_its_consumers_pace);
        suite_add_tcase(suite, tests);
        return suite_run(suite);
}
