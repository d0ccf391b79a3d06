/* SPDX-License-Identifier: Apache-2.0 */
/* Intrusive doubly linked list. A link that is in no list points to itself. The name of a link member says whose list it
 * is in: lease.by_buffer is a link of buffer.leases. */
#ifndef DAEMON_LIST_H
#define DAEMON_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
        struct list *prev, *next;
};

#define container_of(pointer, type, member) ((type *)((char *)(pointer) - offsetof(type, member)))

static inline void list_init(struct list *list) {
        list->prev = list->next = list;
}

static inline bool list_empty(const struct list *list) {
        return list->next == list;
}

static inline void list_append(struct list *list, struct list *link) {
        link->prev = list->prev;
        link->next = list;
        list->prev->next = link;
        list->prev = link;
}

static inline void list_prepend(struct list *list, struct list *link) {
        list_append(list->next, link);
}

/* Harmless on a link that is in no list. */
static inline void list_remove(struct list *link) {
        link->prev->next = link->next;
        link->next->prev = link->prev;
        list_init(link);
}

static inline struct list *list_first(const struct list *list) {
        return list_empty(list) ? NULL : list->next;
}

/* Moves all entries of one list to another, which is empty: for loops whose body may append to the first. */
static inline void list_move_all(struct list *from, struct list *to) {
        list_init(to);
        if (list_empty(from))
                return;
        *to = *from;
        to->next->prev = to;
        to->prev->next = to;
        list_init(from);
}

/* Moves all entries of one list before those of another. */
static inline void list_prepend_all(struct list *list, struct list *from) {
        if (list_empty(from))
                return;
        from->prev->next = list->next;
        list->next->prev = from->prev;
        from->next->prev = list;
        list->next = from->next;
        list_init(from);
}

/* The entry may be removed within the loop's body, but no other. */
#define list_for_each(entry, list, member)                                                                   \
        for (__typeof__(entry) _next, *_once = &_next;                                                       \
             _once && (entry = container_of((list)->next, __typeof__(*entry), member),                       \
                      _next = container_of(entry->member.next, __typeof__(*entry), member), 1);              \
             _once = NULL)                                                                                   \
                for (; &entry->member != (list);                                                             \
                     entry = _next, _next = container_of(entry->member.next, __typeof__(*entry), member))

#endif
