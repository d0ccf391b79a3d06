/* SPDX-License-Identifier: Apache-2.0 */
/* Forks the receivers, measures in the sender. Items carry their number in the first word; 0 ends. Before a process is forked this one
 * holds nothing of the library's. */
#include "trial.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "include/gpuipc.h"

#define SAMPLES_MAX 100000
#define WARM_UP 20

static int line_prepare(const struct trial *trial, int n_receivers, struct line *line) {
        *line = (struct line){ .kind = trial->kind, .socket_path = trial->socket_path, .device = trial->device,
                               .item_bytes = trial->item_bytes, .n_receivers = n_receivers };
        return line->kind->make(line);
}

static void item_number(unsigned char *bytes, uint64_t number) {
        (void)memcpy(bytes, &number, sizeof(number));
}

static int give_up(const struct line *line, struct trial_result *result) {
        (void)snprintf(result->why, sizeof(result->why), "%s", line->why);
        return -1;
}

/* ---- receivers -------------------------------------------------------------------------------------------- */

/* In a child. Items of `there` until number 0; each is answered over `back`, if that is given. An exit status. */
static int receive_all(struct line *there, int me, struct line *back) {
        unsigned char *bytes = calloc(1, there->item_bytes);
        uint64_t number = 1;
        int r = bytes ? 0 : -1;

        if (r == 0 && back)
                r = back->kind->join(back, -1);
        if (r == 0)
                r = there->kind->join(there, me);
        while (r == 0 && number != 0) {
                r = there->kind->receive(there, &number);
                if (r == 0 && back) {
                        item_number(bytes, number);
                        r = back->kind->send(back, bytes);
                }
        }
        if (there->why[0])
                fprintf(stderr, "gpuipcctl: bench: %s\n", there->why);
        there->kind->leave(there);
        if (back)
                back->kind->leave(back);
        free(bytes);
        return r != 0;
}

static pid_t start(struct line *there, int me, struct line *back) {
        pid_t pid = fork();

        if (pid == 0)
                _exit(receive_all(there, me, back));
        return pid;
}

static int finish(const pid_t *pids, int n, struct trial_result *result) {
        int r = 0;

        for (int i = 0; i < n; i++) {
                int status = 0;

                if (pids[i] > 0 && waitpid(pids[i], &status, 0) == pids[i] && status == 0)
                        continue;
                if (!result->why[0])
                        (void)snprintf(result->why, sizeof(result->why), "a process of the measurement failed");
                r = -1;
        }
        return r;
}

/* ---- there and back --------------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b) {
        double x = *(const double *)a, y = *(const double *)b;
        return (x > y) - (x < y);
}

static double nsec_now(void) {
        struct timespec t;

        (void)clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int settle(struct line *line) {
        return line->kind->settle ? line->kind->settle(line) : 0;
}

static int exchange(struct line *there, struct line *back, unsigned char *bytes, uint64_t number) {
        uint64_t answer;

        item_number(bytes, number);
        return there->kind->send(there, bytes) < 0 || back->kind->receive(back, &answer) < 0 ? -1 : settle(back);
}

static int measure_handoff(const struct trial *trial, struct line *there, struct line *back, unsigned char *bytes, double *samples,
                           struct trial_result *result) {
        double until;
        size_t n = 0;

        for (int i = 0; i < WARM_UP; i++)
                if (exchange(there, back, bytes, 1) < 0)
                        return -1;
        until = nsec_now() + (double)trial->usec * 1e3;
        while (n < SAMPLES_MAX && (n == 0 || nsec_now() < until)) {
                double started = nsec_now();
                if (exchange(there, back, bytes, 1) < 0)
                        return -1;
                samples[n++] = (nsec_now() - started) / 2e3;
        }
        qsort(samples, n, sizeof(*samples), compare);
        result->p50_usec = samples[n / 2];
        result->p99_usec = samples[n - 1 - n / 100];
        return exchange(there, back, bytes, 0);
}

int trial_handoff(const struct trial *trial, struct trial_result *result) {
        double *samples = calloc(SAMPLES_MAX, sizeof(*samples));
        unsigned char *bytes = calloc(1, trial->item_bytes);
        struct line there, back;
        int r = -1;
        pid_t pid;

        if (!samples || !bytes || line_prepare(trial, 1, &there) < 0 || line_prepare(trial, 1, &back) < 0) {
                (void)snprintf(result->why, sizeof(result->why), "out of memory or descriptors");
        } else {
                pid = start(&there, 0, &back);
                r = there.kind->join(&there, -1);
                if (r == 0)
                        r = back.kind->join(&back, 0);
                if (r == 0)
                        r = measure_handoff(trial, &there, &back, bytes, samples, result);
                if (r < 0)
                        (void)give_up(there.why[0] ? &there : &back, result);
                there.kind->leave(&there);
                back.kind->leave(&back);
                r = finish(&pid, 1, result) < 0 ? -1 : r;
        }
        free(samples);
        free(bytes);
        return r;
}

/* ---- one after another ------------------------------------------------------------------------------------ */

