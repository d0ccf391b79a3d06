/* SPDX-License-Identifier: Apache-2.0 */
/* Fills an empty ledger from records. Loop thread, at start. Believes no record that contradicts what is there already. */
#include "restore.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ledger.h"

#define SERIAL_MAX ((uint64_t)SCHEMA_INT_MAX)

static uint32_t restored_parcel(const struct registry *registry, uint32_t slot) {
        const char *texts[N_BUFFER_TEXTS];
        struct state_buffer fixed;

        return state_read(registry->state, STATE_BUFFER, slot, &fixed, texts) ? fixed.parcel : 0;
}

static void *restored_find(const struct map *map, char kind, uint64_t serial) {
        char id[24];

        snprintf(id, sizeof(id), "%c%" PRIu64, kind, serial);
        return map_find(map, id, strlen(id));
}

static bool serial_fits(uint64_t serial, uint64_t *last) {
        if (serial == 0 || serial > SERIAL_MAX)
                return false;
        if (serial > *last)
                *last = serial;
        return true;
}

static uint64_t number_read(struct state *state, enum state_number number) {
        uint64_t value = state_number(state, number);

        return value <= SERIAL_MAX / 2 ? value : 0;
}

void registry_restore_numbers(struct registry *registry, struct state *state) {
        uint64_t event = number_read(state, STATE_NEXT_EVENT);

        registry->last_client = number_read(state, STATE_LAST_SESSION);
        registry->last_buffer = number_read(state, STATE_LAST_BUFFER);
        registry->last_lease = number_read(state, STATE_LAST_LEASE);
        if (event > 0)
                registry->events.next = registry->events.oldest = (int64_t)event;
        registry->state = registry->events.state = state;
        registry->n_stored = 1; /* the state itself */
}

int registry_restore_process(struct registry *registry, uint32_t slot, const struct state_process *fixed, const struct holder *holder,
                             struct stored **ret) {
        struct stored *stored = calloc(1, sizeof(*stored));
        int r;

        if (!stored)
                return -ENOMEM;
        list_init(&stored->by_leaving);
        stored->registry = registry;
        stored->slot = slot;
        stored->parcel = holder->pidfd >= 0 ? fixed->parcel : 0;
        stored->phase = STORED_SENT;
        stored->key = holder->identity ? holder->identity : (uint64_t)(uintptr_t)holder | UINT64_C(1) << 63;
        stored->refs = 1;
        r = map_find(&registry->stored, &stored->key, sizeof(stored->key)) ? -EBADMSG
                                                                            : map_put(&registry->stored, &stored->key,
                                                                                      sizeof(stored->key), stored);
        if (r == 0) {
                r = stored_count(stored, holder);
                if (r < 0)
                        map_take(&registry->stored, &stored->key, sizeof(stored->key));
        }
        if (r < 0) {
                free(stored);
                return r;
        }
        *ret = stored;
        return 0;
}

/* ---- sessions ---------------------------------------------------------------------------------------------- */

static bool tokens_read(const struct state *state, uint32_t slot, struct client *client) {
        uint32_t valid = state_flags(state, STATE_SESSION, slot);

        if (valid == 0 || valid > (STATE_TOKEN_FIRST | STATE_TOKEN_SECOND))
                return false;
        client->tokens_valid = valid;
        client->token = valid & STATE_TOKEN_FIRST ? 0 : 1;
        for (unsigned i = 0; i < 2; i++)
                for (unsigned j = 0; j < 2; j++) {
                        uint64_t word = state_live(state, STATE_SESSION, slot, STATE_TOKEN + 2 * i + j);

                        memcpy(client->tokens[i].bytes + 8 * j, &word, sizeof(word));
                }
        return true;
}

