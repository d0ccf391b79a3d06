/* SPDX-License-Identifier: Apache-2.0 */
/* The growing byte string, and memory that is freed together. */
#include <check.h>
#include <stdint.h>
#include <string.h>

#include "proto/arena.h"
#include "proto/bytes.h"
#include "tests/support/suite.h"

START_TEST(appends_in_order) {
        struct bytes bytes = { 0 };

        bytes_append_str(&bytes, "ab");
        bytes_append_char(&bytes, 'c');
        bytes_append(&bytes, "d\0e", 3);
        bytes_append(&bytes, NULL, 0);
        ck_assert_uint_eq(bytes.n, 6);
        ck_assert_mem_eq(bytes.data, "abcd\0e", 6);
        ck_assert(!bytes.failed);
        bytes_deinit(&bytes);
        ck_assert_ptr_null(bytes.data);
        ck_assert_uint_eq(bytes.capacity, 0);
}
END_TEST

START_TEST(keeps_what_it_has_when_it_grows) {
        struct bytes bytes = { 0 };

        for (uint32_t i = 0; i < 20000; i++)
                bytes_append(&bytes, &i, sizeof(i));
        ck_assert_uint_eq(bytes.n, 80000);
        ck_assert_uint_ge(bytes.capacity, 80000);
        for (uint32_t i = 0; i < 20000; i++)
                ck_assert_mem_eq(bytes.data + i * sizeof(i), &i, sizeof(i));
        bytes_deinit(&bytes);
}
END_TEST

START_TEST(reserves_without_growing_n) {
        struct bytes bytes = { 0 };
        char *room;

        bytes_append_str(&bytes, "x");
        room = bytes_reserve(&bytes, 100000);
        ck_assert_ptr_eq(room, bytes.data + 1);
        ck_assert_uint_eq(bytes.n, 1);
        ck_assert_uint_ge(bytes.capacity - bytes.n, 100000);
        memset(room, 'y', 100000);
        ck_assert_ptr_eq(bytes_reserve(&bytes, 100000), room);
        bytes_deinit(&bytes);
        ck_assert_ptr_nonnull(bytes_reserve(&bytes, 0));
        bytes_deinit(&bytes);
}
END_TEST

START_TEST(stays_poisoned) {
        struct bytes bytes = { 0 };

        bytes_append_str(&bytes, "before");
        ck_assert_ptr_null(bytes_reserve(&bytes, SIZE_MAX - 2));
        ck_assert(bytes.failed);
        bytes_append_str(&bytes, "after");
        bytes_append_char(&bytes, '!');
        ck_assert_ptr_null(bytes_reserve(&bytes, 1));
        ck_assert_uint_eq(bytes.n, 6);
        ck_assert_mem_eq(bytes.data, "before", 6);
        bytes_deinit(&bytes);
        ck_assert(!bytes.failed);
}
END_TEST

START_TEST(consumes_from_the_front) {
        struct bytes bytes = { 0 };

        bytes_append_str(&bytes, "0123456789");
        bytes_consume(&bytes, 0);
        ck_assert_uint_eq(bytes.n, 10);
        bytes_consume(&bytes, 3);
        ck_assert_uint_eq(bytes.n, 7);
        ck_assert_mem_eq(bytes.data, "3456789", 7);
        bytes_consume(&bytes, 7);
        ck_assert_uint_eq(bytes.n, 0);
        bytes_append_str(&bytes, "ab");
        bytes_consume(&bytes, 100);
        ck_assert_uint_eq(bytes.n, 0);
        bytes_deinit(&bytes);
}
END_TEST

START_TEST(arena_frees_together) {
        struct arena arena = { 0 };
        char *copy = arena_copy(&arena, "text and more", 4);
        uint64_t *numbers = arena_alloc(&arena, 20, sizeof(*numbers));

        ck_assert_str_eq(copy, "text");
        ck_assert_uint_eq((uintptr_t)numbers % _Alignof(max_align_t), 0);
        ck_assert_str_eq(arena_copy(&arena, "odd", 3), "odd");
        ck_assert_uint_eq((uintptr_t)arena_alloc(&arena, 1, 8) % _Alignof(max_align_t), 0);
        memset(numbers, 0xFF, 20 * sizeof(*numbers));
        for (size_t i = 0; i < 2000; i++)
                memset(arena_alloc(&arena, i, 1), 0xEE, i);
        ck_assert_str_eq(copy, "text");
        ck_assert_ptr_nonnull(arena_alloc(&arena, 0, 8));
        ck_assert_ptr_null(arena_alloc(&arena, SIZE_MAX / 4, 8));
        arena_deinit(&arena);
        ck_assert_ptr_null(arena.chunks);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("bytes");
        TCase *tcase = tcase_create("bytes");

        suite_add_tcase(suite, tcase);
        tcase_add_test(tcase, appends_in_order);
        tcase_add_test(tcase, keeps_what_it_has_when_it_grows);
        tcase_add_test(tcase, reserves_without_growing_n);
        tcase_add_test(tcase, stays_poisoned);
        tcase_add_test(tcase, consumes_from_the_front);
        tcase_add_test(tcase, arena_frees_together);
        return suite_run(suite);
}
