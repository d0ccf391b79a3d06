/* SPDX-License-Identifier: Apache-2.0 */
/* Reserve, then promise: new buffers and leases. All checks and all memory come first; commit and cancel cannot
 * fail. Loop thread. */
#include "ledger.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int allocate_check_name(const struct registry *registry, const struct client *client, const char *name,
                               struct failure *failure) {
        int r;

        if (!name)
                return 0;
        r = policy_may_name(&registry->policy, &client->peer, name, failure);
        if (r != 0)
                return r;
        if (map_find(&registry->buffers_by_name, name, strlen(name)))
                return fail_subject(failure, VERDICT_NAME_TAKEN, name);
        return 0;
}

static int allocate_check_counts(const struct registry *registry, const struct client *client,
                                 const struct holder *holder, const struct buffer_spec *spec, struct failure *failure) {
        const struct limits *limits = &registry->limits;
        int64_t names = client->account->names, n_parcels = 1 + (spec->channel ? channel_n_parcels(spec->channel->fences_bytes) : 0);
        int r;

        if (registry->n_buffers >= limits->buffers)
                return fail_quota(failure, "buffers", limits->buffers, registry->n_buffers, 1);
        if (spec->name && names >= limits->names_per_uid)
                return fail_quota(failure, "names_per_uid", limits->names_per_uid, names, 1);
        r = lease_check_room(registry, client, failure);
        if (r == 0 && spec->channel)
                r = channel_check(NULL, holder, failure);
        if (r == 0 && spec->stored)
                r = stored_check(registry, holder, client->account, n_parcels, failure);
        if (r != 0)
                return r;
        return descriptors_check(registry, spec->n_descriptors, DESCRIPTORS_FOR_SESSIONS, failure);
}

static int64_t spec_bytes(const struct buffer_spec *spec) {
        return spec->allocated + (spec->channel ? spec->channel->control_bytes : 0);
}

static int allocate_check(const struct registry *registry, const struct client *client, const struct holder *holder,
                          const struct buffer_spec *spec, struct failure *failure) {
        int64_t limit = registry->limits.bytes_per_session, asked = spec_bytes(spec);
        int r;

        if (client->peer.overflow)
                return fail_reason(
                        failure, VERDICT_ACCESS_DENIED, "",
                        "your user id is not mapped where the daemon runs, so nothing can belong to you");
        r = allocate_check_name(registry, client, spec->name, failure);
        if (r == 0)
                r = allocate_check_counts(registry, client, holder, spec, failure);
        if (r != 0)
                return r;
        if (asked > limit - client->bytes)
                return fail_quota(failure, "bytes_per_session", limit, client->bytes, asked);
        return 0;
}

static struct buffer *buffer_new(struct registry *registry, const struct client *client,
                                 const struct buffer_spec *spec) {
        struct buffer *buffer = calloc(1, sizeof(*buffer));

        if (!buffer)
                return NULL;
        list_init(&buffer->by_registry);
        list_init(&buffer->by_retiring);
        list_init(&buffer->leases);
        buffer->serial = registry->last_buffer + 1;
        buffer->id = id_new('b', buffer->serial);
        buffer->name = rcstr_new(spec->name);
        buffer->meta = rcstr_new(spec->meta);
        buffer->phase = PHASE_RESERVED;
        buffer->size = spec->size;
        buffer->allocated = spec->allocated;
        buffer->handle = spec->handle;
        buffer->owner = client->peer.principal;
        rcstr_ref(buffer->owner.container);
        buffer->owner_account = account_ref(client->account);
        buffer->mode = spec->mode;
        snprintf(buffer->mode_text, sizeof(buffer->mode_text), "%04o", (unsigned)spec->mode & 07777);
        buffer->ro_enforced = spec->ro_enforced;
        buffer->keep_ms = spec->keep_ms;
        buffer->n_descriptors = spec->n_descriptors;
        buffer->stored = spec->stored;
        buffer->slot = SLOT_NONE;
        buffer->channel = spec->channel ? channel_new(spec->channel) : NULL;
        if (!buffer->id || (spec->channel && !buffer->channel) || (spec->name && !buffer->name) || (spec->meta && !buffer->meta)) {
                buffer_free(registry, buffer);
                return NULL;
        }
        return buffer;
}