static int tokens_link(struct registry *registry, struct client *client) {
        for (unsigned i = 0; i < 2; i++) {
                int r;

                if (!(client->tokens_valid & 1u << i))
                        continue;
                r = map_find(&registry->tokens, client->tokens[i].bytes, sizeof(struct token))
                            ? -EBADMSG
                            : map_put(&registry->tokens, client->tokens[i].bytes, sizeof(struct token), client);
                if (r < 0) {
                        client->tokens_valid &= (1u << i) - 1;
                        return r;
                }
        }
        return 0;
}

static void client_discard(struct registry *registry, struct client *client) {
        token_forget(registry, client, 0);
        token_forget(registry, client, 1);
        account_unref(&registry->accounts, client->account);
        rcstr_unref(client->peer.principal.container);
        rcstr_unref(client->id);
        free(client);
}

int registry_restore_session(struct registry *registry, uint32_t slot, const struct state_session *fixed, const char *const *texts) {
        struct client *client;
        bool tokens;
        int r;

        if (!serial_fits(fixed->serial, &registry->last_client) || restored_find(&registry->clients_by_id, 's', fixed->serial))
                return -EBADMSG;
        client = calloc(1, sizeof(*client));
        if (!client)
                return -ENOMEM;
        client->detached = true;
        client->serial = fixed->serial;
        client->slot = slot;
        client->peer.admin = fixed->admin;
        client->peer.principal = (struct principal){.uid = fixed->uid, .gid = fixed->gid, .unplaced = fixed->unplaced,
                                                    .container = rcstr_new(texts[SESSION_CONTAINER])};
        client->id = id_new('s', fixed->serial);
        client->account = account_get(&registry->accounts, fixed->uid);
        list_init(&client->leases);
        list_init(&client->by_registry);
        tokens = tokens_read(registry->state, slot, client);
        r = tokens ? tokens_link(registry, client) : -EBADMSG;
        if (r == 0 && (!client->id || !client->account || (texts[SESSION_CONTAINER] && !client->peer.principal.container)))
                r = -ENOMEM;
        if (r == 0)
                r = map_put(&registry->clients_by_id, client->id->text, strlen(client->id->text), client);
        if (r < 0) {
                client_discard(registry, client);
                return r;
        }
        list_append(&registry->detached, &client->by_registry);
        return 0;
}

/* ---- buffers ----------------------------------------------------------------------------------------------- */

bool restore_channel_spec(const struct registry *registry, const struct state_buffer *fixed, struct channel_spec *ret) {
        *ret = (struct channel_spec){
                .geometry = {.mode = fixed->mode_of_channel, .policy = fixed->policy, .n_slots = fixed->n_slots,
                             .meta_bytes = fixed->meta_bytes, .slot_bytes = fixed->slot_bytes},
                .fences_bytes = fixed->fences_bytes,
                .control_bytes = fixed->control_bytes,
                .host = registry_find_device(registry, "host"),
        };
        return ret->host && !ring_geometry_fault(&ret->geometry) && fixed->fences_bytes >= 0 &&
               fixed->fences_bytes <= fixed->allocated - fixed->size && fixed->control_bytes <= SCHEMA_INT_MAX &&
               (uint64_t)fixed->control_bytes >= ring_page_bytes(&ret->geometry);
}

static bool buffer_plausible(const struct registry *registry, const struct state_buffer *fixed, const char *const *texts) {
        if (fixed->size <= 0 || fixed->allocated < fixed->size || fixed->allocated > SCHEMA_INT_MAX || fixed->mode > 0777 ||
            fixed->keep_ms < 0 || fixed->keep_ms > SCHEMA_INT_MAX / 1000)
                return false;
        if (fixed->mode_of_channel != 0 && !restore_channel_spec(registry, fixed, &(struct channel_spec){0}))
                return false;
        if (texts[BUFFER_NAME] && (!schema_valid_name(texts[BUFFER_NAME]) ||
                                   map_find(&registry->buffers_by_name, texts[BUFFER_NAME], strlen(texts[BUFFER_NAME]))))
                return false;
        return !restored_find(&registry->buffers_by_id, 'b', fixed->serial);
}

