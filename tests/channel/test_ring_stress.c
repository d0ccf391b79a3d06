/* SPDX-License-Identifier: Apache-2.0 */
/* Ten million items between threads and between processes, several of each, every one looked at: none lost, none twice, none
 * changed, each producer's in order. runs alone. not under valgrind: it would take an hour. deadline: 240 s */
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/deadline.h"
#include "stage.h"
#include "tests/support/suite.h"

#define SIDE_MAX 8
#define PATIENCE_MS 100000
#define N_SLOTS 64

struct payload {
        uint64_t producer, number, filler[5], sum;
};

struct worker {
        struct run *run;
        unsigned member;
        bool produces;
        uint64_t n, told_drops; /* items it took; tickets that it did not see */
        char fault[160];
};

struct run {
        enum ring_mode mode;
        enum ring_policy policy;
        unsigned n_producers, n_consumers;
        uint64_t each; /* items of a producer */
        bool processes;
        struct stage stage;
        pthread_barrier_t barrier;
        atomic_uint producers_left;
        struct worker workers[2 * SIDE_MAX];
        atomic_uchar seen[]; /* of a queue: by producer and number */
};

static uint64_t sum_of(const struct payload *payload) {
        uint64_t sum = payload->producer * UINT64_C(0x9e3779b97f4a7c15) ^ payload->number;
        for (int i = 0; i < 5; i++)
                sum = (sum ^ payload->filler[i]) * UINT64_C(0xff51afd7ed558ccd);
        return sum;
}

static void work_produce(struct worker *me, struct ring *ring) {
        struct run *run = me->run;
        struct ring_item item;

        for (uint64_t i = 0; i < run->each && !me->fault[0]; i++) {
                int r = ring_begin_produce(ring, deadline_after_ms(PATIENCE_MS), &item);
                if (r == RING_OK) {
                        struct payload *payload = stage_bytes(&run->stage, &item);
                        payload->producer = me->member;
                        payload->number = i;
                        for (int k = 0; k < 5; k++)
                                payload->filler[k] = item.ticket + (unsigned)k;
                        payload->sum = sum_of(payload);
                        r = ring_publish(ring, &item, sizeof(*payload), &i, sizeof(i), 0);
                }
                if (r != RING_OK)
                        (void)snprintf(me->fault, sizeof(me->fault), "item %lu: %s", (unsigned long)i, ring_verdict_sentence(r));
        }
        if (atomic_fetch_sub(&run->producers_left, 1) == 1)
                ring_close(ring);
}

/* Looks at an item; `last` has the number of each producer's last one and 1. */
static void look_at(struct worker *me, const struct ring_item *item, uint64_t *last) {
        struct run *run = me->run;
        const struct payload *payload = stage_bytes(&run->stage, item);
        struct payload copy = *payload;
        uint64_t number;

        memcpy(&number, item->meta, sizeof(number));
        if (copy.sum != sum_of(&copy) || copy.filler[4] != item->ticket + 4 || number != copy.number || copy.producer != item->producer ||
            item->producer >= run->n_producers || number >= run->each || item->size != sizeof(copy)) {
                (void)snprintf(me->fault, sizeof(me->fault), "ticket %lu is not as it was written", (unsigned long)item->ticket);
                return;
        }
        if (number < last[copy.producer] || (run->mode == RING_BROADCAST && run->policy == RING_BLOCK && number != last[copy.producer]))
                (void)snprintf(me->fault, sizeof(me->fault), "producer %lu: item %lu where %lu was due", (unsigned long)copy.producer,
                               (unsigned long)number, (unsigned long)last[copy.producer]);
        last[copy.producer] = number + 1;
        if (run->mode == RING_QUEUE && atomic_exchange_explicit(&run->seen[copy.producer * run->each + number], 1, memory_order_relaxed))
                (void)snprintf(me->fault, sizeof(me->fault), "producer %lu: item %lu came twice", (unsigned long)copy.producer,
                               (unsigned long)number);
}

