/* SPDX-License-Identifier: Apache-2.0 */
/* Compares what is written down for the next daemon with what this one remembers. Loop thread; slow; changes nothing. */
#include "ledger.h"

#include <string.h>

static bool audit_buffer_record(const struct registry *registry, const struct buffer *buffer) {
        const struct state *state = registry->state;
        uint32_t flags = (buffer->sealed ? STATE_SEALED : 0u) | (buffer->freed ? STATE_FREED : 0u);
        const char *texts[N_BUFFER_TEXTS];
        struct state_buffer fixed;
        enum state_word word;

        if (buffer->slot == SLOT_NONE)
                return true;
        word = state_word(state, STATE_BUFFER, buffer->slot);
        if (!state_read(state, STATE_BUFFER, buffer->slot, &fixed, texts) || fixed.serial != buffer->serial ||
            fixed.parcel != buffer->parcel)
                return false;
        if (buffer->phase == PHASE_RESERVED)
                return word == STATE_PENDING;
        if (state_flags(state, STATE_BUFFER, buffer->slot) != flags ||
            state_live(state, STATE_BUFFER, buffer->slot, STATE_KEEP_UNTIL) < buffer->keep_until_usec)
                return false;
        return word == (buffer->phase == PHASE_DRAINING ? STATE_DYING : STATE_LIVE);
}

static bool audit_lease_record(const struct registry *registry, const struct lease *lease) {
        const struct state *state = registry->state;
        const char *texts[N_LEASE_TEXTS];
        struct state_lease fixed;
        enum state_word word;

        if (lease->slot == SLOT_NONE || lease->phase == LEASE_PHASE_RESERVED)
                return !lease->stored || lease->phase == LEASE_PHASE_RESERVED;
        word = state_word(state, STATE_LEASE, lease->slot);
        return state_read(state, STATE_LEASE, lease->slot, &fixed, texts) && fixed.serial == lease->serial &&
               fixed.member == (lease->member ? lease->member->number + 1 : 0) &&
               fixed.generation == (lease->member ? lease->member->generation : 0) &&
               fixed.buffer == lease->buffer->serial && lease->stored && fixed.process == lease->stored->slot &&
               state_word(state, STATE_PROCESS, lease->stored->slot) == STATE_LIVE &&
               word == (lease->phase == LEASE_PHASE_DRAINING ? STATE_DRAINING : STATE_LIVE);
}

static bool audit_session_record(const struct registry *registry, const struct client *client) {
        const char *texts[N_SESSION_TEXTS];
        struct state_session fixed;

        if (client->slot == SLOT_NONE)
                return client->tokens_valid == 0;
        return state_word(registry->state, STATE_SESSION, client->slot) == STATE_LIVE &&
               state_read(registry->state, STATE_SESSION, client->slot, &fixed, texts) && fixed.serial == client->serial &&
               state_flags(registry->state, STATE_SESSION, client->slot) == client->tokens_valid;
}

/* Records of what the ledger has not are those of processes that leave, and nothing else. */
static uint32_t audit_count(const struct state *state, enum state_kind kind) {
        uint32_t n = 0;

        for (uint32_t slot = 0; slot < state_n_slots(state, kind); slot++)
                n += state_word(state, kind, slot) != STATE_FREE;
        return n;
}

static bool audit_processes(const struct registry *registry, int64_t *ret_stored) {
        const struct stored *stored;
        size_t position = 0;

        while ((stored = map_next(&registry->stored, &position))) {
                enum state_word word = state_word(registry->state, STATE_PROCESS, stored->slot);

                *ret_stored += stored->parcel > 0;
                if (word != (stored->phase == STORED_SENT ? STATE_LIVE : STATE_PENDING))
                        return false;
        }
        return true;
}

bool audit_state(const struct registry *registry) {
        uint32_t n_buffers = 0, n_leases = 0, n_sessions = 0;
        const struct buffer *buffer;
        const struct client *client;
        const struct lease *lease;
        int64_t n_stored = 1;

        list_for_each(buffer, &registry->buffers, by_registry) {
                n_buffers += buffer->slot != SLOT_NONE;
                n_buffers += buffer->channel && buffer->channel->fences_slot != SLOT_NONE;
                n_buffers += buffer->channel && buffer->channel->control_slot != SLOT_NONE;
                n_stored += buffer->stored ? buffer_n_parcels(buffer) : 0;
                if (!audit_buffer_record(registry, buffer))
                        return false;
        }
        list_for_each(lease, &registry->leases, by_registry) {
                n_leases += lease->slot != SLOT_NONE && lease->phase != LEASE_PHASE_RESERVED;
                if (!audit_lease_record(registry, lease))
                        return false;
        }
        list_for_each(client, &registry->clients, by_registry) {
                n_sessions += client->slot != SLOT_NONE;
                if (!audit_session_record(registry, client))
                        return false;
        }
        list_for_each(client, &registry->detached, by_registry) {
                n_sessions += client->slot != SLOT_NONE;
                if (!audit_session_record(registry, client))
                        return false;
        }
        return audit_processes(registry, &n_stored) && registry->n_stored == n_stored &&
               audit_count(registry->state, STATE_BUFFER) == n_buffers && audit_count(registry->state, STATE_LEASE) == n_leases &&
               audit_count(registry->state, STATE_SESSION) == n_sessions &&
               state_number(registry->state, STATE_NEXT_EVENT) == (uint64_t)registry->events.next;
}
