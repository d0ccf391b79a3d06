/* SPDX-License-Identifier: Apache-2.0 */
/* The strict reading: grammar, keys, integers, and where values stand. Whole messages are in the vectors. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/bytes.h"
#include "proto/cleanup.h"
#include "proto/schema.h"
#include "proto/strict.h"
#include "tests/support/suite.h"

/* The text lies in memory of exactly its size, so that sanitizers see a read past its end. */
static int check_bytes(const char *text, size_t n, const char **ret_why) {
        char *copy = malloc(n > 0 ? n : 1);
        struct spans spans = { 0 };
        int r;

        ck_assert_ptr_nonnull(copy);
        memcpy(copy, text, n);
        r = strict_check(copy, n, 4, &spans, ret_why);
        spans_deinit(&spans);
        free(copy);
        return r;
}

static int check_text(const char *text) {
        const char *why = NULL;
        int r = check_bytes(text, strlen(text), &why);

        ck_assert((r == -EBADMSG) == (why != NULL));
        return r;
}

START_TEST(accepts_json) {
        static const char *const texts[] = {
                "0",
                "-0",
                "10",
                "-1.5",
                "0.5e+10",
                "1E-2",
                "true",
                " false\r\n",
                "\tnull ",
                "\"\"",
                "\"a\\/b\"",
                "[]",
                "[ ]",
                "[1,[2]]",
                "{}",
                "{ }",
                "{\"\":0}",
                "[[[[]]]]",
                "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e4\\uABCD\"",
                "\"\\ud83e\\udd8a\"",
                "{\"a\":1,\"A\":2}",
                "\"\x7f\"",
        };

        for (size_t i = 0; i < ELEMENTSOF(texts); i++)
                ck_assert_msg(check_text(texts[i]) == 0, "%s", texts[i]);
}
END_TEST

START_TEST(refuses_what_is_not_json) {
        static const char *const texts[] = {
                "",
                " ",
                "-",
                "+1",
                "01",
                "-01",
                "1.",
                ".1",
                "1e",
                "1e-",
                "0x1",
                "1 2",
                "tru",
                "truee",
                "True",
                "nul",
                "NaN",
                "'a'",
                "\"",
                "\"a",
                "\"\\",
                "\"\\u",
                "\"\\u12\"",
                "\"\\x41\"",
                "[",
                "]",
                "[1",
                "[1,",
                "[1,]",
                "[,1]",
                "[1 2]",
                "{",
                "}",
                "{\"a\"",
                "{\"a\":",
                "{\"a\":1",
                "{\"a\":1,",
                "{\"a\":1,}",
                "{,}",
                "{1:1}",
                "{a:1}",
                "[1}",
                "{\"a\":1]",
                "{\"a\" 1}",
                "{\"a\",1}",
                "\"\t\"",
                "\"\x1f\"",
                "[]]",
                "{}{}",
                "\v1",
                "\f1",
                "\xEF\xBB\xBF{}",
                "\xC2\xA0"
                "1",
                "/**/1",
                "[[[[[]]]]]",
                "{\"a\":[[[{}]]]}",
                "\"\\ud800\"",
                "\"\\udc00\"",
                "\"\\udc00\\udc00\"",
                "\"\\ud800\\n\"",
                "\"\\ud800\\ud800\"",
                "\"\\ud800\\u",
        };

        for (size_t i = 0; i < ELEMENTSOF(texts); i++)
                ck_assert_msg(check_text(texts[i]) == -EBADMSG, "%s", texts[i]);
}
END_TEST

START_TEST(refuses_nul_wherever_it_stands) {
        static const char text[] = " { \"a\" : [ 1 , true , \"b\\n\" ] } ";
        const char *why;

        ck_assert_int_eq(check_bytes(text, sizeof(text) - 1, &why), 0);
        for (size_t i = 0; i < sizeof(text); i++) {
                char broken[sizeof(text)];

                memcpy(broken, text, i);
                broken[i] = '\0';
                memcpy(broken + i + 1, text + i, sizeof(text) - 1 - i);
                ck_assert_msg(check_bytes(broken, sizeof(text), &why) == -EBADMSG, "NUL at %zu", i);
        }
}
END_TEST

