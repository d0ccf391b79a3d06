/* SPDX-License-Identifier: Apache-2.0 */
/* One process writes anything over the control page while others use it: they may lose the channel; they never leave their
 * memory, are never given a slot, a size or metadata beyond the channel's, and every call ends by its deadline. */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/deadline.h"
#include "stage.h"
#include "tests/support/suite.h"
#include "tests/support/wait.h"

#define N_ROUNDS 60
#define N_CALLS 400 /* in a round, by all of them */
#define CALL_USEC 200

static struct stage stage;
static atomic_bool over;
static atomic_uint n_attached, n_calls;

struct user {
        bool produces;
        unsigned member;
        unsigned n_good, n_corrupt;
        int64_t slowest_usec;
        const char *fault;
};

static bool is_sound(const struct ring_item *item) {
        return item->slot < stage.geometry.n_slots && item->size <= stage.geometry.slot_bytes &&
               item->n_meta <= stage.geometry.meta_bytes && item->producer < RING_MEMBERS && item->consumer < RING_MEMBERS;
}

/* One call after the other; a few in between that nobody would make. */
static int use_once(struct user *user, struct ring *ring, unsigned turn) {
        struct ring_item item = { 0 };
        int64_t began = clock_usec();
        int r = user->produces ? ring_begin_produce(ring, began + CALL_USEC, &item) : ring_take(ring, began + CALL_USEC, &item);
        int64_t took = clock_usec() - began;

        user->slowest_usec = took > user->slowest_usec ? took : user->slowest_usec;
        /* Its own role may have been written over when it attached. */
        if ((r < RING_OK && r != -EPERM) || r > RING_CORRUPT)
                user->fault = "a verdict that is none";
        if (r == RING_OK && !is_sound(&item))
                user->fault = "an item beyond the channel";
        user->n_good += r == RING_OK;
        user->n_corrupt += r == RING_CORRUPT;
        if (r == RING_OK) {
                /* The bytes themselves are the caller's; that they can be touched is what counts. */
                memset(stage_bytes(&stage, &item), (int)turn, user->produces ? stage.geometry.slot_bytes : 0);
                r = user->produces ? ring_publish(ring, &item, 8, &turn, sizeof(turn), turn) : ring_release(ring, &item, turn);
        }
        if (turn % 16 == 0) {
                static _Thread_local struct ring_stats stats;
                uint64_t fences[RING_MEMBERS];
                ring_stats(ring, &stats);
                (void)ring_reader_fences(ring, fences);
                (void)ring_is_broken(ring, &item);
                (void)ring_wait(ring, 0);
                (void)ring_reap(ring, turn % 64, 1, turn);
                if (stats.depth > stage.geometry.n_slots)
                        user->fault = "a depth beyond the ring";
        }
        return r;
}

static void *use(void *data) {
        struct user *user = data;
        struct ring *ring = NULL;
        const char *fault;
        unsigned turn = 0;

        while (!atomic_load(&over)) {
                int r = RING_OK;
                if (!ring)
                        r = ring_attach(stage.fd, user->member, 1, &ring, &fault);
                if (r == RING_OK && turn == 0)
                        atomic_fetch_add(&n_attached, 1);
                turn++;
                atomic_fetch_add(&n_calls, 1);
                if (r != RING_OK) {
                        user->n_corrupt++;
                        continue;
                }
                /* Corrupt is corrupt for good: to go on, a new one. */
                if (use_once(user, ring, turn) != RING_OK) {
                        ring_free(ring);
                        ring = NULL;
                }
        }
        ring_free(ring);
        return NULL;
}

