/* SPDX-License-Identifier: Apache-2.0 */
/* What cuInit makes of a process: the devices it sees, and its presence on each. Under the driver's lock. */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t woken = PTHREAD_COND_INITIALIZER;

/* The page reads zero in a forked child, by whatever call it was made. */
static _Atomic int *here;
static _Atomic bool started;

static int n_visible, visible[MACHINE_DEVICES];
static struct tag *presence[MACHINE_DEVICES];

void driver_lock(void) {
        pthread_mutex_lock(&mutex);
}

void driver_unlock(void) {
        pthread_mutex_unlock(&mutex);
}

void driver_wait(void) {
        pthread_cond_wait(&woken, &mutex);
}

void driver_wake(void) {
        pthread_cond_broadcast(&woken);
}

__attribute__((constructor)) static void guard_fork(void) {
        pthread_atfork(driver_lock, driver_unlock, driver_unlock);
}

CUresult process_ready(void) {
        return started && *here ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult result_of(int error) {
        switch (error) {
        case 0: return CUDA_SUCCESS;
        case -ENOMEM: return CUDA_ERROR_OUT_OF_MEMORY;
        case -EINVAL: return CUDA_ERROR_INVALID_VALUE;
        default: return CUDA_ERROR_OPERATING_SYSTEM;
        }
}

const struct device_script *device_script(int device) {
        return &script_get()->devices[device];
}

/* Which device an entry of CUDA_VISIBLE_DEVICES means; -1: none. A UUID may be cut short while it is plain which. */
static int device_named(const struct script *script, const char *word) {
        char *end;
        long number = strtol(word, &end, 10);
        int found = -1;

        if (!*word)
                return -1;
        if (!*end)
                return number >= 0 && number < script->n_devices ? (int)number : -1;
        if (strncmp(word, "GPU-", 4) != 0 && strncmp(word, "MIG-", 4) != 0)
                return -1;
        for (int i = 0; i < script->n_devices; i++)
                if (strncasecmp(word, script->devices[i].uuid, strlen(word)) == 0) {
                        if (found >= 0)
                                return -1;
                        found = i;
                }
        return found;
}

static void see(int device) {
        visible[n_visible++] = device;
}

static void read_visible_devices(const struct script *script) {
        const char *list = getenv("CUDA_VISIBLE_DEVICES");
        char copy[1024], *rest = copy, *word;

        n_visible = 0;
        if (!list) {
                for (int i = 0; i < script->n_devices; i++)
                        see(i);
                return;
        }
        snprintf(copy, sizeof(copy), "%s", list);
        while ((word = strsep(&rest, ","))) {
                while (isspace((unsigned char)*word))
                        word++;
                int device = device_named(script, word);
                if (device < 0)
                        return;
                if (process_ordinal(device) >= 0) {
                        n_visible = 0;
                        return;
                }
                see(device);
        }
}

/* The driver looks itself up in /proc. */
static bool proc_is_ours(void) {
        char text[16], own[16];
        ssize_t n = readlink("/proc/self", text, sizeof(text) - 1);

        text[n > 0 ? n : 0] = '\0';
        snprintf(own, sizeof(own), "%d", getpid());
        return strcmp(text, own) == 0;
}

static CUresult mark_here(void) {
        void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED || madvise(page, 4096, MADV_WIPEONFORK) < 0)
                return CUDA_ERROR_OPERATING_SYSTEM;
        here = page;
        *here = 1;
        started = true;
        return CUDA_SUCCESS;
}

CUresult process_init(unsigned flags) {
        const struct script *script = script_get();

        if (started)
                return process_ready();
        if (flags)
                return CUDA_ERROR_INVALID_VALUE;
        if (!proc_is_ours())
                return CUDA_ERROR_OPERATING_SYSTEM;
        read_visible_devices(script);
        if (n_visible == 0)
                return CUDA_ERROR_NO_DEVICE;
        int r = books_reach();
        if (r < 0)
                return books_absent(r) ? CUDA_ERROR_NO_DEVICE : CUDA_ERROR_OPERATING_SYSTEM;
        for (int i = 0; i < n_visible; i++) {
                r = books_new(visible[i], PIECE_PRESENCE, script->init_bytes, NULL, &presence[i]);
                if (r == 0)
                        continue;
                while (i-- > 0)
                        books_drop(presence[i]);
                n_visible = 0;
                return result_of(r);
        }
        return mark_here();
}

int process_n_devices(void) {
        return n_visible;
}

int process_device(CUdevice ordinal) {
        return ordinal >= 0 && ordinal < n_visible ? visible[ordinal] : -1;
}

/* For the runtime, whose faults are the device's too. */
EXPORT int cuFakeDevice(int ordinal);
EXPORT int cuFakeDevice(int ordinal) {
        return LOCKED(process_device(ordinal));
}

int process_ordinal(int device) {
        for (int i = 0; i < n_visible; i++)
                if (visible[i] == device)
                        return i;
        return -2;
}

const struct tag *process_tag(void) {
        return presence[0];
}

bool device_reaches(int device, int memory_device) {
        return device == memory_device || (device_script(device)->peer && device_script(memory_device)->peer);
}
