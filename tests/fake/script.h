/* SPDX-License-Identifier: Apache-2.0 */
/* What GPUIPC_FAKE_CUDA says (README.md has the language): the machine's devices and the faults to come. */
#ifndef FAKE_SCRIPT_H
#define FAKE_SCRIPT_H

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MACHINE_DEVICES 16
#define DEVICE_ATTRIBUTES 8

struct device_script {
        char uuid[64], name[96];
        int64_t total_bytes, used_bytes;
        bool scrub, vmm, fd, memops, integrated, peer;
        int virtualization;
        struct {
                int number, value;
        } attributes[DEVICE_ATTRIBUTES];
        int n_attributes;
};

struct rule {
        struct rule *next;
        char *text; /* the line: its identity */
        char entry[64], device_name[64], exe[32];
        int device; /* physical; -1: any */
        unsigned long nth, from, delay_ms;
        char *hang_while, *hang_until;
        bool global, fails;
        int code;
        _Atomic unsigned long *count; /* shared with the same line of an earlier script */
};

struct script {
        struct script *previous; /* readers may still hold it: never freed */
        char state[PATH_MAX];
        int driver_version, runtime_version;
        char system[64];
        int64_t init_bytes, context_bytes;
        bool cloexec, log;
        struct device_script devices[MACHINE_DEVICES];
        int n_devices;
        struct rule *rules;
};

/* The script as it is now. Any thread. Ends the process with a message when there is a mistake in it. */
const struct script *script_get(void);

/* Parses text into a script that holds defaults but for the state directory; `origin` is for messages. */
struct script *script_parse(const char *text, const char *origin, const struct script *previous);

/* For other modules that meet something a test got wrong. */
void fake_die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Memory for the script, zeroed, and a copy of text. Tried more than once, since a test may have one allocation fail. */
void *script_memory(size_t n);
char *script_copy(const char *text);

/* Whether there is an entry point of that name, or one that the pattern matches. */
bool entry_known(const char *pattern);

#endif