/* Of the words that matter most of the time, of any byte else; what is likely to be believed, and anything. */
static void scribble(unsigned *seed, bool gently) {
        uint64_t *words = (uint64_t *)stage.page;
        size_t n_words = stage.bytes / 8;
        uint64_t value = (uint64_t)rand_r(seed) << 33 ^ (uint64_t)rand_r(seed) << 15 ^ (uint64_t)rand_r(seed);
        size_t hot[] = { offsetof(struct ring_page, tail), offsetof(struct ring_page, head), offsetof(struct ring_page, closed),
                         offsetof(struct ring_page, readers), offsetof(struct ring_page, items), offsetof(struct ring_page, room),
                         offsetof(struct ring_page, items) + 8, sizeof(struct ring_page), sizeof(struct ring_page) + 24,
                         sizeof(struct ring_page) + 32, sizeof(struct ring_page) + 128, sizeof(struct ring_page) + 256,
                         offsetof(struct ring_page, members), offsetof(struct ring_page, members) + 8,
                         offsetof(struct ring_page, members[2]), offsetof(struct ring_page, members[2]) + 8 };
        size_t at = rand_r(seed) % 4 ? hot[(size_t)rand_r(seed) % (sizeof(hot) / sizeof(*hot))] / 8 : (size_t)rand_r(seed) % n_words;
        volatile uint64_t *word = &words[at % n_words];

        if (gently)
                value = *word + ((uint64_t)1 << (rand_r(seed) % 16)) * (rand_r(seed) % 2 ? 1 : UINT64_MAX);
        *word = value;
}

START_TEST(whatever_is_written_members_keep_their_memory) {
        unsigned seed = 77u + (unsigned)_i, good = 0, corrupt = 0;
        const char *sanitizer = getenv("GPUIPC_SANITIZER");
        int64_t slowest = 0;

        if (sanitizer && strcmp(sanitizer, "thread") == 0) {
                printf("SKIP whatever_is_written_members_keep_their_memory: writing over what others use is a race by design\n");
                return;
        }
        for (int round = 0; round < N_ROUNDS; round++) {
                struct user users[4] = { { .produces = true }, { .produces = true }, { .produces = false }, { .produces = false } };
                static unsigned char whole[12288];
                pthread_t threads[4];
                stage_init(&stage, _i & 1 ? RING_BROADCAST : RING_QUEUE, _i & 2 ? RING_DROP_OLDEST : RING_BLOCK, 3, 4096);
                ck_assert_uint_eq(stage.bytes, sizeof(whole));
                atomic_store(&over, false);
                atomic_store(&n_attached, 0);
                atomic_store(&n_calls, 0);
                for (unsigned i = 0; i < 4; i++) {
                        users[i].member = stage_admit(&stage, users[i].produces ? RING_PRODUCER : RING_CONSUMER);
                        ck_assert_int_eq(pthread_create(&threads[i], NULL, use, &users[i]), 0);
                }
                wait_for(atomic_load(&n_attached) == 4);
                memcpy(whole, stage.page, sizeof(whole));
                for (unsigned until = 0; until < N_CALLS; until = atomic_load(&n_calls)) {
                        scribble(&seed, round % 2);
                        /* Made whole now and then, or there would soon be nothing left to break. */
                        if (rand_r(&seed) % 8 == 0)
                                memcpy(stage.page, whole, stage.bytes);
                        (void)sched_yield();
                }
                atomic_store(&over, true);
                for (unsigned i = 0; i < 4; i++) {
                        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
                        ck_assert_msg(!users[i].fault, "user %u: %s", i, users[i].fault);
                        slowest = users[i].slowest_usec > slowest ? users[i].slowest_usec : slowest;
                        good += users[i].n_good;
                        corrupt += users[i].n_corrupt;
                }
                stage_deinit(&stage);
        }
        printf("scribbled on: %u calls good, %u corrupt, the slowest %ld us\n", good, corrupt, (long)slowest);
        ck_assert_uint_gt(good, 0);
        ck_assert_uint_gt(corrupt, 0);
        ck_assert_int_lt(slowest, INT64_C(10000000));
}
END_TEST

int main(void) {
        Suite *suite = suite_create("ring_scribble");
        TCase *tests = tcase_create("scribble");

        tcase_set_timeout(tests, 60);
        tcase_add_loop_test(tests, whatever_is_written_members_keep_their_memory, 0, 4);
        suite_add_tcase(suite, tests);
        return suite_run(suite);
}
