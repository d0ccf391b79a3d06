/* SPDX-License-Identifier: Apache-2.0 */
/* The plain account beside the ledger. */
#include "ledger_model.h"

#include <stdio.h>

struct model_buffer *model_find_buffer(struct model *model, uint64_t serial) {
        for (size_t i = 0; i < model->n_buffers; i++)
                if (model->buffers[i].serial == serial)
                        return &model->buffers[i];
        return NULL;
}

void model_add_lease(struct model *model, struct buffer *buffer, struct lease *lease) {
        must(model->n_leases < MODEL_MAX);
        model->leases[model->n_leases++] = (struct model_lease){
                .lease = lease,
                .serial = lease->serial,
                .buffer = buffer->serial,
                .client = lease->client->serial,
                .holder = lease->holder,
                .uid = lease->client->peer.principal.uid,
        };
}

void model_add_buffer(struct model *model, struct buffer *buffer, struct lease *lease) {
        struct model_buffer *mine;

        must(model->n_buffers < MODEL_MAX);
        mine = &model->buffers[model->n_buffers++];
        *mine = (struct model_buffer){
                .buffer = buffer,
                .serial = buffer->serial,
                .owner = lease->client->peer.principal.uid,
                .payer = lease->client->peer.principal.uid,
                .bytes = buffer->allocated,
                .keep_ms = buffer->keep_ms,
                .reserved = true,
        };
        snprintf(mine->name, sizeof(mine->name), "%s", buffer->name ? buffer->name->text : "");
        model_add_lease(model, buffer, lease);
        model->leases[model->n_leases - 1].first = true;
}

void model_remove_lease(struct model *model, struct model_lease *lease) {
        size_t i = (size_t)(lease - model->leases);

        memmove(lease, lease + 1, (--model->n_leases - i) * sizeof(*lease));
}

static void model_remove_buffer(struct model *model, struct model_buffer *buffer) {
        size_t i = (size_t)(buffer - model->buffers);

        memmove(buffer, buffer + 1, (--model->n_buffers - i) * sizeof(*buffer));
}

void model_activate(struct model_lease *lease) {
        lease->phase = MODEL_ACTIVE;
}

void model_commit_buffer(struct model *model, struct model_buffer *buffer) {
        buffer->reserved = false;
        buffer->open = true;
        for (size_t i = 0; i < model->n_leases; i++)
                if (model->leases[i].buffer == buffer->serial)
                        model_activate(&model->leases[i]);
}

void model_cancel_buffer(struct model *model, struct model_buffer *buffer, bool with_memory) {
        for (size_t i = 0; i < model->n_leases; i++)
                if (model->leases[i].buffer == buffer->serial)
                        model_remove_lease(model, &model->leases[i--]);
        buffer->name[0] = '\0';
        buffer->retired = true;
        buffer->open = with_memory;
}

static void model_drain(struct model_lease *lease) {
        lease->phase = MODEL_DRAINING;
        lease->client = 0;
        lease->first = false;
}

void model_end_client(struct model *model, uint64_t client) {
        for (size_t i = 0; i < model->n_leases; i++) {
                struct model_lease *lease = &model->leases[i];

                if (lease->client != client)
                        continue;
                lease->client = 0;
                lease->first = false;
                if (lease->phase == MODEL_ACTIVE)
                        model_drain(lease);
        }
}

void model_exit(struct model *model, const struct holder *holder) {
        for (size_t i = 0; i < model->n_leases; i++)
                if (model->leases[i].holder == holder && model->leases[i].phase != MODEL_RESERVED)
                        model_remove_lease(model, &model->leases[i--]);
}

void model_release(struct model *model, struct model_lease *lease) {
        if (model->trust_release)
                model_remove_lease(model, lease);
        else
                model_drain(lease);
}

void model_free(struct model *model, struct model_buffer *buffer) {
        (void)model;
        buffer->freed = true;
        buffer->name[0] = '\0';
}

static int64_t model_count(const struct model *model, const struct model_buffer *buffer, enum model_phase phase) {
        int64_t n = 0;

        for (size_t i = 0; i < model->n_leases; i++)
                n += model->leases[i].buffer == buffer->serial && model->leases[i].phase == phase;
        return n;
}

static bool model_keeps(const struct model *model, const struct model_buffer *buffer) {
        return !buffer->freed && !buffer->retired && buffer->keep_until > model->now;
}

