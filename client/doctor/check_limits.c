/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel lets this process have. Loads nothing. */
#include <stdio.h>
#include <sys/resource.h>

#include "doctor.h"

#define CHECK "limits"
#define FEW 1024
#define LITTLE ((rlim_t)64 << 10)

static void words(rlim_t value, char text[32]) {
        if (value == RLIM_INFINITY)
                (void)snprintf(text, 32, "unlimited");
        else
                (void)snprintf(text, 32, "%llu", (unsigned long long)value);
}

static void size_words(rlim_t value, char text[32]) {
        if (value == RLIM_INFINITY)
                (void)snprintf(text, 32, "any amount");
        else
                (void)snprintf(text, 32, "%llu KiB", (unsigned long long)(value >> 10));
}

void check_limits(struct doctor *doctor) {
        struct rlimit files = { RLIM_INFINITY, RLIM_INFINITY }, locked = files, addresses = files;
        char soft[32], hard[32], lock[32], room[32];

        (void)getrlimit(RLIMIT_NOFILE, &files);
        (void)getrlimit(RLIMIT_MEMLOCK, &locked);
        (void)getrlimit(RLIMIT_AS, &addresses);
        words(files.rlim_cur, soft);
        words(files.rlim_max, hard);
        size_words(locked.rlim_cur, lock);
        size_words(addresses.rlim_cur, room);
        if (files.rlim_cur < FEW)
                doctor_say(doctor, FINDING_WARN, DOCTOR_FEW_DESCRIPTORS, CHECK,
                           "A process here may have %s descriptors (hard limit %s), and so at most that many buffers.", soft, hard);
        if (addresses.rlim_cur != RLIM_INFINITY)
                doctor_say(doctor, FINDING_WARN, DOCTOR_ADDRESS_SPACE, CHECK,
                           "A process here may have %s of addresses. CUDA may not even start.", room);
        if (locked.rlim_cur < LITTLE)
                doctor_say(doctor, FINDING_NOTE, DOCTOR_LITTLE_MEMLOCK, CHECK, "A process here may lock %s of memory.",
                           lock);
        if (files.rlim_cur >= FEW)
                doctor_say(doctor, FINDING_OK, DOCTOR_LIMITS_WELL, CHECK,
                           "A process here may have %s descriptors (hard limit %s) and lock %s of memory.", soft, hard, lock);
}
