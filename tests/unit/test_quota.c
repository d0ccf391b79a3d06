/* SPDX-License-Identifier: Apache-2.0 */
/* Accounts, devices and charges. */
#include <check.h>
#include <string.h>

#include "daemon/quota.h"
#include "proto/cleanup.h"
#include "tests/support/suite.h"

#define MIB INT64_C(1048576)

static struct accounts accounts;
static struct device device;
static struct account *alice, *bob;
static struct limits limits;
static struct failure failure;
static bool never;

static void setup(void) {
        accounts = (struct accounts){ 0 };
        device = (struct device){ .uuid = rcstr_new("host"), .capacity_bytes = 100 * MIB };
        limits = (struct limits){ .bytes_per_uid = 60 * MIB, .keep_free_bytes = 10 * MIB };
        alice = account_get(&accounts, 1000);
        bob = account_get(&accounts, 1001);
        failure = (struct failure){ 0 };
        never = false;
}

static void teardown(void) {
        account_unref(&accounts, alice);
        account_unref(&accounts, bob);
        ck_assert_uint_eq(accounts.by_uid.n, 0);
        ck_assert_int_eq(device.used_bytes | device.reserved_bytes | device.draining_bytes, 0);
        accounts_deinit(&accounts);
        rcstr_unref(device.uuid);
}

static int reserve(struct charge *charge, struct account *account, int64_t bytes) {
        return charge_reserve(charge, account, &device, bytes, &limits, &never, &failure);
}

START_TEST(an_account_lasts_while_somebody_refers_to_it) {
        struct account *again = account_get(&accounts, 1000);

        ck_assert_ptr_eq(again, alice);
        ck_assert_ptr_eq(account_find(&accounts, 1000), alice);
        ck_assert_ptr_null(account_find(&accounts, 7));
        account_unref(&accounts, again);
        ck_assert_ptr_eq(account_find(&accounts, 1000), alice);

        again = account_get(&accounts, 7);
        ck_assert_ptr_eq(account_find(&accounts, 7), again);
        account_unref(&accounts, again);
        ck_assert_ptr_null(account_find(&accounts, 7));
        account_unref(&accounts, NULL);
}
END_TEST

START_TEST(a_charge_goes_through_its_life) {
        struct charge charge = { 0 };

        ck_assert_int_eq(reserve(&charge, alice, 5 * MIB), 0);
        ck_assert(!never);
        ck_assert_uint_eq(alice->refs, 2);
        ck_assert_int_eq(alice->reserved_bytes, 5 * MIB);
        ck_assert_int_eq(alice->used_bytes, 0);
        ck_assert_int_eq(device.reserved_bytes, 5 * MIB);
        ck_assert_int_eq(device_room_bytes(&device, &limits), 85 * MIB);

        charge_set_draining(&charge, true);
        ck_assert_int_eq(device.draining_bytes, 0);
        charge_commit(&charge);
        charge_commit(&charge);
        ck_assert_int_eq(alice->reserved_bytes, 0);
        ck_assert_int_eq(alice->used_bytes, 5 * MIB);
        ck_assert_int_eq(device.reserved_bytes, 0);
        ck_assert_int_eq(device.used_bytes, 5 * MIB);

        charge_set_draining(&charge, true);
        charge_set_draining(&charge, true);
        ck_assert_int_eq(device.draining_bytes, 5 * MIB);
        ck_assert_int_eq(device.used_bytes, 5 * MIB);
        ck_assert_int_eq(device_room_bytes(&device, &limits), 85 * MIB);

        charge_drop(&charge, &accounts);
        charge_drop(&charge, &accounts);
        ck_assert_ptr_null(charge.account);
        ck_assert_uint_eq(alice->refs, 1);
        ck_assert_int_eq(alice->used_bytes, 0);
}
END_TEST