START_TEST(refuses_every_beginning_of_a_text) {
        static const char text[] =
                "{\"a\\u0041\\ud83e\\udd8a\":[-1.5e+3,true,false,null,\"\xF0\x9F\xA6\x8A\\n\",{}],\"b\":0}";
        const char *why;

        for (size_t n = 0; n < sizeof(text) - 1; n++)
                ck_assert_msg(check_bytes(text, n, &why) == -EBADMSG, "%zu bytes", n);
        ck_assert_int_eq(check_bytes(text, sizeof(text) - 1, &why), 0);
}
END_TEST

/* ---- keys -------------------------------------------------------------------------------------------------- */

START_TEST(finds_keys_that_are_equal_as_characters) {
        static const char *const equal[][2] = {
                { "a", "a" },
                { "", "" },
                { "a", "\\u0061" },
                { "\\u0061", "\\u0061" },
                { "/", "\\/" },
                { "\\n", "\\u000a" },
                { "\\\"", "\\u0022" },
                { "\\\\", "\\u005C" },
                { "ö", "\\u00f6" },
                { "大", "\\u5927" },
                { "🦊", "\\uD83E\\uDD8A" },
                { "\\b\\f\\r\\t", "\\u0008\\u000C\\u000d\\u0009" },
        };
        static const char *const different[][2] = {
                { "a", "A" },
                { "a", "aa" },
                { "a", "" },
                { "a", "\\u0041" },
                { "\\n", "n" },
                { "u0061", "\\u0061" },
                { "ö", "o" },
                { "ab", "ba" },
                { "🦊", "\\uD83E\\uDD8B" },
                { "\\u0061", "\\u0061b" },
                { "abc", "adc" },
                { "a6", "a" },
        };
        char text[200];

        for (size_t i = 0; i < ELEMENTSOF(equal); i++) {
                (void)snprintf(text, sizeof(text), "{\"%s\":1,\"%s\":2}", equal[i][0], equal[i][1]);
                ck_assert_msg(check_text(text) == -EBADMSG, "%s", text);
                (void)snprintf(text, sizeof(text), "[{\"%s\":1,\"x\":[{}],\"%s\":2}]", equal[i][1], equal[i][0]);
                ck_assert_msg(check_text(text) == -EBADMSG, "%s", text);
                (void)snprintf(text, sizeof(text), "{\"%s\":{\"%s\":2}}", equal[i][0], equal[i][1]);
                ck_assert_msg(check_text(text) == 0, "%s", text);
        }
        for (size_t i = 0; i < ELEMENTSOF(different); i++) {
                (void)snprintf(text, sizeof(text), "{\"%s\":1,\"%s\":2}", different[i][0], different[i][1]);
                ck_assert_msg(check_text(text) == 0, "%s", text);
        }
}
END_TEST

START_TEST(compares_with_letters) {
        static const struct {
                const char *text, *letters;
                bool equal;
        } cases[] = {
                { "size", "size", true },        { "size", "siz", false },
                { "siz", "size", false },        { "", "", true },
                { "\\u0073ize", "size", true },  { "siz\\u0065", "size", true },
                { "siz\\u0065", "siz", false },  { "siz\\u0065", "sizes", false },
                { "\\u0053ize", "size", false }, { "\\ud83e\\udd8a", "s", false },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                bool escaped = strchr(cases[i].text, '\\') != NULL;

                ck_assert_msg(strict_equal(cases[i].text, strlen(cases[i].text), escaped, cases[i].letters) ==
                                      cases[i].equal,
                              "%s and %s", cases[i].text, cases[i].letters);
                ck_assert_int_eq(strict_equal(cases[i].text, strlen(cases[i].text), true, cases[i].letters),
                                 cases[i].equal);
        }
}
END_TEST

/* An object of n keys, the last of which is written as given; half of them have escapes. */
static int check_many(size_t n_keys, const char *last) {
        struct bytes text = { 0 };
        const char *why;
        int r;

        bytes_append_char(&text, '{');
        for (size_t i = 0; i < n_keys; i++) {
                char key[40];

                (void)snprintf(key, sizeof(key),
                               i % 2 == 0 ? "\"key%zu\":[%zu]," : "\"k\\u0065y%zu\":{\"a\":%zu},", i, i);
                bytes_append_str(&text, key);
        }
        bytes_append_str(&text, last);
        bytes_append_str(&text, ":0}");
        r = check_bytes(text.data, text.n, &why);
        bytes_deinit(&text);
        return r;
}

