/* SPDX-License-Identifier: Apache-2.0 */
/* Leases and the processes that hold them: how a lease begins, drains and ends. Loop thread. */
#include "ledger.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct holder *holder_ref(struct holder *holder) {
        holder->refs++;
        return holder;
}

void holder_unref(struct holder *holder) {
        if (holder && --holder->refs == 0 && holder->destroy)
                holder->destroy(holder);
}

/* A user's draining leases count in each of its sessions: coming back again and again must not make them without end. */
int lease_check_room(const struct registry *registry, const struct client *client, struct failure *failure) {
        const struct limits *limits = &registry->limits;
        int64_t used = client->n_leases + client->account->draining, of_uid = client->account->leases;

        if (used >= limits->leases_per_session)
                return fail_quota(failure, "leases_per_session", limits->leases_per_session, used, 1);
        return of_uid < limits->leases_per_uid ? 0 : fail_quota(failure, "leases_per_uid", limits->leases_per_uid, of_uid, 1);
}

struct lease *lease_new(struct registry *registry, struct client *client, struct holder *holder,
                        struct buffer *buffer, enum access access, const char *label) {
        struct lease *lease = calloc(1, sizeof(*lease));

        if (!lease)
                return NULL;
        lease->serial = registry->last_lease + 1;
        lease->id = id_new('l', lease->serial);
        lease->label = rcstr_new(label);
        lease->session = rcstr_ref(client->id);
        lease->account = account_ref(client->account);
        lease->holder = holder_ref(holder);
        lease->client = client;
        lease->buffer = buffer;
        lease->access = access;
        lease->slot = SLOT_NONE;
        if (buffer->channel) {
                lease->member = channel_reserve(buffer->channel, access);
                lease->generation = lease->member->generation;
        }
        if (!lease->id || (label && !lease->label) ||
            (registry->state && buffer->stored && stored_get(registry, holder, &lease->stored) < 0)) {
                lease_free(registry, lease);
                return NULL;
        }
        return lease;
}

void lease_link(struct registry *registry, struct lease *lease) {
        registry->last_lease = lease->serial;
        record_number(registry, STATE_LAST_LEASE, lease->serial);
        list_append(&registry->leases, &lease->by_registry);
        list_append(&lease->buffer->leases, &lease->by_buffer);
        list_append(&lease->client->leases, &lease->by_client);
        list_append(&lease->holder->leases, &lease->by_holder);
        lease->client->n_leases++;
        lease->account->leases++;
        (void)map_put(&registry->leases_by_id, lease->id->text, strlen(lease->id->text), lease);
}

bool lease_has_number(const struct lease *lease) {
        return lease->member && lease->member->generation == lease->generation;
}

void lease_free(struct registry *registry, struct lease *lease) {
        if (!lease)
                return;
        if (lease_has_number(lease) && lease->member->phase == MEMBER_RESERVED)
                member_cancel(lease->member);
        account_unref(&registry->accounts, lease->account);
        stored_unref(registry, lease->stored);
        holder_unref(lease->holder);
        rcstr_unref(lease->id);
        rcstr_unref(lease->session);
        rcstr_unref(lease->label);
        free(lease);
}

void lease_leave_client(struct lease *lease) {
        struct client *client = lease->client;

        if (!client)
                return;
        list_remove(&lease->by_client);
        client->n_leases--;
        if (lease->buffer->first == lease) {
                client->bytes -= buffer_bytes(lease->buffer);
                lease->buffer->first = NULL;
        }
        lease->client = NULL;
}

/* Out of the sums, while it can still be described. In a channel the page says so before the record does. */
static void lease_discount(struct registry *registry, struct lease *lease) {
        struct buffer *buffer = lease->buffer;

        lease_leave_client(lease);
        if (lease->phase == LEASE_PHASE_RESERVED)
                return;
        if (lease_has_number(lease))
                member_leave(lease->member);
        registry->n_leases--;
        if (lease->account == buffer->owner_account)
                buffer->n_owners--;
        if (lease->phase == LEASE_PHASE_ACTIVE) {
                buffer->n_active--;
        } else {
                buffer->n_draining--;
                lease->account->draining--;
        }
}

static void lease_unlink(struct registry *registry, struct lease *lease) {
        record_lease_over(registry, lease);
        cursors_pass(registry, &lease->by_registry);
        list_remove(&lease->by_registry);
        list_remove(&lease->by_buffer);
        list_remove(&lease->by_holder);
        map_take(&registry->leases_by_id, lease->id->text, strlen(lease->id->text));
        registry->room = true;
        lease->account->leases--;
        lease_free(registry, lease);
}