START_TEST(a_reserved_charge_is_given_back) {
        struct charge charge = { 0 };

        ck_assert_int_eq(reserve(&charge, alice, 5 * MIB), 0);
        charge_drop(&charge, &accounts);
        ck_assert_int_eq(alice->reserved_bytes, 0);
        ck_assert_int_eq(device.reserved_bytes, 0);
}
END_TEST

START_TEST(the_uid_s_limit_is_told_with_its_numbers) {
        struct charge first = { 0 }, second = { 0 }, third = { 0 };

        ck_assert_int_eq(reserve(&first, alice, 20 * MIB), 0);
        ck_assert_int_eq(reserve(&second, alice, 30 * MIB), 0);
        charge_commit(&second);
        ck_assert_int_eq(reserve(&third, alice, 10 * MIB + 1), VERDICT_QUOTA_EXCEEDED);
        ck_assert(!never);
        ck_assert_str_eq(failure.subject, "bytes_per_uid");
        ck_assert_int_eq(failure.limit, 60 * MIB);
        ck_assert_int_eq(failure.used, 50 * MIB);
        ck_assert_int_eq(failure.asked, 10 * MIB + 1);
        ck_assert_ptr_null(third.account);
        ck_assert_int_eq(alice->reserved_bytes, 20 * MIB);

        ck_assert_int_eq(reserve(&third, alice, 10 * MIB), 0);
        charge_drop(&first, &accounts);
        charge_drop(&second, &accounts);
        charge_drop(&third, &accounts);
}
END_TEST

START_TEST(the_device_s_room_is_told_with_its_numbers) {
        struct charge first = { 0 }, second = { 0 };

        ck_assert_int_eq(reserve(&first, alice, 60 * MIB), 0);
        ck_assert_int_eq(reserve(&second, bob, 30 * MIB + 1), VERDICT_OUT_OF_MEMORY);
        ck_assert(!never);
        ck_assert_str_eq(failure.subject, "host");
        ck_assert_int_eq(failure.free_bytes, 30 * MIB);
        ck_assert_int_eq(failure.asked, 30 * MIB + 1);
        ck_assert_int_eq(reserve(&second, bob, 30 * MIB), 0);
        ck_assert_int_eq(device_room_bytes(&device, &limits), 0);
        charge_drop(&first, &accounts);
        charge_drop(&second, &accounts);
}
END_TEST

START_TEST(what_can_never_be_is_said_to_be_so) {
        struct charge first = { 0 }, second = { 0 };

        ck_assert_int_eq(reserve(&first, alice, 60 * MIB + 1), VERDICT_QUOTA_EXCEEDED);
        ck_assert(never);
        limits.bytes_per_uid = 1000 * MIB;
        ck_assert_int_eq(reserve(&first, alice, 90 * MIB + 1), VERDICT_OUT_OF_MEMORY);
        ck_assert(never);

        /* Before what merely cannot be now. */
        limits.bytes_per_uid = 95 * MIB;
        ck_assert_int_eq(reserve(&first, alice, 90 * MIB), 0);
        ck_assert(!never);
        ck_assert_int_eq(reserve(&second, alice, 91 * MIB), VERDICT_OUT_OF_MEMORY);
        ck_assert(never);
        ck_assert_int_eq(reserve(&second, alice, 6 * MIB), VERDICT_QUOTA_EXCEEDED);
        ck_assert(!never);
        charge_drop(&first, &accounts);
}
END_TEST

START_TEST(nothing_overflows) {
        struct charge charge = { 0 };

        ck_assert_int_eq(reserve(&charge, alice, INT64_MAX), VERDICT_QUOTA_EXCEEDED);
        limits.bytes_per_uid = INT64_MAX;
        ck_assert_int_eq(reserve(&charge, alice, INT64_MAX), VERDICT_OUT_OF_MEMORY);
        limits.keep_free_bytes = 200 * MIB;
        ck_assert_int_eq(device_room_bytes(&device, &limits), 0);
        ck_assert_int_eq(reserve(&charge, alice, 1), VERDICT_OUT_OF_MEMORY);
        ck_assert(never);
        ck_assert_int_eq(failure.free_bytes, 0);
}
END_TEST