START_TEST(finds_equal_keys_among_many) {
        static const size_t numbers[] = { 5, 30, 31, 32, 33, 100, 5000 };

        for (size_t i = 0; i < ELEMENTSOF(numbers); i++) {
                ck_assert_int_eq(check_many(numbers[i], "\"other\""), 0);
                ck_assert_int_eq(check_many(numbers[i], "\"key0\""), -EBADMSG);
                ck_assert_int_eq(check_many(numbers[i], "\"key3\""), -EBADMSG);
                ck_assert_int_eq(check_many(numbers[i], "\"\\u006bey4\""), -EBADMSG);
                ck_assert_int_eq(check_many(numbers[i], "\"key\""), 0);
        }
}
END_TEST

/* ---- integers and spans ------------------------------------------------------------------------------------ */

START_TEST(reads_integers_exactly) {
        static const struct {
                const char *text;
                int64_t value;
        } good[] = {
                { "0", 0 },
                { "7", 7 },
                { "-1", -1 },
                { "10", 10 },
                { "9007199254740991", 9007199254740991 },
                { "-9007199254740991", -9007199254740991 },
                { "9007199254740990", 9007199254740990 },
        };
        static const char *const bad[] = { "",
                                           "-",
                                           "-0",
                                           "00",
                                           "01",
                                           "-01",
                                           "1.0",
                                           "1e3",
                                           "1E3",
                                           "+1",
                                           " 1",
                                           "1 ",
                                           "0x1",
                                           "a",
                                           "9007199254740992",
                                           "-9007199254740992",
                                           "9999999999999999",
                                           "10000000000000000",
                                           "18446744073709551617",
                                           "99999999999999999999999999999999",
                                           "--1",
                                           "1-" };

        for (size_t i = 0; i < ELEMENTSOF(good); i++) {
                int64_t value = 42;

                ck_assert_msg(strict_integer(good[i].text, strlen(good[i].text), &value), "%s", good[i].text);
                ck_assert_int_eq(value, good[i].value);
        }
        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                int64_t value = 42;

                ck_assert_msg(!strict_integer(bad[i], strlen(bad[i]), &value), "%s", bad[i]);
                ck_assert_int_eq(value, 42);
        }
}
END_TEST

START_TEST(tells_where_values_stand) {
        static const char text[] = " { \"a\" : [ 10 , \"x\\n\" ] , \"b\\u0063\":{} } ";
        static const char *const values[] = { "{ \"a\" : [ 10 , \"x\\n\" ] , \"b\\u0063\":{} }",
                                              "[ 10 , \"x\\n\" ]", "10", "\"x\\n\"", "{}" };
        static const char *const keys[] = { "", "a", "", "", "b\\u0063" };
        static const uint32_t nexts[] = { 5, 4, 3, 4, 5 };
        struct spans spans = { 0 };
        const char *why;

        ck_assert_int_eq(strict_check(text, sizeof(text) - 1, 4, &spans, &why), 0);
        ck_assert_uint_eq(spans.n, ELEMENTSOF(values));
        for (size_t i = 0; i < spans.n; i++) {
                const struct span *span = &spans.items[i];

                ck_assert_uint_eq(span->end - span->start, strlen(values[i]));
                ck_assert_mem_eq(text + span->start, values[i], span->end - span->start);
                ck_assert_uint_eq(span->next, nexts[i]);
                ck_assert_uint_eq(span->n_key, strlen(keys[i]));
                ck_assert_mem_eq(text + span->key, keys[i], span->n_key);
                ck_assert_int_eq(span->key_escaped, i == 4);
                ck_assert_int_eq(span->escaped, i == 3);
        }
        spans_deinit(&spans);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("strict");
        TCase *tcase = tcase_create("strict");

        suite_add_tcase(suite, tcase);
        tcase_add_test(tcase, accepts_json);
        tcase_add_test(tcase, refuses_what_is_not_json);
        tcase_add_test(tcase, refuses_nul_wherever_it_stands);
        tcase_add_test(tcase, refuses_every_beginning_of_a_text);
        tcase_add_test(tcase, finds_keys_that_are_equal_as_characters);
        tcase_add_test(tcase, compares_with_letters);
        tcase_add_test(tcase, finds_equal_keys_among_many);
        tcase_add_test(tcase, reads_integers_exactly);
        tcase_add_test(tcase, tells_where_values_stand);
        return suite_run(suite);
}
