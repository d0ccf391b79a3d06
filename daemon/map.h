/* SPDX-License-Identifier: Apache-2.0 */
/* Hash map from byte strings to pointers, seeded at random so that clients who choose keys cannot make it slow. Keys are
 * borrowed: they live in the entry they lead to. */
#ifndef DAEMON_MAP_H
#define DAEMON_MAP_H

#include <stddef.h>
#include <stdint.h>

struct map_slot;

/* All zero is an empty map. */
struct map {
        struct map_slot *slots;
        size_t n, n_slots, n_graves;
        uint64_t seed[2];
};

void map_deinit(struct map *map); /* the entries are the owner's */

/* Makes sure that the next map_put() cannot fail. -ENOMEM. */
int map_reserve(struct map *map);

/* The key must not be in the map, the value not NULL. 0 or -ENOMEM. */
int map_put(struct map *map, const void *key, size_t n, void *value);
void *map_find(const struct map *map, const void *key, size_t n);

/* The value that was there, or NULL. */
void *map_take(struct map *map, const void *key, size_t n);

/* Each value in no particular order: *position is 0 at first; NULL at the end. The map must not change meanwhile. */
void *map_next(const struct map *map, size_t *position);

#endif
