/* SPDX-License-Identifier: Apache-2.0 */
/* A child that calls the driver in this process's place, and writes lines about it. It may crash or hang. */
#ifndef DOCTOR_CHILD_H
#define DOCTOR_CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHILD_NAME "gpuipcctl-doctor-probe" /* its argv[0], by which main() knows it */
#define CHILD_WORDS_MAX 6

struct child_task {
        const char *words[CHILD_WORDS_MAX]; /* its arguments, NULL-ended */
        bool all_visible;                   /* without CUDA_VISIBLE_DEVICES */
        int patience_ms;
        void (*line)(const char *key, const char *value, void *data); /* "uuid GPU-…" as "uuid" and "GPU-…" */
        void (*waiting)(const char *what, int64_t waited_ms, void *data); /* may be NULL */
        void *data, *waiting_data;
};

enum child_end {
        CHILD_DONE,
        CHILD_HUNG,    /* killed at its deadline */
        CHILD_CRASHED, /* ended early; `signal` is 0 when it was no signal */
        CHILD_FAILED,  /* could not be had */
};

struct child_outcome {
        enum child_end end;
        int signal, error;
        char call[64]; /* what it was doing, "cuInit()" */
};

void child_run(const struct child_task *task, struct child_outcome *ret);

/* ---- the child's side -------------------------------------------------------------------------------------- */

/* Runs the task that its arguments name; the exit status. */
int child_main(int argc, char **argv);

/* A line, at once. */
void child_tell(const char *key, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* What is about to be called. */
void child_calls(const char *call);

int child_probe(void);
/* The daemon has timeout_ms for each of its answers. */
int child_trial(const char *socket, const char *device, const char *handle, int timeout_ms);

#endif
