/* SPDX-License-Identifier: Apache-2.0 */
/* A member's process is killed before each access to the page, one run for each; the survivors go on, are told of what it
 * broke and of nothing else, and its slots come back. The ring's sources are included, so that the hook before an access can
 * kill. not under valgrind: thousands of processes. deadline: 240 s */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int steps_left; /* of the victim; 0: it lives */

static struct known {
        atomic_uint n_published, n_taken, n_released; /* what the victim came to know of */
        char last_step[100];
        atomic_uint count;
} *known;

static void step(const char *what) {
        if (steps_left == 0)
                return;
        atomic_fetch_add(&known->count, 1);
        (void)snprintf(known->last_step, sizeof(known->last_step), "%s", what);
        if (--steps_left == 0)
                (void)kill(getpid(), SIGKILL);
}

#define RING_AT(what, address) step(what)

#include "proto/ring_page.c"

#include "client/ring.c"
#include "client/ring_broadcast.c"
#include "client/ring_queue.c"
#include "client/ring_reap.c"
#include "client/ring_stats.c"
#include "client/ring_wait.c"

#include "stage.h"
#include "tests/support/suite.h"
#include "tests/support/wait.h"

#define N_SLOTS 4
#define N_ITEMS 3

static struct stage stage;
static unsigned victim;

static int64_t soon(void) {
        return deadline_after_ms(WAIT_MS);
}

static void setup(void) {
        known = mmap(NULL, sizeof(*known), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        ck_assert_ptr_ne(known, MAP_FAILED);
}

static void teardown(void) {
        (void)munmap(known, sizeof(*known));
}

/* ---- victims ---------------------------------------------------------------------------------------------- */

/* N_ITEMS items, one cancelled, then it leaves. */
static void victim_produces(struct ring *ring) {
        struct ring_item item;

        for (uint64_t i = 1; i <= N_ITEMS; i++) {
                if (ring_begin_produce(ring, soon(), &item) != RING_OK ||
                    ring_publish(ring, &item, i, &i, sizeof(i), 0) != RING_OK)
                        _exit(1);
                atomic_store(&known->n_published, (unsigned)i);
        }
        if (ring_begin_produce(ring, soon(), &item) != RING_OK || ring_cancel(ring, &item) != RING_OK || ring_leave(ring) != RING_OK)
                _exit(2);
}

static void victim_consumes(struct ring *ring) {
        struct ring_item item;

        for (unsigned i = 1; i <= N_ITEMS; i++) {
                if (ring_take(ring, soon(), &item) != RING_OK)
                        _exit(1);
                atomic_store(&known->n_taken, i);
                if (ring_release(ring, &item, 0) != RING_OK)
                        _exit(2);
                atomic_store(&known->n_released, i);
        }
        if (ring_leave(ring) != RING_OK)
                _exit(3);
}

/* Runs the victim until its step number `steps`. Whether it was killed there. */
static bool run_victim(void (*script)(struct ring *ring), int steps) {
        int status;
        pid_t pid;

        memset(known, 0, sizeof(*known));
        pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0) {
                struct ring *ring;
                const char *fault;
                steps_left = steps;
                if (ring_attach(stage.fd, victim, 1, &ring, &fault) != RING_OK)
                        _exit(4);
                script(ring);
                _exit(0);
        }
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_msg(WIFSIGNALED(status) || WEXITSTATUS(status) == 0, "the victim ended with %d", WEXITSTATUS(status));
        if (WIFSIGNALED(status))
                ck_assert_int_eq(WTERMSIG(status), SIGKILL);
        ring_page_mark_dead(stage.page, victim, 1);
        return WIFSIGNALED(status);
}

/* ---- survivors -------------------------------------------------------------------------------------------- */

