/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions that an earlier daemon left: taken up by whoever has the token, or ended when nobody came. Loop thread. */
#include "ledger.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- tokens ------------------------------------------------------------------------------------------------ */

static int hex_digit(char c) {
        if (c >= '0' && c <= '9')
                return c - '0';
        return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool token_parse(const char *text, struct token *ret) {
        if (strlen(text) != TOKEN_TEXT_SIZE - 1)
                return false;
        for (size_t i = 0; i < sizeof(ret->bytes); i++) {
                int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);

                if (high < 0 || low < 0)
                        return false;
                ret->bytes[i] = (unsigned char)(high << 4 | low);
        }
        return true;
}

static struct client *token_find(const struct registry *registry, const char *text, unsigned *ret_index) {
        struct client *client;
        struct token token;

        if (!token_parse(text, &token))
                return NULL;
        client = map_find(&registry->tokens, token.bytes, sizeof(token.bytes));
        if (!client)
                return NULL;
        *ret_index = memcmp(client->tokens[0].bytes, token.bytes, sizeof(token.bytes)) == 0 &&
                                     client->tokens_valid & STATE_TOKEN_FIRST
                             ? 0
                             : 1;
        return client;
}

/* ---- resuming ---------------------------------------------------------------------------------------------- */

static bool client_has_detached(const struct client *client) {
        const struct lease *lease;

        list_for_each(lease, &client->leases, by_client)
                if (lease->detached)
                        return true;
        return false;
}

/* Whoever is not the session's owner learns nothing of it. */
int registry_find_resumable(struct registry *registry, const struct client *client, const char *token, struct client **ret,
                            struct failure *failure) {
        unsigned index;
        struct client *left = token_find(registry, token, &index);

        if (!left || left->peer.admin != client->peer.admin ||
            !policy_same(&registry->policy, &left->peer.principal, &client->peer.principal))
                return fail_plain(failure, VERDICT_NO_SUCH_SESSION);
        if (left == client && client_has_detached(client)) {
                *ret = left;
                return 0;
        }
        if (left == client)
                return fail_reason(failure, VERDICT_ACCESS_DENIED, "",
                                   "this connection is the session of that token, and has all its leases");
        if (!left->detached)
                return fail_reason(failure, VERDICT_ACCESS_DENIED, "",
                                   "the connection of session %s still stands; close it, and its leases end with it",
                                   left->id->text);
        if (!list_empty(&client->leases))
                return fail_reason(failure, VERDICT_ACCESS_DENIED, "",
                                   "this connection has leases of its own; resume on a new one");
        *ret = left;
        return 0;
}

/* Its token, record and id pass over; what the new connection had of these is forgotten. */
static void client_become(struct registry *registry, struct client *client, struct client *left) {
        record_session_over(registry, client);
        map_take(&registry->clients_by_id, client->id->text, strlen(client->id->text));
        map_take(&registry->clients_by_id, left->id->text, strlen(left->id->text));
        rcstr_unref(client->id);
        client->id = rcstr_ref(left->id);
        client->serial = left->serial;
        (void)map_put(&registry->clients_by_id, client->id->text, strlen(client->id->text), client);

        client->slot = left->slot;
        left->slot = SLOT_NONE;
        for (unsigned i = 0; i < 2; i++) {
                if (!(left->tokens_valid & 1u << i))
                        continue;
                client->tokens[i] = left->tokens[i];
                (void)map_take(&registry->tokens, left->tokens[i].bytes, sizeof(struct token));
                (void)map_put(&registry->tokens, client->tokens[i].bytes, sizeof(struct token), client);
        }
        client->tokens_valid = left->tokens_valid;
        client->token = left->token;
        left->tokens_valid = 0;
}

static void client_take_lease(struct client *client, struct lease *lease) {
        list_remove(&lease->by_client);
        list_append(&client->leases, &lease->by_client);
        lease->client->n_leases--;
        client->n_leases++;
        if (lease->buffer->first == lease) {
                lease->client->bytes -= buffer_bytes(lease->buffer);
                client->bytes += buffer_bytes(lease->buffer);
        }
        lease->client = client;
}

static void client_free_left(struct registry *registry, struct client *left) {
        assert(list_empty(&left->leases) && left->detached);

        list_remove(&left->by_registry);
        account_unref(&registry->accounts, left->account);
        rcstr_unref(left->peer.principal.container);
        rcstr_unref(left->id);
        free(left);
}

int registry_resume(struct registry *registry, struct client *client, struct client *left, const char *token,
                    bool (*holds)(void *arg, const char *lease), void *arg, bool last, int64_t now_usec, uint64_t monotonic_usec) {
        struct lease *lease;
        unsigned used = 0;
        int r;

        (void)token_find(registry, token, &used);
        r = client_new_token(registry, left, used);
        if (r < 0)
                return r;
        list_for_each(lease, &left->leases, by_client)
                if (lease->detached && holds(arg, lease->id->text))
                        lease->detached = false;
                else if (lease->detached && last)
                        registry_release(registry, lease, now_usec, monotonic_usec);
        if (left == client)
                return 0;
        list_for_each(lease, &left->leases, by_client)
                client_take_lease(client, lease);
        client_become(registry, client, left);
        client_free_left(registry, left);
        return 0;
}

/* A session that came back and did not list all it said it would. */
static void client_end_detached(struct registry *registry, struct client *client, int64_t now_usec, uint64_t monotonic_usec) {
        struct lease *lease;

        list_for_each(lease, &client->leases, by_client)
                if (lease->detached)
                        registry_release(registry, lease, now_usec, monotonic_usec);
}

void registry_end_detached(struct registry *registry, int64_t now_usec, uint64_t monotonic_usec) {
        struct client *client;

        while (!list_empty(&registry->detached)) {
                struct lease *lease;

                client = container_of(list_first(&registry->detached), struct client, by_registry);

                list_for_each(lease, &client->leases, by_client)
                        if (lease->holder->pidfd < 0)
                                lease->holder->exited = true; /* its exit cannot be seen */
                registry_client_end(registry, client, 0, now_usec, monotonic_usec);
        }
        list_for_each(client, &registry->clients, by_registry)
                client_end_detached(registry, client, now_usec, monotonic_usec);
}
