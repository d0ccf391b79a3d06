/* SPDX-License-Identifier: Apache-2.0 */
/* Closes what may block. Loop thread; farewell_work() alone runs on the pool. */
#include "farewell.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* A socket that lingers (SO_LINGER) keeps whoever closes it until its peer has read, for as long as its sender likes, but not beyond a
 * signal. By default this one is ignored. */
#define HURRY_SIGNAL SIGURG
#define HURRY_NS 1000000

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

struct farewell {
        struct job job;
        struct wire wire;
};

struct farewell *farewell_new(void) {
        return calloc(1, sizeof(struct farewell));
}

void farewell_free(struct farewell *farewell) {
        free(farewell);
}

static void hurry_on_signal(int signal) {
        (void)signal;
}

/* This thread gets the signal again and again until timer_delete(). */
static bool hurry_begin(timer_t *ret) {
        struct sigaction action = {.sa_handler = hurry_on_signal, .sa_flags = SA_RESTART};
        struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = HURRY_SIGNAL, .sigev_notify_thread_id = gettid()};
        struct itimerspec every = {.it_interval.tv_nsec = HURRY_NS, .it_value.tv_nsec = HURRY_NS};
        sigset_t signals;

        sigemptyset(&signals);
        sigaddset(&signals, HURRY_SIGNAL);
        if (sigaction(HURRY_SIGNAL, &action, NULL) < 0 || pthread_sigmask(SIG_UNBLOCK, &signals, NULL) != 0 ||
            timer_create(CLOCK_MONOTONIC, &event, ret) < 0)
                return false;
        (void)timer_settime(*ret, 0, &every, NULL);
        return true;
}

static int farewell_work(struct job *job) {
        struct farewell *farewell = container_of(job, struct farewell, job);
        timer_t timer;
        bool hurried = hurry_begin(&timer);

        wire_deinit(&farewell->wire);
        if (hurried)
                (void)timer_delete(timer);
        return 0;
}

static void farewell_done(struct job *job) {
        farewell_free(container_of(job, struct farewell, job));
}

void farewell_send(struct farewell *farewell_take, struct lane *lane, uid_t uid, struct wire *wire) {
        farewell_take->wire = *wire;
        wire_init(wire, -1, 0);
        farewell_take->job.uid = uid;
        farewell_take->job.work = farewell_work;
        farewell_take->job.done = farewell_done;
        lane_submit(lane, &farewell_take->job);
}
