/* SPDX-License-Identifier: Apache-2.0 */
/* Calls caught in a restart of the daemon: at each byte, refused for a while, by daemons that remember and such that do not. */
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "include/gpuipc.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"
#include "tests/support/wait.h"

#include "restart_broker.h"

struct scene {
        struct restart_broker *broker;
        gpuipc_client *client;
        gpuipc_buffer *held; /* through it all */
        char *pointer;
        gpuipc_error error;
};

#define no_error(scene, call) ck_assert_msg((call) == GPUIPC_OK, "%s", (scene)->error.message)

static void scene_open(struct scene *scene, enum broker_store store, int timeout_ms, int restart_ms) {
        void *pointer;

        *scene = (struct scene){ .broker = broker_start() };
        scene->broker->store = store;
        scene->client = broker_connect(scene->broker, timeout_ms, restart_ms, 0);
        scene->held = broker_allocate(scene->client);
        no_error(scene, gpuipc_buffer_map(scene->held, &pointer, &scene->error));
        scene->pointer = pointer;
        (void)strcpy(scene->pointer, "still here");
}

static void scene_close(struct scene *scene) {
        ck_assert_str_eq(scene->pointer, "still here");
        (void)gpuipc_release(scene->held, NULL);
        gpuipc_client_free(scene->client);
        broker_stop(scene->broker);
}

/* What is held stands in both books, and nothing else does. */
static void scene_check(struct scene *scene) {
        no_error(scene, gpuipc_buffer_check(scene->held, &scene->error));
        ck_assert(broker_has(scene->broker, gpuipc_buffer_lease(scene->held)));
        wait_for(broker_attached(scene->broker) == 1);
        ck_assert_uint_eq(broker_leases(scene->broker), 1);
        ck_assert_str_eq(scene->pointer, "still here");
}

/* ---- each call, each byte --------------------------------------------------------------------------------- */

/* A call whose plan is set by `plan` right before it is made. */
struct step {
        const char *method;
        void (*run)(struct scene *scene, const struct step *step, const struct broker_plan *plan);
};

static void plan_set(struct scene *scene, const struct broker_plan *plan) {
        if (plan && plan->method)
                broker_plan(scene->broker, *plan);
        else if (plan)
                fake_drop_next(scene->broker->fake);
}

static void run_allocate(struct scene *scene, const struct step *step, const struct broker_plan *plan) {
        gpuipc_buffer *buffer;
        void *pointer;

        (void)step;
        plan_set(scene, plan);
        no_error(scene, gpuipc_allocate(scene->client, BROKER_BYTES, NULL, &buffer, &scene->error));
        ck_assert_uint_eq(broker_leases(scene->broker), 2);
        no_error(scene, gpuipc_buffer_map(buffer, &pointer, &scene->error));
        no_error(scene, gpuipc_release(buffer, &scene->error));
}

static void run_open(struct scene *scene, const struct step *step, const struct broker_plan *plan) {
        gpuipc_buffer *buffer;

        (void)step;
        plan_set(scene, plan);
        no_error(scene, gpuipc_open_id(scene->client, "b0", NULL, &buffer, &scene->error));
        ck_assert_uint_eq(broker_leases(scene->broker), 2);
        no_error(scene, gpuipc_release(buffer, &scene->error));
}

static void run_release(struct scene *scene, const struct step *step, const struct broker_plan *plan) {
        gpuipc_buffer *buffer;

        (void)step;
        no_error(scene, gpuipc_allocate(scene->client, BROKER_BYTES, NULL, &buffer, &scene->error));
        plan_set(scene, plan);
        no_error(scene, gpuipc_release(buffer, &scene->error));
}

static void run_plain(struct scene *scene, const struct step *step, const struct broker_plan *plan) {
        scene->broker->sealed = scene->broker->freed = scene->broker->kicked = false;
        plan_set(scene, plan);
        if (strstr(step->method, "Seal"))
                no_error(scene, gpuipc_seal(scene->client, "b0", &scene->error));
        else if (strstr(step->method, "Free"))
                no_error(scene, gpuipc_free(scene->client, "b0", NULL, &scene->error));
        else
                no_error(scene, gpuipc_kick(scene->client, "s9", &scene->error));
}

static void note_status(const gpuipc_status_info *status, void *data) {
        *(bool *)data = status->session != NULL;
}

