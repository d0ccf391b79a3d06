/* SPDX-License-Identifier: Apache-2.0 */
/* Why CUDA IPC does not work here: the checks, in order, and what one learns for the next. One thread. Nothing of CUDA is ever loaded
 * into this process: whatever touches the driver runs in a child, which may crash or hang. */
#ifndef DOCTOR_DOCTOR_H
#define DOCTOR_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "finding.h"
#include "include/gpuipc.h"
#include "place.h"

#define DOCTOR_DEVICES_MAX 64
#define DOCTOR_HANDLES_MAX 4

struct doctor_options {
        const char *socket; /* NULL: as the library chooses */
        const char *root;   /* before every path of /proc, /dev, /etc and /sys that is looked at; NULL: nothing */
        int patience_ms;    /* for each child, and for the daemon's answers */
        /* Called for each finding as it is made; what it is given lives until it returns. */
        void (*found)(const struct finding *finding, void *data);
        /* Called now and then while a child is waited for; `what` is what it is doing. May be NULL. */
        void (*waiting)(const char *what, int64_t waited_ms, void *data);
        void *data;
};

struct doctor_device {
        char uuid[64], name[64], zeroed[16];
        bool cuda, degraded;
        char handles[DOCTOR_HANDLES_MAX][16];
        size_t n_handles;
};

/* The daemon in its own words. */
struct doctor_daemon {
        char version[32];
        int64_t pid, shm_device; /* -1: it does not tell */
        struct doctor_device devices[DOCTOR_DEVICES_MAX];
        size_t n_devices;
};

/* This process in the daemon's words. */
struct doctor_identity {
        bool known;
        int64_t pid, uid, gid;
        char container[80];
};

/* A GPU as the driver shows it to a process of ours. */
struct doctor_gpu {
        char uuid[64], name[96];
        bool mig, vmm, fd, memops, integrated;
};

enum probe_end {
        PROBE_DONE,    /* CUDA is initialised, and GPUs are listed */
        PROBE_ABSENT,  /* no library; `words` is the loader's */
        PROBE_REFUSED, /* cuInit() said `result`; `words` is the driver's */
        PROBE_HANGS,   /* in `words`, a call */
        PROBE_CRASHED, /* in `words`, a call; `result` is the signal, or 0 */
        PROBE_FAILED,  /* the child could not be had; `words` says why */
};

struct doctor_cuda {
        enum probe_end end;
        int result, driver, runtime;
        char words[256], library[256], runtime_name[32];
        struct doctor_gpu gpus[DOCTOR_DEVICES_MAX];
        size_t n_gpus;
};

struct doctor {
        const struct doctor_options *options;
        gpuipc_client *client; /* NULL: there is none */
        const char *socket;
        const char *root; /* as in the options; never NULL */
        bool container;   /* this process is in one */
        enum platform platform;
        bool answers;     /* a daemon does, be it to refuse */
        bool proc_is_own; /* /proc is that of this pid namespace */
        struct doctor_daemon daemon;
        struct doctor_identity identity;
        struct doctor_cuda here;  /* as this process's environment shows it */
        struct doctor_cuda whole; /* without CUDA_VISIBLE_DEVICES */
        const char *visible;      /* CUDA_VISIBLE_DEVICES; NULL: not set */
        size_t n_found[N_FINDING_LEVELS];
        enum doctor_code cuda_fault; /* why memory on a GPU is not tried; N_DOCTOR_CODES: it is */
        bool cuda_unsaid;            /* that is not told yet: device nodes may be the reason */
};

/* Runs every check. Frees what it took. */
void doctor_run(struct doctor *doctor, const struct doctor_options *options);

/* ---- for checks ------------------------------------------------------------------------------------------- */

/* Makes a finding with the advice of its code. */
void doctor_say(struct doctor *doctor, enum finding_level level, enum doctor_code code, const char *check,
                const char *cause, ...) __attribute__((format(printf, 5, 6)));

/* The same where the advice has a word to be filled in, "UID", that is known here. */
void doctor_say_with(struct doctor *doctor, enum finding_level level, enum doctor_code code, const char *check,
                     const char *word, const char *value, const char *cause, ...) __attribute__((format(printf, 7, 8)));

/* The same with a fix of its own (NULL: none) and figures (NULL: none). */
void doctor_say_fix(struct doctor *doctor, enum finding_level level, enum doctor_code code, const char *check,
                    const char *fix, const char *figures, const char *cause, ...)
        __attribute__((format(printf, 7, 8)));

/* Whether the daemon has a GPU. */
bool doctor_daemon_has_gpu(const struct doctor *doctor);

/* How bad it is that CUDA does not work: a failure where the daemon has a GPU, a note where nobody wants one. */
enum finding_level doctor_cuda_level(const struct doctor *doctor);

/* The GPU of that UUID, by its digits alone; NULL: it is not among them. */
const struct doctor_gpu *doctor_gpu_find(const struct doctor_cuda *cuda, const char *uuid);

void check_socket(struct doctor *doctor);
void check_daemon(struct doctor *doctor);
void check_identity(struct doctor *doctor);
void check_namespaces(struct doctor *doctor);
void check_shm(struct doctor *doctor);
void check_driver(struct doctor *doctor);
void check_nodes(struct doctor *doctor);
void check_devices(struct doctor *doctor);
void check_platform(struct doctor *doctor);
void check_limits(struct doctor *doctor);
void check_trial(struct doctor *doctor);

#endif
