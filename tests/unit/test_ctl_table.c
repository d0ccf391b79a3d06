/* SPDX-License-Identifier: Apache-2.0 */
/* Tables that fit, JSON cut into pieces, sums by label. */
#include <check.h>
#include <locale.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "client/ctl/print.h"
#include "client/ctl/rawjson.h"
#include "client/ctl/rows.h"
#include "client/ctl/table.h"
#include "client/ctl/tally.h"
#include "tests/support/suite.h"

static const struct table_column columns[] = {
        { "ID", false, 0, 0 },   { "NAME", false, 4, 0 },  { "SIZE", true, 0, 0 },
        { "NOTE", false, 6, 2 }, { "EMPTY", false, 0, 1 },
};

static void fill(struct table *table) {
        static const char *const names[] = { "weights", "a/longer/name", "ü" };

        table_init(table, columns, 5);
        for (int i = 0; i < 3; i++) {
                table_row(table, i % 2);
                table_format(table, "b%d", i);
                table_text(table, names[i]);
                table_format(table, "%d", i * 1000);
                table_text(table, i == 1 ? "some note\n" : "");
                table_text(table, NULL);
        }
        ck_assert(!table->failed);
}

static void assert_table(int width, size_t max_rows, const char *expected) {
        struct table table;
        struct bytes out = { 0 };

        fill(&table);
        table_print(&out, &table, width, max_rows);
        bytes_append_char(&out, 0);
        ck_assert(!out.failed);
        ck_assert_str_eq(out.data, expected);
        bytes_deinit(&out);
        table_deinit(&table);
}

START_TEST(without_a_limit_all_is_shown) {
        assert_table(0, SIZE_MAX,
                     "ID  NAME           SIZE  NOTE         EMPTY\n"
                     "b0  weights           0  -            -\n"
                     "b1  a/longer/name  1000  some note\\n  -\n"
                     "b2  ü              2000  -            -\n");
}
END_TEST

START_TEST(what_fits_exactly_is_left_alone) {
        assert_table(43, 1,
                     "ID  NAME     SIZE  NOTE  EMPTY\n"
                     "b0  weights     0  -     -\n");
        assert_table(30, 1,
                     "ID  NAME     SIZE  NOTE  EMPTY\n"
                     "b0  weights     0  -     -\n");
}
END_TEST

START_TEST(empty_columns_go_before_text_is_cut) {
        assert_table(42, SIZE_MAX,
                     "ID NAME          SIZE NOTE        EMPTY\n"
                     "b0 weights          0 -           -\n"
                     "b1 a/longer/name 1000 some note\\n -\n"
                     "b2 ü             2000 -           -\n");
        assert_table(34, SIZE_MAX,
                     "ID NAME          SIZE NOTE\n"
                     "b0 weights          0 -\n"
                     "b1 a/longer/name 1000 some note\\n\n"
                     "b2 ü             2000 -\n");
}
END_TEST

START_TEST(the_widest_are_cut_first) {
        assert_table(25, SIZE_MAX,
                     "ID NAME     SIZE NOTE\n"
                     "b0 weights     0 -\n"
                     "b1 a/longe… 1000 some no…\n"
                     "b2 ü        2000 -\n");
}
END_TEST

START_TEST(at_last_columns_are_left_out) {
        assert_table(18, SIZE_MAX,
                     "ID NAME       SIZE\n"
                     "b0 weights       0\n"
                     "b1 a/longer/… 1000\n"
                     "b2 ü          2000\n");
        assert_table(5, SIZE_MAX,
                     "ID NAME SIZE\n"
                     "b0 wei…    0\n"
                     "b1 a/l… 1000\n"
                     "b2 ü    2000\n");
}
END_TEST

START_TEST(no_line_is_too_wide) {
        for (int width = 12; width < 60; width++) {
                struct table table;
                struct bytes out = { 0 };

                fill(&table);
                table_print(&out, &table, width, SIZE_MAX);
                for (const char *p = out.data, *end; p < out.data + out.n; p = end + 1) {
                        end = memchr(p, '\n', (size_t)(out.data + out.n - p));
                        ck_assert_ptr_nonnull(end);
                        ck_assert_msg(print_width(p, (size_t)(end - p)) <= width, "%d: %.*s", width,
                                      (int)(end - p), p);
                }
                bytes_deinit(&out);
                table_deinit(&table);
        }
}
END_TEST

START_TEST(sorting_is_stable) {
        struct table table;

        fill(&table);
        table_sort(&table);
        ck_assert_str_eq(table.rows[0].cells[0], "b1");
        ck_assert_str_eq(table.rows[1].cells[0], "b0");
        ck_assert_str_eq(table.rows[2].cells[0], "b2");
        table_deinit(&table);
}
END_TEST

START_TEST(a_cell_too_many_is_a_fault) {
        struct table table;

        fill(&table);
        table_text(&table, "x");
        ck_assert(table.failed);
        table_deinit(&table);
}
END_TEST