static int count_lease(const gpuipc_lease_info *lease, void *data) {
        (void)lease;
        ++*(unsigned *)data;
        return 0;
}

static int count_buffer(const gpuipc_buffer_info *buffer, void *data) {
        (void)buffer;
        ++*(unsigned *)data;
        return 0;
}

static void run_look(struct scene *scene, const struct step *step, const struct broker_plan *plan) {
        bool told = false;
        unsigned n = 0;

        plan_set(scene, plan);
        if (strstr(step->method, "GetStatus")) {
                no_error(scene, gpuipc_get_status(scene->client, note_status, &told, &scene->error));
                ck_assert(told);
        } else if (strstr(step->method, "ListBuffers")) {
                no_error(scene, gpuipc_list_buffers(scene->client, NULL, count_buffer, &n, &scene->error));
        } else {
                no_error(scene, gpuipc_list(scene->client, NULL, count_lease, &n, &scene->error));
                ck_assert_uint_eq(n, 1);
        }
}

static int count_text(const char *parameters, void *data) {
        (void)parameters;
        ++*(unsigned *)data;
        return 0;
}

static void run_json(struct scene *scene, const struct step *step, const struct broker_plan *plan) {
        unsigned n = 0;

        (void)step;
        plan_set(scene, plan);
        no_error(scene, gpuipc_call_json(scene->client, "io.gpuipc.Broker.GetStatus", NULL, 0, count_text, &n, &scene->error));
        ck_assert_uint_eq(n, 1);
}

static const struct step steps[] = {
        { ".Allocate\"", run_allocate }, { ".Open\"", run_open }, { ".Release\"", run_release }, { ".Seal\"", run_plain },
        { ".Free\"", run_plain }, { ".Kick\"", run_plain }, { ".GetStatus\"", run_look }, { ".List\"", run_look },
        { ".ListBuffers\"", run_look }, { ".GetStatus\"", run_json },
};

/* Every byte at both ends of a reply, one in seven between. */
static size_t next_byte(size_t n, size_t total) {
        return n < 16 || n + 16 > total ? n + 1 : n + 7;
}

START_TEST(each_call_at_each_byte) {
        const struct step *step = &steps[_i];
        struct scene scene;
        size_t total;

        check_fd_count_begin();
        scene_open(&scene, STORE_KEEPS, 20000, 0);
        scene.broker->strict_seal = true;
        step->run(&scene, step, NULL);
        scene_check(&scene);
        /* Sent and not read; read, and nothing done. */
        step->run(&scene, step, &(struct broker_plan){ 0 });
        scene_check(&scene);
        step->run(&scene, step, &(struct broker_plan){ .method = step->method, .before = true });
        scene_check(&scene);
        /* Done, and the reply cut off. The last byte is its end: then it is whole, and the crash comes after it. */
        step->run(&scene, step, NULL);
        total = broker_reply_bytes(scene.broker);
        for (size_t n = 0; n <= total; n = next_byte(n, total)) {
                step->run(&scene, step, &(struct broker_plan){ .method = step->method, .n_bytes = n });
                ck_assert(!broker_planned(scene.broker));
                scene_check(&scene);
        }
        ck_assert_int_ge(gpuipc_client_restarts(scene.client), 18);
        scene_close(&scene);
        check_fd_count_end();
}
END_TEST

/* The daemon goes again while it is asked to take the session up: before it is done, and with any part of the reply lost. */
START_TEST(resume_is_cut_off_too) {
        struct scene scene;
        size_t total;

        check_fd_count_begin();
        scene_open(&scene, STORE_KEEPS, 20000, 0);
        broker_crash_planning(scene.broker, (struct broker_plan){ .method = ".Resume\"", .before = true });
        no_error(&scene, gpuipc_seal(scene.client, "b0", &scene.error));
        scene_check(&scene);
        broker_crash(scene.broker);
        wait_for(broker_attached(scene.broker) == 1);
        total = broker_reply_bytes(scene.broker);
        for (size_t n = 0; n <= total; n = next_byte(n, total)) {
                broker_crash_planning(scene.broker, (struct broker_plan){ .method = ".Resume\"", .n_bytes = n });
                if (n % 2 == 0) /* else the client is idle */
                        no_error(&scene, gpuipc_seal(scene.client, "b0", &scene.error));
                wait_for(!broker_planned(scene.broker));
                scene_check(&scene);
        }
        scene_close(&scene);
        check_fd_count_end();
}
END_TEST

