/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8, against its definition by code points. Where checks are many they are plain ifs, since Check notes
 * each of its own. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/utf8.h"
#include "tests/support/suite.h"

START_TEST(every_code_point_is_one_character) {
        for (uint32_t code = 1; code <= 0x10FFFF; code += code < 0x3000 ? 1 : 61) {
                char text[8] = "";
                size_t n, expected;

                if (code >= 0xD800 && code <= 0xDFFF)
                        continue;
                n = utf8_put(code, text);
                expected = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
                if (n != expected || utf8_length(text, n) != n || utf8_length(text, 8) != n ||
                    utf8_length(text, n - 1) != 0)
                        ck_abort_msg("U+%04X", code);
        }
}
END_TEST

/* Of all sequences of two bytes, and of three and four from the edges, exactly those that a code point makes. */
START_TEST(no_other_bytes_are_characters) {
        static const unsigned char edges[] = { 0x00, 0x22, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF,
                                               0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE,
                                               0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xF8, 0xFF };
        size_t n_edges = ELEMENTSOF(edges);

        for (size_t i = 0; i < n_edges * n_edges * n_edges * n_edges; i++) {
                unsigned char u[4] = { edges[i % n_edges], edges[i / n_edges % n_edges],
                                       edges[i / n_edges / n_edges % n_edges],
                                       edges[i / n_edges / n_edges / n_edges] };
                size_t expected = u[0] < 0x80 ? 1 : 0;
                uint32_t codes[] = {
                        (u[0] & 0x1Fu) << 6 | (u[1] & 0x3Fu),
                        (u[0] & 0x0Fu) << 12 | (u[1] & 0x3Fu) << 6 | (u[2] & 0x3Fu),
                        (u[0] & 0x07u) << 18 | (u[1] & 0x3Fu) << 12 | (u[2] & 0x3Fu) << 6 | (u[3] & 0x3Fu),
                };

                for (size_t j = 0; expected == 0 && j < ELEMENTSOF(codes); j++) {
                        char text[4];

                        if (codes[j] > 0x10FFFF || (codes[j] >= 0xD800 && codes[j] <= 0xDFFF))
                                continue;
                        if (utf8_put(codes[j], text) == j + 2 && memcmp(text, u, j + 2) == 0)
                                expected = j + 2;
                }
                if (utf8_length((const char *)u, 4) != expected)
                        ck_abort_msg("%02x %02x %02x %02x", u[0], u[1], u[2], u[3]);
        }
}
END_TEST

START_TEST(cuts_before_the_character_that_does_not_fit) {
        static const char text[] = "a\xC3\xB6\xE5\xA4\xA7\xF0\x9F\xA6\x8A";
        static const size_t expected[] = { 0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 10 };

        for (size_t max = 0; max < ELEMENTSOF(expected); max++)
                ck_assert_uint_eq(utf8_cut(text, sizeof(text) - 1, max), expected[max]);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("utf8");
        TCase *tcase = tcase_create("utf8");

        suite_add_tcase(suite, tcase);
        tcase_add_test(tcase, every_code_point_is_one_character);
        tcase_add_test(tcase, no_other_bytes_are_characters);
        tcase_add_test(tcase, cuts_before_the_character_that_does_not_fit);
        return suite_run(suite);
}
