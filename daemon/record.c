/* SPDX-License-Identifier: Apache-2.0 */
/* From the ledger to the state: what is written down of buffers, leases, sessions and processes, so that the next daemon finds it.
 * Loop thread; memory only, but for the random numbers of a new token. All of it is nothing where there is no store. */
#include "ledger.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

/* ---- sessions ---------------------------------------------------------------------------------------------- */

static int token_new(struct token *ret) {
        struct token token;

        if (getrandom(token.bytes, sizeof(token.bytes), GRND_NONBLOCK) != (ssize_t)sizeof(token.bytes))
                return -EIO;
        *ret = token;
        return 0;
}

void client_token_text(const struct client *client, char ret[TOKEN_TEXT_SIZE]) {
        static const char hex[] = "0123456789abcdef";
        const unsigned char *bytes = client->tokens[client->token].bytes;

        for (size_t i = 0; i < sizeof(struct token); i++) {
                ret[2 * i] = hex[bytes[i] >> 4];
                ret[2 * i + 1] = hex[bytes[i] & 15];
        }
        ret[TOKEN_TEXT_SIZE - 1] = '\0';
}

void token_forget(struct registry *registry, struct client *client, unsigned index) {
        if (!(client->tokens_valid & 1u << index))
                return;
        client->tokens_valid &= ~(1u << index);
        (void)map_take(&registry->tokens, client->tokens[index].bytes, sizeof(struct token));
}

static void record_token(struct registry *registry, const struct client *client, unsigned index) {
        uint64_t words[2];

        memcpy(words, client->tokens[index].bytes, sizeof(words));
        for (unsigned i = 0; i < 2; i++)
                state_set_live(registry->state, STATE_SESSION, client->slot, STATE_TOKEN + 2 * index + i, words[i]);
}

static void record_tokens_valid(struct registry *registry, const struct client *client) {
        if (registry->state && client->slot != SLOT_NONE)
                state_set_flags(registry->state, STATE_SESSION, client->slot, client->tokens_valid);
}

/* A new token beside the one that was used: until the client has shown that it knows the new one, either serves. */
int client_new_token(struct registry *registry, struct client *client, unsigned used) {
        struct token token;
        int r = token_new(&token);

        if (r == 0)
                r = map_reserve(&registry->tokens);
        if (r < 0)
                return r;
        token_forget(registry, client, 1 - used);
        record_tokens_valid(registry, client);
        client->tokens[1 - used] = token;
        if (registry->state)
                record_token(registry, client, 1 - used);
        client->tokens_valid |= 1u << (1 - used);
        record_tokens_valid(registry, client);
        client->token = 1 - used;
        (void)map_put(&registry->tokens, client->tokens[1 - used].bytes, sizeof(struct token), client);
        return 0;
}

void registry_confirm_token(struct registry *registry, struct client *client) {
        if (!(client->tokens_valid & 1u << (1 - client->token)))
                return;
        token_forget(registry, client, 1 - client->token);
        record_tokens_valid(registry, client);
}

int registry_record_session(struct registry *registry, struct client *client) {
        struct state_session fixed = {
                .serial = client->serial,
                .uid = client->peer.principal.uid,
                .gid = client->peer.principal.gid,
                .admin = client->peer.admin,
                .unplaced = client->peer.principal.unplaced,
        };
        const char *texts[N_SESSION_TEXTS] = {[SESSION_CONTAINER] = rcstr_text(client->peer.principal.container)};
        int r;

        if (!registry->state || client->slot != SLOT_NONE)
                return 0;
        r = token_new(&client->tokens[0]);
        if (r == 0)
                r = map_reserve(&registry->tokens);
        if (r == 0)
                r = state_reserve(registry->state, STATE_SESSION, &client->slot);
        if (r < 0)
                return r;
        client->token = 0;
        client->tokens_valid = STATE_TOKEN_FIRST;
        (void)map_put(&registry->tokens, client->tokens[0].bytes, sizeof(struct token), client);
        state_write(registry->state, STATE_SESSION, client->slot, &fixed, texts);
        record_token(registry, client, 0);
        record_tokens_valid(registry, client);
        state_set_word(registry->state, STATE_SESSION, client->slot, STATE_LIVE);
        return 0;
}

void record_session_over(struct registry *registry, struct client *client) {
        token_forget(registry, client, 0);
        token_forget(registry, client, 1);
        if (registry->state && client->slot != SLOT_NONE)
                state_give(registry->state, STATE_SESSION, client->slot);
        client->slot = SLOT_NONE;
}

