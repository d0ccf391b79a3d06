/* SPDX-License-Identifier: Apache-2.0 */
/* Places in the lists of leases and buffers for those who read them a page at a time. Loop thread. */
#include "ledger.h"

static void cursor_init(struct cursor *cursor, struct registry *registry, struct list *list, bool of_leases) {
        cursor->list = list;
        cursor->next = list->next;
        cursor->of_leases = of_leases;
        list_append(&registry->cursors, &cursor->by_registry);
}

void cursor_init_leases(struct cursor *cursor, struct registry *registry) {
        cursor_init(cursor, registry, &registry->leases, true);
}

void cursor_init_buffers(struct cursor *cursor, struct registry *registry) {
        cursor_init(cursor, registry, &registry->buffers, false);
}

void cursor_deinit(struct cursor *cursor) {
        if (!cursor->list)
                return;
        list_remove(&cursor->by_registry);
        *cursor = (struct cursor){ 0 };
}

static bool cursor_shows(const struct cursor *cursor, struct list *link) {
        if (cursor->of_leases)
                return container_of(link, struct lease, by_registry)->phase != LEASE_PHASE_RESERVED;
        return container_of(link, struct buffer, by_registry)->phase != PHASE_RESERVED;
}

/* The next entry that is not reserved, or NULL. */
static struct list *cursor_link(const struct cursor *cursor) {
        struct list *link = cursor->next;

        while (link != cursor->list && !cursor_shows(cursor, link))
                link = link->next;
        return link != cursor->list ? link : NULL;
}

struct lease *cursor_lease(const struct cursor *cursor) {
        struct list *link = cursor_link(cursor);

        return link ? container_of(link, struct lease, by_registry) : NULL;
}

struct buffer *cursor_buffer(const struct cursor *cursor) {
        struct list *link = cursor_link(cursor);

        return link ? container_of(link, struct buffer, by_registry) : NULL;
}

void cursor_step(struct cursor *cursor) {
        struct list *link = cursor_link(cursor);

        cursor->next = link ? link->next : cursor->list;
}

void cursors_pass(struct registry *registry, const struct list *link) {
        struct cursor *cursor;

        list_for_each(cursor, &registry->cursors, by_registry)
                if (cursor->next == link)
                        cursor->next = link->next;
}
