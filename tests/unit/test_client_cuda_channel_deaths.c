/* SPDX-License-Identifier: Apache-2.0 */
/* A member with a stream of its own is killed before each of its accesses to the control page, one run for each, while its stream is stuck;
 * nobody but the survivor's watcher notices. The survivor's stream is free in time, it is told of what broke and of nothing else, and all
 * slots come back. The ring's sources are included, so that the hook before an access can kill. not under valgrind: hundreds of processes.
 * deadline: 240 s */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of the victim's own thread: 0: it lives. */
static _Thread_local int steps_left;

static void step(void) {
        if (steps_left > 0 && --steps_left == 0)
                (void)kill(getpid(), SIGKILL);
}

#define RING_AT(what, address) step()

#include "proto/ring_page.c"

#include "client/ring.c"
#include "client/ring_broadcast.c"
#include "client/ring_queue.c"
#include "client/ring_reap.c"
#include "client/ring_stats.c"
#include "client/ring_wait.c"

#include "channel_house.h"
#include "client/channel.h"
#include "cuda_gpus.h"
#include "tests/support/suite.h"
#include "tests/support/wait.h"

#define GATE (8 * 128) /* a word that the victim's stream waits for, in bytes */
#define N_SLOTS 2
#define PRODUCER_STEPS 48 /* more than there are */
#define CONSUMER_STEPS 48

static struct house house;
static struct owner data_owner, fences_owner;
static gpuipc_error error;
static int steps; /* how many the victim may take */

/* ---- the victims ------------------------------------------------------------------------------------------ */

static int stuck_stream(gpuipc_channel *channel, CUstream *ret_stream) {
        CUdeviceptr gate = (CUdeviceptr)(uintptr_t)channel->fences[0]->word + GATE;
        CUcontext context;

        return DRIVER(cuDevicePrimaryCtxRetain)(&context, 0) || DRIVER(cuCtxSetCurrent)(context) ||
               DRIVER(cuStreamCreate)(ret_stream, CU_STREAM_NON_BLOCKING) ||
               DRIVER(cuStreamWaitValue64)(*ret_stream, gate, 1, CU_STREAM_WAIT_VALUE_GEQ);
}

/* One that its stream has written, two that it has not. Then it says that it came so far. */
static int produces(gpuipc_channel *channel, int talk_fd) {
        gpuipc_item item;
        CUstream free_stream, stuck;

        if (stuck_stream(channel, &stuck) || DRIVER(cuStreamCreate)(&free_stream, CU_STREAM_NON_BLOCKING))
                return 1;
        if (talk_hear(talk_fd, 'g') != 0)
                return 1;
        steps_left = steps;
        for (int i = 0; i < 2; i++) {
                CUstream stream = i == 0 ? free_stream : stuck;
                if (gpuipc_channel_begin(channel, stream, WAIT_MS, &item, NULL) ||
                    gpuipc_channel_publish(channel, &item, 16, &i, sizeof(i), stream, NULL))
                        return 2;
        }
        steps_left = 0;
        (void)talk_say(talk_fd, 'w');
        return talk_hear(talk_fd, 'n');
}

/* Takes two, and lets go of each in a stream that never reads them. */
static int consumes(gpuipc_channel *channel, int talk_fd) {
        gpuipc_item item;
        CUstream stuck;

        if (stuck_stream(channel, &stuck))
                return 1;
        if (talk_hear(talk_fd, 'g') != 0)
                return 1;
        steps_left = steps;
        for (int i = 0; i < 2; i++)
                if (gpuipc_channel_take(channel, stuck, WAIT_MS, &item, NULL) || gpuipc_channel_release(channel, &item, stuck, NULL))
                        return 2;
        steps_left = 0;
        (void)talk_say(talk_fd, 'w');
        return talk_hear(talk_fd, 'n');
}

/* ---- the survivor ----------------------------------------------------------------------------------------- */