/* ---- away for a while ------------------------------------------------------------------------------------- */

struct caller {
        struct scene *scene;
        pthread_t thread;
        atomic_bool done;
        int r;
        gpuipc_error error;
};

static void *seal(void *arg) {
        struct caller *caller = arg;

        caller->r = gpuipc_seal(caller->scene->client, "b0", &caller->error);
        atomic_store(&caller->done, true);
        return NULL;
}

static void *let_go(void *arg) {
        struct caller *caller = arg;

        caller->r = gpuipc_release(caller->scene->held, &caller->error);
        atomic_store(&caller->done, true);
        return NULL;
}

static void caller_start(struct caller *caller, struct scene *scene, void *(*run)(void *arg)) {
        *caller = (struct caller){ .scene = scene };
        ck_assert_int_eq(pthread_create(&caller->thread, NULL, run, caller), 0);
}

static int caller_end(struct caller *caller) {
        ck_assert_int_eq(pthread_join(caller->thread, NULL), 0);
        return caller->r;
}

struct stopped {
        struct scene scene;
        const struct step *step;
};

static void *run_step(void *arg) {
        struct stopped *stopped = arg;

        stopped->step->run(&stopped->scene, stopped->step, NULL);
        return NULL;
}

/* The outage itself takes this long: long enough for several tries in vain. */
static void stay_away(void) {
        (void)poll(NULL, 0, 120);
}

START_TEST(refused_for_a_while) {
        struct caller caller;
        struct scene scene;

        check_fd_count_begin();
        scene_open(&scene, STORE_KEEPS, 20000, 0);
        fake_down(scene.broker->fake, _i);
        broker_crash(scene.broker);
        caller_start(&caller, &scene, seal);
        stay_away();
        ck_assert(!atomic_load(&caller.done));
        no_error(&scene, gpuipc_buffer_check(scene.held, &scene.error));
        fake_up(scene.broker->fake);
        ck_assert_msg(caller_end(&caller) == GPUIPC_OK, "%s", caller.error.message);
        scene_check(&scene);
        scene_close(&scene);
        check_fd_count_end();
}
END_TEST

/* A daemon that stops says so, and keeps the session until its end: nobody hangs up on it before. */
START_TEST(stopping_is_waited_for) {
        const struct step *step = &steps[_i];
        struct stopped stopped = { .step = step };
        pthread_t thread;
        size_t n;

        check_fd_count_begin();
        scene_open(&stopped.scene, STORE_KEEPS, 20000, 0);
        broker_stopping(stopped.scene.broker);
        n = fake_count(stopped.scene.broker->fake, step->method, NULL);
        ck_assert_int_eq(pthread_create(&thread, NULL, run_step, &stopped), 0);
        wait_for(fake_count(stopped.scene.broker->fake, step->method, NULL) > n);
        (void)poll(NULL, 0, 20);
        ck_assert(fake_is_open(stopped.scene.broker->fake, 0));
        ck_assert_uint_eq(fake_count(stopped.scene.broker->fake, step->method, NULL), n + 1);
        broker_crash(stopped.scene.broker);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        scene_check(&stopped.scene);
        ck_assert_uint_eq(broker_resumes(stopped.scene.broker), 1);
        scene_close(&stopped.scene);
        check_fd_count_end();
}
END_TEST

START_TEST(released_while_stopping) {
        struct caller caller;
        struct scene scene;

        scene_open(&scene, STORE_KEEPS, 20000, 0);
        broker_stopping(scene.broker);
        caller_start(&caller, &scene, let_go);
        wait_for(fake_count(scene.broker->fake, ".Release\"", NULL) == 1);
        broker_crash(scene.broker);
        ck_assert_msg(caller_end(&caller) == GPUIPC_OK, "%s", caller.error.message);
        wait_for(broker_leases(scene.broker) == 0);
        gpuipc_client_free(scene.client);
        broker_stop(scene.broker);
}
END_TEST

