/* SPDX-License-Identifier: Apache-2.0 */
/* The names of the limits. Constant; any thread. */
#include "limits.h"

#define LIMIT(name)                                                                                               \
        { #name, offsetof(struct limits, name) }

const struct limit_field limit_fields[] = {
        LIMIT(clients),
        LIMIT(clients_per_uid),
        LIMIT(leases_per_session),
        LIMIT(leases_per_uid),
        LIMIT(bytes_per_uid),
        LIMIT(bytes_per_session),
        LIMIT(keep_free_bytes),
        LIMIT(spare_bytes),
        LIMIT(host_bytes),
        LIMIT(buffers),
        LIMIT(names_per_uid),
        LIMIT(waits_per_session),
        LIMIT(waits_per_uid),
        LIMIT(wait_ms),
        LIMIT(keep_ms),
        LIMIT(message_bytes),
        LIMIT(events),
        LIMIT(unread_bytes),
        LIMIT(unread_ms),
        LIMIT(stored_descriptors),
        LIMIT(stored_per_uid),
        LIMIT(resume_ms),
        LIMIT(descriptors),
        { NULL, 0 },
};