START_TEST(rows_of_the_library) {
        static const char container[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        gpuipc_lease_info lease = { .id = "l1",
                                    .buffer = "b1",
                                    .device = "GPU-12345678-9abc-def0-1234-56789abcdef0",
                                    .access = "ro",
                                    .state = "active",
                                    .session = "s1",
                                    .command = "a\033[m",
                                    .container = container,
                                    .size = 1 << 20,
                                    .pid = 0,
                                    .uid = 7,
                                    .gid = 7 };
        struct rows rows;
        struct bytes out = { 0 };

        rows_init_leases(&rows, false);
        lease.since_usec = rows.now_usec + 5000000; /* clocks may differ */
        ck_assert_int_eq(rows_lease(&lease, &rows), 0);
        table_print(&out, &rows.table, 0, SIZE_MAX);
        bytes_append_char(&out, 0);
        ck_assert_str_eq(strchr(out.data, '\n') + 1,
                         "l1     b1      -     1 MiB  GPU-12345678  ro   active  outside    7  a\\x1b[m  "
                         "0123456789ab   0s  -\n");
        bytes_deinit(&out);
        rows_deinit(&rows);
}
END_TEST

/* ---- JSON ---------------------------------------------------------------------------------------------------- */

START_TEST(members_are_cut_out) {
        static const char text[] =
                " { \"a\" : [1, {\"b\":\"}]\\\"\"}] , \"c\":-1.5e3,\"d\":{\"a\":2},\"e\":null, \"f\":\"\" } ";
        struct rawjson_slice value;

        ck_assert(rawjson_member(text, "a", &value) && rawjson_is(&value, "[1, {\"b\":\"}]\\\"\"}]"));
        ck_assert(rawjson_member(text, "c", &value) && rawjson_is(&value, "-1.5e3"));
        ck_assert(rawjson_member(text, "d", &value) && rawjson_is(&value, "{\"a\":2}"));
        ck_assert(rawjson_member(text, "e", &value) && rawjson_is(&value, "null"));
        ck_assert(rawjson_member(text, "f", &value) && rawjson_is(&value, "\"\""));
        ck_assert(!rawjson_member(text, "b", &value));
        ck_assert(!rawjson_member("{}", "b", &value));
}
END_TEST

START_TEST(what_is_no_json_ends_the_walk) {
        static const char *const texts[] = { "",          "{",        "{\"a",       "{\"a\"",
                                             "{\"a\":",   "{\"a\":[", "{\"a\":\"",  "{\"a\":\"\\",
                                             "{\"a\":}",  "[1]",      "x",          "{\"a\" 1}",
                                             "{\"a\":{]", "{a:1}",    "{\"a\":[{}", "{\"a\":\"\\\"" };

        for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
                struct rawjson_slice key, value;
                const char *cursor = texts[i];

                while (rawjson_next(&cursor, &key, &value))
                        ck_assert(value.text + value.n <= texts[i] + strlen(texts[i]));
                ck_assert(!rawjson_member(texts[i], "z", &value));
        }
}
END_TEST

/* ---- sums ---------------------------------------------------------------------------------------------------- */

START_TEST(sums_are_by_label) {
        struct tally tally = { 0 };
        struct bytes out = { 0 }, labels = { 0 };

        tally_print(&out, &tally, "gpuipc_none", "None.");
        ck_assert_uint_eq(out.n, 0);
        tally_label(&labels, "device", "a\"b\\c\nd");
        tally_label(&labels, "uid", "7");
        bytes_append_char(&labels, 0);
        ck_assert_str_eq(labels.data, "device=\"a\\\"b\\\\c\\nd\",uid=\"7\"");
        tally_add(&tally, labels.data, 5);
        tally_add(&tally, "", 1);
        tally_add(&tally, labels.data, INT64_C(9007199254740986));
        tally_print(&out, &tally, "gpuipc_x_bytes", "Some.");
        bytes_append_char(&out, 0);
        ck_assert_str_eq(out.data, "# HELP gpuipc_x_bytes Some.\n"
                                   "# TYPE gpuipc_x_bytes gauge\n"
                                   "gpuipc_x_bytes{device=\"a\\\"b\\\\c\\nd\",uid=\"7\"} 9007199254740991\n"
                                   "gpuipc_x_bytes 1\n");
        for (int i = 0; i < 100; i++) {
                char text[32];

                (void)snprintf(text, sizeof(text), "uid=\"%d\"", i);
                tally_add(&tally, text, 1);
        }
        ck_assert_uint_eq(tally.n, 102);
        bytes_deinit(&out);
        bytes_deinit(&labels);
        tally_deinit(&tally);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("ctl_table");
        TCase *tcase = tcase_create("ctl_table");

        if (!setlocale(LC_CTYPE, "C.UTF-8"))
                return 1;
        suite_add_tcase(suite, tcase);
        tcase_add_test(tcase, without_a_limit_all_is_shown);
        tcase_add_test(tcase, what_fits_exactly_is_left_alone);
        tcase_add_test(tcase, empty_columns_go_before_text_is_cut);
        tcase_add_test(tcase, the_widest_are_cut_first);
        tcase_add_test(tcase, at_last_columns_are_left_out);
        tcase_add_test(tcase, no_line_is_too_wide);
        tcase_add_test(tcase, sorting_is_stable);
        tcase_add_test(tcase, a_cell_too_many_is_a_fault);
        tcase_add_test(tcase, rows_of_the_library);
        tcase_add_test(tcase, members_are_cut_out);
        tcase_add_test(tcase, what_is_no_json_ends_the_walk);
        tcase_add_test(tcase, sums_are_by_label);
        return suite_run(suite);
}