static void begin(enum ring_mode mode, gpuipc_channel_role role, struct house_peer *peer) {
        struct house_plan plan = { .mode = mode, .n_slots = N_SLOTS, .device = GPUS_UUID("0"), .kind = "cuda-fd" };
        char zeros[8192] = { 0 };
        CUcontext context;

        gpus_start("log no");
        *peer = house_fork(role, role == GPUIPC_CHANNEL_PRODUCER ? produces : consumes);
        data_owner = owner_start("cuda-fd", 0, 2 * MIB);
        fences_owner = owner_start("cuda-fd", 0, 2 * MIB);
        ck_assert_int_eq(pwrite(fences_owner.fd, zeros, sizeof(zeros), 0), sizeof(zeros));
        plan.data_fd = data_owner.fd;
        plan.fences_fd = fences_owner.fd;
        house_open(&house, &plan);
        ck_assert_int_eq(DRIVER(cuInit)(0), 0);
        ck_assert_int_eq(DRIVER(cuDevicePrimaryCtxRetain)(&context, 0), 0);
        ck_assert_int_eq(DRIVER(cuCtxSetCurrent)(context), 0);
}

static void end(gpuipc_channel *survivor) {
        ck_assert_msg(gpuipc_channel_free(survivor, &error) == GPUIPC_OK, "%s", error.message);
        house_close(&house);
        owner_stop(&data_owner);
        owner_stop(&fences_owner);
        gpus_stop();
}

static CUstream stream_new(void) {
        CUstream stream;

        ck_assert_int_eq(DRIVER(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING), 0);
        return stream;
}

static void good(int status) {
        ck_assert_msg(status == GPUIPC_OK, "after %d steps: %s", steps, error.message);
}

/* Killed at its step, or here once it came through. Whether at the step. */
static bool let_die(struct house_peer *peer) {
        char word = 0;
        bool at_step = read(peer->child.talk_fd, &word, 1) != 1;

        ck_assert(at_step || word == 'w');
        house_peer_kill(peer);
        return at_step;
}

/* All slots are there again, lap after lap. */
static void go_on(gpuipc_channel *producer, gpuipc_channel *consumer, CUstream stream) {
        gpuipc_item item;

        for (int i = 0; i < 2 * N_SLOTS; i++) {
                good(gpuipc_channel_begin(producer, stream, WAIT_MS, &item, &error));
                good(gpuipc_channel_publish(producer, &item, 1, NULL, 0, stream, &error));
                good(gpuipc_channel_take(consumer, stream, WAIT_MS, &item, &error));
                ck_assert_int_eq(item.broken, 0);
                good(gpuipc_channel_release(consumer, &item, stream, &error));
        }
        ck_assert_int_eq(DRIVER(cuStreamSynchronize)(stream), 0);
}

static void wait_for_end(unsigned victim) {
        wait_for(ring_page_is_reaped(house.page, victim, 1));
        for (uint32_t i = 0; i < N_SLOTS; i++) {
                const char *slots = (const char *)(house.page + 1);
                uint64_t word = ((const struct ring_slot *)(slots + i * ring_stride(&house.geometry)))->word;
                enum ring_state state = ring_word_state(word);
                ck_assert(ring_word_member(word) != victim || (state != RING_CLAIMED && state != RING_TAKEN));
        }
}

static bool a_producer_dies(enum ring_mode mode) {
        struct house_peer peer;
        gpuipc_channel *consumer, *producer;
        int n_whole = 0, n_broken = 0, r;
        gpuipc_item item;
        bool at_step;

        begin(mode, GPUIPC_CHANNEL_PRODUCER, &peer);
        consumer = house_join(&house, GPUIPC_CHANNEL_CONSUMER);
        CUstream stream = stream_new();
        house_let_in_known(&house, &peer, 1);
        child_say(&peer.child, 'g');
        at_step = let_die(&peer);
        wait_for_end(1);
        while ((r = gpuipc_channel_take(consumer, stream, 0, &item, &error)) == GPUIPC_OK) {
                bool broken;
                ck_assert_int_eq(DRIVER(cuStreamSynchronize)(stream), 0);
                broken = gpuipc_item_is_broken(consumer, &item) != 0;
                n_broken += broken;
                n_whole += !broken;
                if (!broken)
                        ck_assert_int_eq(item.meta[0], 0); /* the first, whose stream was free */
                good(gpuipc_channel_release(consumer, &item, stream, &error));
        }
        ck_assert_int_eq(r, GPUIPC_ERROR_TIMED_OUT);
        ck_assert_int_le(n_whole, 1);
        ck_assert_int_le(n_broken, 2);
        producer = house_join(&house, GPUIPC_CHANNEL_PRODUCER);
        ck_assert_int_eq(gpuipc_channel_number(producer), 1);
        go_on(producer, consumer, stream);
        good(gpuipc_channel_free(producer, &error));
        end(consumer);
        return at_step;
}

