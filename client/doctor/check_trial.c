/* SPDX-License-Identifier: Apache-2.0 */
/* The proof: one buffer of each kind on each device, tried by a child. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "advice.h"
#include "child.h"
#include "doctor.h"

#define CHECK "trial"

struct trial {
        int64_t allocate, map, write, read, release; /* microseconds; -1: did not come so far */
        int zero, same, peer;                        /* -1: not seen */
        char step[16], code[8], words[600];          /* what failed */
};

static void time_take(struct trial *trial, const char *value) {
        const struct {
                const char *name;
                int64_t *to;
        } times[] = {
                { "allocate ", &trial->allocate }, { "map ", &trial->map },         { "write ", &trial->write },
                { "read ", &trial->read },         { "release ", &trial->release },
        };

        for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++)
                if (strncmp(value, times[i].name, strlen(times[i].name)) == 0)
                        *times[i].to = strtoll(value + strlen(times[i].name), NULL, 10);
}

static void line_take(const char *key, const char *value, void *data) {
        struct trial *trial = data;
        int at = 0;

        if (strcmp(key, "usec") == 0)
                time_take(trial, value);
        else if (strcmp(key, "zero") == 0)
                trial->zero = (int)strtol(value, NULL, 10);
        else if (strcmp(key, "same") == 0)
                trial->same = (int)strtol(value, NULL, 10);
        else if (strcmp(key, "peer") == 0)
                trial->peer = (int)strtol(value, NULL, 10);
        else if (strcmp(key, "error") == 0 && sscanf(value, "%15s %7s %n", trial->step, trial->code, &at) == 2)
                (void)snprintf(trial->words, sizeof(trial->words), "%.599s", value + at);
}

/* The library says a code at the end of its text, which a finding shows in its own place. */
static void drop_code(char *words) {
        size_t n = strlen(words);

        if (n > 7 && words[n - 1] == ']' && words[n - 6] == '[')
                words[n - 7] = 0;
}

static void say_failed(struct doctor *doctor, const char *what, struct trial *trial) {
        enum doctor_code code = strcmp(trial->step, "allocate") == 0  ? DOCTOR_TRIAL_REFUSED
                                : strcmp(trial->step, "release") == 0 ? DOCTOR_TRIAL_RELEASE
                                                                      : DOCTOR_TRIAL_MAP;

        (void)advice_find(trial->code, &code);
        drop_code(trial->words);
        doctor_say(doctor, FINDING_FAIL, code, CHECK, "%s: %s", what, trial->words);
}

static void say_lost(struct doctor *doctor, const char *what, const struct child_outcome *outcome) {
        const char *call = outcome->call[0] ? outcome->call : "its start";

        if (outcome->end == CHILD_HUNG)
                doctor_say(doctor, FINDING_FAIL, DOCTOR_DRIVER_HANGS, CHECK,
                           "%s: %s has not returned within %d ms. The process that called it was killed.", what, call,
                           doctor->options->patience_ms);
        else if (outcome->end == CHILD_CRASHED)
                doctor_say(doctor, FINDING_FAIL, DOCTOR_DRIVER_CRASHES, CHECK, "%s: the process that tried it ended by %s, in %s.",
                           what, outcome->signal ? strsignal(outcome->signal) : "itself", call);
        else
                doctor_say(doctor, FINDING_WARN, DOCTOR_TRIAL_SKIPPED, CHECK, "%s: no process could be made to try it: %s.", what,
                           strerror(outcome->error));
}

static void say_well(struct doctor *doctor, const char *what, const struct doctor_device *device, const char *handle,
                     const struct trial *trial) {
        char figures[400];

        (void)snprintf(figures, sizeof(figures),
                       "{\"device\":\"%s\",\"handle\":\"%s\",\"bytes\":2097152,\"allocate_usec\":%" PRId64 ",\"map_usec\":%" PRId64
                       ",\"write_usec\":%" PRId64 ",\"read_usec\":%" PRId64 ",\"release_usec\":%" PRId64 ",\"peer\":%s}",
                       device->uuid, handle, trial->allocate, trial->map, trial->write, trial->read, trial->release,
                       trial->peer >= 0 ? "true" : "false");
        doctor_say_fix(doctor, FINDING_OK, DOCTOR_TRIAL_WELL, CHECK, NULL, figures,
                       "%s: 2 MiB made in %.1f ms, mapped in %.1f, written in %.1f, read in %.1f, released in %.1f.", what,
                       (double)trial->allocate / 1e3, (double)trial->map / 1e3, (double)trial->write / 1e3,
                       (double)trial->read / 1e3, (double)trial->release / 1e3);
        if (trial->peer >= 0)
                doctor_say(doctor, FINDING_NOTE, DOCTOR_TRIAL_PEER, CHECK,
                           "%s: the memory was reached over GPU %d (%s), since its own is hidden here.", what, trial->peer,
                           (size_t)trial->peer < doctor->here.n_gpus ? doctor->here.gpus[trial->peer].uuid : "unknown");
}

/* Uses only what the child made sure of: UUIDs and kinds come from the daemon and go back to it. */
static void try(struct doctor *doctor, const struct doctor_device *device, const char *handle) {
        struct trial trial = { -1, -1, -1, -1, -1, -1, -1, -1, "", "", "" };
        char what[128], timeout[16];
        struct child_task task = {
                .words = { "trial", doctor->socket, device->uuid, handle, timeout },
                .patience_ms = doctor->options->patience_ms,
                .line = line_take,
                .data = &trial,
                .waiting = doctor->options->waiting,
                .waiting_data = doctor->options->data,
        };
        struct child_outcome outcome;

        (void)snprintf(what, sizeof(what), "%s on %s", handle, device->uuid);
        /* A daemon that does not answer is to be told apart from a driver that hangs here. */
        (void)snprintf(timeout, sizeof(timeout), "%d", doctor->options->patience_ms - doctor->options->patience_ms / 4);
        child_run(&task, &outcome);
        if (outcome.end != CHILD_DONE) {
                say_lost(doctor, what, &outcome);
                return;
        }
        if (trial.step[0]) {
                say_failed(doctor, what, &trial);
                return;
        }
        if (trial.same != 1)
                doctor_say(doctor, FINDING_FAIL, DOCTOR_TRIAL_BYTES, CHECK, "%s: what was read is not what was written.", what);
        else
                say_well(doctor, what, device, handle, &trial);
        if (trial.zero == 0 && strcmp(device->zeroed, "unknown") != 0)
                doctor_say(doctor, FINDING_FAIL, DOCTOR_TRIAL_NOT_ZERO, CHECK, "%s: new memory showed what others had left there.",
                           what);
}

void check_trial(struct doctor *doctor) {
        bool skipped = false;

        if (!doctor->client)
                return;
        for (size_t i = 0; i < doctor->daemon.n_devices; i++) {
                const struct doctor_device *device = &doctor->daemon.devices[i];
                if (device->degraded)
                        continue;
                if (device->cuda && doctor->cuda_fault != N_DOCTOR_CODES) {
                        skipped = true;
                        continue;
                }
                for (size_t k = 0; k < device->n_handles; k++)
                        try(doctor, device, device->handles[k]);
        }
        if (skipped)
                doctor_say(doctor, FINDING_NOTE, DOCTOR_TRIAL_SKIPPED, CHECK,
                           "Memory on GPUs was not tried, because of %s.", doctor_code_id(doctor->cuda_fault));
}
