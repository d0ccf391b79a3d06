/* SPDX-License-Identifier: Apache-2.0 */
/* The round of checks, and how they speak. One thread. Never prints. */
#include "doctor.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "advice.h"

static void (*const checks[])(struct doctor *doctor) = {
        check_socket, check_daemon, check_identity, check_namespaces, check_shm,   check_platform,
        check_driver, check_nodes,  check_devices,  check_limits,     check_trial,
};

const char *finding_level_name(enum finding_level level) {
        static const char *const names[N_FINDING_LEVELS] = {
                [FINDING_OK] = "ok", [FINDING_NOTE] = "note", [FINDING_WARN] = "warn", [FINDING_FAIL] = "fail",
        };

        return names[level];
}

void doctor_run(struct doctor *doctor, const struct doctor_options *options) {
        *doctor = (struct doctor){
                .options = options,
                .root = options->root ? options->root : "",
                .daemon = { .pid = -1, .shm_device = -1 },
                .visible = getenv("CUDA_VISIBLE_DEVICES"),
                .cuda_fault = N_DOCTOR_CODES,
        };
        doctor->container = place_is_container(doctor->root);
        doctor->platform = place_platform(doctor->root);
        for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++)
                checks[i](doctor);
        gpuipc_client_free(doctor->client);
        doctor->client = NULL;
}

__attribute__((format(printf, 2, 0)))
static void say(struct doctor *doctor, const char *cause, va_list list, struct finding *finding) {
        char text[1024];

        (void)vsnprintf(text, sizeof(text), cause, list);
        finding->cause = text;
        doctor->n_found[finding->level]++;
        doctor->options->found(finding, doctor->options->data);
}

void doctor_say(struct doctor *doctor, enum finding_level level, enum doctor_code code, const char *check,
                const char *cause, ...) {
        struct finding finding = { .level = level, .code = code, .check = check, .fix = advice(code) };
        va_list list;

        va_start(list, cause);
        say(doctor, cause, list, &finding);
        va_end(list);
}

void doctor_say_with(struct doctor *doctor, enum finding_level level, enum doctor_code code, const char *check,
                     const char *word, const char *value, const char *cause, ...) {
        char fix[ADVICE_SIZE];
        struct finding finding = { .level = level, .code = code, .check = check, .fix = fix };
        va_list list;

        advice_fill(code, word, value, fix);
        va_start(list, cause);
        say(doctor, cause, list, &finding);
        va_end(list);
}

void doctor_say_fix(struct doctor *doctor, enum finding_level level, enum doctor_code code, const char *check,
                    const char *fix, const char *figures, const char *cause, ...) {
        struct finding finding = { .level = level, .code = code, .check = check, .fix = fix, .figures = figures };
        va_list list;

        va_start(list, cause);
        say(doctor, cause, list, &finding);
        va_end(list);
}

bool doctor_daemon_has_gpu(const struct doctor *doctor) {
        for (size_t i = 0; i < doctor->daemon.n_devices; i++)
                if (doctor->daemon.devices[i].cuda)
                        return true;
        return false;
}

enum finding_level doctor_cuda_level(const struct doctor *doctor) {
        /* Where nothing of CUDA is to be seen and no daemon says otherwise, it may not be wanted. */
        if (!doctor->daemon.version[0])
                return doctor->here.end == PROBE_ABSENT && !doctor->here.result ? FINDING_NOTE : FINDING_WARN;
        if (doctor_daemon_has_gpu(doctor))
                return FINDING_FAIL;
        /* A library that is there was meant to work. */
        return doctor->here.end == PROBE_REFUSED ? FINDING_WARN : FINDING_NOTE;
}

const struct doctor_gpu *doctor_gpu_find(const struct doctor_cuda *cuda, const char *uuid) {
        const char *digits = strchr(uuid, '-');

        for (size_t i = 0; digits && i < cuda->n_gpus; i++) {
                const char *others = strchr(cuda->gpus[i].uuid, '-');
                if (others && strcasecmp(digits, others) == 0)
                        return &cuda->gpus[i];
        }
        return NULL;
}
