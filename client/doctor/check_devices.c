/* SPDX-License-Identifier: Apache-2.0 */
/* The GPUs here beside the daemon's: hidden, renumbered, not given, and what each can do. Works on what the probes told. */
#include <stdio.h>
#include <string.h>

#include "doctor.h"

#define CHECK "devices"

static size_t count_entries(const char *list) {
        size_t n = list[0] != 0;

        for (; *list; list++)
                n += *list == ',';
        return n;
}

static void entry_at(const char *list, size_t i, char *ret, size_t n) {
        while (i-- > 0)
                list = strchr(list, ',') + 1;
        (void)snprintf(ret, n, "%.*s", (int)strcspn(list, ","), list);
}

/* Fewer GPUs than entries: the first of the rest is one CUDA does not know. */
static void check_visible(struct doctor *doctor) {
        size_t entries = count_entries(doctor->visible);
        size_t n = doctor->here.n_gpus;
        char entry[80];

        if (entries > n) {
                entry_at(doctor->visible, n, entry, sizeof(entry));
                doctor_say(doctor, FINDING_WARN, DOCTOR_VISIBLE_INVALID, CHECK,
                           "CUDA_VISIBLE_DEVICES is \"%s\", but CUDA shows only %zu of these: \"%s\" is no GPU that is here.",
                           doctor->visible, n, entry);
        }
        for (size_t i = 0; i < n && i < doctor->whole.n_gpus; i++)
                if (strcmp(doctor->here.gpus[i].uuid, doctor->whole.gpus[i].uuid) != 0) {
                        doctor_say(doctor, FINDING_NOTE, DOCTOR_VISIBLE_RENUMBERED, CHECK,
                                   "By CUDA_VISIBLE_DEVICES, \"%s\", GPU %zu here is %s; without it that number is %s.",
                                   doctor->visible, i, doctor->here.gpus[i].uuid, doctor->whole.gpus[i].uuid);
                        break;
                }
}

/* The daemon's that are not seen here. How many are seen by both. */
static size_t compare_theirs(struct doctor *doctor) {
        const struct doctor_daemon *daemon = &doctor->daemon;
        size_t shared = 0;

        for (size_t i = 0; i < daemon->n_devices; i++) {
                const char *uuid = daemon->devices[i].uuid;
                if (!daemon->devices[i].cuda)
                        continue;
                if (doctor_gpu_find(&doctor->here, uuid))
                        shared++;
                else if (doctor_gpu_find(&doctor->whole, uuid))
                        doctor_say(doctor, FINDING_NOTE, DOCTOR_GPU_HIDDEN, CHECK,
                                   "The daemon's %s is here, and hidden by CUDA_VISIBLE_DEVICES, \"%s\".", uuid, doctor->visible);
                else
                        doctor_say(doctor, FINDING_WARN, DOCTOR_GPU_NOT_GIVEN, CHECK,
                                   "The daemon has %s (%s), and CUDA does not show it here at all.", uuid,
                                   daemon->devices[i].name);
        }
        return shared;
}

static size_t compare_ours(struct doctor *doctor) {
        size_t strange = 0;

        for (size_t i = 0; i < doctor->here.n_gpus; i++) {
                const struct doctor_gpu *gpu = &doctor->here.gpus[i];
                bool theirs = false;
                for (size_t k = 0; k < doctor->daemon.n_devices && !theirs; k++)
                        theirs = doctor_gpu_find(&(struct doctor_cuda){ .gpus = { *gpu }, .n_gpus = 1 },
                                                 doctor->daemon.devices[k].uuid) != NULL;
                if (theirs)
                        continue;
                strange++;
                doctor_say(doctor, FINDING_NOTE, DOCTOR_GPU_NOT_BROKERED, CHECK,
                           "%s (%s) is here, and is none of the daemon's.", gpu->uuid, gpu->name);
        }
        return strange;
}

static void compare(struct doctor *doctor) {
        size_t shared, strange, n_said = doctor->n_found[FINDING_NOTE] + doctor->n_found[FINDING_WARN];

        if (!doctor_daemon_has_gpu(doctor)) {
                doctor_say(doctor, FINDING_FAIL, DOCTOR_DAEMON_NO_GPU, CHECK,
                           "CUDA works here, with %zu %s, but the daemon has none: it lends host memory only.",
                           doctor->here.n_gpus, doctor->here.n_gpus == 1 ? "GPU" : "GPUs");
                return;
        }
        shared = compare_theirs(doctor);
        strange = compare_ours(doctor);
        if (strange == 0 && n_said == doctor->n_found[FINDING_NOTE] + doctor->n_found[FINDING_WARN])
                doctor_say(doctor, FINDING_OK, DOCTOR_DEVICES_SAME, CHECK, "The daemon and you see the same %zu %s.", shared,
                           shared == 1 ? "GPU" : "GPUs");
}

static void check_abilities(struct doctor *doctor) {
        for (size_t i = 0; i < doctor->here.n_gpus; i++) {
                const struct doctor_gpu *gpu = &doctor->here.gpus[i];
                if (gpu->mig)
                        doctor_say(doctor, FINDING_NOTE, DOCTOR_MIG, CHECK, "%s (%s) is a slice of a GPU.", gpu->uuid, gpu->name);
                if (!gpu->vmm || !gpu->fd)
                        doctor_say(doctor, FINDING_WARN, DOCTOR_NO_VMM, CHECK,
                                   "%s (%s) has no %s, which handles of the kind cuda-fd need.", gpu->uuid, gpu->name,
                                   gpu->vmm ? "memory that is shared by descriptor" : "virtual memory management");
                if (!gpu->memops)
                        doctor_say(doctor, FINDING_WARN, DOCTOR_NO_STREAM_MEMOPS, CHECK,
                                   "%s (%s) has no 64-bit stream memory operations.", gpu->uuid, gpu->name);
        }
}

void check_devices(struct doctor *doctor) {
        if (!doctor->daemon.version[0] && doctor->here.end != PROBE_DONE)
                return;
        if (doctor->here.end == PROBE_DONE) {
                if (doctor->visible)
                        check_visible(doctor);
                check_abilities(doctor);
                if (doctor->daemon.version[0])
                        compare(doctor);
        } else if (!doctor_daemon_has_gpu(doctor)) {
                doctor_say(doctor, FINDING_NOTE, DOCTOR_DAEMON_NO_GPU, CHECK, "The daemon lends host memory only.");
        }
}
