/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions as the ledger knows them: who is let in, what they wait for, and the goodbye that undoes all they did.
 * Loop thread. */
#include "ledger.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int client_check(const struct registry *registry, const struct peer *peer, int64_t n_descriptors,
                        struct failure *failure) {
        const struct limits *limits = &registry->limits;
        const struct account *account = account_find(&registry->accounts, peer->principal.uid);
        int64_t of_uid = account ? account->clients : 0;
        int r;

        r = policy_admit(&registry->policy, peer, failure);
        if (r != 0)
                return r;
        if (!peer->admin && registry->n_clients >= limits->clients)
                return fail_quota(failure, "clients", limits->clients, registry->n_clients, 1);
        if (!peer->admin && of_uid >= limits->clients_per_uid)
                return fail_quota(failure, "clients_per_uid", limits->clients_per_uid, of_uid, 1);
        return descriptors_check(registry, n_descriptors, DESCRIPTORS_FOR_REFUSALS, failure);
}

static void client_free(struct registry *registry, struct client *client) {
        account_unref(&registry->accounts, client->account);
        rcstr_unref(client->peer.principal.container);
        rcstr_unref(client->id);
        free(client);
}

int registry_client_new(struct registry *registry, const struct peer *peer, int64_t n_descriptors,
                        struct client **ret, struct failure *failure) {
        struct client *client;
        int r;

        r = client_check(registry, peer, n_descriptors, failure);
        if (r == 0)
                r = map_reserve(&registry->clients_by_id);
        if (r != 0)
                return r;
        client = calloc(1, sizeof(*client));
        if (!client)
                return -ENOMEM;
        client->serial = registry->last_client + 1;
        client->slot = SLOT_NONE;
        client->peer = *peer;
        rcstr_ref(client->peer.principal.container);
        client->id = id_new('s', client->serial);
        client->account = account_get(&registry->accounts, peer->principal.uid);
        if (!client->id || !client->account) {
                client_free(registry, client);
                return -ENOMEM;
        }

        list_init(&client->leases);
        list_append(&registry->clients, &client->by_registry);
        (void)map_put(&registry->clients_by_id, client->id->text, strlen(client->id->text), client);
        registry->last_client = client->serial;
        record_number(registry, STATE_LAST_SESSION, client->serial);
        registry->n_clients++;
        registry->n_descriptors += n_descriptors;
        client->account->clients++;
        *ret = client;
        return 0;
}

void client_forget(struct registry *registry, struct client *client, int64_t n_descriptors) {
        assert(client->n_leases == 0 && client->bytes == 0);

        record_session_over(registry, client);
        client->account->waits -= client->n_waits;
        if (!client->detached) {
                client->account->clients--;
                registry->n_clients--;
        }
        registry->n_descriptors -= n_descriptors;
        registry->room = true;
        list_remove(&client->by_registry);
        map_take(&registry->clients_by_id, client->id->text, strlen(client->id->text));
        client_free(registry, client);
}

static void client_end_lease(struct registry *registry, struct lease *lease, int64_t now_usec,
                             uint64_t monotonic_usec) {
        if (lease->phase == LEASE_PHASE_RESERVED)
                lease_leave_client(lease);
        else if (lease->holder->exited)
                lease_end(registry, lease, now_usec, monotonic_usec);
        else
                lease_drain(registry, lease, now_usec, monotonic_usec);
}

void registry_client_end(struct registry *registry, struct client *client, int64_t n_descriptors, int64_t now_usec,
                         uint64_t monotonic_usec) {
        struct lease *lease;

        list_for_each(lease, &client->leases, by_client)
                client_end_lease(registry, lease, now_usec, monotonic_usec);
        client_forget(registry, client, n_descriptors);
}

struct client *registry_find_client(const struct registry *registry, const char *id) {
        return map_find(&registry->clients_by_id, id, strlen(id));
}

int registry_wait_begin(struct registry *registry, struct client *client, struct failure *failure) {
        const struct limits *limits = &registry->limits;
        struct account *account = client->account;

        if (client->n_waits >= limits->waits_per_session)
                return fail_quota(failure, "waits_per_session", limits->waits_per_session, client->n_waits, 1);
        if (account->waits >= limits->waits_per_uid)
                return fail_quota(failure, "waits_per_uid", limits->waits_per_uid, account->waits, 1);
        client->n_waits++;
        account->waits++;
        return 0;
}

void registry_wait_end(struct registry *registry, struct client *client) {
        (void)registry;
        assert(client->n_waits > 0);

        client->n_waits--;
        client->account->waits--;
}