/* One who connects for the first time is told at once. */
START_TEST(first_connection_is_not_patient) {
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        struct restart_broker *broker = broker_start();
        int64_t begun = now_ms();
        gpuipc_client *client;
        gpuipc_error error;

        options.socket_path = broker->fake->path;
        fake_down(broker->fake, ENOENT);
        ck_assert_int_eq(gpuipc_connect(&options, &client, &error), GPUIPC_ERROR_UNREACHABLE);
        ck_assert_int_lt(now_ms() - begun, slower_ms(5000));
        fake_up(broker->fake);
        broker_stop(broker);
}
END_TEST

/* A call has its own time; the lease outlives that. */
START_TEST(call_is_late_lease_stands) {
        struct scene scene;
        int64_t begun;
        int r;

        check_fd_count_begin();
        scene_open(&scene, STORE_KEEPS, slower_ms(800), slower_ms(20000));
        fake_down(scene.broker->fake, ECONNREFUSED);
        broker_crash(scene.broker);
        begun = now_ms();
        r = gpuipc_seal(scene.client, "b0", &scene.error);
        ck_assert_msg(r == GPUIPC_ERROR_UNREACHABLE, "%d", r);
        ck_assert_int_eq(scene.error.system_errno, ECONNREFUSED);
        ck_assert_int_ge(now_ms() - begun, 790);
        no_error(&scene, gpuipc_buffer_check(scene.held, &scene.error));
        fake_up(scene.broker->fake);
        wait_for(broker_attached(scene.broker) == 1);
        scene_check(&scene);
        scene_close(&scene);
        check_fd_count_end();
}
END_TEST

/* Nor is a reply to Resume that is slow to come asked for twice. */
START_TEST(resume_is_answered_late) {
        struct scene scene;

        check_fd_count_begin();
        scene_open(&scene, STORE_KEEPS, slower_ms(800), slower_ms(20000));
        scene.broker->store = STORE_SILENT;
        broker_crash(scene.broker);
        ck_assert_int_eq(gpuipc_seal(scene.client, "b0", &scene.error), GPUIPC_ERROR_TIMED_OUT);
        ck_assert_int_eq(gpuipc_seal(scene.client, "b0", &scene.error), GPUIPC_ERROR_TIMED_OUT);
        ck_assert_uint_eq(fake_count(scene.broker->fake, ".Resume\"", NULL), 1);
        no_error(&scene, gpuipc_buffer_check(scene.held, &scene.error));
        broker_answer_resumes(scene.broker);
        wait_for(gpuipc_seal(scene.client, "b0", &scene.error) == GPUIPC_OK);
        scene_check(&scene);
        scene_close(&scene);
        check_fd_count_end();
}
END_TEST

START_TEST(daemon_never_comes_back) {
        struct scene scene;
        int64_t begun, fastest;

        check_fd_count_begin();
        scene_open(&scene, STORE_KEEPS, 20000, 150);
        fake_down(scene.broker->fake, ENOENT);
        begun = now_ms();
        broker_crash(scene.broker);
        ck_assert_int_eq(gpuipc_seal(scene.client, "b0", &scene.error), GPUIPC_ERROR_UNREACHABLE);
        ck_assert_int_ge(now_ms() - begun, 140);
        ck_assert_int_eq(gpuipc_buffer_check(scene.held, &scene.error), GPUIPC_ERROR_LEASE_LOST);
        ck_assert_str_eq(scene.error.name, "gpuipc.LeaseLost");
        ck_assert_ptr_nonnull(strstr(scene.error.message, "restart_ms"));
        /* Nothing more is waited for, until it was seen again. */
        fastest = INT64_MAX;
        for (int i = 0; i < 5; i++) {
                begun = now_ms();
                ck_assert_int_eq(gpuipc_get_status(scene.client, NULL, NULL, &scene.error), GPUIPC_ERROR_UNREACHABLE);
                fastest = now_ms() - begun < fastest ? now_ms() - begun : fastest;
        }
        ck_assert_int_lt(fastest, 140);
        fake_up(scene.broker->fake);
        no_error(&scene, gpuipc_get_status(scene.client, NULL, NULL, &scene.error));
        ck_assert_str_eq(scene.pointer, "still here");
        ck_assert_int_eq(gpuipc_release(scene.held, &scene.error), GPUIPC_ERROR_LEASE_LOST);
        ck_assert_uint_eq(fake_count(scene.broker->fake, ".Release\"", NULL), 0);
        gpuipc_client_free(scene.client);
        broker_stop(scene.broker);
        check_fd_count_end();
}
END_TEST