static void buffer_link(struct registry *registry, struct buffer *buffer) {
        registry->last_buffer = buffer->serial;
        record_number(registry, STATE_LAST_BUFFER, buffer->serial);
        registry->n_stored += buffer->stored ? buffer_n_parcels(buffer) : 0;
        registry->n_buffers++;
        registry->n_descriptors += buffer->n_descriptors;
        list_append(&registry->buffers, &buffer->by_registry);
        (void)map_put(&registry->buffers_by_id, buffer->id->text, strlen(buffer->id->text), buffer);
        if (!buffer->name)
                return;
        (void)map_put(&registry->buffers_by_name, buffer->name->text, strlen(buffer->name->text), buffer);
        buffer->name_account = account_ref(buffer->owner_account);
        buffer->name_account->names++;
}

/* Room for what linking needs. */
static int allocate_prepare(struct registry *registry, const struct buffer_spec *spec) {
        int r;

        r = map_reserve(&registry->buffers_by_id);
        if (r == 0)
                r = map_reserve(&registry->leases_by_id);
        if (r == 0 && spec->name)
                r = map_reserve(&registry->buffers_by_name);
        if (r == 0 && spec->keep_ms > 0)
                r = keeps_reserve(&registry->keeps, (size_t)registry->n_buffers + 1);
        return r;
}

static int allocate_make(struct registry *registry, struct client *client, struct holder *holder,
                         const struct buffer_spec *spec, struct buffer **ret_buffer, struct lease **ret_lease) {
        struct buffer *buffer;
        struct lease *lease;
        int r;

        r = allocate_prepare(registry, spec);
        if (r < 0)
                return r;
        buffer = buffer_new(registry, client, spec);
        if (!buffer)
                return -ENOMEM;
        lease = lease_new(registry, client, holder, buffer, spec->access, spec->label);
        if (!lease) {
                buffer_free(registry, buffer);
                return -ENOMEM;
        }
        buffer_link(registry, buffer);
        lease_link(registry, lease);
        buffer->first = lease;
        client->bytes += buffer_bytes(buffer);
        *ret_buffer = buffer;
        *ret_lease = lease;
        return 0;
}

/* A channel's two parts: each to its device, and both together to the account. What both together exceed, waiting cannot help. */
static int reserve_charges(struct registry *registry, struct account *account, const struct buffer_spec *spec, struct charge *charge,
                           struct charge *control, bool *ret_never, struct device **ret_short, struct failure *failure) {
        const struct channel_spec *channel = spec->channel;
        int r;

        *ret_short = spec->device;
        if (channel && channel->host == spec->device) {
                r = charge_reserve(charge, account, spec->device, spec_bytes(spec), &registry->limits, ret_never, failure);
                if (r != 0)
                        return r;
                charge_drop(charge, &registry->accounts);
        }
        r = charge_reserve(charge, account, spec->device, spec->allocated, &registry->limits, ret_never, failure);
        if (r != 0 || !channel)
                return r;
        *ret_short = channel->host;
        r = charge_reserve(control, account, channel->host, channel->control_bytes, &registry->limits, ret_never, failure);
        if (r == 0)
                return 0;
        charge_drop(charge, &registry->accounts);
        *ret_never = *ret_never || spec_bytes(spec) > registry->limits.bytes_per_uid;
        return r;
}