static void check_nothing_names_the_victim(struct ring *ring, int steps) {
        for (int i = 0; i < 2; i++) {
                int r = ring_reap(ring, victim, 1, RING_FENCE_MAX);
                ck_assert_msg(r == RING_OK || r == RING_GONE, "%s", ring_verdict_sentence(r)); /* gone: it had left before */
        }
        ck_assert_int_eq(ring_reaped(ring, victim, 1), RING_OK);
        ck_assert(ring_page_is_reaped(stage.page, victim, 1));
        for (uint32_t i = 0; i < N_SLOTS; i++) {
                uint64_t word = ring_spot_of(ring, i).slot->word;
                enum ring_state state = ring_word_state(word);
                ck_assert_msg(ring_word_member(word) != victim || (state != RING_CLAIMED && state != RING_TAKEN),
                              "step %d (%s): slot %u is still the dead one's: %lx", steps, known->last_step, i, (unsigned long)word);
        }
}

/* Laps by the living: all slots are there again. */
static void go_on(struct ring *producer, struct ring *consumer, int steps) {
        for (uint64_t i = 100; i < 100 + 3 * N_SLOTS; i++) {
                struct ring_item item;
                int r = ring_begin_produce(producer, soon(), &item);
                ck_assert_msg(r == RING_OK, "step %d (%s): begin: %s", steps, known->last_step, ring_verdict_sentence(r));
                ck_assert_int_eq(ring_publish(producer, &item, i, &i, sizeof(i), 0), RING_OK);
                if (i % N_SLOTS != N_SLOTS - 1)
                        continue;
                for (uint64_t k = i - N_SLOTS + 1; k <= i; k++)
                        ck_assert_uint_eq(get(consumer), k);
        }
}

struct shape {
        enum ring_mode mode;
        enum ring_policy policy;
};
static const struct shape shapes[] = {
        { RING_QUEUE, RING_BLOCK }, { RING_QUEUE, RING_DROP_OLDEST }, { RING_BROADCAST, RING_BLOCK }, { RING_BROADCAST, RING_DROP_OLDEST }
};

START_TEST(a_producer_dies_at_each_step) {
        bool killed = true;
        int steps, n_broken = 0;

        for (steps = 1; killed; steps++) {
                struct ring *producer, *consumer;
                struct ring_item item;
                unsigned got = 0, broken = 0;
                int r;

                stage_init(&stage, shapes[_i].mode, shapes[_i].policy, N_SLOTS, 4096);
                producer = stage_join(&stage, RING_PRODUCER);
                consumer = stage_join(&stage, RING_CONSUMER);
                victim = stage_admit(&stage, RING_PRODUCER);
                killed = run_victim(victim_produces, steps);
                while ((r = ring_take(consumer, 0, &item)) != RING_TIMED_OUT) {
                        ck_assert_msg(r == RING_OK || r == RING_BROKEN, "step %d (%s): %s", steps, known->last_step,
                                      ring_verdict_sentence(r));
                        ck_assert_uint_eq(item.producer, victim);
                        ck_assert_msg(broken == 0, "step %d (%s): something after what was broken", steps, known->last_step);
                        if (r == RING_BROKEN) {
                                broken++;
                                continue;
                        }
                        ck_assert_uint_eq(item.size, ++got);
                        ck_assert_int_eq(ring_release(consumer, &item, 0), RING_OK);
                }
                /* It may have died before it knew, but not after. */
                ck_assert_uint_ge(got, known->n_published);
                ck_assert_uint_le(got, known->n_published + 1);
                ck_assert(killed || (got == N_ITEMS && broken == 0));
                n_broken += (int)broken;
                check_nothing_names_the_victim(consumer, steps);
                go_on(producer, consumer, steps);
                ring_free(producer);
                ring_free(consumer);
                stage_deinit(&stage);
        }
        printf("a producer of shape %d: killed at %d steps, %d of them left something broken\n", _i, steps - 2, n_broken);
        ck_assert_int_gt(steps, 40);
        ck_assert_int_gt(n_broken, 4);
}
END_TEST