static int buffer_link(struct registry *registry, struct buffer *buffer) {
        int r = map_put(&registry->buffers_by_id, buffer->id->text, strlen(buffer->id->text), buffer);

        if (r == 0 && buffer->name) {
                r = map_put(&registry->buffers_by_name, buffer->name->text, strlen(buffer->name->text), buffer);
                if (r < 0)
                        map_take(&registry->buffers_by_id, buffer->id->text, strlen(buffer->id->text));
        }
        if (r < 0)
                return r;
        if (buffer->name) {
                buffer->name_account = account_ref(buffer->owner_account);
                buffer->name_account->names++;
        }
        list_append(&registry->buffers, &buffer->by_registry);
        registry->n_buffers++;
        registry->n_shown_buffers++;
        registry->n_stored += buffer->stored ? buffer_n_parcels(buffer) : 0;
        registry->n_descriptors += buffer->n_descriptors;
        return 0;
}

static struct channel *channel_read(const struct registry *registry, const struct state_buffer *fixed, struct ring_page *page) {
        struct channel_spec spec;
        struct channel *channel = restore_channel_spec(registry, fixed, &spec) ? channel_new(&spec) : NULL;

        if (!channel || !page)
                return channel;
        channel_restore_page(channel, page);
        channel->control_slot = fixed->control - 1;
        channel->control_parcel = restored_parcel(registry, channel->control_slot);
        if (fixed->fences == 0)
                return channel;
        channel->fences_slot = fixed->fences - 1;
        channel->fences_parcel = restored_parcel(registry, channel->fences_slot);
        return channel;
}

static struct buffer *buffer_read(struct registry *registry, uint32_t slot, const struct state_buffer *fixed, const char *const *texts,
                                  struct device *device, const char *handle, struct ring_page *page, bool drained) {
        struct buffer *buffer = calloc(1, sizeof(*buffer));
        uint32_t flags = state_flags(registry->state, STATE_BUFFER, slot);
        bool freed = flags & STATE_FREED, named = !freed && !drained && texts[BUFFER_NAME];

        if (!buffer)
                return NULL;
        list_init(&buffer->by_registry);
        list_init(&buffer->by_retiring);
        list_init(&buffer->leases);
        buffer->serial = fixed->serial;
        buffer->id = id_new('b', fixed->serial);
        buffer->name = named ? rcstr_new(texts[BUFFER_NAME]) : NULL;
        buffer->meta = rcstr_new(texts[BUFFER_META]);
        buffer->size = fixed->size;
        buffer->allocated = fixed->allocated;
        buffer->handle = handle;
        buffer->owner = (struct principal){.uid = fixed->uid, .gid = fixed->gid, .unplaced = fixed->unplaced,
                                           .container = rcstr_new(texts[BUFFER_CONTAINER])};
        buffer->owner_account = account_get(&registry->accounts, fixed->uid);
        buffer->mode = (mode_t)fixed->mode;
        snprintf(buffer->mode_text, sizeof(buffer->mode_text), "%04o", (unsigned)fixed->mode & 07777);
        buffer->sealed = flags & STATE_SEALED;
        buffer->freed = freed;
        buffer->ro_enforced = fixed->ro_enforced;
        buffer->created_usec = fixed->created_usec;
        buffer->keep_ms = fixed->keep_ms;
        buffer->keep_until_usec = state_live(registry->state, STATE_BUFFER, slot, STATE_KEEP_UNTIL);
        buffer->slot = slot;
        buffer->parcel = fixed->parcel;
        buffer->charge.device = device;
        buffer->channel = fixed->mode_of_channel != 0 ? channel_read(registry, fixed, page) : NULL;
        if ((fixed->mode_of_channel != 0 && !buffer->channel) || !buffer->id || !buffer->owner_account || (named && !buffer->name) ||
            (texts[BUFFER_META] && !buffer->meta) ||
            (texts[BUFFER_CONTAINER] && !buffer->owner.container)) {
                buffer_free(registry, buffer);
                return NULL;
        }
        return buffer;
}

