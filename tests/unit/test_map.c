/* SPDX-License-Identifier: Apache-2.0 */
/* The hash map, against a plain array that knows the answers. */
#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/map.h"
#include "tests/support/suite.h"

/* As ck_assert(), without its note to the runner at every single check. */
#define must(condition)                                                                                           \
        do {                                                                                                      \
                if (!(condition))                                                                                 \
                        ck_abort_msg("line %d: %s", __LINE__, #condition);                                        \
        } while (0)

struct entry {
        char key[16];
        bool here;
};

START_TEST(an_empty_map_answers) {
        struct map map = { 0 };
        size_t position = 0;

        ck_assert_ptr_null(map_find(&map, "a", 1));
        ck_assert_ptr_null(map_take(&map, "a", 1));
        ck_assert_ptr_null(map_next(&map, &position));
        map_deinit(&map);
}
END_TEST

START_TEST(tells_keys_apart_by_bytes_and_length) {
        static const char *const keys[] = { "", "a", "ab", "a\0b", "abcdefgh", "abcdefghi", "abcdefghabcdefgh" };
        static const size_t sizes[] = { 0, 1, 2, 3, 8, 9, 16 };
        struct map map = { 0 };

        for (size_t i = 0; i < 7; i++)
                ck_assert_int_eq(map_put(&map, keys[i], sizes[i], (void *)&sizes[i]), 0);
        for (size_t i = 0; i < 7; i++)
                ck_assert_ptr_eq(map_find(&map, keys[i], sizes[i]), &sizes[i]);
        ck_assert_ptr_null(map_find(&map, "abc", 3));
        ck_assert_ptr_null(map_find(&map, "abcdefgh", 7));
        ck_assert_ptr_eq(map_take(&map, "ab", 2), &sizes[2]);
        ck_assert_ptr_null(map_find(&map, "ab", 2));
        ck_assert_ptr_eq(map_find(&map, "a\0b", 3), &sizes[3]);
        ck_assert_uint_eq(map.n, 6);
        map_deinit(&map);
        ck_assert_ptr_null(map.slots);
}
END_TEST

START_TEST(a_reserved_place_is_enough) {
        struct map map = { 0 };
        struct map_slot *slots;
        char keys[100];

        for (size_t i = 0; i < sizeof(keys); i++) {
                keys[i] = (char)i;
                ck_assert_int_eq(map_reserve(&map), 0);
                slots = map.slots;
                ck_assert_int_eq(map_put(&map, &keys[i], 1, &keys[i]), 0);
                ck_assert_msg(map.slots == slots, "put allocated after a reserve");
        }
        map_deinit(&map);
}
END_TEST

START_TEST(seeds_differ) {
        struct map a = { 0 }, b = { 0 };

        ck_assert_int_eq(map_reserve(&a), 0);
        ck_assert_int_eq(map_reserve(&b), 0);
        ck_assert_mem_ne(a.seed, b.seed, sizeof(a.seed));
        map_deinit(&a);
        map_deinit(&b);
}
END_TEST

static void check_against(const struct map *map, struct entry *entries, size_t n) {
        size_t n_here = 0, n_seen = 0, position = 0;
        const struct entry *entry;

        for (size_t i = 0; i < n; i++) {
                n_here += entries[i].here;
                must(map_find(map, entries[i].key, strlen(entries[i].key)) ==
                     (entries[i].here ? &entries[i] : NULL));
        }
        while ((entry = map_next(map, &position))) {
                must(entry->here);
                n_seen++;
        }
        ck_assert_uint_eq(map->n, n_here);
        ck_assert_uint_eq(n_seen, n_here);
        ck_assert_uint_le((map->n + map->n_graves) * 4, map->n_slots * 3);
}

START_TEST(stays_true_through_random_changes) {
        enum { N = 300, STEPS = 20000 };
        struct entry *entries = calloc(N, sizeof(*entries));
        struct map map = { 0 };
        unsigned seed = (unsigned)_i + 1;

        for (size_t i = 0; i < N; i++)
                snprintf(entries[i].key, sizeof(entries[i].key), "b%zu", i * 7);
        for (int step = 0; step < STEPS; step++) {
                /* The number of entries swells and shrinks. */
                size_t i = (size_t)rand_r(&seed) % (step / 1000 % 2 ? N : N / 10);
                struct entry *entry = &entries[i];

                if (entry->here)
                        must(map_take(&map, entry->key, strlen(entry->key)) == entry);
                else
                        must(map_put(&map, entry->key, strlen(entry->key), entry) == 0);
                entry->here = !entry->here;
                if (step % 100 == 0)
                        check_against(&map, entries, N);
        }
        check_against(&map, entries, N);
        for (size_t i = 0; i < N; i++)
                if (entries[i].here)
                        map_take(&map, entries[i].key, strlen(entries[i].key));
        ck_assert_uint_eq(map.n, 0);
        ck_assert_uint_eq(map.n_graves, 0);
        map_deinit(&map);
        free(entries);
}
END_TEST

/* Ids are given and taken back for months: the table must not grow with their number. */
START_TEST(does_not_grow_by_being_used) {
        struct map map = { 0 };
        char keys[8][16];

        for (unsigned i = 0; i < 20000; i++) {
                char *key = keys[i % 8];

                if (i >= 8)
                        must(map_take(&map, key, strlen(key)) == key);
                snprintf(key, sizeof(keys[0]), "l%u", i);
                must(map_put(&map, key, strlen(key), key) == 0);
                must(map.n_slots <= 32);
        }
        map_deinit(&map);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("map");
        TCase *tcase = tcase_create("map");

        suite_add_tcase(suite, tcase);
        tcase_add_test(tcase, an_empty_map_answers);
        tcase_add_test(tcase, tells_keys_apart_by_bytes_and_length);
        tcase_add_test(tcase, a_reserved_place_is_enough);
        tcase_add_test(tcase, seeds_differ);
        tcase_add_loop_test(tcase, stays_true_through_random_changes, 0, 4);
        tcase_add_test(tcase, does_not_grow_by_being_used);
        return suite_run(suite);
}