/* What a mode forbids is not tried again. */
START_TEST(no_longer_allowed_in) {
        struct scene scene;
        int64_t begun;

        if (geteuid() != 0) {
                printf("SKIP no_longer_allowed_in: needs root to become another user\n");
                return;
        }
        scene_open(&scene, STORE_KEEPS, 20000, 20000);
        ck_assert_int_eq(chmod(scene.broker->fake->path, 0600), 0);
        ck_assert_int_eq(seteuid(65533), 0);
        begun = now_ms();
        broker_crash(scene.broker);
        int r = gpuipc_seal(scene.client, "b0", &scene.error);
        wait_for(gpuipc_buffer_check(scene.held, NULL) == GPUIPC_ERROR_LEASE_LOST);
        ck_assert_int_eq(seteuid(0), 0);
        ck_assert_int_eq(r, GPUIPC_ERROR_UNREACHABLE);
        ck_assert_int_eq(scene.error.system_errno, EACCES);
        ck_assert_int_lt(now_ms() - begun, 15000);
        ck_assert_int_eq(gpuipc_release(scene.held, &scene.error), GPUIPC_ERROR_LEASE_LOST);
        ck_assert_ptr_nonnull(strstr(scene.error.message, "AllowUsers"));
        gpuipc_client_free(scene.client);
        broker_stop(scene.broker);
}
END_TEST

/* ---- daemons that do not remember ------------------------------------------------------------------------- */

static const struct {
        enum broker_store store;
        int restart_ms;
        const char *words;
        int call; /* what the call caught in it comes to */
} losses[] = {
        { STORE_NONE, 20000, "no store", GPUIPC_ERROR_DISCONNECTED },
        { STORE_FORGETS, 20000, "kick", GPUIPC_OK },
        { STORE_DENIES, 20000, "AllowUsers=", GPUIPC_OK },
        { STORE_OLD, 20000, "newer gpuipcd", GPUIPC_OK },
        { STORE_KEEPS, -1, "restart_ms is -1", GPUIPC_ERROR_DISCONNECTED },
};

START_TEST(lost_leases_say_why) {
        gpuipc_buffer *fresh;
        struct scene scene;

        check_fd_count_begin();
        scene_open(&scene, losses[_i].store, 20000, losses[_i].restart_ms);
        broker_plan(scene.broker, (struct broker_plan){ .method = ".Seal\"", .before = true });
        ck_assert_int_eq(gpuipc_seal(scene.client, "b0", &scene.error), losses[_i].call);
        ck_assert_int_eq(gpuipc_buffer_check(scene.held, &scene.error), GPUIPC_ERROR_LEASE_LOST);
        ck_assert_msg(strstr(scene.error.message, losses[_i].words), "%s", scene.error.message);
        ck_assert_msg(strlen(scene.error.message) < sizeof(scene.error.message) - 1, "%s", scene.error.message);
        /* Everything else goes on. */
        no_error(&scene, gpuipc_seal(scene.client, "b0", &scene.error));
        no_error(&scene, gpuipc_allocate(scene.client, BROKER_BYTES, NULL, &fresh, &scene.error));
        no_error(&scene, gpuipc_buffer_check(fresh, &scene.error));
        ck_assert_str_eq(scene.pointer, "still here");
        ck_assert_int_eq(gpuipc_release(scene.held, &scene.error), GPUIPC_ERROR_LEASE_LOST);
        ck_assert_msg(strstr(scene.error.message, losses[_i].words), "%s", scene.error.message);
        no_error(&scene, gpuipc_release(fresh, &scene.error));
        gpuipc_client_free(scene.client);
        broker_stop(scene.broker);
        check_fd_count_end();
}
END_TEST