int registry_restore_buffer(struct registry *registry, uint32_t slot, const struct state_buffer *fixed, const char *const *texts,
                            struct device *device, const char *handle, struct backing *backing_take, struct ring_page *page, bool dying) {
        struct buffer *buffer;
        int r;

        if (!serial_fits(fixed->serial, &registry->last_buffer) || !buffer_plausible(registry, fixed, texts) ||
            state_flags(registry->state, STATE_BUFFER, slot) > (STATE_SEALED | STATE_FREED))
                return -EBADMSG;
        r = keeps_reserve(&registry->keeps, (size_t)registry->n_buffers + 1);
        if (r < 0)
                return r;
        buffer = buffer_read(registry, slot, fixed, texts, device, handle, page, dying || !backing_take);
        if (!buffer)
                return -ENOMEM;
        buffer->phase = dying || !backing_take ? PHASE_DRAINING : PHASE_LIVE;
        buffer->stored = backing_take && !dying;
        buffer->n_descriptors = backing_take ? 1 + (page ? channel_n_descriptors(buffer->channel->fences_bytes) : 0) : 0;
        r = buffer_link(registry, buffer);
        if (r < 0) {
                buffer_free(registry, buffer);
                return r;
        }
        charge_restore(&buffer->charge, buffer->owner_account, device, buffer->allocated);
        if (buffer->channel)
                charge_restore(&buffer->channel->charge, buffer->owner_account, registry_find_device(registry, "host"),
                               buffer->channel->control_bytes);
        charge_set_stored(&buffer->charge, buffer->stored ? buffer_n_parcels(buffer) : 0);
        buffer->backing = backing_take;
        if (buffer->phase == PHASE_DRAINING) {
                charge_set_draining(&buffer->charge, true);
                if (buffer->channel)
                        charge_set_draining(&buffer->channel->charge, true);
                record_buffer_word(registry, buffer, STATE_DYING);
        }
        if (buffer->phase == PHASE_DRAINING && backing_take)
                buffer_retire_memory(registry, buffer);
        return 0;
}

struct buffer *registry_restored_buffer(const struct registry *registry, uint64_t serial) {
        return restored_find(&registry->buffers_by_id, 'b', serial);
}

/* ---- leases ------------------------------------------------------------------------------------------------ */

static void lease_restore_link(struct registry *registry, struct lease *lease, struct client *client, bool first) {
        struct buffer *buffer = lease->buffer;

        list_append(&registry->leases, &lease->by_registry);
        list_append(&buffer->leases, &lease->by_buffer);
        list_append(&lease->holder->leases, &lease->by_holder);
        list_init(&lease->by_client);
        lease->account->leases++;
        registry->n_leases++;
        buffer->n_owners += lease->account == buffer->owner_account;
        if (lease->phase == LEASE_PHASE_DRAINING) {
                buffer->n_draining++;
                lease->account->draining++;
                return;
        }
        buffer->n_active++;
        lease->detached = true;
        lease->client = client;
        list_append(&client->leases, &lease->by_client);
        client->n_leases++;
        if (first) {
                buffer->first = lease;
                client->bytes += buffer_bytes(buffer);
        }
}