static bool a_consumer_dies(enum ring_mode mode) {
        struct house_peer peer;
        gpuipc_channel *consumer, *producer;
        gpuipc_item item;
        bool at_step;

        begin(mode, GPUIPC_CHANNEL_CONSUMER, &peer);
        producer = house_join(&house, GPUIPC_CHANNEL_PRODUCER);
        CUstream stream = stream_new();
        house_let_in_known(&house, &peer, 1);
        for (int i = 0; i < N_SLOTS; i++) {
                good(gpuipc_channel_begin(producer, stream, WAIT_MS, &item, &error));
                good(gpuipc_channel_publish(producer, &item, 16, NULL, 0, stream, &error));
        }
        child_say(&peer.child, 'g');
        at_step = let_die(&peer);
        wait_for_end(1);
        /* What nobody took is still there for whoever comes, of a queue. */
        consumer = house_join(&house, GPUIPC_CHANNEL_CONSUMER);
        while (gpuipc_channel_take(consumer, stream, 0, &item, &error) == GPUIPC_OK) {
                ck_assert_int_eq(item.broken, 0);
                good(gpuipc_channel_release(consumer, &item, stream, &error));
        }
        go_on(producer, consumer, stream);
        good(gpuipc_channel_free(consumer, &error));
        end(producer);
        return at_step;
}

/* Check gives each run a process of its own, since CUDA is initialised once in each. The last comes through: none was left out. */
static void check_end(bool at_step, int last) {
        ck_assert_msg(at_step || steps > last / 4, "came through after %d steps", steps);
        if (steps == last)
                ck_assert(!at_step);
}

START_TEST(a_producer_dies_at_each_step_of_a_queue) {
        steps = _i;
        check_end(a_producer_dies(RING_QUEUE), PRODUCER_STEPS);
} END_TEST

START_TEST(a_producer_dies_at_each_step_of_a_broadcast) {
        steps = _i;
        check_end(a_producer_dies(RING_BROADCAST), PRODUCER_STEPS);
} END_TEST

START_TEST(a_consumer_dies_at_each_step_of_a_queue) {
        steps = _i;
        check_end(a_consumer_dies(RING_QUEUE), CONSUMER_STEPS);
} END_TEST

START_TEST(a_consumer_dies_at_each_step_of_a_broadcast) {
        steps = _i;
        check_end(a_consumer_dies(RING_BROADCAST), CONSUMER_STEPS);
} END_TEST

int main(void) {
        Suite *suite = suite_create("client_cuda_channel_deaths");
        TCase *tests = tcase_create("deaths");

        tcase_set_timeout(tests, 60);
        tcase_add_loop_test(tests, a_producer_dies_at_each_step_of_a_queue, 1, PRODUCER_STEPS + 1);
        tcase_add_loop_test(tests, a_producer_dies_at_each_step_of_a_broadcast, 1, PRODUCER_STEPS + 1);
        tcase_add_loop_test(tests, a_consumer_dies_at_each_step_of_a_queue, 1, CONSUMER_STEPS + 1);
        tcase_add_loop_test(tests, a_consumer_dies_at_each_step_of_a_broadcast, 1, CONSUMER_STEPS + 1);
        suite_add_tcase(suite, tests);
        return suite_run(suite);
}
