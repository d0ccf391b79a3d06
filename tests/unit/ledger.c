/* SPDX-License-Identifier: Apache-2.0 */
/* The world around the ledger under test. */
#include "ledger.h"

#include <stdio.h>
#include <stdlib.h>

struct backing {
        struct world *world;
};

struct process {
        struct holder holder;
        struct world *world;
};

struct limits world_limits(void) {
        return (struct limits){
                .clients = 1000,
                .clients_per_uid = 1000,
                .leases_per_session = 1000,
                .bytes_per_uid = 1000 * PAGE,
                .bytes_per_session = 1000 * PAGE,
                .buffers = 1000,
                .names_per_uid = 1000,
                .waits_per_session = 10,
                .waits_per_uid = 100,
                .events = 64,
                .descriptors = 100000,
        };
}

void world_init(struct world *world, const struct limits *limits) {
        struct policy policy = { .trust_release = true };
        struct limits generous = world_limits();

        *world = (struct world){
                .now_usec = 1000000,
                .monotonic_usec = 5000000,
                .device = { .kind = DEVICE_HOST, .capacity_bytes = 5000 * PAGE },
        };
        ck_assert_int_eq(registry_init(&world->registry, limits ? limits : &generous, &policy), 0);
        ck_assert(!policy.trust_release);
        world->device.uuid = rcstr_new("host");
        world->device.name = rcstr_new("memory of this host");
        registry_add_device(&world->registry, &world->device);
}

void world_check(const struct world *world) {
        must(registry_check(&world->registry));
}

void world_deinit(struct world *world) {
        struct registry *registry = &world->registry;

        registry_expire(registry, world->now_usec, UINT64_MAX);
        world_close_memory(world);
        world_check(world);
        ck_assert_int_eq(registry->n_clients, 0);
        ck_assert_int_eq(registry->n_buffers, 0);
        ck_assert_int_eq(registry->n_shown_buffers, 0);
        ck_assert_int_eq(registry->n_leases, 0);
        ck_assert_int_eq(registry->n_descriptors, 0);
        ck_assert(list_empty(&registry->leases) && list_empty(&registry->buffers));
        ck_assert_uint_eq(registry->accounts.by_uid.n, 0);
        ck_assert_int_eq(world->device.used_bytes, 0);
        registry_deinit(registry);
        ck_assert_uint_eq(world->device.uuid->refs, 1);
        rcstr_unref(world->device.uuid);
        rcstr_unref(world->device.name);
        ck_assert_int_eq(world->n_holders, 0);
        ck_assert_int_eq(world->n_backings, 0);
}

struct client *world_client(struct world *world, uid_t uid) {
        struct peer peer = { .principal = { .uid = uid, .gid = uid } };
        struct client *client;

        ck_assert_int_eq(registry_client_new(&world->registry, &peer, 1, &client, &world->failure), 0);
        world_check(world);
        return client;
}

void world_end(struct world *world, struct client *client) {
        registry_client_end(&world->registry, client, 1, world->now_usec, world->monotonic_usec);
        world_check(world);
}

static void process_destroy(struct holder *holder) {
        struct process *process = container_of(holder, struct process, holder);

        ck_assert(list_empty(&holder->leases));
        process->world->n_holders--;
        rcstr_unref(holder->command);
        free(process);
}

struct holder *world_holder(struct world *world, uid_t uid) {
        struct process *process = calloc(1, sizeof(*process));

        process->world = world;
        process->holder = (struct holder){
                .pid = (pid_t)(100 + world->n_holders),
                .uid = uid,
                .gid = uid,
                .command = rcstr_new("worker"),
                .refs = 1,
                .destroy = process_destroy,
        };
        list_init(&process->holder.leases);
        list_init(&process->holder.members);
        world->n_holders++;
        return &process->holder;
}

void world_exit(struct world *world, struct holder *holder) {
        registry_holder_exited(&world->registry, holder, world->now_usec, world->monotonic_usec);
        holder_unref(holder);
        world_check(world);
}

struct buffer_spec world_spec(struct world *world, int64_t bytes, const char *name) {
        return (struct buffer_spec){
                .size = bytes,
                .allocated = (bytes + PAGE - 1) / PAGE * PAGE,
                .device = &world->device,
                .handle = "memfd",
                .name = name,
                .mode = 0600,
                .n_descriptors = 2,
        };
}

struct backing *backing_new(struct world *world) {
        struct backing *backing = calloc(1, sizeof(*backing));

        backing->world = world;
        world->n_backings++;
        return backing;
}

void backing_free(struct backing *backing) {
        ck_assert_ptr_nonnull(backing);
        backing->world->n_backings--;
        free(backing);
}

int world_close_memory(struct world *world) {
        struct backing *backing;
        struct buffer *buffer;
        int n = 0;

        while ((buffer = registry_take_retiring(&world->registry, &backing))) {
                world_check(world);
                backing_free(backing);
                registry_retired(&world->registry, buffer, world->now_usec);
                world_check(world);
                n++;
        }
        return n;
}

struct buffer *world_allocate(struct world *world, struct client *client, struct holder *holder,
                              const struct buffer_spec *spec) {
        struct registry *registry = &world->registry;
        struct buffer *buffer;
        struct lease *lease;
        int r;

        r = registry_allocate_reserve(registry, client, holder, spec, &buffer, &lease, &world->never,
                                      &world->queue, &world->failure);
        ck_assert_msg(r == 0, "%d: %s", r, world->failure.subject);
        world_check(world);
        registry_allocate_commit(registry, buffer, backing_new(world), world->now_usec);
        world_check(world);
        ck_assert_ptr_eq(buffer->first, lease);
        return buffer;
}

struct lease *world_open(struct world *world, struct client *client, struct holder *holder,
                         struct buffer *buffer) {
        struct registry *registry = &world->registry;
        struct lease *lease;

        ck_assert_int_eq(registry_open_reserve(registry, client, holder, buffer, ACCESS_RO, "reader", &lease,
                                               &world->failure),
                         0);
        world_check(world);
        registry_open_commit(registry, lease, world->now_usec);
        world_check(world);
        return lease;
}

void world_release(struct world *world, struct lease *lease) {
        registry_release(&world->registry, lease, world->now_usec, world->monotonic_usec);
        world_check(world);
}

int world_try(struct world *world, struct client *client, struct holder *holder, const struct buffer_spec *spec) {
        struct registry *registry = &world->registry;
        struct buffer *buffer = NULL;
        struct lease *lease = NULL;
        int r;

        world->failure = (struct failure){ 0 };
        r = registry_allocate_reserve(registry, client, holder, spec, &buffer, &lease, &world->never,
                                      &world->queue, &world->failure);
        world_check(world);
        if (r != 0) {
                ck_assert(!buffer && !lease);
                return r;
        }
        registry_allocate_cancel(registry, buffer, NULL);
        world_check(world);
        return 0;
}

const char *world_news(struct world *world) {
        const struct events *events = &world->registry.events;
        size_t n = 0;

        world->news[0] = '\0';
        while (world->seen + 1 < events->next) {
                const struct event *event = events_get(events, ++world->seen);

                ck_assert_ptr_nonnull(event);
                ck_assert_int_eq(event->sequence, world->seen);
                n += (size_t)snprintf(world->news + n, sizeof(world->news) - n, "%s%s%s%s", n ? " " : "",
                                      event->kind, event->has_lease ? ":" : "",
                                      event->has_lease ? event->lease.id : "");
                ck_assert_uint_lt(n, sizeof(world->news));
        }
        return world->news;
}
