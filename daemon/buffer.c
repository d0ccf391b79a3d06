/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a buffer after it was reserved: live, kept, draining, gone; and who pays for it. Loop thread. Its
 * memory is never touched here, only handed out for closing. */
#include "ledger.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void buffer_free(struct registry *registry, struct buffer *buffer) {
        if (!buffer)
                return;
        charge_drop(&buffer->charge, &registry->accounts);
        if (buffer->channel)
                charge_drop(&buffer->channel->charge, &registry->accounts);
        channel_free(buffer->channel);
        account_unref(&registry->accounts, buffer->owner_account);
        rcstr_unref(buffer->owner.container);
        rcstr_unref(buffer->id);
        rcstr_unref(buffer->name);
        rcstr_unref(buffer->meta);
        free(buffer);
}

int64_t buffer_bytes(const struct buffer *buffer) {
        return buffer->allocated + (buffer->channel ? buffer->channel->control_bytes : 0);
}

int64_t buffer_n_parcels(const struct buffer *buffer) {
        return 1 + (buffer->channel ? channel_n_parcels(buffer->channel->fences_bytes) : 0);
}

/* Uncounted before it is out of the store: what is sent after that finds the room it leaves. */
static void buffer_unstore(struct registry *registry, struct buffer *buffer) {
        registry->n_stored -= buffer->stored ? buffer_n_parcels(buffer) : 0;
        buffer->stored = false;
        charge_set_stored(&buffer->charge, 0);
}

void buffer_forget(struct registry *registry, struct buffer *buffer) {
        assert(list_empty(&buffer->leases));

        buffer_drop_name(registry, buffer);
        buffer_unstore(registry, buffer);
        record_buffer_over(registry, buffer);
        keeps_remove(&registry->keeps, buffer);
        cursors_pass(registry, &buffer->by_registry);
        list_remove(&buffer->by_registry);
        list_remove(&buffer->by_retiring);
        map_take(&registry->buffers_by_id, buffer->id->text, strlen(buffer->id->text));
        registry->n_buffers--;
        if (buffer->phase != PHASE_RESERVED)
                registry->n_shown_buffers--;
        registry->n_descriptors -= buffer->n_descriptors;
        registry->room = true;
        buffer_free(registry, buffer);
}

void buffer_drop_name(struct registry *registry, struct buffer *buffer) {
        if (!buffer->name)
                return;
        map_take(&registry->buffers_by_name, buffer->name->text, strlen(buffer->name->text));
        rcstr_unrefp(&buffer->name);
        buffer->name_account->names--;
        account_unref(&registry->accounts, buffer->name_account);
        buffer->name_account = NULL;
        registry->room = true;
}

static void buffer_lose_name(struct registry *registry, struct buffer *buffer, int64_t now_usec) {
        if (!buffer->name)
                return;
        events_add(&registry->events, "unnamed", buffer, NULL, now_usec);
        buffer_drop_name(registry, buffer);
}

struct account *buffer_payer(const struct buffer *buffer) {
        struct lease *lease;

        if (buffer->name || buffer->keep_place > 0 || buffer->n_owners > 0)
                return buffer->owner_account;
        list_for_each(lease, &buffer->leases, by_buffer)
                if (lease->phase != LEASE_PHASE_RESERVED)
                        return lease->account;
        return NULL;
}

void buffer_recharge(struct registry *registry, struct buffer *buffer) {
        struct account *payer = buffer_payer(buffer);

        if (!payer || payer == buffer->charge.account)
                return;
        charge_move(&buffer->charge, &registry->accounts, payer);
        if (buffer->channel)
                charge_move(&buffer->channel->charge, &registry->accounts, payer);
        registry->room = true;
}

void buffer_retire_memory(struct registry *registry, struct buffer *buffer) {
        list_append(&registry->retiring, &buffer->by_retiring);
}

static void buffer_retire(struct registry *registry, struct buffer *buffer, int64_t now_usec) {
        buffer_lose_name(registry, buffer, now_usec);
        keeps_remove(&registry->keeps, buffer);
        buffer->phase = PHASE_DRAINING;
        record_buffer_word(registry, buffer, STATE_DYING);
        charge_set_draining(&buffer->charge, true);
        if (buffer->channel) {
                charge_set_draining(&buffer->channel->charge, true);
                channel_retire(buffer->channel);
        }
        buffer_retire_memory(registry, buffer);
        if (buffer->n_draining > 0)
                events_add(&registry->events, "draining", buffer, NULL, now_usec);
}

/* Begins the keep when there is one to begin. */
static bool buffer_is_kept(struct registry *registry, struct buffer *buffer, uint64_t monotonic_usec) {
        if (buffer->freed || buffer->keep_ms == 0)
                return false;
        if (buffer->keep_until_usec == 0) {
                buffer->keep_until_usec = monotonic_usec + (uint64_t)buffer->keep_ms * 1000;
                record_buffer_keep(registry, buffer);
                keeps_add(&registry->keeps, buffer);
        }
        return buffer->keep_place > 0 && buffer->keep_until_usec > monotonic_usec;
}