/* One buffer of several does not outlive the daemon. */
START_TEST(one_lease_is_lost) {
        gpuipc_buffer *more[3];
        struct scene scene;

        check_fd_count_begin();
        scene_open(&scene, STORE_KEEPS, 20000, 0);
        for (int i = 0; i < 3; i++)
                no_error(&scene, gpuipc_allocate(scene.client, BROKER_BYTES, NULL, &more[i], &scene.error));
        scene.broker->omit = "l2";
        broker_crash(scene.broker);
        no_error(&scene, gpuipc_seal(scene.client, "b0", &scene.error));
        no_error(&scene, gpuipc_buffer_check(scene.held, &scene.error));
        no_error(&scene, gpuipc_buffer_check(more[0], &scene.error));
        ck_assert_int_eq(gpuipc_buffer_check(more[1], &scene.error), GPUIPC_ERROR_LEASE_LOST);
        ck_assert_ptr_nonnull(strstr(scene.error.message, "cuda-ipc"));
        no_error(&scene, gpuipc_release(more[0], &scene.error));
        ck_assert_int_eq(gpuipc_release(more[1], &scene.error), GPUIPC_ERROR_LEASE_LOST);
        no_error(&scene, gpuipc_release(more[2], &scene.error));
        scene_check(&scene);
        scene_close(&scene);
        check_fd_count_end();
}
END_TEST

START_TEST(busy_daemon_is_asked_again) {
        struct scene scene;

        scene_open(&scene, STORE_KEEPS, 20000, 0);
        scene.broker->store = STORE_BUSY_ONCE;
        broker_crash(scene.broker);
        no_error(&scene, gpuipc_seal(scene.client, "b0", &scene.error));
        scene_check(&scene);
        scene_close(&scene);
}
END_TEST

/* A call that brings the daemon down each time is not made for ever. */
START_TEST(call_that_kills_is_given_up) {
        struct scene scene;
        size_t n;

        scene_open(&scene, STORE_KEEPS, 20000, 0);
        broker_always(scene.broker, ".Seal\"");
        ck_assert_int_eq(gpuipc_seal(scene.client, "b0", &scene.error), GPUIPC_ERROR_DISCONNECTED);
        n = fake_count(scene.broker->fake, ".Seal\"", NULL);
        ck_assert_uint_eq(n, 6);
        broker_always(scene.broker, NULL);
        no_error(&scene, gpuipc_seal(scene.client, "b0", &scene.error));
        scene_check(&scene);
        scene_close(&scene);
}
END_TEST

/* ---- letting go meanwhile --------------------------------------------------------------------------------- */

START_TEST(released_while_away) {
        struct caller caller;
        struct scene scene;
        gpuipc_buffer *other;

        check_fd_count_begin();
        scene_open(&scene, STORE_KEEPS, 20000, 0);
        no_error(&scene, gpuipc_allocate(scene.client, BROKER_BYTES, NULL, &other, &scene.error));
        fake_down(scene.broker->fake, ENOENT);
        broker_crash(scene.broker);
        caller_start(&caller, &scene, let_go);
        stay_away();
        ck_assert(!atomic_load(&caller.done));
        fake_up(scene.broker->fake);
        ck_assert_msg(caller_end(&caller) == GPUIPC_OK, "%s", caller.error.message);
        /* Taken up without it, which ended it: nothing was to be said. */
        ck_assert_uint_eq(fake_count(scene.broker->fake, ".Resume\"", "l1", NULL), 1);
        ck_assert_uint_eq(fake_count(scene.broker->fake, ".Resume\"", "l0", NULL), 0);
        ck_assert_uint_eq(fake_count(scene.broker->fake, ".Release\"", NULL), 0);
        ck_assert_uint_eq(broker_leases(scene.broker), 1);
        no_error(&scene, gpuipc_release(other, &scene.error));
        gpuipc_client_free(scene.client);
        broker_stop(scene.broker);
        check_fd_count_end();
}
END_TEST

/* Out of time: it ends when the daemon is back, and also when Resume had listed it already. */
START_TEST(released_too_late) {
        struct scene scene;
        gpuipc_buffer *other;
        int r;

        check_fd_count_begin();
        scene_open(&scene, STORE_KEEPS, slower_ms(800), slower_ms(20000));
        no_error(&scene, gpuipc_allocate(scene.client, BROKER_BYTES, NULL, &other, &scene.error));
        if (_i == 0)
                fake_down(scene.broker->fake, ENOENT);
        else
                scene.broker->store = STORE_SILENT;
        broker_crash(scene.broker);
        if (_i == 1)
                wait_for(fake_count(scene.broker->fake, ".Resume\"", "l1", NULL) == 1);
        r = gpuipc_release(other, &scene.error);
        ck_assert_int_eq(r, _i == 0 ? GPUIPC_ERROR_UNREACHABLE : GPUIPC_ERROR_TIMED_OUT);
        if (_i == 0)
                fake_up(scene.broker->fake);
        else
                broker_answer_resumes(scene.broker);
        wait_for(broker_leases(scene.broker) == 1 && broker_attached(scene.broker) == 1);
        ck_assert_uint_eq(fake_count(scene.broker->fake, ".Release\"", NULL), (size_t)_i);
        scene_check(&scene);
        scene_close(&scene);
        check_fd_count_end();
}
END_TEST

