/* SPDX-License-Identifier: Apache-2.0 */
/* The probing thread asks the driver, without any context; the main thread waits for it, for so long and no longer. What the thread
 * works on is its own until it is done in time. */
#include "cuda_probe.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "cuda_zeroed.h"
#include "proto/cleanup.h"

struct probe {
        pthread_mutex_t lock;
        pthread_cond_t over;
        bool done, left; /* under the lock: by the thread; by who waited */
        enum wipe_choice wipe;
        const char *params_file;
        struct cuda_machine *machine;
        int result;
        char words[320];
};

static void probe_say(struct probe *probe, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void probe_say(struct probe *probe, const char *format, ...) {
        size_t n = strlen(probe->words);
        va_list ap;

        if (n > 0 && n + 2 < sizeof(probe->words))
                n += (size_t)snprintf(probe->words + n, sizeof(probe->words) - n, "; ");
        va_start(ap, format);
        (void)vsnprintf(probe->words + n, sizeof(probe->words) - n, format, ap);
        va_end(ap);
}

/* ---- a device ---------------------------------------------------------------------------------------------- */

static void device_free(struct backend_device *device) {
        if (!device)
                return;
        cuda_vmm_end(device);
        pthread_mutex_destroy(&device->classic_lock);
        pthread_mutex_destroy(&device->health_lock);
        free(device);
}

static void device_freep(struct backend_device **device) {
        device_free(*device);
}

/* A part of a GPU bears a UUID of its own kind. NVML knows which, else the name tells. */
static void device_set_uuid(struct backend_device *device, struct cuda_nvml *nvml, const CUuuid *uuid) {
        bool mig;

        cuda_uuid_print(uuid, true, device->uuid);
        mig = cuda_nvml_knows(nvml, device->uuid) || strstr(device->name, " MIG ");
        cuda_uuid_print(uuid, mig, device->uuid);
}

static bool attribute(const struct backend_device *device, CUdevice_attribute which) {
        int value = 0;

        return device->api->cuDeviceGetAttribute(&value, which, device->ordinal) == CUDA_SUCCESS && value != 0;
}

static bool device_find_granularity(struct backend_device *device) {
        CUmemAllocationProp prop = {
                .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->ordinal},
        };
        size_t bytes = 0;

        if (device->api->cuMemGetAllocationGranularity(&bytes, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS)
                return false;
        if (bytes == 0 || bytes > (size_t)1 << 40)
                return false;
        device->granularity = (int64_t)bytes;
        return true;
}

/* The first is what "auto" means. Integrated GPUs have no classic handles. */
static void device_find_handles(struct backend_device *device, bool runtime_found) {
        bool descriptors = attribute(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
                           attribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);

        if (descriptors && device_find_granularity(device))
                device->handles[device->n_handles++] = CUDA_FD;
        else
                device->granularity = CUDA_CLASSIC_BYTES;
        if (runtime_found && !attribute(device, CU_DEVICE_ATTRIBUTE_INTEGRATED))
                device->handles[device->n_handles++] = CUDA_IPC;
}

static void device_find_zeroed(struct backend_device *device, const struct probe *probe) {
        const char *doubt = cuda_zeroed_doubt(device->api, device->ordinal, &device->gauge, probe->params_file);

        device->zeroed_why = doubt ? doubt : "the driver clears memory that is freed";
        if (probe->wipe == WIPE_ALWAYS) {
                device->zeroed = ZEROED_WIPED;
                device->zeroed_why = "Wipe=always";
        } else if (doubt) {
                device->zeroed = probe->wipe == WIPE_NEVER ? ZEROED_UNKNOWN : ZEROED_WIPED;
        } else {
                device->zeroed = ZEROED_DRIVER;
        }
}

/* 0, or the driver's refusal in words. */
static int device_ask(struct backend_device *device, struct cuda_nvml *nvml, int n, struct backend_detail *detail) {
        const struct cuda_api *api = device->api;
        size_t total = 0;
        CUuuid uuid;
        CUresult result;

        result = api->cuDeviceGet(&device->ordinal, n);
        if (result != CUDA_SUCCESS)
                return cuda_fail(api, detail, result, "cuDeviceGet");
        result = api->cuDeviceGetUuid_v2(&uuid, device->ordinal);
        if (result != CUDA_SUCCESS)
                return cuda_fail(api, detail, result, "cuDeviceGetUuid");
        result = api->cuDeviceGetName(device->name, sizeof(device->name), device->ordinal);
        if (result != CUDA_SUCCESS)
                return cuda_fail(api, detail, result, "cuDeviceGetName");
        result = api->cuDeviceTotalMem(&total, device->ordinal);
        if (result != CUDA_SUCCESS)
                return cuda_fail(api, detail, result, "cuDeviceTotalMem");
        device->total_bytes = (int64_t)total;
        device_set_uuid(device, nvml, &uuid);
        return 0;
}

/* NULL: out of memory, or a device that cannot be used, which is said. */
static struct backend_device *device_new(struct probe *probe, int n, bool runtime_found) {
        _cleanup_(device_freep) struct backend_device *device = calloc(1, sizeof(*device));
        struct cuda_machine *machine = probe->machine;
        struct backend_detail detail;

        if (!device)
                return NULL;
        pthread_mutex_init(&device->classic_lock, NULL);
        pthread_mutex_init(&device->health_lock, NULL);
        device->api = &machine->api;
        if (device_ask(device, machine->nvml, n, &detail) < 0) {
                probe_say(probe, "GPU %d is left out: %.140s", n, detail.text);
                return NULL;
        }
        device_find_handles(device, runtime_found);
        if (device->n_handles == 0) {
                probe_say(probe, "%s is left out: it offers no memory that can be shared", device->uuid);
                return NULL;
        }
        cuda_gauge_init(&device->gauge, machine->nvml, device->uuid);
        device_find_zeroed(device, probe);
        return take_ptr(device);
}

/* ---- all of them ------------------------------------------------------------------------------------------- */

bool cuda_machine_free(struct cuda_machine *machine) {
        if (machine->nvml && !cuda_nvml_free(machine->nvml))
                return false;
        for (size_t i = 0; i < machine->n_devices; i++)
                device_free(machine->devices[i]);
        free(machine->devices);
        free(machine);
        return true;
}

static int machine_find_devices(struct probe *probe) {
        struct cuda_machine *machine = probe->machine;
        bool runtime_found = cuda_runtime_found(machine->api.version);
        struct backend_detail detail;
        int n = 0;
        CUresult result = machine->api.cuDeviceGetCount(&n);

        if (result != CUDA_SUCCESS) {
                int r = cuda_fail(&machine->api, &detail, result, "cuDeviceGetCount");

                probe_say(probe, "%s", detail.text);
                return r;
        }
        machine->devices = calloc((size_t)n + 1, sizeof(struct backend_device *));
        if (!machine->devices)
                return -ENOMEM;
        for (int i = 0; i < n; i++) {
                struct backend_device *device = device_new(probe, i, runtime_found);

                if (device)
                        machine->devices[machine->n_devices++] = device;
        }
        if (machine->n_devices > 0)
                return 0;
        if (!*probe->words)
                probe_say(probe, "the driver shows no GPU");
        return -ENODEV;
}

static int probe_run(struct probe *probe) {
        struct cuda_machine *machine = probe->machine;
        struct backend_detail detail;
        char why[160] = "";
        int r;

        r = cuda_api_load(&machine->api, why, sizeof(why));
        if (r < 0) {
                probe_say(probe, "%s", why);
                return r;
        }
        r = cuda_api_init(&machine->api, &detail);
        if (r < 0) {
                probe_say(probe, "%s", detail.text);
                return r;
        }
        /* Without it free bytes are unknown, which is said where they are asked for. */
        (void)cuda_nvml_new(&machine->nvml, why, sizeof(why));
        r = machine_find_devices(probe);
        if (r == 0 && machine->nvml)
                (void)cuda_nvml_start(machine->nvml);
        return r;
}

static void probe_free(struct probe *probe) {
        if (probe->machine)
                (void)cuda_machine_free(probe->machine);
        pthread_mutex_destroy(&probe->lock);
        pthread_cond_destroy(&probe->over);
        free(probe);
}

static void *probe_thread(void *arg) {
        struct probe *probe = arg;
        bool left;

        probe->result = probe_run(probe);
        pthread_mutex_lock(&probe->lock);
        probe->done = true;
        left = probe->left;
        pthread_cond_signal(&probe->over);
        pthread_mutex_unlock(&probe->lock);
        if (left)
                probe_free(probe);
        return NULL;
}

/* Signals are the loop's business, in threads that the driver starts from here too. */
static int probe_start(struct probe *probe, pthread_t *ret_thread) {
        sigset_t all, before;
        int r;

        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        r = pthread_create(ret_thread, NULL, probe_thread, probe);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        return -r;
}

static bool probe_wait(struct probe *probe, uint64_t ms) {
        uint64_t until_usec = clock_monotonic_usec() + ms * 1000;
        struct timespec until = {.tv_sec = (time_t)(until_usec / 1000000), .tv_nsec = (long)(until_usec % 1000000) * 1000};
        bool done;

        pthread_mutex_lock(&probe->lock);
        while (!probe->done)
                if (pthread_cond_timedwait(&probe->over, &probe->lock, &until) == ETIMEDOUT)
                        break;
        done = probe->done;
        probe->left = !done;
        pthread_mutex_unlock(&probe->lock);
        return done;
}

static struct probe *probe_new(enum wipe_choice wipe) {
        struct probe *probe = calloc(1, sizeof(*probe));
        const char *params = getenv(CUDA_PARAMS_VARIABLE);
        pthread_condattr_t attributes;

        if (!probe)
                return NULL;
        pthread_mutex_init(&probe->lock, NULL);
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(&probe->over, &attributes);
        pthread_condattr_destroy(&attributes);
        probe->wipe = wipe;
        probe->params_file = params ? params : CUDA_PARAMS_FILE;
        probe->machine = calloc(1, sizeof(*probe->machine));
        if (!probe->machine) {
                probe_free(probe);
                return NULL;
        }
        return probe;
}

int cuda_probe(enum wipe_choice wipe, uint64_t ms, struct cuda_machine **ret, char *ret_words, size_t n_words) {
        struct probe *probe = probe_new(wipe);
        pthread_t thread;
        int r;

        if (!probe)
                return -ENOMEM;
        r = probe_start(probe, &thread);
        if (r < 0) {
                probe_free(probe);
                return r;
        }
        if (!probe_wait(probe, ms)) {
                pthread_detach(thread);
                snprintf(ret_words, n_words, "the driver does not answer within %u ms", (unsigned)ms);
                return -ETIMEDOUT;
        }
        pthread_join(thread, NULL);
        snprintf(ret_words, n_words, "%s", probe->words);
        r = probe->result;
        if (r == 0)
                *ret = take_ptr(probe->machine);
        probe_free(probe);
        return r;
}