static int measure_flow(const struct trial *trial, struct line *line, unsigned char *bytes, struct trial_result *result) {
        uint64_t n = 0;
        double started, now;

        for (int i = 0; i < WARM_UP; i++) {
                item_number(bytes, 1);
                if (line->kind->send(line, bytes) < 0)
                        return -1;
        }
        started = nsec_now();
        do {
                for (int i = 0; i < 16; i++, n++)
                        if (line->kind->send(line, bytes) < 0)
                                return -1;
                now = nsec_now();
        } while (now < started + (double)trial->usec * 1e3);
        if (settle(line) < 0)
                return -1;
        now = nsec_now();
        result->items = (double)n * 1e9 / (now - started);
        item_number(bytes, 0);
        return line->kind->send(line, bytes);
}

/* A broadcast is for those who are there: they are, once the first items fill its slots. */
static int wait_for_receivers(struct line *line) {
        if (!line->channel)
                return 0;
        for (int tries = 0; tries < 30000; tries++) {
                gpuipc_channel_stats stats = GPUIPC_CHANNEL_STATS_INIT;

                if (gpuipc_channel_get_stats(line->channel, &stats, NULL) == GPUIPC_OK && stats.n_members > line->n_receivers)
                        return 0;
                (void)usleep(1000);
        }
        (void)snprintf(line->why, sizeof(line->why), "the receivers did not attach");
        return -1;
}

int trial_flow(const struct trial *trial, struct trial_result *result) {
        unsigned char *bytes = calloc(1, trial->item_bytes);
        pid_t pids[LINE_RECEIVERS_MAX];
        struct line line;
        int r = -1;

        if (!bytes || line_prepare(trial, trial->n_receivers, &line) < 0) {
                (void)snprintf(result->why, sizeof(result->why), "out of memory or descriptors");
        } else {
                for (int i = 0; i < trial->n_receivers; i++)
                        pids[i] = start(&line, i, NULL);
                r = line.kind->join(&line, -1);
                if (r == 0)
                        r = wait_for_receivers(&line);
                if (r == 0)
                        r = measure_flow(trial, &line, bytes, result);
                if (r < 0)
                        (void)give_up(&line, result);
                line.kind->leave(&line);
                r = finish(pids, trial->n_receivers, result) < 0 ? -1 : r;
        }
        free(bytes);
        return r;
}

/* ---- apart ------------------------------------------------------------------------------------------------ */

static int hear(int fd, struct trial_result *result) {
        size_t got = 0;

        while (got < sizeof(*result)) {
                ssize_t n = read(fd, (char *)result + got, sizeof(*result) - got);
                if (n <= 0) {
                        (void)snprintf(result->why, sizeof(result->why), "the measuring process ended early");
                        return -1;
                }
                got += (size_t)n;
        }
        return result->why[0] ? -1 : 0;
}

int trial_apart(int (*run)(const struct trial *trial, struct trial_result *result), const struct trial *trial,
                struct trial_result *result) {
        int fds[2], r = -1, error = 0;
        pid_t pid = -1;

        if (pipe2(fds, O_CLOEXEC) < 0) {
                error = errno;
        } else {
                pid = fork();
                error = pid < 0 ? errno : 0;
                if (pid == 0) {
                        if (run(trial, result) < 0 && !result->why[0])
                                (void)snprintf(result->why, sizeof(result->why), "it failed");
                        _exit(write(fds[1], result, sizeof(*result)) != sizeof(*result));
                }
                (void)close(fds[1]);
                r = pid > 0 ? hear(fds[0], result) : -1;
                (void)close(fds[0]);
        }
        if (pid < 0)
                (void)snprintf(result->why, sizeof(result->why), "a process cannot be made: %s", strerrordesc_np(error));
        else
                (void)waitpid(pid, NULL, 0);
        return r;
}