static void work_consume(struct worker *me, struct ring *ring) {
        uint64_t last[SIDE_MAX] = { 0 }, ticket = 0;
        struct ring_item item;

        while (!me->fault[0]) {
                int r = ring_take(ring, deadline_after_ms(PATIENCE_MS), &item);
                if (r == RING_CLOSED)
                        return;
                if (r == RING_OK) {
                        look_at(me, &item, last);
                        me->n++;
                        me->told_drops += item.ticket - ticket;
                        ticket = item.ticket + 1;
                        r = ring_release(ring, &item, 0);
                }
                if (r != RING_OK && !me->fault[0])
                        (void)snprintf(me->fault, sizeof(me->fault), "after %lu items: %s", (unsigned long)me->n, ring_verdict_sentence(r));
        }
}

static void *work(void *data) {
        struct worker *me = data;
        struct run *run = me->run;
        struct ring *ring;
        const char *fault = "";
        /* Threads share the mapping, so that what watches their accesses sees that they are to the same memory. */
        int r = run->processes ? ring_attach(run->stage.fd, me->member, 1, &ring, &fault)
                               : ring_attach_page(run->stage.page, run->stage.bytes, me->member, 1, &ring, &fault);

        (void)pthread_barrier_wait(&run->barrier);
        if (r != RING_OK) {
                (void)snprintf(me->fault, sizeof(me->fault), "attach: %d", r);
                return NULL;
        }
        if (me->produces)
                work_produce(me, ring);
        else
                work_consume(me, ring);
        ring_free(ring);
        return NULL;
}

/* Fewer where each access is watched. */
static uint64_t scaled(uint64_t n) {
        const char *slower = getenv("GPUIPC_TEST_SLOWER"), *sanitizer = getenv("GPUIPC_SANITIZER");
        n /= slower ? (uint64_t)atoi(slower) : 1;
        return sanitizer && strcmp(sanitizer, "thread") == 0 ? n / 2 : n;
}

static void check_run(struct run *run) {
        static struct ring_stats stats;
        uint64_t total = run->each * run->n_producers, taken = 0, drops = 0, n_seen = 0;
        struct ring *ring = stage_join(&run->stage, RING_PRODUCER);

        ring_stats(ring, &stats);
        ring_free(ring);
        for (unsigned i = 0; i < run->n_producers + run->n_consumers; i++) {
                const struct worker *worker = &run->workers[i];
                const struct ring_member_stats *told = &stats.members[i];
                ck_assert_msg(!worker->fault[0], "%s %u: %s", worker->produces ? "producer" : "consumer", i, worker->fault);
                ck_assert_uint_eq(told->items, worker->produces ? run->each : worker->n);
                ck_assert_uint_eq(told->bytes, told->items * sizeof(struct payload));
                taken += worker->n;
                drops += told->drops;
                if (!worker->produces && run->mode == RING_BROADCAST) {
                        ck_assert_uint_eq(worker->n + told->drops, total);
                        ck_assert_uint_eq(worker->told_drops, told->drops);
                        ck_assert(run->policy == RING_DROP_OLDEST || told->drops == 0);
                }
        }
        ck_assert_uint_eq(stats.tail, total);
        if (run->mode == RING_BROADCAST)
                return;
        for (uint64_t i = 0; i < total; i++)
                n_seen += run->seen[i];
        ck_assert_uint_eq(n_seen, taken);
        ck_assert_uint_eq(taken + drops, total);
        ck_assert(run->policy == RING_DROP_OLDEST || drops == 0);
        /* What was published last is dropped by nobody. */
        if (run->n_producers == 1)
                for (uint64_t i = total < N_SLOTS ? 0 : total - N_SLOTS; i < total; i++)
                        ck_assert_msg(run->seen[i], "item %lu of %lu is not among the oldest", (unsigned long)i, (unsigned long)total);
}