/* A reload may lower limits below what is in use. */
START_TEST(room_is_never_negative) {
        struct charge charge = { 0 }, more = { 0 };

        ck_assert_int_eq(reserve(&charge, alice, 60 * MIB), 0);
        limits.keep_free_bytes = 60 * MIB;
        ck_assert_int_eq(device_room_bytes(&device, &limits), 0);
        limits.bytes_per_uid = 10 * MIB;
        ck_assert_int_eq(reserve(&more, alice, 1), VERDICT_QUOTA_EXCEEDED);
        ck_assert_int_eq(failure.used, 60 * MIB);
        charge_drop(&charge, &accounts);
}
END_TEST

START_TEST(a_charge_moves_even_over_a_limit) {
        struct charge first = { 0 }, second = { 0 };

        ck_assert_int_eq(reserve(&first, alice, 50 * MIB), 0);
        charge_move(&first, &accounts, bob);
        ck_assert_ptr_eq(first.account, alice);
        charge_commit(&first);
        ck_assert_int_eq(reserve(&second, bob, 40 * MIB), 0);
        charge_move(&first, &accounts, bob);
        charge_move(&first, &accounts, bob);
        ck_assert_ptr_eq(first.account, bob);
        ck_assert_int_eq(bob->used_bytes, 50 * MIB);
        ck_assert_int_eq(alice->used_bytes, 0);
        ck_assert_int_eq(device.used_bytes, 50 * MIB);
        ck_assert_uint_eq(alice->refs, 1);
        ck_assert_uint_eq(bob->refs, 3);
        charge_drop(&first, &accounts);
        charge_drop(&second, &accounts);
        charge_move(&second, &accounts, alice);
        ck_assert_ptr_null(second.account);
}
END_TEST

START_TEST(limits_have_their_members_names) {
        struct limits all = { 0 };
        size_t n = 0;

        for (const struct limit_field *field = limit_fields; field->name; field++, n++)
                *(int64_t *)((char *)&all + field->offset) = (int64_t)strlen(field->name);
        ck_assert_uint_eq(n, sizeof(all) / sizeof(int64_t));
        ck_assert_int_eq(all.clients, 7);
        ck_assert_int_eq(all.leases_per_session, 18);
        ck_assert_int_eq(all.descriptors, 11);
        for (size_t i = 0; i < n; i++)
                ck_assert_int_gt(((int64_t *)&all)[i], 0);
}
END_TEST

START_TEST(a_string_lasts_while_somebody_refers_to_it) {
        struct rcstr *s = rcstr_new("text"), *t = rcstr_ref(s);

        ck_assert_ptr_eq(s, t);
        rcstr_unrefp(&s);
        ck_assert_ptr_null(s);
        ck_assert_str_eq(rcstr_text(t), "text");
        rcstr_unref(t);
        ck_assert_ptr_null(rcstr_new(NULL));
        ck_assert_ptr_null(rcstr_ref(NULL));
        ck_assert_ptr_null(rcstr_text(NULL));
        rcstr_unref(NULL);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("quota");
        TCase *tcase = tcase_create("quota");

        suite_add_tcase(suite, tcase);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, an_account_lasts_while_somebody_refers_to_it);
        tcase_add_test(tcase, a_charge_goes_through_its_life);
        tcase_add_test(tcase, a_reserved_charge_is_given_back);
        tcase_add_test(tcase, the_uid_s_limit_is_told_with_its_numbers);
        tcase_add_test(tcase, the_device_s_room_is_told_with_its_numbers);
        tcase_add_test(tcase, what_can_never_be_is_said_to_be_so);
        tcase_add_test(tcase, nothing_overflows);
        tcase_add_test(tcase, room_is_never_negative);
        tcase_add_test(tcase, a_charge_moves_even_over_a_limit);
        tcase_add_test(tcase, limits_have_their_members_names);
        tcase_add_test(tcase, a_string_lasts_while_somebody_refers_to_it);
        return suite_run(suite);
}
