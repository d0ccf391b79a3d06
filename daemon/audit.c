/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the sums in the books with the lists they sum up. Loop thread; slow; changes nothing. */
#include "ledger.h"

#include <string.h>

struct account_sums {
        int64_t used_bytes, reserved_bytes, clients, names, waits, leases, draining, stored;
        unsigned refs;
};

static bool audit_finds(const struct map *map, const struct rcstr *key, const void *entry) {
        return map_find(map, key->text, strlen(key->text)) == entry;
}

static void account_add_charge(struct account_sums *sums, const struct account *account, const struct charge *charge) {
        if (charge->account != account)
                return;
        sums->refs++;
        sums->stored += charge->stored;
        if (charge->reserved)
                sums->reserved_bytes += charge->bytes;
        else
                sums->used_bytes += charge->bytes;
}

static void account_add_buffer(struct account_sums *sums, const struct account *account,
                               const struct buffer *buffer) {
        sums->refs += buffer->owner_account == account;
        if (buffer->name_account == account) {
                sums->refs++;
                sums->names++;
        }
        account_add_charge(sums, account, &buffer->charge);
        if (buffer->channel)
                account_add_charge(sums, account, &buffer->channel->charge);
}

static void account_add_processes(struct account_sums *sums, const struct account *account, const struct map *processes) {
        const struct stored *stored;
        size_t position = 0;

        while ((stored = map_next(processes, &position)))
                if (stored->account == account) {
                        sums->refs++;
                        sums->stored++;
                }
}

static bool audit_account(const struct registry *registry, const struct account *account) {
        struct account_sums sums = { 0 };
        const struct buffer *buffer;
        const struct client *client;
        const struct lease *lease;

        list_for_each(buffer, &registry->buffers, by_registry)
                account_add_buffer(&sums, account, buffer);
        account_add_processes(&sums, account, &registry->stored);
        list_for_each(lease, &registry->leases, by_registry)
                if (lease->account == account) {
                        sums.refs++;
                        sums.leases++;
                        sums.draining += lease->phase == LEASE_PHASE_DRAINING;
                }
        list_for_each(client, &registry->clients, by_registry)
                if (client->account == account) {
                        sums.refs++;
                        sums.clients++;
                        sums.waits += client->n_waits;
                }
        list_for_each(client, &registry->detached, by_registry)
                sums.refs += client->account == account;
        return account->used_bytes == sums.used_bytes && account->reserved_bytes == sums.reserved_bytes &&
               account->clients == sums.clients && account->names == sums.names && account->waits == sums.waits &&
               account->leases == sums.leases && account->draining == sums.draining &&
               account->stored == sums.stored && account->refs >= sums.refs && account->refs > 0;
}

static bool audit_accounts(const struct registry *registry) {
        const struct account *account;
        size_t position = 0;

        while ((account = map_next(&registry->accounts.by_uid, &position)))
                if (!audit_account(registry, account))
                        return false;
        return true;
}

static bool audit_device(const struct registry *registry, const struct device *device) {
        int64_t used = 0, draining = 0, reserved = 0;
        const struct buffer *buffer;

        list_for_each(buffer, &registry->buffers, by_registry) {
                if (buffer->channel && buffer->channel->charge.device == device) {
                        reserved += buffer->phase == PHASE_RESERVED ? buffer->channel->control_bytes : 0;
                        used += buffer->phase != PHASE_RESERVED ? buffer->channel->control_bytes : 0;
                        draining += buffer->phase == PHASE_DRAINING ? buffer->channel->control_bytes : 0;
                }
                if (buffer->charge.device != device)
                        continue;
                if (buffer->phase == PHASE_RESERVED)
                        reserved += buffer->allocated;
                else
                        used += buffer->allocated;
                if (buffer->phase == PHASE_DRAINING)
                        draining += buffer->allocated;
        }
        return device->used_bytes == used && device->draining_bytes == draining &&
               device->reserved_bytes == reserved && device->spare_bytes >= 0;
}