void lease_forget(struct registry *registry, struct lease *lease) {
        lease_discount(registry, lease);
        lease_unlink(registry, lease);
}

void lease_activate(struct registry *registry, struct lease *lease, int64_t now_usec) {
        struct buffer *buffer = lease->buffer;

        assert(lease->phase == LEASE_PHASE_RESERVED && lease->client && !lease->holder->exited);

        lease->phase = LEASE_PHASE_ACTIVE;
        lease->since_usec = now_usec;
        registry->n_leases++;
        buffer->n_active++;
        if (lease->account == buffer->owner_account)
                buffer->n_owners++;
        record_lease(registry, lease); /* before the page: what the page alone knows is never taken up again */
        if (lease->member)
                member_admit(lease->member, lease->holder);
}

void lease_end(struct registry *registry, struct lease *lease, int64_t now_usec, uint64_t monotonic_usec) {
        struct buffer *buffer = lease->buffer;

        lease_discount(registry, lease);
        events_add(&registry->events, "released", buffer, lease, now_usec);
        lease_unlink(registry, lease);
        buffer_settle(registry, buffer, now_usec, monotonic_usec);
}

void lease_drain(struct registry *registry, struct lease *lease, int64_t now_usec, uint64_t monotonic_usec) {
        struct buffer *buffer = lease->buffer;

        lease_leave_client(lease);
        if (lease->member)
                member_leave(lease->member);
        lease->phase = LEASE_PHASE_DRAINING;
        record_lease_draining(registry, lease);
        buffer->n_active--;
        buffer->n_draining++;
        lease->account->draining++;
        events_add(&registry->events, "draining", buffer, lease, now_usec);
        buffer_settle(registry, buffer, now_usec, monotonic_usec);
}

void registry_release(struct registry *registry, struct lease *lease, int64_t now_usec, uint64_t monotonic_usec) {
        assert(lease->phase == LEASE_PHASE_ACTIVE);

        if (registry->policy.trust_release || lease->holder->exited)
                lease_end(registry, lease, now_usec, monotonic_usec);
        else
                lease_drain(registry, lease, now_usec, monotonic_usec);
}

/* Reserved leases stay: who reserved them cancels them. */
void registry_holder_exited(struct registry *registry, struct holder *holder, int64_t now_usec,
                            uint64_t monotonic_usec) {
        struct lease *lease;

        holder->exited = true;
        holder_ref(holder);
        channel_holder_exited(holder);
        list_for_each(lease, &holder->leases, by_holder)
                if (lease->phase != LEASE_PHASE_RESERVED)
                        lease_end(registry, lease, now_usec, monotonic_usec);
        holder_unref(holder);
}

struct lease *registry_find_lease(const struct registry *registry, const struct client *client, const char *id) {
        struct lease *lease = map_find(&registry->leases_by_id, id, strlen(id));

        return lease && lease->client == client && lease->phase == LEASE_PHASE_ACTIVE && !lease->detached ? lease : NULL;
}

static enum lease_state lease_state(const struct lease *lease) {
        if (lease->phase == LEASE_PHASE_DRAINING)
                return LEASE_DRAINING;
        return lease->detached ? LEASE_DETACHED : LEASE_ACTIVE;
}

void lease_describe(const struct lease *lease, struct lease_info *ret) {
        const struct buffer *buffer = lease->buffer;
        const struct holder *holder = lease->holder;

        *ret = (struct lease_info){
                .id = rcstr_text(lease->id),
                .buffer = rcstr_text(buffer->id),
                .name = rcstr_text(buffer->name),
                .size = buffer->size,
                .device = rcstr_text(buffer->charge.device->uuid),
                .access = lease->access,
                .state = lease_state(lease),
                .session = rcstr_text(lease->session),
                .pid = holder->pid,
                .uid = holder->uid,
                .gid = holder->gid,
                .command = rcstr_text(holder->command),
                .container = rcstr_text(holder->container),
                .label = rcstr_text(lease->label),
                .since_usec = lease->since_usec,
        };
}

bool lease_visible(const struct policy *policy, const struct peer *peer, const struct lease *lease) {
        const struct holder *holder = lease->holder;
        struct principal principal = {
                .uid = holder->uid,
                .gid = holder->gid,
                .container = holder->container,
                .unplaced = holder->unplaced,
        };

        return policy_may_rule(policy, peer, &principal) ||
               policy_may_see(policy, peer, &lease->buffer->owner, lease->buffer->mode);
}
