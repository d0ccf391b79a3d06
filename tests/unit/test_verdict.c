/* SPDX-License-Identifier: Apache-2.0 */
/* Verdicts: names, sentences, and details that are cut to fit. */
#include <check.h>
#include <stdbool.h>
#include <string.h>

#include "proto/utf8.h"
#include "proto/verdict.h"
#include "tests/support/suite.h"

static bool is_utf8(const char *text) {
        while (*text != '\0') {
                size_t n = utf8_length(text, strlen(text));

                if (n == 0)
                        return false;
                text += n;
        }
        return true;
}

START_TEST(names_go_both_ways) {
        ck_assert_ptr_null(verdict_error_name(VERDICT_OK));
        ck_assert_ptr_null(verdict_error_name(N_VERDICTS));
        ck_assert_ptr_null(verdict_error_name(VERDICT_AGAIN));
        ck_assert_ptr_null(verdict_error_name((enum verdict) - 1));
        for (int i = 1; i < N_VERDICTS; i++) {
                const char *name = verdict_error_name((enum verdict)i);

                ck_assert_ptr_nonnull(name);
                ck_assert_int_eq(verdict_from_error_name(name), i);
        }
        ck_assert_int_eq(verdict_from_error_name("io.gpuipc.Broker.NoSuchBuffer"), VERDICT_NO_SUCH_BUFFER);
        ck_assert_int_eq(verdict_from_error_name("org.varlink.service.InvalidParameter"),
                         VERDICT_INVALID_PARAMETER);
        ck_assert_int_eq(verdict_from_error_name("io.gpuipc.Broker.NoSuchBuffe"), VERDICT_OK);
        ck_assert_int_eq(verdict_from_error_name("NoSuchBuffer"), VERDICT_OK);
        ck_assert_int_eq(verdict_from_error_name(""), VERDICT_OK);
}
END_TEST

START_TEST(each_has_a_sentence) {
        for (int i = 0; i < N_VERDICTS; i++)
                ck_assert_uint_gt(strlen(verdict_sentence((enum verdict)i)), 3);
        ck_assert_uint_gt(strlen(verdict_sentence(VERDICT_AGAIN)), 3);
        ck_assert_ptr_nonnull(verdict_sentence((enum verdict) - 5));
        ck_assert_ptr_nonnull(verdict_sentence((enum verdict)99999));
}
END_TEST

START_TEST(fills_the_details) {
        struct failure failure;

        memset(&failure, 0x55, sizeof(failure));
        ck_assert_int_eq(fail_plain(&failure, VERDICT_TIMED_OUT), VERDICT_TIMED_OUT);
        ck_assert_int_eq(failure.verdict, VERDICT_TIMED_OUT);
        ck_assert_str_eq(failure.subject, "");
        ck_assert_str_eq(failure.reason, "");
        ck_assert_int_eq(failure.limit | failure.used | failure.asked | failure.free_bytes | failure.oldest, 0);

        ck_assert_int_eq(fail_parameter(&failure, "size"), VERDICT_INVALID_PARAMETER);
        ck_assert_str_eq(failure.subject, "size");
        ck_assert_int_eq(fail_subject(&failure, VERDICT_NAME_TAKEN, "a/b"), VERDICT_NAME_TAKEN);
        ck_assert_str_eq(failure.subject, "a/b");

        ck_assert_int_eq(fail_quota(&failure, "bytes_per_uid", 10, 8, 3), VERDICT_QUOTA_EXCEEDED);
        ck_assert_int_eq(failure.verdict, VERDICT_QUOTA_EXCEEDED);
        ck_assert_str_eq(failure.subject, "bytes_per_uid");
        ck_assert_int_eq(failure.limit, 10);
        ck_assert_int_eq(failure.used, 8);
        ck_assert_int_eq(failure.asked, 3);

        ck_assert_int_eq(fail_memory(&failure, "host", 5, 6), VERDICT_OUT_OF_MEMORY);
        ck_assert_str_eq(failure.subject, "host");
        ck_assert_int_eq(failure.free_bytes, 5);
        ck_assert_int_eq(failure.asked, 6);
        ck_assert_int_eq(failure.limit, 0);

        ck_assert_int_eq(fail_reason(&failure, VERDICT_HANDLE_UNSUPPORTED, "cuda-fd", "not on %s", "host"),
                         VERDICT_HANDLE_UNSUPPORTED);
        ck_assert_str_eq(failure.subject, "cuda-fd");
        ck_assert_str_eq(failure.reason, "not on host");
        ck_assert_int_eq(fail_reason(&failure, VERDICT_ACCESS_DENIED, NULL, "no"), VERDICT_ACCESS_DENIED);
        ck_assert_str_eq(failure.subject, "");
}
END_TEST

/* A character of _i bytes stands across every possible place of the cut. */
START_TEST(cuts_between_characters) {
        static const char *const characters[] = { "", "a", "\xC3\xB6", "\xE5\xA4\xA7", "\xF0\x9F\xA6\x8A" };
        struct failure failure;

        for (size_t n_before = 0; n_before < 8; n_before++) {
                char text[1000] = "";
                size_t n;

                memset(text, 'x', n_before);
                for (n = n_before; n < 600; n += (size_t)_i)
                        memcpy(text + n, characters[_i], (size_t)_i + 1);
                (void)fail_subject(&failure, VERDICT_NAME_TAKEN, text);
                n = strlen(failure.subject);
                ck_assert_uint_gt(n, sizeof(failure.subject) - 5);
                ck_assert_uint_lt(n, sizeof(failure.subject));
                ck_assert_mem_eq(failure.subject, text, n);
                ck_assert(is_utf8(failure.subject));
                (void)fail_reason(&failure, VERDICT_ACCESS_DENIED, "", "%s", text);
                n = strlen(failure.reason);
                ck_assert_uint_gt(n, sizeof(failure.reason) - 5);
                ck_assert_mem_eq(failure.reason, text, n);
                ck_assert(is_utf8(failure.reason));
        }
}
END_TEST

int main(void) {
        Suite *suite = suite_create("verdict");
        TCase *tcase = tcase_create("verdict");

        suite_add_tcase(suite, tcase);
        tcase_add_test(tcase, names_go_both_ways);
        tcase_add_test(tcase, each_has_a_sentence);
        tcase_add_test(tcase, fills_the_details);
        tcase_add_loop_test(tcase, cuts_between_characters, 1, 5);
        return suite_run(suite);
}