int registry_allocate_reserve(struct registry *registry, struct client *client, struct holder *holder,
                              const struct buffer_spec *spec, struct buffer **ret_buffer, struct lease **ret_lease,
                              bool *ret_never, struct waitq **ret_queue, struct failure *failure) {
        struct account *account = client->account;
        struct waitq *queue = NULL;
        struct charge charge = { 0 }, control = { 0 };
        struct device *missing;
        bool never = true;
        int r;

        r = allocate_check(registry, client, holder, spec, failure);
        if (r == 0) {
                r = reserve_charges(registry, account, spec, &charge, &control, &never, &missing, failure);
                if (r != 0 && !never)
                        queue = r == VERDICT_QUOTA_EXCEEDED ? &account->waitq : &missing->waitq;
        }
        if (r > 0) {
                *ret_never = never;
                *ret_queue = queue;
                return r;
        }
        r = allocate_make(registry, client, holder, spec, ret_buffer, ret_lease);
        if (r < 0) {
                charge_drop(&charge, &registry->accounts);
                charge_drop(&control, &registry->accounts);
                return r;
        }
        (*ret_buffer)->charge = charge;
        if (spec->channel)
                (*ret_buffer)->channel->charge = control;
        charge_set_stored(&(*ret_buffer)->charge, (*ret_buffer)->stored ? buffer_n_parcels(*ret_buffer) : 0);
        return 0;
}

static struct lease *buffer_reserved_lease(const struct buffer *buffer) {
        struct list *link = list_first(&buffer->leases);

        assert(buffer->phase == PHASE_RESERVED && link);
        return container_of(link, struct lease, by_buffer);
}

void registry_allocate_commit(struct registry *registry, struct buffer *buffer, struct backing *backing_take,
                              int64_t now_usec) {
        struct lease *lease = buffer_reserved_lease(buffer);

        buffer->phase = PHASE_LIVE;
        buffer->backing = backing_take;
        if (buffer->slot == SLOT_NONE)
                buffer->created_usec = now_usec;
        record_buffer_word(registry, buffer, STATE_LIVE);
        registry->n_shown_buffers++;
        charge_commit(&buffer->charge);
        if (buffer->channel)
                charge_commit(&buffer->channel->charge);
        lease_activate(registry, lease, now_usec);
        events_add(&registry->events, "created", buffer, NULL, now_usec);
        events_add(&registry->events, "opened", buffer, lease, now_usec);
        if (buffer->name)
                registry->room = true;
}

void registry_allocate_cancel(struct registry *registry, struct buffer *buffer, struct backing *backing_take) {
        lease_forget(registry, buffer_reserved_lease(buffer));
        buffer_drop_name(registry, buffer);
        if (!backing_take) {
                buffer_forget(registry, buffer);
                return;
        }
        buffer->backing = backing_take;
        buffer_retire_memory(registry, buffer);
}

int registry_open_reserve(struct registry *registry, struct client *client, struct holder *holder,
                          struct buffer *buffer, enum access access, const char *label, struct lease **ret_lease,
                          struct failure *failure) {
        struct lease *lease;
        int r;

        r = lease_check_room(registry, client, failure);
        if (r == 0 && buffer->channel)
                r = channel_check(buffer->channel, holder, failure);
        if (r == 0 && registry->state && buffer->stored)
                r = stored_check(registry, holder, client->account, 0, failure);
        if (r == 0)
                r = map_reserve(&registry->leases_by_id);
        if (r != 0)
                return r;
        lease = lease_new(registry, client, holder, buffer, access, label);
        if (!lease)
                return -ENOMEM;
        lease_link(registry, lease);
        buffer_pin(buffer);
        *ret_lease = lease;
        return 0;
}

void registry_open_commit(struct registry *registry, struct lease *lease, int64_t now_usec) {
        struct buffer *buffer = lease->buffer;

        lease_activate(registry, lease, now_usec);
        buffer->n_pins--;
        buffer_recharge(registry, buffer);
        events_add(&registry->events, "opened", buffer, lease, now_usec);
}

void registry_open_cancel(struct registry *registry, struct lease *lease, int64_t now_usec,
                          uint64_t monotonic_usec) {
        struct buffer *buffer = lease->buffer;

        assert(lease->phase == LEASE_PHASE_RESERVED);

        lease_forget(registry, lease);
        registry_unpin(registry, buffer, now_usec, monotonic_usec);
}
