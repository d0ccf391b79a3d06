/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes, times and foreign text as gpuipcctl shows them. */
#include <check.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/print.h"
#include "client/ctl/progress.h"
#include "proto/schema.h"
#include "tests/support/suite.h"

static void assert_size(int64_t bytes, const char *expected) {
        char text[PRINT_MAX];

        print_size(text, bytes);
        ck_assert_str_eq(text, expected);
}

START_TEST(sizes_have_four_digits_at_most) {
        assert_size(-1, "-");
        assert_size(0, "0 B");
        assert_size(1023, "1023 B");
        assert_size(1024, "1 KiB");
        assert_size(1536, "1.5 KiB");
        assert_size(65536, "64 KiB");
        assert_size(99 * 1024 + 512, "99.5 KiB");
        assert_size(100 * 1024 + 512, "101 KiB");
        assert_size(25000000, "23.8 MiB");
        assert_size(INT64_C(3) << 30, "3 GiB");
        assert_size(INT64_C(24696061952), "23 GiB");
        assert_size(SCHEMA_INT_MAX, "8 PiB");
        assert_size(INT64_MAX, "8 EiB");
}
END_TEST

START_TEST(sizes_never_round_up_to_1024) {
        assert_size(1023 * 1024, "1023 KiB");
        assert_size(1024 * 1024 - 1, "1 MiB");
        assert_size(1024 * 1024 - 600, "1023 KiB");
        assert_size(1024 * 1024 - 500, "1 MiB");
        assert_size((INT64_C(1) << 30) - 1, "1 GiB");
        for (int64_t bytes = 1000 * 1024; bytes < 1030 * 1024; bytes += 7) {
                char text[PRINT_MAX];

                print_size(text, bytes);
                ck_assert_msg(strncmp(text, "1024", 4) != 0, "%lld: %s", (long long)bytes, text);
        }
}
END_TEST

START_TEST(exact_sizes_are_digits) {
        char text[PRINT_MAX];

        print_bytes(text, 25000000, true);
        ck_assert_str_eq(text, "25000000");
        print_bytes(text, 25000000, false);
        ck_assert_str_eq(text, "23.8 MiB");
        print_bytes(text, -1, true);
        ck_assert_str_eq(text, "-");
}
END_TEST

static void assert_age(int64_t seconds, const char *expected) {
        char text[PRINT_MAX];

        print_age(text, seconds * 1000000 + 999999);
        ck_assert_str_eq(text, expected);
}

START_TEST(ages_have_two_units) {
        char text[PRINT_MAX];

        assert_age(0, "0s");
        assert_age(59, "59s");
        assert_age(60, "1m00s");
        assert_age(5 * 60 + 2, "5m02s");
        assert_age(3599, "59m59s");
        assert_age(3 * 3600 + 7 * 60 + 59, "3h07m");
        assert_age(2 * 86400 + 4 * 3600, "2d04h");
        assert_age(400 * INT64_C(86400), "400d00h");
        print_age(text, -1);
        ck_assert_str_eq(text, "-");
}
END_TEST

static void assert_duration(int64_t ms, const char *expected) {
        char text[PRINT_MAX];

        print_duration(text, ms);
        ck_assert_str_eq(text, expected);
}

START_TEST(durations_are_exact) {
        assert_duration(0, "0s");
        assert_duration(5, "5ms");
        assert_duration(1500, "1s500ms");
        assert_duration(30000, "30s");
        assert_duration(5400000, "1h30m");
        assert_duration(86400000, "1d");
        assert_duration(SCHEMA_INT_MAX, "104249991d8h59m991ms");
        assert_duration(-1, "-");
}
END_TEST

START_TEST(clock_has_microseconds) {
        char text[PRINT_MAX];

        ck_assert_int_eq(setenv("TZ", "UTC", 1), 0);
        print_clock(text, INT64_C(1796001696138964));
        ck_assert_str_eq(text, "01:21:36.138964");
        print_clock(text, -1);
        ck_assert_str_eq(text, "-");
}
END_TEST

/* ---- text -------------------------------------------------------------------------------------------------- */

static void assert_escaped(const char *text, const char *expected) {
        struct bytes out = { 0 };

        print_escaped(&out, text);
        bytes_append_char(&out, 0);
        ck_assert(!out.failed);
        ck_assert_str_eq(out.data, expected);
        bytes_deinit(&out);
}

START_TEST(plain_text_stays) {
        assert_escaped("", "");
        assert_escaped("models/llama-7b 'x' \"y\" ~", "models/llama-7b 'x' \"y\" ~");
        assert_escaped("Gewichte ü 重み 🙂", "Gewichte ü 重み 🙂");
}
END_TEST

START_TEST(nothing_commands_the_terminal) {
        assert_escaped("a\033[31mb", "a\\x1b[31mb");
        assert_escaped("a\nb\tc\rd", "a\\nb\\tc\\rd");
        assert_escaped("\a\b\x7f", "\\x07\\x08\\x7f");
        assert_escaped("c1 \xc2\x9b"
                       "31m",
                       "c1 \\xc2\\x9b31m");
        assert_escaped("a\\x1b", "a\\\\x1b");
}
END_TEST