static void buffer_settle_unused(struct registry *registry, struct buffer *buffer, int64_t now_usec,
                                 uint64_t monotonic_usec) {
        if (!buffer_is_kept(registry, buffer, monotonic_usec)) {
                buffer_retire(registry, buffer, now_usec);
                return;
        }
        if (buffer->phase == PHASE_KEPT)
                return;
        buffer->phase = PHASE_KEPT;
        events_add(&registry->events, "kept", buffer, NULL, now_usec);
}

static void buffer_gone(struct registry *registry, struct buffer *buffer, int64_t now_usec) {
        events_add(&registry->events, "freed", buffer, NULL, now_usec);
        buffer_forget(registry, buffer);
}

void buffer_settle(struct registry *registry, struct buffer *buffer, int64_t now_usec, uint64_t monotonic_usec) {
        bool closed = !buffer->closing && list_empty(&buffer->by_retiring);

        if (buffer->phase == PHASE_RESERVED)
                return;
        if (buffer->phase == PHASE_DRAINING && closed && buffer->n_draining == 0) {
                buffer_gone(registry, buffer, now_usec);
                return;
        }
        if (buffer->phase != PHASE_DRAINING && buffer->n_active == 0 && buffer->n_pins == 0)
                buffer_settle_unused(registry, buffer, now_usec, monotonic_usec);
        buffer_recharge(registry, buffer);
}

void buffer_pin(struct buffer *buffer) {
        assert(buffer->phase == PHASE_LIVE || buffer->phase == PHASE_KEPT);

        buffer->n_pins++;
        buffer->phase = PHASE_LIVE;
}

void registry_unpin(struct registry *registry, struct buffer *buffer, int64_t now_usec, uint64_t monotonic_usec) {
        assert(buffer->n_pins > 0);

        buffer->n_pins--;
        buffer_settle(registry, buffer, now_usec, monotonic_usec);
}

void registry_seal(struct registry *registry, struct buffer *buffer, int64_t now_usec) {
        buffer->sealed = true;
        record_buffer_flags(registry, buffer);
        events_add(&registry->events, "sealed", buffer, NULL, now_usec);
}

void registry_free(struct registry *registry, struct buffer *buffer, int64_t now_usec, uint64_t monotonic_usec) {
        buffer->freed = true;
        if (buffer->channel)
                channel_close(buffer->channel);
        record_buffer_flags(registry, buffer);
        buffer_lose_name(registry, buffer, now_usec);
        keeps_remove(&registry->keeps, buffer);
        buffer_settle(registry, buffer, now_usec, monotonic_usec);
}

uint64_t registry_expire(struct registry *registry, int64_t now_usec, uint64_t monotonic_usec) {
        struct buffer *buffer;

        while ((buffer = keeps_first(&registry->keeps))) {
                if (buffer->keep_until_usec > monotonic_usec)
                        return buffer->keep_until_usec;
                keeps_remove(&registry->keeps, buffer);
                buffer_settle(registry, buffer, now_usec, monotonic_usec);
        }
        return UINT64_MAX;
}

struct buffer *registry_take_retiring(struct registry *registry, struct backing **ret_backing) {
        struct list *link = list_first(&registry->retiring);
        struct buffer *buffer;

        if (!link)
                return NULL;
        buffer = container_of(link, struct buffer, by_retiring);
        list_remove(link);
        buffer_unstore(registry, buffer);
        buffer->closing = true;
        *ret_backing = buffer->backing;
        buffer->backing = NULL;
        return buffer;
}

void registry_retired(struct registry *registry, struct buffer *buffer, int64_t now_usec) {
        assert(buffer->closing);

        buffer->closing = false;
        registry->n_descriptors -= buffer->n_descriptors;
        buffer->n_descriptors = 0;
        if (buffer->phase == PHASE_RESERVED)
                buffer_forget(registry, buffer);
        else if (buffer->n_draining == 0)
                buffer_gone(registry, buffer, now_usec);
}

static enum buffer_state buffer_state(const struct buffer *buffer) {
        switch (buffer->phase) {
        case PHASE_KEPT: return BUFFER_KEPT;
        case PHASE_DRAINING: return BUFFER_DRAINING;
        default: return BUFFER_LIVE;
        }
}

void buffer_describe(const struct buffer *buffer, struct buffer_info *ret) {
        const struct account *payer = buffer->charge.account;

        *ret = (struct buffer_info){
                .id = rcstr_text(buffer->id),
                .name = rcstr_text(buffer->name),
                .size = buffer->size,
                .allocated = buffer->allocated,
                .device = rcstr_text(buffer->charge.device->uuid),
                .handle = buffer->handle,
                .owner_uid = buffer->owner.uid,
                .owner_gid = buffer->owner.gid,
                .mode = buffer->mode_text,
                .sealed = buffer->sealed,
                .ro_enforced = buffer->ro_enforced,
                .state = buffer_state(buffer),
                .created_usec = buffer->created_usec,
                .leases = buffer->n_active + buffer->n_draining,
                .charged_uid = payer->uid,
                .meta = rcstr_text(buffer->meta),
        };
        if (buffer->channel) {
                channel_describe(buffer, &buffer->channel->info);
                ret->channel = &buffer->channel->info;
        }
}
