/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries found at run time: the first that is there, all or nothing, and the loader's words. */
#include <check.h>
#include <errno.h>
#include <string.h>

#include "proto/symbols.h"
#include "tests/support/suite.h"

struct table {
        double (*cosine)(double x);
        void *marker; /* lies between, and is nobody's */
        void (*absent)(void);
};

#define MARKER ((void *)(uintptr_t)0x5a5a)

static const struct symbol cosine_only[] = { { "cos", offsetof(struct table, cosine), false } };
static const struct symbol with_optional[] = {
        { "cos", offsetof(struct table, cosine), false },
        { "gpuipc_no_such_symbol", offsetof(struct table, absent), true },
};
static const struct symbol with_missing[] = {
        { "cos", offsetof(struct table, cosine), false },
        { "gpuipc_no_such_symbol", offsetof(struct table, absent), false },
};

static void nothing(void) {
}

static struct table fresh_table(void) {
        return (struct table){ .marker = MARKER, .absent = nothing };
}

START_TEST(found) {
        const char *const sonames[] = { "libm.so.6", NULL };
        struct table table = fresh_table();
        char why[200] = "untouched";

        ck_assert_int_eq(symbols_load(sonames, cosine_only, 1, &table, why, sizeof(why)), 0);
        ck_assert_ptr_nonnull(table.cosine);
        ck_assert_double_eq(table.cosine(0.0), 1.0);
        ck_assert_ptr_eq(table.marker, MARKER);
        ck_assert(table.absent == nothing);
        ck_assert_str_eq(why, "");
}
END_TEST

START_TEST(first_that_is_there) {
        const char *const sonames[] = { "libgpuipc-no-such.so.7", "libm.so.6", "libgpuipc-no-such.so.6", NULL };
        struct table table = fresh_table();

        ck_assert_int_eq(symbols_load(sonames, cosine_only, 1, &table, NULL, 0), 0);
        ck_assert_double_eq(table.cosine(0.0), 1.0);
}
END_TEST

START_TEST(no_library) {
        const char *const sonames[] = { "libgpuipc-no-such.so.7", "libgpuipc-no-such.so.6", NULL };
        const char *const none[] = { NULL };
        struct table table = fresh_table();
        char why[200], tight[8];

        ck_assert_int_eq(symbols_load(sonames, cosine_only, 1, &table, why, sizeof(why)), -ENOENT);
        ck_assert_msg(strstr(why, "libgpuipc-no-such.so.6") && strstr(why, "No such file"), "%s", why);
        ck_assert_ptr_null(table.cosine);
        ck_assert_int_eq(symbols_load(sonames, cosine_only, 1, &table, tight, sizeof(tight)), -ENOENT);
        ck_assert_uint_eq(strlen(tight), sizeof(tight) - 1);
        ck_assert_int_eq(symbols_load(sonames, cosine_only, 1, &table, NULL, 0), -ENOENT);
        ck_assert_int_eq(symbols_load(none, cosine_only, 1, &table, why, sizeof(why)), -ENOENT);
        ck_assert_str_ne(why, "");
}
END_TEST

START_TEST(symbol_missing) {
        const char *const sonames[] = { "libm.so.6", NULL };
        struct table table = fresh_table();
        char why[200];

        ck_assert_int_eq(symbols_load(sonames, with_missing, 2, &table, why, sizeof(why)), -ENOSYS);
        ck_assert_msg(strstr(why, "gpuipc_no_such_symbol") != NULL, "%s", why);
        /* All or nothing. */
        ck_assert_ptr_null(table.cosine);
        ck_assert(table.absent == nothing);
}
END_TEST

START_TEST(symbol_optional) {
        const char *const sonames[] = { "libm.so.6", NULL };
        struct table table = fresh_table();

        ck_assert_int_eq(symbols_load(sonames, with_optional, 2, &table, NULL, 0), 0);
        ck_assert_ptr_nonnull(table.cosine);
        ck_assert_ptr_null(table.absent);
        ck_assert_ptr_eq(table.marker, MARKER);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("symbols");
        TCase *tcase = tcase_create("load");

        tcase_add_test(tcase, found);
        tcase_add_test(tcase, first_that_is_there);
        tcase_add_test(tcase, no_library);
        tcase_add_test(tcase, symbol_missing);
        tcase_add_test(tcase, symbol_optional);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
