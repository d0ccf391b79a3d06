/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA in this process's place: a child loads the driver and tells. Looks a second time without CUDA_VISIBLE_DEVICES when that is set. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "child.h"
#include "doctor.h"
#include "version.h"

#define CHECK "driver"

/* What cuInit() answers (cuda.h). */
enum {
        RESULT_NO_DEVICE = 100,
        RESULT_OPERATING_SYSTEM = 304,
        RESULT_NOT_READY = 802,
        RESULT_DRIVER_MISMATCH = 803,
        RESULT_COMPAT_NOT_SUPPORTED = 804,
};

/* ---- asking ------------------------------------------------------------------------------------------------ */

static void gpu_take(struct doctor_cuda *cuda, const char *value) {
        struct doctor_gpu *gpu = &cuda->gpus[cuda->n_gpus];
        int mig, vmm, fd, memops, integrated, at = 0;

        if (cuda->n_gpus >= DOCTOR_DEVICES_MAX ||
            sscanf(value, "%63s %d %d %d %d %d %n", gpu->uuid, &mig, &vmm, &fd, &memops, &integrated, &at) != 6 || at == 0)
                return;
        gpu->mig = mig;
        gpu->vmm = vmm;
        gpu->fd = fd;
        gpu->memops = memops;
        gpu->integrated = integrated;
        (void)snprintf(gpu->name, sizeof(gpu->name), "%.95s", value + at);
        cuda->n_gpus++;
}

static void line_take(const char *key, const char *value, void *data) {
        struct doctor_cuda *cuda = data;
        int at = 0;

        if (strcmp(key, "library") == 0)
                (void)snprintf(cuda->library, sizeof(cuda->library), "%.255s", value);
        else if (strcmp(key, "driver") == 0)
                cuda->driver = (int)strtol(value, NULL, 10);
        else if (strcmp(key, "runtime") == 0)
                (void)sscanf(value, "%d %31s", &cuda->runtime, cuda->runtime_name);
        else if (strcmp(key, "gpu") == 0)
                gpu_take(cuda, value);
        else if (strcmp(key, "absent") == 0 || strcmp(key, "old") == 0) {
                cuda->end = PROBE_ABSENT;
                cuda->result = key[0] == 'o';
                (void)snprintf(cuda->words, sizeof(cuda->words), "%.255s", value);
        } else if (strcmp(key, "refused") == 0 && sscanf(value, "%d %n", &cuda->result, &at) == 1) {
                cuda->end = PROBE_REFUSED;
                (void)snprintf(cuda->words, sizeof(cuda->words), "%.255s", value + at);
        }
}

static void probe(const struct doctor *doctor, bool all_visible, struct doctor_cuda *ret) {
        struct child_task task = {
                .words = { "probe" },
                .all_visible = all_visible,
                .patience_ms = doctor->options->patience_ms,
                .line = line_take,
                .data = ret,
                .waiting = doctor->options->waiting,
                .waiting_data = doctor->options->data,
        };
        struct child_outcome outcome;

        *ret = (struct doctor_cuda){ .end = PROBE_DONE };
        child_run(&task, &outcome);
        switch (outcome.end) {
        case CHILD_DONE:
                return;
        case CHILD_HUNG:
                ret->end = PROBE_HANGS;
                break;
        case CHILD_CRASHED:
                ret->end = PROBE_CRASHED;
                ret->result = outcome.signal;
                break;
        case CHILD_FAILED:
                ret->end = PROBE_FAILED;
                (void)snprintf(ret->words, sizeof(ret->words), "%s", strerror(outcome.error));
                return;
        }
        (void)snprintf(ret->words, sizeof(ret->words), "%s", outcome.call[0] ? outcome.call : "the child's start");
}

/* ---- telling ----------------------------------------------------------------------------------------------- */

static bool read_module(const struct doctor *doctor, char *ret, size_t n) {
        char text[512];

        return place_read(doctor->root, "/proc/driver/nvidia/version", text, sizeof(text)) > 0 &&
               version_of_module(text, ret, n);
}

static enum doctor_code refused_code(const struct doctor *doctor) {
        switch (doctor->here.result) {
        case RESULT_NO_DEVICE:
                return doctor->visible && doctor->whole.n_gpus > 0 ? DOCTOR_VISIBLE_NONE : DOCTOR_NO_GPU;
        case RESULT_OPERATING_SYSTEM:
                return doctor->proc_is_own ? DOCTOR_DRIVER_INIT : DOCTOR_PROC_NOT_MOUNTED;
        case RESULT_NOT_READY:
                return DOCTOR_FABRIC;
        case RESULT_DRIVER_MISMATCH:
        case RESULT_COMPAT_NOT_SUPPORTED:
                return DOCTOR_DRIVER_MISMATCH;
        default:
                return DOCTOR_DRIVER_INIT;
        }
}

static void say_refused(struct doctor *doctor) {
        enum doctor_code code = refused_code(doctor);
        char module[64] = "";

        doctor->cuda_fault = code;
        if (code == DOCTOR_PROC_NOT_MOUNTED)
                return; /* said already, where /proc was looked at */
        if (code == DOCTOR_NO_GPU || code == DOCTOR_DRIVER_INIT) {
                doctor->cuda_unsaid = true;
                return;
        }
        if (code == DOCTOR_VISIBLE_NONE) {
                doctor_say(doctor, doctor_cuda_level(doctor), code, CHECK,
                           "CUDA_VISIBLE_DEVICES is \"%s\", which shows no GPU at all, of %zu that are here. %s.", doctor->visible,
                           doctor->whole.n_gpus, doctor->here.words);
                return;
        }
        if (code == DOCTOR_DRIVER_MISMATCH && read_module(doctor, module, sizeof(module))) {
                doctor_say(doctor, doctor_cuda_level(doctor), code, CHECK, "%s. The kernel module is %s, the library %s.",
                           doctor->here.words, module, doctor->here.library);
                return;
        }
        doctor_say(doctor, doctor_cuda_level(doctor), code, CHECK, "%s.", doctor->here.words);
}

