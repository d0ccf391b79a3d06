/* SPDX-License-Identifier: Apache-2.0 */
/* Open addressing with linear probing over SipHash-1-3. Loop thread; never calls back. */
#include "map.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/random.h>

#define MAP_SLOTS_MIN 8

struct map_slot {
        const void *key; /* NULL: empty; &grave: an entry was here and probing goes on past it */
        size_t n;
        uint64_t hash;
        void *value;
};

static const char grave;

static uint64_t rotate(uint64_t x, unsigned n) {
        return x << n | x >> (64 - n);
}

static void sip_round(uint64_t v[4]) {
        v[0] += v[1];
        v[1] = rotate(v[1], 13) ^ v[0];
        v[0] = rotate(v[0], 32);
        v[2] += v[3];
        v[3] = rotate(v[3], 16) ^ v[2];
        v[0] += v[3];
        v[3] = rotate(v[3], 21) ^ v[0];
        v[2] += v[1];
        v[1] = rotate(v[1], 17) ^ v[2];
        v[2] = rotate(v[2], 32);
}

static uint64_t map_hash(const struct map *map, const void *key, size_t n) {
        uint64_t v[4] = {
                map->seed[0] ^ UINT64_C(0x736f6d6570736575),
                map->seed[1] ^ UINT64_C(0x646f72616e646f6d),
                map->seed[0] ^ UINT64_C(0x6c7967656e657261),
                map->seed[1] ^ UINT64_C(0x7465646279746573),
        };
        const char *bytes = key;
        uint64_t word;

        for (size_t left = n;; left -= sizeof(word), bytes += sizeof(word)) {
                bool last = left < sizeof(word);

                word = 0;
                memcpy(&word, bytes, last ? left : sizeof(word));
                if (last)
                        word |= (uint64_t)n << 56;
                v[3] ^= word;
                sip_round(v);
                v[0] ^= word;
                if (last)
                        break;
        }
        v[2] ^= 0xff;
        for (int i = 0; i < 3; i++)
                sip_round(v);
        return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* Early in boot the kernel's pool may not be ready; what it gave the process at exec must do then. */
static void map_seed(struct map *map) {
        const void *from_exec = (const void *)getauxval(AT_RANDOM);

        if (getrandom(map->seed, sizeof(map->seed), GRND_NONBLOCK) == (ssize_t)sizeof(map->seed))
                return;
        if (from_exec)
                memcpy(map->seed, from_exec, sizeof(map->seed));
}

void map_deinit(struct map *map) {
        free(map->slots);
        *map = (struct map){ 0 };
}

static struct map_slot *map_vacant(struct map_slot *slots, size_t n_slots, uint64_t hash) {
        size_t i = hash & (n_slots - 1);

        while (slots[i].key && slots[i].key != &grave)
                i = (i + 1) & (n_slots - 1);
        return &slots[i];
}

static int map_rehash(struct map *map, size_t n_slots) {
        struct map_slot *slots = calloc(n_slots, sizeof(*slots));

        if (!slots)
                return -ENOMEM;
        for (size_t i = 0; i < map->n_slots; i++) {
                const struct map_slot *old = &map->slots[i];

                if (old->key && old->key != &grave)
                        *map_vacant(slots, n_slots, old->hash) = *old;
        }
        free(map->slots);
        map->slots = slots;
        map->n_slots = n_slots;
        map->n_graves = 0;
        return 0;
}

int map_reserve(struct map *map) {
        size_t n_slots = MAP_SLOTS_MIN;

        if ((map->n + map->n_graves + 1) * 4 <= map->n_slots * 3)
                return 0;
        if (!map->slots)
                map_seed(map);
        while (n_slots < (map->n + 1) * 2)
                n_slots *= 2;
        return map_rehash(map, n_slots);
}

int map_put(struct map *map, const void *key, size_t n, void *value) {
        struct map_slot *slot;
        uint64_t hash;
        int r;

        r = map_reserve(map);
        if (r < 0)
                return r;
        hash = map_hash(map, key, n);
        slot = map_vacant(map->slots, map->n_slots, hash);
        if (slot->key == &grave)
                map->n_graves--;
        *slot = (struct map_slot){ .key = key, .n = n, .hash = hash, .value = value };
        map->n++;
        return 0;
}

static struct map_slot *map_slot(const struct map *map, const void *key, size_t n) {
        size_t mask = map->n_slots - 1;
        uint64_t hash;

        if (map->n == 0)
                return NULL;
        hash = map_hash(map, key, n);
        for (size_t i = hash & mask; map->slots[i].key; i = (i + 1) & mask) {
                struct map_slot *slot = &map->slots[i];

                if (slot->hash == hash && slot->n == n && slot->key != &grave && memcmp(slot->key, key, n) == 0)
                        return slot;
        }
        return NULL;
}

void *map_find(const struct map *map, const void *key, size_t n) {
        const struct map_slot *slot = map_slot(map, key, n);

        return slot ? slot->value : NULL;
}

/* A grave that no probe needs to pass is an empty slot. */
static void map_level_graves(struct map *map, size_t i) {
        size_t mask = map->n_slots - 1;

        if (map->slots[(i + 1) & mask].key)
                return;
        for (; map->slots[i].key == &grave; i = (i - 1) & mask) {
                map->slots[i].key = NULL;
                map->n_graves--;
        }
}

void *map_take(struct map *map, const void *key, size_t n) {
        struct map_slot *slot = map_slot(map, key, n);
        void *value;

        if (!slot)
                return NULL;
        value = slot->value;
        *slot = (struct map_slot){ .key = &grave };
        map->n--;
        map->n_graves++;
        map_level_graves(map, (size_t)(slot - map->slots));
        return value;
}

void *map_next(const struct map *map, size_t *position) {
        while (*position < map->n_slots) {
                const struct map_slot *slot = &map->slots[(*position)++];

                if (slot->key && slot->key != &grave)
                        return slot->value;
        }
        return NULL;
}