static bool model_uses(const struct model *model, const struct model_buffer *buffer) {
        return buffer->n_pins > 0 || model_count(model, buffer, MODEL_ACTIVE) > 0 ||
               model_count(model, buffer, MODEL_RESERVED) > 0;
}

static void model_settle_payer(const struct model *model, struct model_buffer *buffer) {
        const struct model_lease *oldest = NULL;
        bool owners = buffer->name[0] || model_keeps(model, buffer);

        for (size_t i = 0; i < model->n_leases; i++) {
                const struct model_lease *lease = &model->leases[i];

                if (lease->buffer != buffer->serial || lease->phase == MODEL_RESERVED)
                        continue;
                owners = owners || lease->uid == buffer->owner;
                oldest = oldest ? oldest : lease;
        }
        if (owners)
                buffer->payer = buffer->owner;
        else if (oldest)
                buffer->payer = oldest->uid;
}

static bool model_settle_buffer(struct model *model, struct model_buffer *buffer) {
        if (!buffer->reserved && !buffer->retired && !model_uses(model, buffer)) {
                if (buffer->keep_ms > 0 && !buffer->freed && buffer->keep_until == 0)
                        buffer->keep_until = model->now + (uint64_t)buffer->keep_ms * 1000;
                if (!model_keeps(model, buffer)) {
                        buffer->retired = true;
                        buffer->name[0] = '\0';
                }
        }
        if (buffer->retired && !buffer->open && model_count(model, buffer, MODEL_DRAINING) == 0)
                return false;
        if (!buffer->reserved)
                model_settle_payer(model, buffer);
        return true;
}

void model_settle(struct model *model) {
        for (size_t i = 0; i < model->n_buffers; i++)
                if (!model_settle_buffer(model, &model->buffers[i]))
                        model_remove_buffer(model, &model->buffers[i--]);
}

int64_t model_count_leases(const struct model *model, const struct client *client) {
        uid_t uid = client->peer.principal.uid;
        int64_t n = 0;

        for (size_t i = 0; i < model->n_leases; i++)
                n += model->leases[i].client == client->serial ||
                     (model->leases[i].uid == uid && model->leases[i].phase == MODEL_DRAINING);
        return n;
}

static int64_t model_bytes(const struct model *model, uid_t uid, bool reserved) {
        int64_t bytes = 0;

        for (size_t i = 0; i < model->n_buffers; i++)
                if (model->buffers[i].payer == uid && model->buffers[i].reserved == reserved)
                        bytes += model->buffers[i].bytes;
        return bytes;
}

static int64_t model_all_bytes(const struct model *model, bool reserved, bool only_retired) {
        int64_t bytes = 0;

        for (size_t i = 0; i < model->n_buffers; i++)
                if (model->buffers[i].reserved == reserved && (!only_retired || model->buffers[i].retired))
                        bytes += model->buffers[i].bytes;
        return bytes;
}

static int64_t model_names(const struct model *model, uid_t uid) {
        int64_t n = 0;

        for (size_t i = 0; i < model->n_buffers; i++)
                n += model->buffers[i].owner == uid && model->buffers[i].name[0];
        return n;
}

static int64_t model_session_bytes(const struct model *model, uint64_t client) {
        int64_t bytes = 0;

        for (size_t i = 0; i < model->n_leases; i++)
                if (model->leases[i].first && model->leases[i].client == client)
                        bytes += model_find_buffer((struct model *)model, model->leases[i].buffer)->bytes;
        return bytes;
}

static bool model_has_name(const struct model *model, const char *name) {
        for (size_t i = 0; i < model->n_buffers; i++)
                if (strcmp(model->buffers[i].name, name) == 0)
                        return true;
        return false;
}

