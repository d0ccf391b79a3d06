/* SPDX-License-Identifier: Apache-2.0 */
/* From backends to places of work. Main thread; calls no driver itself. */
#include "devices.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backend_absent.h"
#include "log.h"
#include "proto/cleanup.h"
#ifdef HAVE_CUDA
#include "backend_cuda.h"
#endif

#define LANES_PER_DEVICE 2
#define LANES_BESIDE 2 /* the doorman's, the store's */

struct found {
        const struct backend *backend;
        struct backend_device **devices;
        int n; /* or -errno */
};

static const char *const choice_names[] = {[BACKEND_AUTO] = "auto", [BACKEND_HOST] = "host", [BACKEND_CUDA] = "cuda"};

/* ---- GPUs -------------------------------------------------------------------------------------------------- */

#ifdef HAVE_CUDA
/* A machine without the driver is an ordinary machine; one whose driver fails is not. */
static void cuda_explain(const struct config *config, int n) {
        const char *words = backend_cuda_words();

        if (n >= 0 && *words)
                log_warning("%s", words);
        else if (n < 0 && config->backend == BACKEND_CUDA)
                log_error("Backend=cuda: no GPU can be used: %s; see that the driver is installed and loaded, or set Backend=auto",
                          *words ? words : strerror(-n));
        else if (n == -ENOENT)
                log_info("no GPU: %s", words);
        else if (n < 0)
                log_warning("no GPU can be used, host memory alone is served: %s", *words ? words : strerror(-n));
}

static void cuda_find(const struct config *config, struct found *ret) {
        *ret = (struct found){.backend = &backend_cuda};
        backend_cuda_set((enum wipe_choice)config->wipe, BACKEND_CUDA_PROBE_MS);
        ret->n = backend_cuda.probe(&backend_cuda, &ret->devices);
        cuda_explain(config, ret->n);
}

bool devices_quit(void) {
        return backend_cuda_end();
}
#else
static void cuda_find(const struct config *config, struct found *ret) {
        *ret = (struct found){.n = -EOPNOTSUPP};
        if (config->backend == BACKEND_CUDA)
                log_error("Backend=cuda: this daemon was built without CUDA; use Backend=auto or Backend=host");
}

bool devices_quit(void) {
        return true;
}
#endif

/* ---- all of them ------------------------------------------------------------------------------------------- */

static void host_find(struct found *ret) {
        *ret = (struct found){.backend = &backend_host};
        ret->n = backend_host.probe(&backend_host, &ret->devices);
        if (ret->n < 0)
                log_error("cannot use host memory: %s", strerror(-ret->n));
}

static void place_announce(const struct workplace *place) {
        const struct backend_device_info *info = &place->info;

        if (info->kind == DEVICE_HOST)
                return;
        log_line(info->zeroed == ZEROED_UNKNOWN ? LOG_WARNING : LOG_NOTICE, NULL, &(struct log_field){"DEVICE", info->uuid}, 1,
                 "%s, %" PRId64 " MiB; new memory %s: %s", info->name, info->total_bytes >> 20,
                 info->zeroed == ZEROED_DRIVER  ? "reads zero"
                 : info->zeroed == ZEROED_WIPED ? "is wiped, at the cost of some time for each buffer"
                                                : "may hold what others left in it",
                 info->zeroed_why);
}

static int places_fill(struct house *house, const struct found *found) {
        for (int i = 0; i < found->n; i++) {
                struct workplace *place = &house->places[house->n_places];
                int64_t capacity = found->backend == &backend_host ? house->registry.limits.host_bytes : 0;
                int r = workplace_init(place, house->loop, &house->registry, found->backend, found->devices[i], capacity);

                if (r < 0)
                        return r;
                house->n_places++;
                place_announce(place);
        }
        return 0;
}

static bool house_has(const struct house *house, const char *uuid) {
        for (size_t i = 0; i < house->n_places; i++)
                if (strcmp(house->places[i].info.uuid, uuid) == 0)
                        return true;
        return false;
}

/* Memory that an earlier daemon left is held although its device is not there. */
static int places_fill_absent(struct house *house, char *const *known, size_t n_known) {
        for (size_t i = 0; i < n_known; i++) {
                struct workplace *place = &house->places[house->n_places];
                struct backend_device *device;
                int r;

                if (house_has(house, known[i]))
                        continue;
                device = backend_absent_device(known[i]);
                r = device ? workplace_init(place, house->loop, &house->registry, &backend_absent, device, 0) : -ENOMEM;
                if (r < 0)
                        return r;
                house->n_places++;
                place->sick = place->device.degraded = true;
                log_line(LOG_WARNING, MESSAGE_DEGRADED, &(struct log_field){"DEVICE", known[i]}, 1,
                         "device %s is not there: its buffers are held, but no new ones are made on it", known[i]);
        }
        return 0;
}

int devices_find(struct house *house, const struct config *config, char *const *known, size_t n_known) {
        struct found host = {0}, cuda = {0};
        int r;

        house->backend_name = choice_names[config->backend];
        if (config->backend != BACKEND_CUDA)
                host_find(&host);
        if (host.n < 0)
                return host.n;
        if (config->backend != BACKEND_HOST)
                cuda_find(config, &cuda);
        if (cuda.n < 0 && config->backend == BACKEND_CUDA)
                return cuda.n;
        if (cuda.n < 0)
                cuda.n = 0;
        lane_size_pool((unsigned)(host.n + cuda.n + (int)n_known) * LANES_PER_DEVICE + LANES_BESIDE);
        house->places = calloc((size_t)(host.n + cuda.n) + n_known, sizeof(*house->places));
        if (!house->places)
                return -ENOMEM;
        r = places_fill(house, &cuda);
        if (r == 0)
                r = places_fill(house, &host);
        return r < 0 ? r : places_fill_absent(house, known, n_known);
}

void devices_end(struct house *house) {
        free(house->places);
        house->places = NULL;
        house->n_places = 0;
}
