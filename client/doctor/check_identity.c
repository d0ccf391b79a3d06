/* SPDX-License-Identifier: Apache-2.0 */
/* Who this process is to the daemon: it takes a lease on a byte and reads what is written beside it. Loads nothing. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "doctor.h"

#define CHECK "identity"

struct search {
        const char *lease;
        struct doctor_identity *identity;
};

static int lease_take(const gpuipc_lease_info *lease, void *data) {
        struct search *search = data;

        if (strcmp(lease->id, search->lease) != 0)
                return 0;
        *search->identity = (struct doctor_identity){ .known = true, .pid = lease->pid, .uid = lease->uid, .gid = lease->gid };
        (void)snprintf(search->identity->container, sizeof(search->identity->container), "%s",
                       lease->container ? lease->container : "");
        return 1;
}

/* A device that costs nothing: the host's memory, else any that works. */
static const char *cheapest(const struct doctor_daemon *daemon) {
        const char *found = NULL;

        for (size_t i = 0; i < daemon->n_devices; i++)
                if (!daemon->devices[i].degraded && (!found || !daemon->devices[i].cuda))
                        found = daemon->devices[i].uuid;
        return found;
}

static int ask(struct doctor *doctor, gpuipc_error *ret_error) {
        gpuipc_allocate_options options = GPUIPC_ALLOCATE_OPTIONS_INIT;
        gpuipc_list_options all = GPUIPC_LIST_OPTIONS_INIT;
        struct search search = { .identity = &doctor->identity };
        gpuipc_buffer *buffer;
        int r;

        options.device = cheapest(&doctor->daemon);
        options.label = "gpuipcctl doctor";
        r = gpuipc_allocate(doctor->client, 1, &options, &buffer, ret_error);
        if (r != GPUIPC_OK)
                return r;
        search.lease = gpuipc_buffer_lease(buffer);
        r = gpuipc_list(doctor->client, &all, lease_take, &search, ret_error);
        (void)gpuipc_release(buffer, NULL);
        return r;
}

void check_identity(struct doctor *doctor) {
        struct doctor_identity *identity = &doctor->identity;
        gpuipc_error error = { 0 };
        char pid[64], container[128] = "";

        if (!doctor->client)
                return;
        if (ask(doctor, &error) != GPUIPC_OK || !identity->known) {
                doctor_say(doctor, FINDING_WARN, DOCTOR_IDENTITY_UNKNOWN, CHECK,
                           "The daemon would not lend one byte, by which it tells whom it lends to: %s", error.message);
                return;
        }
        if (identity->pid > 0)
                (void)snprintf(pid, sizeof(pid), "pid %" PRId64, identity->pid);
        else
                (void)snprintf(pid, sizeof(pid), "a process outside its pid namespace");
        if (identity->container[0])
                (void)snprintf(container, sizeof(container), ", container %.76s", identity->container);
        doctor_say(doctor, FINDING_OK, DOCTOR_IDENTITY, CHECK, "To the daemon you are uid %" PRId64 ", gid %" PRId64 ", %s%s.",
                   identity->uid, identity->gid, pid, container);
        if (identity->uid != (int64_t)geteuid())
                doctor_say(doctor, FINDING_NOTE, DOCTOR_OTHER_UID, CHECK,
                           "You are uid %u here and uid %" PRId64 " to the daemon and everyone outside, by a user namespace.",
                           (unsigned)geteuid(), identity->uid);
}
