/* SPDX-License-Identifier: Apache-2.0 */
/* Open: a lease on a buffer that exists, or that is waited for by name. Loop thread. */
#include "clock.h"
#include "grant.h"
#include "opening.h"
#include "ops.h"

#include <string.h>

int op_open_begin(struct request *request) {
        const struct open_params *params = &request->params.open;
        struct opening opening = {
                .id_field = "buffer",
                .id = params->buffer,
                .name = params->name,
                .owner = params->owner,
                .wait_ms = params->wait_ms,
                .access = params->access && strcmp(params->access, "ro") == 0 ? ACCESS_RO : ACCESS_RW,
                .label = params->label,
        };

        return opening_begin(request, &opening);
}

int op_open_finish(struct request *request) {
        int r = opening_judge(request);

        if (r != 0)
                return r;
        registry_open_commit(request_registry(request), request->lease, clock_real_usec());
        grant_fill(request, request->lease);
        return 0;
}