static void say_well(struct doctor *doctor) {
        const struct doctor_cuda *cuda = &doctor->here;
        const char *library = version_of_library(cuda->library);
        char module[64] = "";

        (void)read_module(doctor, module, sizeof(module));
        doctor_say(doctor, FINDING_OK, DOCTOR_DRIVER_WELL, CHECK, "CUDA %d.%d works here%s%s, with %zu %s (%s).",
                   cuda->driver / 1000, cuda->driver % 1000 / 10, module[0] ? ", driver " : "", module, cuda->n_gpus,
                   cuda->n_gpus == 1 ? "GPU" : "GPUs", cuda->library);
        if (module[0] && library && strcmp(module, library) != 0)
                doctor_say(doctor, FINDING_NOTE, DOCTOR_DRIVER_MISMATCH, CHECK,
                           "The kernel module is %s, the library %s: a compat library, it seems. It works.", module, library);
        if (cuda->runtime / 1000 > cuda->driver / 1000)
                doctor_say(doctor, FINDING_WARN, DOCTOR_RUNTIME_NEWER, CHECK,
                           "%s is CUDA %d.%d, and the driver knows CUDA %d.%d at most: programs that use it get error 35, driver "
                           "version is insufficient.", cuda->runtime_name, cuda->runtime / 1000, cuda->runtime % 1000 / 10,
                           cuda->driver / 1000, cuda->driver % 1000 / 10);
}

/* A container that has the nodes was given the GPU without what computes on it. */
static const char capabilities_fix[] =
        "Let the container have the driver's CUDA library too, not only what nvidia-smi needs:\n"
        "  docker run -e NVIDIA_DRIVER_CAPABILITIES=compute,utility \\\n"
        "    --gpus all ...\n"
        "  podman run --device nvidia.com/gpu=all ...\n"
        "Where the library lies elsewhere, name its directory:\n"
        "  export LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/nvidia";

static void say_absent(struct doctor *doctor) {
        enum finding_level level = doctor_cuda_level(doctor);
        const char *words = doctor->here.words;

        doctor->cuda_fault = doctor->here.result ? DOCTOR_DRIVER_TOO_OLD : DOCTOR_NO_DRIVER_LIBRARY;
        if (doctor->daemon.version[0] && !doctor_daemon_has_gpu(doctor))
                doctor_say_fix(doctor, level, doctor->cuda_fault, CHECK, NULL, NULL,
                               "The driver's library cannot be loaded: %s. The daemon has no GPU either.", words);
        else if (doctor->container && !doctor->here.result && place_has(doctor->root, "/dev/nvidiactl"))
                doctor_say_fix(doctor, level, doctor->cuda_fault, CHECK, capabilities_fix, NULL,
                               "The driver's library cannot be loaded: %s. /dev/nvidiactl is here, so the container was given a "
                               "GPU%s%s.", words, getenv("NVIDIA_DRIVER_CAPABILITIES") ? ", with NVIDIA_DRIVER_CAPABILITIES=" : "",
                               getenv("NVIDIA_DRIVER_CAPABILITIES") ? getenv("NVIDIA_DRIVER_CAPABILITIES") : "");
        else
                doctor_say(doctor, level, doctor->cuda_fault, CHECK, "The driver's library cannot be loaded: %s.", words);
}

void check_driver(struct doctor *doctor) {
        const struct doctor_cuda *cuda = &doctor->here;

        probe(doctor, false, &doctor->here);
        if (doctor->visible && (cuda->end == PROBE_DONE || cuda->end == PROBE_REFUSED))
                probe(doctor, true, &doctor->whole);
        else
                doctor->whole = doctor->here;
        switch (cuda->end) {
        case PROBE_DONE:
                say_well(doctor);
                break;
        case PROBE_ABSENT:
                say_absent(doctor);
                break;
        case PROBE_REFUSED:
                say_refused(doctor);
                break;
        case PROBE_HANGS:
                doctor->cuda_fault = DOCTOR_DRIVER_HANGS;
                doctor_say(doctor, FINDING_FAIL, DOCTOR_DRIVER_HANGS, CHECK,
                           "The driver hangs: %s has not returned within %d ms. The process that called it was killed.",
                           cuda->words, doctor->options->patience_ms);
                break;
        case PROBE_CRASHED:
                doctor->cuda_fault = DOCTOR_DRIVER_CRASHES;
                doctor_say(doctor, FINDING_FAIL, DOCTOR_DRIVER_CRASHES, CHECK, "The process that called %s ended by %s.",
                           cuda->words, cuda->result ? strsignal(cuda->result) : "itself, within the call");
                break;
        case PROBE_FAILED:
                doctor->cuda_fault = DOCTOR_DRIVER_INIT;
                doctor_say(doctor, FINDING_WARN, DOCTOR_DRIVER_INIT, CHECK,
                           "CUDA was not tried, since no process could be made for it: %s.", cuda->words);
                break;
        }
}