START_TEST(a_consumer_dies_at_each_step) {
        bool killed = true, queue = shapes[_i].mode == RING_QUEUE;
        int steps, n_lost = 0;

        for (steps = 1; killed; steps++) {
                struct ring *producer, *consumer;
                struct ring_item item;
                uint64_t last = 0;
                unsigned got = 0;

                stage_init(&stage, shapes[_i].mode, shapes[_i].policy, N_SLOTS, 4096);
                producer = stage_join(&stage, RING_PRODUCER);
                consumer = stage_join(&stage, RING_CONSUMER);
                victim = stage_admit(&stage, RING_CONSUMER);
                for (uint64_t i = 1; i <= N_ITEMS; i++)
                        put(producer, i);
                /* Of a broadcast one sees what is claimed after it joined: it finds tail as it was then. */
                if (!queue)
                        stage.page->tail = 0;
                killed = run_victim(victim_consumes, steps);
                if (!queue)
                        stage.page->tail = N_ITEMS;
                while (ring_take(consumer, 0, &item) == RING_OK) {
                        ck_assert_uint_gt(item.size, last);
                        last = item.size;
                        got++;
                        ck_assert_int_eq(ring_release(consumer, &item, 0), RING_OK);
                }
                if (queue) {
                        ck_assert_uint_le(got, N_ITEMS - known->n_taken);
                        ck_assert_uint_ge(got + 1, N_ITEMS - known->n_taken);
                        n_lost += got + known->n_released < N_ITEMS;
                } else {
                        ck_assert_uint_eq(got, N_ITEMS);
                        n_lost += killed;
                }
                go_on(producer, consumer, steps);
                check_nothing_names_the_victim(producer, steps);
                ring_free(producer);
                ring_free(consumer);
                stage_deinit(&stage);
        }
        printf("a consumer of shape %d: killed at %d steps, %d of them with something in hand\n", _i, steps - 2, n_lost);
        ck_assert_int_gt(steps, 30);
        ck_assert_int_gt(n_lost, 4);
}
END_TEST

/* ---- asleep, and in the thick of it ------------------------------------------------------------------------ */

static void victim_waits(struct ring *ring) {
        struct ring_item item;
        (void)ring_take(ring, DEADLINE_NONE, &item);
}

START_TEST(one_killed_asleep_is_woken_by_nobody) {
        struct ring *producer, *consumer;
        uint64_t n_sleeps, n_wakes;
        int status;
        pid_t pid;

        stage_init(&stage, shapes[_i].mode, shapes[_i].policy, N_SLOTS, 4096);
        producer = stage_join(&stage, RING_PRODUCER);
        consumer = stage_join(&stage, RING_CONSUMER);
        victim = stage_admit(&stage, RING_CONSUMER);
        pid = fork();
        if (pid == 0) {
                victim_waits(stage_attach(&stage, victim));
                _exit(0);
        }
        wait_for(stage.page->items.waiting != 0);
        (void)kill(pid, SIGKILL);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ring_page_mark_dead(stage.page, victim, 1);
        ck_assert_uint_ne(stage.page->items.waiting, 0);
        go_on(producer, consumer, 0);
        ring_calls(producer, &n_sleeps, &n_wakes);
        ck_assert_uint_eq(n_wakes, 0);
        ring_free(producer);
        ring_free(consumer);
        stage_deinit(&stage);
}
END_TEST

/* Items number 1, 2, … from each of two, of which one is the victim; the consumers count. */
struct thick {
        atomic_uint n_seen[2], n_broken, n_bad;
};
static struct thick *thick;
#define THICK_ITEMS 400

static void thick_produces(struct ring *ring) {
        struct ring_item item;

        for (uint64_t i = 1; i <= THICK_ITEMS; i++)
                if (ring_begin_produce(ring, soon(), &item) != RING_OK || ring_publish(ring, &item, i, &i, sizeof(i), 0) != RING_OK)
                        _exit(1);
}