static bool audit_devices(const struct registry *registry) {
        const struct device *device;
        int64_t n_spares = 0;

        list_for_each(device, &registry->devices, by_registry) {
                n_spares += device->spare_bytes != 0;
                if (!audit_device(registry, device))
                        return false;
        }
        return registry->n_spares == n_spares;
}

static bool audit_buffer_leases(const struct buffer *buffer) {
        int64_t n_active = 0, n_draining = 0, n_reserved = 0, n_owners = 0;
        const struct lease *lease;
        bool first = !buffer->first;

        list_for_each(lease, &buffer->leases, by_buffer) {
                n_active += lease->phase == LEASE_PHASE_ACTIVE;
                n_draining += lease->phase == LEASE_PHASE_DRAINING;
                n_reserved += lease->phase == LEASE_PHASE_RESERVED;
                n_owners += lease->phase != LEASE_PHASE_RESERVED && lease->account == buffer->owner_account;
                first = first || (buffer->first == lease && lease->client);
                if (lease->buffer != buffer)
                        return false;
        }
        if (buffer->phase == PHASE_RESERVED && n_reserved > 1)
                return false;
        if (buffer->phase != PHASE_RESERVED && n_reserved > buffer->n_pins)
                return false;
        return first && buffer->n_active == n_active && buffer->n_draining == n_draining &&
               buffer->n_owners == n_owners;
}

static bool audit_buffer_phase(const struct buffer *buffer) {
        bool used = buffer->n_active > 0 || buffer->n_pins > 0;
        bool handed_out = buffer->closing || !list_empty(&buffer->by_retiring);
        bool draining = buffer->phase == PHASE_DRAINING;

        if (buffer->charge.draining != draining || buffer->charge.reserved != (buffer->phase == PHASE_RESERVED))
                return false;
        switch (buffer->phase) {
        case PHASE_RESERVED: return !used && buffer->n_draining == 0 && buffer->keep_place == 0;
        case PHASE_LIVE: return used && !handed_out;
        case PHASE_KEPT: return !used && !handed_out && !buffer->freed && buffer->keep_place > 0;
        case PHASE_DRAINING:
                return !used && (handed_out || buffer->n_draining > 0) && buffer->keep_place == 0 && !buffer->name;
        }
        return false;
}

/* A member is attached or reserved exactly where a lease of that phase has it. */
static bool audit_channel(const struct buffer *buffer) {
        const struct channel *channel = buffer->channel;
        const struct charge *charge = channel ? &channel->charge : NULL;
        const struct lease *lease;
        unsigned n = 0;

        list_for_each(lease, &buffer->leases, by_buffer) {
                const struct member *member = lease->member;

                if (!channel || !member) {
                        if (!channel != !member)
                                return false;
                        continue;
                }
                n += lease->phase != LEASE_PHASE_DRAINING;
                if (member->channel != channel || (lease->phase != LEASE_PHASE_DRAINING && !lease_has_number(lease)) ||
                    (lease_has_number(lease) &&
                     (member->phase == MEMBER_RESERVED) != (lease->phase == LEASE_PHASE_RESERVED)) ||
                    (lease->phase == LEASE_PHASE_ACTIVE && (member->phase != MEMBER_ATTACHED || member->holder != lease->holder)))
                        return false;
        }
        for (unsigned i = 0; channel && i < RING_MEMBERS; i++) {
                n -= channel->members[i].phase == MEMBER_ATTACHED || channel->members[i].phase == MEMBER_RESERVED;
                if (channel->members[i].holder && channel->members[i].holder->exited && channel->members[i].holder->pidfd >= 0)
                        return false;
        }
        return n == 0 && (!channel || (charge->bytes == channel->control_bytes && charge->account == buffer->charge.account &&
                                       charge->reserved == buffer->charge.reserved && charge->draining == buffer->charge.draining));
}

