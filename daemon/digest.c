/* SPDX-License-Identifier: Apache-2.0 */
/* Counts and puts into words. Loop thread; changes nothing. */
#include "digest.h"

#include <inttypes.h>
#include <stdio.h>

#include "log.h"

void digest_status(const struct house *house, char *ret, size_t n) {
        const struct registry *registry = &house->registry;
        int64_t bytes = 0, draining = 0;

        for (size_t i = 0; i < house->n_places; i++) {
                bytes += house->places[i].device.used_bytes;
                draining += house->places[i].device.draining_bytes;
        }
        if (house->held) {
                snprintf(ret, n, "holds what an earlier gpuipcd left and cannot read it; serves nothing else");
                return;
        }
        snprintf(ret, n, "%" PRId64 " buffers, %" PRId64 " leases, %" PRId64 " sessions; %" PRId64 " MiB, of them %" PRId64
                 " draining", registry->n_shown_buffers, registry->n_leases, registry->n_clients, bytes >> 20, draining >> 20);
}

void digest_stop(const struct registry *registry) {
        int64_t n_kept = 0, n_ending = 0, n_kept_leases = 0, n_ending_leases = 0;
        const struct buffer *buffer;

        list_for_each(buffer, &registry->buffers, by_registry) {
                if (registry->state && buffer->stored && buffer->phase != PHASE_RESERVED) {
                        n_kept++;
                        n_kept_leases += buffer->n_active;
                } else if (buffer->phase == PHASE_LIVE || buffer->phase == PHASE_KEPT) {
                        n_ending++;
                        n_ending_leases += buffer->n_active;
                }
        }
        if (n_ending > 0 || !registry->state)
                log_line(LOG_NOTICE, MESSAGE_STOPPED, NULL, 0,
                         "stopping: %" PRId64 " buffers with %" PRId64 " leases end with the daemon", n_ending, n_ending_leases);
        if (registry->state)
                log_line(LOG_NOTICE, MESSAGE_STOPPED, NULL, 0,
                         "stopping: %" PRId64 " buffers stay in the service manager's store until it empties it; %" PRId64
                         " leases of %" PRId64 " sessions wait for their next daemon", n_kept, n_kept_leases, registry->n_clients);
}