/* More leases than one Resume can list: in parts, and all come back; those let go meanwhile do not. */
START_TEST(thousands_of_leases) {
        enum { N = 15000 };
        static gpuipc_buffer *buffers[N];
        struct scene scene;

        check_fd_count_begin();
        scene_open(&scene, STORE_KEEPS, 60000, 0);
        for (int i = 0; i < N; i++)
                no_error(&scene, gpuipc_open_id(scene.client, "b0", NULL, &buffers[i], &scene.error));
        broker_crash(scene.broker);
        no_error(&scene, gpuipc_release(buffers[0], &scene.error));
        ck_assert_uint_eq(broker_leases(scene.broker), N);
        ck_assert_uint_eq(broker_resumes(scene.broker), 3);
        ck_assert_uint_eq(fake_count(scene.broker->fake, ".Resume\"", "\"follow\":", NULL), 2);
        /* Broken off between two parts: begun anew. */
        broker_crash_planning(scene.broker, (struct broker_plan){ .method = "\"follow\"", .n_bytes = SIZE_MAX });
        no_error(&scene, gpuipc_seal(scene.client, "b0", &scene.error));
        ck_assert_uint_eq(broker_leases(scene.broker), N);
        ck_assert_uint_eq(broker_resumes(scene.broker), 7);
        for (int i = 1; i < N; i++)
                no_error(&scene, gpuipc_release(buffers[i], &scene.error));
        scene_check(&scene);
        ck_assert_uint_eq(fake_open_peers(scene.broker->fake), 1);
        scene_close(&scene);
        check_fd_count_end();
}
END_TEST

static TCase *case_add(Suite *suite, const char *name) {
        TCase *tcase = tcase_create(name);

        tcase_set_timeout(tcase, 60);
        suite_add_tcase(suite, tcase);
        return tcase;
}

int main(void) {
        Suite *suite = suite_create("client_restart");
        TCase *calls = case_add(suite, "calls"), *away = case_add(suite, "away"), *lost = case_add(suite, "lost"),
              *release = case_add(suite, "release");

        tcase_add_loop_test(calls, each_call_at_each_byte, 0, (int)(sizeof(steps) / sizeof(steps[0])));
        tcase_add_test(calls, resume_is_cut_off_too);
        tcase_add_loop_test(away, refused_for_a_while, ENOENT, ENOENT + 1);
        tcase_add_loop_test(away, refused_for_a_while, ECONNREFUSED, ECONNREFUSED + 1);
        for (int i = 0; i < (int)(sizeof(steps) / sizeof(steps[0])); i++)
                if (strcmp(steps[i].method, ".Release\"") != 0) /* which is not the first call that its step makes */
                        tcase_add_loop_test(away, stopping_is_waited_for, i, i + 1);
        tcase_add_test(away, released_while_stopping);
        tcase_add_test(away, first_connection_is_not_patient);
        tcase_add_test(away, call_is_late_lease_stands);
        tcase_add_test(away, resume_is_answered_late);
        tcase_add_test(away, daemon_never_comes_back);
        tcase_add_test(away, no_longer_allowed_in);
        tcase_add_loop_test(lost, lost_leases_say_why, 0, (int)(sizeof(losses) / sizeof(losses[0])));
        tcase_add_test(lost, one_lease_is_lost);
        tcase_add_test(lost, busy_daemon_is_asked_again);
        tcase_add_test(lost, call_that_kills_is_given_up);
        tcase_add_test(release, released_while_away);
        tcase_add_loop_test(release, released_too_late, 0, 2);
        tcase_add_test(release, thousands_of_leases);
        return suite_run(suite);
}