START_TEST(nothing_reorders_or_hides) {
        assert_escaped("a\u202eb", "a\\xe2\\x80\\xaeb");
        assert_escaped("a\u2066b", "a\\xe2\\x81\\xa6b");
        assert_escaped("a\u200bb", "a\\xe2\\x80\\x8bb");
        assert_escaped("a\u061cb", "a\\xd8\\x9cb");
        assert_escaped("\ufeff", "\\xef\\xbb\\xbf");
        assert_escaped("a\u2028b", "a\\xe2\\x80\\xa8b");
}
END_TEST

START_TEST(what_is_no_utf8_is_shown_by_byte) {
        assert_escaped("\xff\xfe", "\\xff\\xfe");
        assert_escaped("\xc3", "\\xc3");
        assert_escaped("\xc3(", "\\xc3(");
        assert_escaped("\xc0\xaf", "\\xc0\\xaf");
        assert_escaped("\xed\xa0\x80", "\\xed\\xa0\\x80");
        assert_escaped("\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80");
        assert_escaped("\xe2\x82", "\\xe2\\x82");
}
END_TEST

START_TEST(a_plain_locale_gets_plain_characters) {
        ck_assert_ptr_nonnull(setlocale(LC_CTYPE, "C"));
        assert_escaped("ü", "\\xc3\\xbc");
        ck_assert_str_eq(print_ellipsis(), "~");
        ck_assert_ptr_nonnull(setlocale(LC_CTYPE, "C.UTF-8"));
        ck_assert_str_eq(print_ellipsis(), "…");
}
END_TEST

START_TEST(width_is_in_columns) {
        ck_assert_int_eq(print_width("abc", 3), 3);
        ck_assert_int_eq(print_width("ü", 2), 1);
        ck_assert_int_eq(print_width("重み", 6), 4);
        ck_assert_int_eq(print_width("\xff", 1), 1);
        ck_assert_uint_eq(print_prefix("abc", 2), 2);
        ck_assert_uint_eq(print_prefix("abc", 5), 3);
        ck_assert_uint_eq(print_prefix("重み", 3), 3);
        ck_assert_uint_eq(print_prefix("重み", 0), 0);
        ck_assert_uint_eq(print_prefix("e\u0301x", 1), 3);
}
END_TEST

START_TEST(columns_come_from_the_variable_first) {
        ck_assert_int_eq(setenv("COLUMNS", "123", 1), 0);
        ck_assert_int_eq(print_columns(-1), 123);
        ck_assert_int_eq(setenv("COLUMNS", "12x", 1), 0);
        ck_assert_int_eq(print_columns(-1), 0);
        ck_assert_int_eq(setenv("COLUMNS", "0", 1), 0);
        ck_assert_int_eq(print_columns(-1), 0);
        ck_assert_int_eq(unsetenv("COLUMNS"), 0);
        ck_assert_int_eq(print_columns(-1), 0);
}
END_TEST

START_TEST(progress_fits_its_line) {
        struct progress progress = { .what = "models/llama-7b/shard-00001-of-00002.safetensors",
                                     .total = INT64_C(3) << 30 };

        for (int width = 20; width < 220; width++) {
                struct bytes out = { 0 };

                progress_line(&out, &progress, INT64_C(1) << 30, 2000000, width);
                ck_assert(!out.failed);
                ck_assert_msg(width < 50 || print_width(out.data, out.n) <= width, "%d columns: %.*s", width,
                              (int)out.n, out.data);
                bytes_deinit(&out);
        }
}
END_TEST

START_TEST(progress_tells_rate_and_rest) {
        struct progress progress = { .what = "a\nfile", .total = INT64_C(3) << 30 };
        struct bytes out = { 0 };

        progress_line(&out, &progress, INT64_C(1) << 30, 2000000, 80);
        bytes_append_char(&out, 0);
        ck_assert_str_eq(out.data,
                         "a\\nfile  1 GiB of 3 GiB  [########----------------]   33%   512 MiB/s  4s left");
        bytes_deinit(&out);
        progress.total = -1;
        progress_line(&out, &progress, INT64_C(1) << 30, 2000000, 80);
        bytes_append_char(&out, 0);
        ck_assert_str_eq(out.data, "a\\nfile  1 GiB   512 MiB/s");
        bytes_deinit(&out);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("ctl_print");
        TCase *tcase = tcase_create("ctl_print");

        if (!setlocale(LC_CTYPE, "C.UTF-8"))
                return 1;
        suite_add_tcase(suite, tcase);
        tcase_add_test(tcase, sizes_have_four_digits_at_most);
        tcase_add_test(tcase, sizes_never_round_up_to_1024);
        tcase_add_test(tcase, exact_sizes_are_digits);
        tcase_add_test(tcase, ages_have_two_units);
        tcase_add_test(tcase, durations_are_exact);
        tcase_add_test(tcase, clock_has_microseconds);
        tcase_add_test(tcase, plain_text_stays);
        tcase_add_test(tcase, nothing_commands_the_terminal);
        tcase_add_test(tcase, nothing_reorders_or_hides);
        tcase_add_test(tcase, what_is_no_utf8_is_shown_by_byte);
        tcase_add_test(tcase, a_plain_locale_gets_plain_characters);
        tcase_add_test(tcase, width_is_in_columns);
        tcase_add_test(tcase, columns_come_from_the_variable_first);
        tcase_add_test(tcase, progress_fits_its_line);
        tcase_add_test(tcase, progress_tells_rate_and_rest);
        return suite_run(suite);
}