int model_judge(const struct model *model, const struct world *world, const struct client *client,
                const struct buffer_spec *spec, const char **ret_scope) {
        const struct limits *limits = &world->registry.limits;
        uid_t uid = client->peer.principal.uid;
        int64_t most = world->device.capacity_bytes - limits->keep_free_bytes, bytes = spec->allocated;
        int64_t charged = model_bytes(model, uid, false) + model_bytes(model, uid, true);
        int64_t taken = model_all_bytes(model, false, false) + model_all_bytes(model, true, false);

        *ret_scope = "";
        if (spec->name && model_has_name(model, spec->name))
                return VERDICT_NAME_TAKEN;
        *ret_scope = "buffers";
        if ((int64_t)model->n_buffers + 1 > limits->buffers)
                return VERDICT_QUOTA_EXCEEDED;
        *ret_scope = "names_per_uid";
        if (spec->name && model_names(model, uid) + 1 > limits->names_per_uid)
                return VERDICT_QUOTA_EXCEEDED;
        *ret_scope = "leases_per_session";
        if (model_count_leases(model, client) + 1 > limits->leases_per_session)
                return VERDICT_QUOTA_EXCEEDED;
        *ret_scope = "bytes_per_session";
        if (model_session_bytes(model, client->serial) + bytes > limits->bytes_per_session)
                return VERDICT_QUOTA_EXCEEDED;
        *ret_scope = "bytes_per_uid";
        if (bytes > limits->bytes_per_uid || (bytes <= most && charged + bytes > limits->bytes_per_uid))
                return VERDICT_QUOTA_EXCEEDED;
        *ret_scope = "host";
        return taken + bytes > most ? VERDICT_OUT_OF_MEMORY : 0;
}

static void model_compare_lease(const struct model_lease *mine, const struct lease *lease) {
        static const enum model_phase phases[] = {
                [LEASE_PHASE_RESERVED] = MODEL_RESERVED,
                [LEASE_PHASE_ACTIVE] = MODEL_ACTIVE,
                [LEASE_PHASE_DRAINING] = MODEL_DRAINING,
        };

        must(lease->serial == mine->serial);
        must(lease->buffer->serial == mine->buffer);
        must(phases[lease->phase] == mine->phase);
        must((lease->client ? lease->client->serial : 0) == mine->client);
        must(lease->holder == mine->holder);
}

static void model_compare_buffer(const struct model *model, const struct model_buffer *mine,
                                 const struct buffer *buffer) {
        struct buffer_info info;
        int state = mine->retired ? BUFFER_DRAINING : model_uses(model, mine) ? BUFFER_LIVE : BUFFER_KEPT;

        buffer_describe(buffer, &info);
        must(buffer->serial == mine->serial);
        must((buffer->phase == PHASE_RESERVED) == mine->reserved);
        must(strcmp(info.name ? info.name : "", mine->name) == 0);
        must(info.charged_uid == mine->payer);
        must(info.owner_uid == mine->owner);
        must(info.sealed == mine->sealed);
        must(info.leases == model_count(model, mine, MODEL_ACTIVE) + model_count(model, mine, MODEL_DRAINING));
        must((buffer->closing || !list_empty(&buffer->by_retiring)) == (mine->retired && mine->open));
        if (!mine->reserved)
                must(info.state == state);
}

static void model_compare_sums(const struct model *model, const struct world *world) {
        const struct registry *registry = &world->registry;
        const struct account *account;
        const struct client *client;
        size_t position = 0;

        must(world->device.used_bytes == model_all_bytes(model, false, false));
        must(world->device.reserved_bytes == model_all_bytes(model, true, false));
        must(world->device.draining_bytes == model_all_bytes(model, false, true));
        while ((account = map_next(&registry->accounts.by_uid, &position))) {
                must(account->used_bytes == model_bytes(model, account->uid, false));
                must(account->reserved_bytes == model_bytes(model, account->uid, true));
                must(account->names == model_names(model, account->uid));
        }
        for (size_t i = 0; i < model->n_buffers; i++)
                must(account_find(&registry->accounts, model->buffers[i].payer) != NULL);
        list_for_each(client, &registry->clients, by_registry)
                must(client->bytes == model_session_bytes(model, client->serial));
}

void model_compare(struct model *model, const struct world *world) {
        const struct registry *registry = &world->registry;
        const struct buffer *buffer;
        const struct lease *lease;
        size_t n = 0;

        world_check(world);
        list_for_each(buffer, &registry->buffers, by_registry) {
                must(n < model->n_buffers);
                model_compare_buffer(model, &model->buffers[n++], buffer);
        }
        must(n == model->n_buffers);
        n = 0;
        list_for_each(lease, &registry->leases, by_registry) {
                must(n < model->n_leases);
                model_compare_lease(&model->leases[n++], lease);
        }
        must(n == model->n_leases);
        model_compare_sums(model, world);
}
