/* SPDX-License-Identifier: Apache-2.0 */
/* What the daemon tells of itself: GetStatus, and the two methods of org.varlink.service. Loop thread. */
#include "clock.h"
#include "ops.h"

#include <errno.h>
#include <gpuipc.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void device_describe(const struct workplace *place, const struct limits *limits, struct device_info *ret) {
        const struct device *device = &place->device;
        int64_t room = device_room_bytes(device, limits);
        int64_t free_bytes = place->backend->free_bytes(place->backend_device);

        if (free_bytes > room)
                free_bytes = room;
        *ret = (struct device_info){
                .uuid = rcstr_text(device->uuid),
                .name = rcstr_text(device->name),
                .kind = device->kind,
                .total_bytes = device->total_bytes,
                .free_bytes = free_bytes,
                .brokered_bytes = device->used_bytes,
                .draining_bytes = device->draining_bytes,
                .handles = {device->handles, device->n_handles},
                .zeroed = device->zeroed,
                .degraded = device->degraded,
                .spare_bytes = place->backend->ahead ? device->spare_bytes : SCHEMA_UNSET,
        };
}

/* Two processes have the same /dev/shm exactly when this number is equal to both. */
static int64_t shm_device(void) {
        struct stat st;

        if (stat("/dev/shm", &st) < 0 || st.st_dev > SCHEMA_INT_MAX)
                return SCHEMA_UNSET;
        return (int64_t)st.st_dev;
}

/* Whoever may hold leases gets one; where it cannot be made, a restart ends the session's leases, which Allocate and Open would say. */
static const char *status_token(struct request *request) {
        struct registry *registry = request_registry(request);
        struct client *client = request->client;

        if (!registry->state || client->peer.overflow || registry_record_session(registry, client) < 0)
                return NULL;
        client_token_text(client, request->token);
        return request->token;
}

int op_status_finish(struct request *request) {
        struct house *house = request->house;
        struct registry *registry = &house->registry;
        struct device_info *devices = calloc(house->n_places ? house->n_places : 1, sizeof(*devices));
        const char *token;

        request->page = devices;
        if (!devices)
                return -ENOMEM;
        token = status_token(request);
        for (size_t i = 0; i < house->n_places; i++)
                device_describe(&house->places[i], &registry->limits, &devices[i]);
        request->reply.status = (struct status_reply){
                .version = GPUIPC_VERSION,
                .backend = house->backend_name,
                .uptime_usec = (int64_t)(clock_monotonic_usec() - house->started_usec),
                .session = rcstr_text(request->client->id),
                .resume_token = token,
                .features = {house->features, house->n_features},
                .devices = {devices, house->n_places},
                .buffers = registry->n_shown_buffers,
                .leases = registry->n_leases,
                .sessions = registry->n_clients,
                .limits = house->limits_json,
                .daemon_pid = getpid(),
                .shm_device = shm_device(),
                .uid = (int64_t)request_peer(request)->principal.uid,
        };
        return 0;
}

int op_info_finish(struct request *request) {
        size_t n = 0;

        while (schema_interfaces[n])
                n++;
        request->reply.info = (struct info_reply){
                .vendor = "gpuipc",
                .product = "gpuipcd",
                .version = GPUIPC_VERSION,
                .url = "man:gpuipcd(8)",
                .interfaces = {schema_interfaces, n},
        };
        return 0;
}

int op_description_finish(struct request *request) {
        const char *interface = request->params.interface.interface;
        const char *text = schema_interface_text(interface);

        if (!text)
                return fail_subject(&request->failure, VERDICT_INTERFACE_NOT_FOUND, interface);
        request->reply.description.description = text;
        return 0;
}