/* ---- processes --------------------------------------------------------------------------------------------- */

void record_process(struct registry *registry, const struct stored *stored, const struct holder *holder) {
        struct state_process fixed = {
                .parcel = stored->parcel,
                .pid = (uint32_t)holder->pid,
                .uid = holder->uid,
                .gid = holder->gid,
                .fd_device = holder->pidfd_device,
                .fd_inode = holder->pidfd_inode,
                .unplaced = holder->unplaced,
        };
        const char *texts[N_PROCESS_TEXTS] = {
                [PROCESS_COMMAND] = rcstr_text(holder->command),
                [PROCESS_CONTAINER] = rcstr_text(holder->container),
        };

        state_write(registry->state, STATE_PROCESS, stored->slot, &fixed, texts);
        state_set_word(registry->state, STATE_PROCESS, stored->slot, STATE_PENDING);
}

/* ---- buffers ----------------------------------------------------------------------------------------------- */

static void record_piece(struct registry *registry, const struct buffer *buffer, enum state_piece piece, uint32_t slot, uint32_t parcel,
                         const struct fd_identity *id) {
        const struct channel *channel = buffer->channel;
        const struct device *device = piece == PIECE_CONTROL ? channel->charge.device : buffer->charge.device;
        struct state_buffer fixed = {.serial = buffer->serial, .piece = piece, .parcel = parcel, .fd_device = id->device,
                                     .fd_inode = id->inode};
        const char *texts[N_BUFFER_TEXTS] = {[BUFFER_DEVICE] = rcstr_text(device->uuid)};

        state_write(registry->state, STATE_BUFFER, slot, &fixed, texts);
        state_set_word(registry->state, STATE_BUFFER, slot, STATE_LIVE);
}

static void record_channel(const struct channel *channel, struct state_buffer *fixed) {
        fixed->mode_of_channel = channel->geometry.mode;
        fixed->policy = channel->geometry.policy;
        fixed->n_slots = channel->geometry.n_slots;
        fixed->meta_bytes = channel->geometry.meta_bytes;
        fixed->slot_bytes = channel->geometry.slot_bytes;
        fixed->fences_bytes = channel->fences_bytes;
        fixed->control_bytes = channel->control_bytes;
        fixed->fences = channel->fences_slot == SLOT_NONE ? 0 : channel->fences_slot + 1;
        fixed->control = channel->control_slot + 1;
}

static void record_buffer(struct registry *registry, struct buffer *buffer, const struct fd_identity *id) {
        struct state_buffer fixed = {
                .serial = buffer->serial,
                .first_lease = buffer->first ? buffer->first->serial : 0,
                .size = buffer->size,
                .allocated = buffer->allocated,
                .created_usec = buffer->created_usec,
                .keep_ms = buffer->keep_ms,
                .parcel = buffer->parcel,
                .mode = buffer->mode,
                .uid = buffer->owner.uid,
                .gid = buffer->owner.gid,
                .ro_enforced = buffer->ro_enforced,
                .unplaced = buffer->owner.unplaced,
                .fd_device = id->device,
                .fd_inode = id->inode,
        };
        const char *texts[N_BUFFER_TEXTS] = {
                [BUFFER_HANDLE] = buffer->handle,
                [BUFFER_DEVICE] = rcstr_text(buffer->charge.device->uuid),
                [BUFFER_NAME] = rcstr_text(buffer->name),
                [BUFFER_META] = rcstr_text(buffer->meta),
                [BUFFER_CONTAINER] = rcstr_text(buffer->owner.container),
        };

        if (buffer->channel)
                record_channel(buffer->channel, &fixed);
        state_write(registry->state, STATE_BUFFER, buffer->slot, &fixed, texts);
        state_set_word(registry->state, STATE_BUFFER, buffer->slot, STATE_PENDING);
}

static int record_reserve(struct registry *registry, uint32_t *ret_slot, uint32_t *ret_parcel) {
        int r = state_reserve(registry->state, STATE_BUFFER, ret_slot);

        if (r < 0)
                return r;
        *ret_parcel = state_next_parcel(registry->state, STATE_BUFFER, *ret_slot);
        return *ret_parcel == 0 ? -ENOSPC : 0;
}