static void thick_consumes(struct ring *ring) {
        uint64_t last[RING_MEMBERS] = { 0 };
        struct ring_item item;
        int r;

        while ((r = ring_take(ring, soon(), &item)) != RING_CLOSED) {
                if (r == RING_BROKEN) {
                        atomic_fetch_add(&thick->n_broken, 1);
                        continue;
                }
                if (r != RING_OK || item.size <= last[item.producer] || ring_release(ring, &item, 0) != RING_OK)
                        atomic_fetch_add(&thick->n_bad, 1);
                last[item.producer] = item.size;
                atomic_fetch_add(&thick->n_seen[item.producer], 1);
        }
}

static pid_t start(unsigned member, void (*script)(struct ring *ring), int steps) {
        pid_t pid = fork();
        if (pid == 0) {
                struct ring *ring = stage_attach(&stage, member);
                steps_left = steps;
                script(ring);
                _exit(0);
        }
        return pid;
}

/* As they end: the dead one is declared so, and after the producers the channel is closed. Whether it was killed. */
static bool thick_wait(const pid_t pids[4], unsigned dies) {
        bool killed = false;
        int producers = 2;

        for (int n = 0; n < 4; n++) {
                int status;
                pid_t pid = waitpid(-1, &status, 0);
                if (pid == pids[dies] && WIFSIGNALED(status)) {
                        killed = true;
                        ring_page_mark_dead(stage.page, dies, 1);
                } else {
                        ck_assert_int_eq(status, 0);
                }
                producers -= pid == pids[0] || pid == pids[1];
                if (producers == 0)
                        ring_page_close(stage.page);
        }
        return killed;
}

/* Members 0 and 1 produce, 2 and 3 consume; `dies` is the one. */
static void thick_round(unsigned dies, int steps) {
        unsigned lost, all;
        pid_t pids[4];

        memset(thick, 0, sizeof(*thick));
        stage_init(&stage, RING_QUEUE, RING_BLOCK, 2, 4096);
        for (unsigned i = 0; i < 4; i++)
                (void)stage_admit(&stage, i < 2 ? RING_PRODUCER : RING_CONSUMER);
        for (unsigned i = 0; i < 4; i++)
                pids[i] = start(i, i < 2 ? thick_produces : thick_consumes, i == dies ? steps : 0);
        lost = thick_wait(pids, dies) && dies >= 2;
        all = thick->n_seen[0] + thick->n_seen[1];
        ck_assert_uint_eq(thick->n_bad, 0);
        ck_assert_uint_le(thick->n_broken, dies < 2 ? 1 : 0);
        if (dies < 2) {
                ck_assert_uint_eq(thick->n_seen[1 - dies], THICK_ITEMS);
        } else {
                /* It may have died between having an item and counting it. */
                ck_assert_uint_ge(all + lost, 2 * THICK_ITEMS);
                ck_assert_uint_le(all, 2 * THICK_ITEMS);
        }
        stage_deinit(&stage);
}

START_TEST(one_dies_in_the_thick_of_it) {
        unsigned seed = 12345u + (unsigned)_i;

        thick = mmap(NULL, sizeof(*thick), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        ck_assert_ptr_ne(thick, MAP_FAILED);
        for (int round = 0; round < 30; round++)
                thick_round((unsigned)_i, 1 + rand_r(&seed) % 3000);
        (void)munmap(thick, sizeof(*thick));
}
END_TEST

int main(void) {
        Suite *suite = suite_create("ring_deaths");
        TCase *tests = tcase_create("deaths");

        tcase_set_timeout(tests, 60);
        tcase_add_checked_fixture(tests, setup, teardown);
        tcase_add_loop_test(tests, a_producer_dies_at_each_step, 0, 4);
        tcase_add_loop_test(tests, a_consumer_dies_at_each_step, 0, 4);
        tcase_add_loop_test(tests, one_killed_asleep_is_woken_by_nobody, 0, 4);
        tcase_add_loop_test(tests, one_dies_in_the_thick_of_it, 0, 4);
        suite_add_tcase(suite, tests);
        return suite_run(suite);
}