int registry_restore_lease(struct registry *registry, uint32_t slot, const struct state_lease *fixed, const char *const *texts,
                           struct holder *holder, struct stored *stored) {
        struct buffer *buffer = registry_restored_buffer(registry, fixed->buffer);
        struct client *client = restored_find(&registry->clients_by_id, 's', fixed->session);
        struct state_buffer buffer_fixed;
        const char *buffer_texts[N_BUFFER_TEXTS];
        bool draining = !client || !buffer || buffer->phase == PHASE_DRAINING ||
                        state_word(registry->state, STATE_LEASE, slot) == STATE_DRAINING;
        struct lease *lease;
        int r;

        if (!buffer || !serial_fits(fixed->serial, &registry->last_lease) || fixed->access > ACCESS_RO || fixed->session == 0 ||
            fixed->session > SERIAL_MAX || restored_find(&registry->leases_by_id, 'l', fixed->serial))
                return -EBADMSG;
        if (!state_read(registry->state, STATE_BUFFER, buffer->slot, &buffer_fixed, buffer_texts))
                return -EBADMSG;
        lease = calloc(1, sizeof(*lease));
        if (!lease)
                return -ENOMEM;
        lease->serial = fixed->serial;
        lease->slot = slot;
        lease->buffer = buffer;
        lease->access = (enum access)fixed->access;
        lease->since_usec = fixed->since_usec;
        lease->phase = draining ? LEASE_PHASE_DRAINING : LEASE_PHASE_ACTIVE;
        lease->id = id_new('l', fixed->serial);
        lease->session = client ? rcstr_ref(client->id) : id_new('s', fixed->session);
        lease->label = rcstr_new(texts[LEASE_LABEL]);
        lease->account = account_get(&registry->accounts, (uid_t)fixed->uid);
        lease->holder = holder_ref(holder);
        r = lease->id && lease->session && lease->account && (!texts[LEASE_LABEL] || lease->label)
                    ? map_put(&registry->leases_by_id, lease->id->text, strlen(lease->id->text), lease)
                    : -ENOMEM;
        if (r < 0) {
                lease_free(registry, lease);
                return r;
        }
        if (buffer->channel) {
                const uint32_t number = fixed->member - 1;

                lease->generation = fixed->generation;
                lease->member = draining ? channel_restore_drained(buffer->channel, number, fixed->generation) : NULL;
                if (!lease->member)
                        lease->member = channel_restore_member(buffer->channel, number, fixed->generation, lease->access, holder);
                if (!lease->member) {
                        map_take(&registry->leases_by_id, lease->id->text, strlen(lease->id->text));
                        lease_free(registry, lease);
                        return -EBADMSG;
                }
        }
        stored->refs++;
        lease->stored = stored;
        lease_restore_link(registry, lease, client, buffer_fixed.first_lease == lease->serial);
        if (draining && lease_has_number(lease))
                member_leave(lease->member);
        if (draining)
                record_lease_draining(registry, lease);
        return 0;
}

/* ---- the end of it ----------------------------------------------------------------------------------------- */

static void buffer_restored(struct registry *registry, struct buffer *buffer, int64_t now_usec, uint64_t monotonic_usec) {
        uint64_t longest_usec = monotonic_usec + (uint64_t)buffer->keep_ms * 1000;

        if (buffer->channel)
                channel_restored(buffer->channel);
        if (buffer->phase == PHASE_LIVE && buffer->keep_until_usec > 0 && !buffer->freed) {
                if (buffer->keep_until_usec > longest_usec)
                        buffer->keep_until_usec = longest_usec;
                if (buffer->keep_until_usec > monotonic_usec) {
                        keeps_add(&registry->keeps, buffer);
                        if (buffer->n_active == 0)
                                buffer->phase = PHASE_KEPT;
                }
        }
        buffer_settle(registry, buffer, now_usec, monotonic_usec);
}

void registry_restored(struct registry *registry, int64_t now_usec, uint64_t monotonic_usec) {
        struct buffer *buffer;

        record_number(registry, STATE_LAST_SESSION, registry->last_client);
        record_number(registry, STATE_LAST_BUFFER, registry->last_buffer);
        record_number(registry, STATE_LAST_LEASE, registry->last_lease);
        record_number(registry, STATE_NEXT_EVENT, (uint64_t)registry->events.next);
        list_for_each(buffer, &registry->buffers, by_registry)
                buffer_restored(registry, buffer, now_usec, monotonic_usec);
}
