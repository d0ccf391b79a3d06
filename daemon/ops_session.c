/* SPDX-License-Identifier: Apache-2.0 */
/* Kick: an owner or an administrator ends a session; an administrator's session only an administrator. Loop thread. */
#include "clock.h"
#include "ops.h"

const char *op_kick_about(const struct request *request) {
        return request->params.kick.session;
}

int op_kick_finish(struct request *request) {
        struct registry *registry = request_registry(request);
        struct client *target = registry_find_client(registry, request->params.kick.session);

        if (!target || (target->peer.admin && !request_peer(request)->admin) ||
            !policy_may_rule(&registry->policy, request_peer(request), &target->peer.principal))
                return fail_plain(&request->failure, VERDICT_NO_SUCH_SESSION);
        if (target->detached)
                registry_client_end(registry, target, 0, clock_real_usec(), clock_monotonic_usec());
        else
                request->house->kick(target->session);
        return 0;
}