/* Slots for a channel's pieces: theirs from now on, written or not. */
static int record_reserve_pieces(struct registry *registry, struct channel *channel) {
        int r = record_reserve(registry, &channel->control_slot, &channel->control_parcel);

        if (r == 0 && channel->fences_bytes > 0)
                r = record_reserve(registry, &channel->fences_slot, &channel->fences_parcel);
        return r;
}

int registry_record(struct registry *registry, struct lease *lease, const struct fd_identity ids[N_PIECES], int64_t now_usec) {
        struct buffer *buffer = lease->buffer;
        struct channel *channel = buffer->channel;
        int r;

        r = registry_record_session(registry, lease->client);
        if (r == 0 && lease->slot == SLOT_NONE)
                r = state_reserve(registry->state, STATE_LEASE, &lease->slot);
        if (r < 0 || buffer->phase != PHASE_RESERVED || buffer->slot != SLOT_NONE)
                return r;
        r = record_reserve(registry, &buffer->slot, &buffer->parcel);
        if (r == 0 && channel)
                r = record_reserve_pieces(registry, channel);
        if (r < 0)
                return r;
        buffer->created_usec = now_usec;
        if (channel)
                record_piece(registry, buffer, PIECE_CONTROL, channel->control_slot, channel->control_parcel, &ids[PIECE_CONTROL]);
        if (channel && channel->fences_slot != SLOT_NONE)
                record_piece(registry, buffer, PIECE_FENCES, channel->fences_slot, channel->fences_parcel, &ids[PIECE_FENCES]);
        record_buffer(registry, buffer, &ids[PIECE_WHOLE]);
        return 0;
}

void record_buffer_word(struct registry *registry, const struct buffer *buffer, enum state_word word) {
        if (registry->state && buffer->slot != SLOT_NONE)
                state_set_word(registry->state, STATE_BUFFER, buffer->slot, word);
}

void record_buffer_flags(struct registry *registry, const struct buffer *buffer) {
        uint32_t flags = (buffer->sealed ? STATE_SEALED : 0u) | (buffer->freed ? STATE_FREED : 0u);

        if (registry->state && buffer->slot != SLOT_NONE)
                state_set_flags(registry->state, STATE_BUFFER, buffer->slot, flags);
}

void record_buffer_keep(struct registry *registry, const struct buffer *buffer) {
        if (registry->state && buffer->slot != SLOT_NONE)
                state_set_live(registry->state, STATE_BUFFER, buffer->slot, STATE_KEEP_UNTIL, buffer->keep_until_usec);
}

static void record_over(struct registry *registry, uint32_t *slot) {
        if (registry->state && *slot != SLOT_NONE)
                state_give(registry->state, STATE_BUFFER, *slot);
        *slot = SLOT_NONE;
}

/* The pieces last: without them the buffer's record would be one that lost its memory. */
void record_buffer_over(struct registry *registry, struct buffer *buffer) {
        record_over(registry, &buffer->slot);
        if (!buffer->channel)
                return;
        record_over(registry, &buffer->channel->fences_slot);
        record_over(registry, &buffer->channel->control_slot);
}

/* ---- leases ------------------------------------------------------------------------------------------------ */

void record_lease(struct registry *registry, const struct lease *lease) {
        struct state_lease fixed = {
                .serial = lease->serial,
                .buffer = lease->buffer->serial,
                .session = lease->client->serial,
                .process = lease->stored ? lease->stored->slot : 0,
                .uid = lease->account->uid,
                .access = lease->access,
                .since_usec = lease->since_usec,
                .member = lease->member ? lease->member->number + 1 : 0,
                .generation = lease->generation,
        };
        const char *texts[N_LEASE_TEXTS] = {[LEASE_LABEL] = rcstr_text(lease->label)};

        if (!registry->state || lease->slot == SLOT_NONE)
                return;
        state_write(registry->state, STATE_LEASE, lease->slot, &fixed, texts);
        state_set_word(registry->state, STATE_LEASE, lease->slot, STATE_LIVE);
}

void record_lease_draining(struct registry *registry, const struct lease *lease) {
        if (registry->state && lease->slot != SLOT_NONE)
                state_set_word(registry->state, STATE_LEASE, lease->slot, STATE_DRAINING);
}

void record_lease_over(struct registry *registry, struct lease *lease) {
        if (registry->state && lease->slot != SLOT_NONE)
                state_give(registry->state, STATE_LEASE, lease->slot);
        lease->slot = SLOT_NONE;
}

void record_number(struct registry *registry, enum state_number number, uint64_t value) {
        if (registry->state)
                state_set_number(registry->state, number, value);
}
