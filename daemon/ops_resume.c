/* SPDX-License-Identifier: Apache-2.0 */
/* Resume: a client takes up the session it had before the daemon restarted. Loop thread; answered from the ledger. */
#include "ops.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "log.h"
#include "proto/cleanup.h"

/* The ids the client listed, in order, so that each is found quickly. */
struct holding {
        const char **ids;
        size_t n;
};

static int holding_compare(const void *a, const void *b) {
        return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int holding_init(struct holding *holding, const struct string_array *leases) {
        holding->n = leases->n;
        holding->ids = calloc(leases->n ? leases->n : 1, sizeof(*holding->ids));
        if (!holding->ids)
                return -ENOMEM;
        if (leases->n > 0)
                memcpy(holding->ids, leases->items, leases->n * sizeof(*holding->ids));
        qsort(holding->ids, holding->n, sizeof(*holding->ids), holding_compare);
        return 0;
}

static void holding_deinit(struct holding *holding) {
        free(holding->ids);
}

static bool holding_has(void *arg, const char *lease) {
        const struct holding *holding = arg;

        return bsearch(&lease, holding->ids, holding->n, sizeof(*holding->ids), holding_compare);
}

static void resume_describe(struct request *request, struct holding *holding, struct lease_info *leases) {
        struct client *client = request->client;
        struct resume_reply *reply = &request->reply.resume;
        const struct lease *lease;
        size_t n = 0;

        list_for_each(lease, &client->leases, by_client)
                if (!lease->detached && holding_has(holding, rcstr_text(lease->id)))
                        lease_describe(lease, &leases[n++]);
        client_token_text(client, request->token);
        *reply = (struct resume_reply){
                .session = rcstr_text(client->id),
                .resume_token = client->slot != SLOT_NONE ? request->token : NULL,
                .leases = {leases, n},
        };
}

int op_resume_finish(struct request *request) {
        const struct resume_params *params = &request->params.resume;
        struct registry *registry = request_registry(request);
        _cleanup_(holding_deinit) struct holding holding = {0};
        struct lease_info *leases;
        struct client *left;
        bool last = params->follow == SCHEMA_UNSET || params->follow == 0;
        int64_t n_left;
        int r;

        r = registry_find_resumable(registry, request->client, params->token, &left, &request->failure);
        if (r != 0)
                return r;
        n_left = left->n_leases;
        leases = calloc(left->n_leases ? (size_t)left->n_leases : 1, sizeof(*leases));
        request->page = leases;
        if (!leases)
                return -ENOMEM;
        r = holding_init(&holding, &params->leases);
        if (r == 0)
                r = registry_resume(registry, request->client, left, params->token, holding_has, &holding, last, clock_real_usec(),
                                    clock_monotonic_usec());
        if (r < 0)
                return r;
        resume_describe(request, &holding, leases);
        log_line(LOG_INFO, NULL, &(struct log_field){"SESSION", rcstr_text(request->client->id)}, 1,
                 "resumed with %lld of %lld leases", (long long)request->client->n_leases, (long long)n_left);
        return 0;
}