static bool audit_buffer(const struct registry *registry, const struct buffer *buffer) {
        const struct account *payer = buffer->phase == PHASE_RESERVED ? NULL : buffer_payer(buffer);
        size_t place = buffer->keep_place;

        if (!audit_finds(&registry->buffers_by_id, buffer->id, buffer))
                return false;
        if (!buffer->name != !buffer->name_account || (buffer->name && buffer->freed))
                return false;
        if (buffer->name && !audit_finds(&registry->buffers_by_name, buffer->name, buffer))
                return false;
        if (place > registry->keeps.n || (place > 0 && registry->keeps.heap[place] != buffer))
                return false;
        if (place > 1 && registry->keeps.heap[place / 2]->keep_until_usec > buffer->keep_until_usec)
                return false;
        if (!buffer->charge.account || buffer->charge.bytes != buffer->allocated)
                return false;
        if (buffer->charge.stored != (buffer->stored ? buffer_n_parcels(buffer) : 0))
                return false;
        return (!payer || buffer->charge.account == payer) && audit_buffer_leases(buffer) && audit_channel(buffer) &&
               audit_buffer_phase(buffer);
}

static bool audit_buffers(const struct registry *registry) {
        int64_t n = 0, n_shown = 0, n_descriptors = 0;
        size_t n_names = 0, n_keeps = 0;
        const struct buffer *buffer;

        list_for_each(buffer, &registry->buffers, by_registry) {
                n++;
                n_shown += buffer->phase != PHASE_RESERVED;
                n_names += buffer->name != NULL;
                n_keeps += buffer->keep_place > 0;
                n_descriptors += buffer->n_descriptors;
                if (!audit_buffer(registry, buffer))
                        return false;
        }
        return n == registry->n_buffers && n_shown == registry->n_shown_buffers &&
               registry->buffers_by_id.n == (size_t)n && registry->buffers_by_name.n == n_names &&
               registry->keeps.n == n_keeps && registry->n_descriptors >= n_descriptors;
}

static bool audit_client(const struct registry *registry, const struct client *client) {
        int64_t n_leases = 0, bytes = 0;
        const struct lease *lease;

        list_for_each(lease, &client->leases, by_client) {
                n_leases++;
                if (lease->client != client || lease->phase == LEASE_PHASE_DRAINING)
                        return false;
                if (lease->buffer->first == lease)
                        bytes += buffer_bytes(lease->buffer);
        }
        return client->n_leases == n_leases && client->bytes == bytes && client->n_waits >= 0 &&
               audit_finds(&registry->clients_by_id, client->id, client);
}

static bool audit_clients(const struct registry *registry) {
        const struct client *client;
        int64_t n = 0, n_detached = 0;

        list_for_each(client, &registry->clients, by_registry) {
                n++;
                if (client->detached || !audit_client(registry, client))
                        return false;
        }
        list_for_each(client, &registry->detached, by_registry) {
                n_detached++;
                if (!client->detached || !audit_client(registry, client))
                        return false;
        }
        return n == registry->n_clients && registry->clients_by_id.n == (size_t)(n + n_detached);
}

static bool audit_holder(const struct holder *holder) {
        const struct lease *lease;
        unsigned n = 0;

        list_for_each(lease, &holder->leases, by_holder)
                n++;
        return holder->refs >= n;
}

static bool audit_leases(const struct registry *registry) {
        int64_t n = 0, n_shown = 0, n_by_buffer = 0;
        const struct holder *holder = NULL;
        const struct buffer *buffer;
        const struct lease *lease;

        list_for_each(lease, &registry->leases, by_registry) {
                n++;
                n_shown += lease->phase != LEASE_PHASE_RESERVED;
                if (!audit_finds(&registry->leases_by_id, lease->id, lease))
                        return false;
                if (lease->phase != LEASE_PHASE_RESERVED && lease->holder->exited)
                        return false;
                if (lease->holder != holder && !audit_holder(lease->holder))
                        return false;
                holder = lease->holder;
        }
        list_for_each(buffer, &registry->buffers, by_registry)
                for (const struct list *link = buffer->leases.next; link != &buffer->leases; link = link->next)
                        n_by_buffer++;
        return n_shown == registry->n_leases && registry->leases_by_id.n == (size_t)n && n_by_buffer == n;
}

bool registry_check(const struct registry *registry) {
        return audit_leases(registry) && audit_clients(registry) && audit_buffers(registry) &&
               audit_accounts(registry) && audit_devices(registry) && (!registry->state || audit_state(registry));
}
