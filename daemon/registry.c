/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger as a whole: its making, its devices, its limits, and what can be found in it. Loop thread. */
#include "ledger.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

struct rcstr *id_new(char kind, uint64_t serial) {
        char text[24];

        snprintf(text, sizeof(text), "%c%" PRIu64, kind, serial);
        return rcstr_new(text);
}

static void registry_set_limits(struct registry *registry, const struct limits *limits) {
        struct rlimit hard;

        registry->limits = *limits;
        if (limits->descriptors > 0)
                return;
        registry->limits.descriptors = SCHEMA_INT_MAX;
        if (getrlimit(RLIMIT_NOFILE, &hard) == 0 && hard.rlim_max < (rlim_t)SCHEMA_INT_MAX)
                registry->limits.descriptors = (int64_t)hard.rlim_max;
}

int registry_init(struct registry *registry, const struct limits *limits, struct policy *policy_take) {
        int r;

        *registry = (struct registry){ 0 };
        r = events_init(&registry->events, (size_t)limits->events, 1);
        if (r < 0)
                return r;
        registry_set_limits(registry, limits);
        registry->policy = *policy_take;
        *policy_take = (struct policy){ 0 };
        list_init(&registry->clients);
        list_init(&registry->buffers);
        list_init(&registry->leases);
        list_init(&registry->devices);
        list_init(&registry->retiring);
        list_init(&registry->cursors);
        list_init(&registry->detached);
        list_init(&registry->leaving);
        return 0;
}

void registry_deinit(struct registry *registry) {
        struct cursor *cursor;
        struct client *client;
        struct stored *stored;
        struct buffer *buffer;
        struct lease *lease;

        list_for_each(cursor, &registry->cursors, by_registry)
                cursor_deinit(cursor);
        list_for_each(lease, &registry->leases, by_registry)
                lease_forget(registry, lease);
        list_for_each(buffer, &registry->buffers, by_registry)
                buffer_forget(registry, buffer);
        list_for_each(client, &registry->detached, by_registry)
                client_forget(registry, client, 0);
        while ((stored = registry_take_leaving(registry)))
                stored_removed(stored);
        events_deinit(&registry->events);
        policy_deinit(&registry->policy);
        keeps_deinit(&registry->keeps);
        map_deinit(&registry->buffers_by_id);
        map_deinit(&registry->buffers_by_name);
        map_deinit(&registry->leases_by_id);
        map_deinit(&registry->clients_by_id);
        map_deinit(&registry->stored);
        map_deinit(&registry->tokens);
        accounts_deinit(&registry->accounts);
}

int registry_reload(struct registry *registry, const struct limits *limits, struct policy *policy_take) {
        int r;

        r = events_resize(&registry->events, (size_t)limits->events);
        if (r < 0)
                return r;
        registry_set_limits(registry, limits);
        policy_deinit(&registry->policy);
        registry->policy = *policy_take;
        *policy_take = (struct policy){ 0 };
        registry->room = true;
        return 0;
}

void registry_add_device(struct registry *registry, struct device *device) {
        waitq_init(&device->waitq);
        list_append(&registry->devices, &device->by_registry);
}

struct device *registry_find_device(const struct registry *registry, const char *uuid) {
        struct device *device;

        list_for_each(device, &registry->devices, by_registry)
                if (strcmp(rcstr_text(device->uuid), uuid) == 0)
                        return device;
        return NULL;
}

struct device *registry_default_device(const struct registry *registry) {
        struct device *device, *gpu = NULL, *host = NULL;
        size_t n_gpus = 0;

        list_for_each(device, &registry->devices, by_registry)
                if (device->kind == DEVICE_HOST) {
                        host = host ? host : device;
                } else {
                        gpu = device;
                        n_gpus++;
                }
        return n_gpus == 1 ? gpu : host;
}

void registry_set_degraded(struct registry *registry, struct device *device, bool degraded, int64_t now_usec) {
        if (degraded && !device->degraded)
                events_add(&registry->events, "degraded", NULL, NULL, now_usec);
        device->degraded = degraded;
}

void registry_refused(struct registry *registry, const struct buffer *buffer, int64_t now_usec) {
        events_add(&registry->events, "refused", buffer, NULL, now_usec);
}

void registry_freeze(struct registry *registry) {
        struct buffer *buffer;

        list_for_each(buffer, &registry->buffers, by_registry)
                if (registry->state && buffer->stored && buffer->channel)
                        buffer->channel->page = NULL; /* it goes on, and those in it are not to hear otherwise */
        registry->state = NULL;
        registry->events.state = NULL;
}

/* What is held back counts as used, so that the numbers told add up. */
int descriptors_check(const struct registry *registry, int64_t n, int64_t n_left, struct failure *failure) {
        int64_t limit = registry->limits.descriptors, used = registry->n_descriptors + n_left;

        return n <= limit - used ? 0 : fail_quota(failure, "descriptors", limit, used, n);
}

void registry_spare_begin(struct registry *registry, struct device *device, int64_t bytes) {
        device->spare_bytes = bytes;
        registry->n_spares++;
}

void registry_spare_end(struct registry *registry, struct device *device) {
        device->spare_bytes = 0;
        registry->n_spares--;
}

int64_t registry_spare_descriptors(const struct registry *registry) {
        return registry->limits.descriptors - registry->n_descriptors - registry->n_spares - DESCRIPTORS_FOR_SESSIONS;
}

int registry_use_descriptors(struct registry *registry, int64_t n, struct failure *failure) {
        int r = n > 0 ? descriptors_check(registry, n, DESCRIPTORS_FOR_REFUSALS, failure) : 0;

        if (r == 0)
                registry->n_descriptors += n;
        return r;
}

struct buffer *registry_find_buffer(const struct registry *registry, const char *id, const char *name) {
        struct buffer *buffer = id ? map_find(&registry->buffers_by_id, id, strlen(id))
                                   : map_find(&registry->buffers_by_name, name, strlen(name));

        return buffer && (buffer->phase == PHASE_LIVE || buffer->phase == PHASE_KEPT) ? buffer : NULL;
}

struct buffer *registry_find_openable(struct registry *registry, const struct peer *peer, const char *id,
                                      const char *name, int64_t owner, enum access access, bool *ret_sealed) {
        struct buffer *buffer = registry_find_buffer(registry, id, name);

        *ret_sealed = false;
        if (!buffer || buffer->freed || (owner != SCHEMA_UNSET && owner != (int64_t)buffer->owner.uid))
                return NULL;
        if (!policy_may_open(&registry->policy, peer, &buffer->owner, buffer->mode, access))
                return NULL;
        *ret_sealed = buffer->sealed && access == ACCESS_RW;
        return *ret_sealed ? NULL : buffer;
}