static void start(struct run *run) {
        pthread_t threads[2 * SIDE_MAX];
        pid_t pids[2 * SIDE_MAX];
        unsigned n = run->n_producers + run->n_consumers;

        for (unsigned i = 0; i < n; i++) {
                struct worker *worker = &run->workers[i];
                worker->run = run;
                worker->produces = i < run->n_producers;
                worker->member = stage_admit(&run->stage, worker->produces ? RING_PRODUCER : RING_CONSUMER);
        }
        for (unsigned i = 0; i < n; i++) {
                if (!run->processes) {
                        ck_assert_int_eq(pthread_create(&threads[i], NULL, work, &run->workers[i]), 0);
                } else if ((pids[i] = fork()) == 0) {
                        (void)work(&run->workers[i]);
                        _exit(0);
                }
        }
        for (unsigned i = 0; i < n; i++) {
                int status = 0;
                if (run->processes)
                        ck_assert_int_eq(waitpid(pids[i], &status, 0), pids[i]);
                else
                        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
                ck_assert_int_eq(status, 0);
        }
}

static const struct {
        enum ring_mode mode;
        enum ring_policy policy;
        unsigned n_producers, n_consumers;
        uint64_t total;
} runs[] = {
        { RING_QUEUE, RING_BLOCK, 1, 1, 1000000 },        { RING_QUEUE, RING_BLOCK, 1, 8, 700000 },
        { RING_QUEUE, RING_BLOCK, 8, 1, 700000 },         { RING_QUEUE, RING_BLOCK, 4, 4, 700000 },
        { RING_QUEUE, RING_BLOCK, 8, 8, 700000 },         { RING_BROADCAST, RING_BLOCK, 1, 1, 400000 },
        { RING_BROADCAST, RING_BLOCK, 1, 8, 60000 },      { RING_BROADCAST, RING_BLOCK, 8, 1, 200000 },
        { RING_BROADCAST, RING_BLOCK, 4, 4, 60000 },      { RING_BROADCAST, RING_BLOCK, 8, 8, 40000 },
        { RING_QUEUE, RING_DROP_OLDEST, 1, 1, 200000 },   { RING_QUEUE, RING_DROP_OLDEST, 4, 4, 100000 },
        { RING_BROADCAST, RING_DROP_OLDEST, 1, 1, 100000 }, { RING_BROADCAST, RING_DROP_OLDEST, 4, 4, 40000 },
};
#define N_RUNS ((int)(sizeof(runs) / sizeof(*runs)))

START_TEST(nothing_is_lost_nor_doubled) {
        unsigned producers = runs[_i / 2].n_producers;
        uint64_t each = scaled(runs[_i / 2].total) / producers;
        size_t bytes = sizeof(struct run) + each * producers;
        struct run *run = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        pthread_barrierattr_t shared;
        int64_t began = clock_usec();

        ck_assert_ptr_ne(run, MAP_FAILED);
        run->mode = runs[_i / 2].mode;
        run->policy = runs[_i / 2].policy;
        run->n_producers = producers;
        run->n_consumers = runs[_i / 2].n_consumers;
        run->each = each;
        run->processes = _i & 1;
        run->producers_left = producers;
        (void)pthread_barrierattr_init(&shared);
        (void)pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
        (void)pthread_barrier_init(&run->barrier, &shared, producers + run->n_consumers);
        stage_init(&run->stage, run->mode, run->policy, N_SLOTS, sizeof(struct payload));
        start(run);
        printf("%-9s %-11s %s %u:%u %7lu items %6.2f s\n", run->mode == RING_QUEUE ? "queue" : "broadcast",
               run->policy == RING_BLOCK ? "block" : "drop-oldest", run->processes ? "processes" : "threads  ", producers, run->n_consumers,
               (unsigned long)(each * producers), (double)(clock_usec() - began) / 1e6);
        check_run(run);
        stage_deinit(&run->stage);
        (void)pthread_barrier_destroy(&run->barrier);
        (void)munmap(run, bytes);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("ring_stress");
        TCase *tests = tcase_create("stress");

        tcase_set_timeout(tests, 120);
        tcase_add_loop_test(tests, nothing_is_lost_nor_doubled, 0, N_RUNS * 2);
        suite_add_tcase(suite, tests);
        return suite_run(suite);
}
