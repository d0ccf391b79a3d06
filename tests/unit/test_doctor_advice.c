/* SPDX-License-Identifier: Apache-2.0 */
/* The table of advice. */
#include <check.h>
#include <string.h>

#include "client/doctor/advice.h"
#include "client/doctor/finding.h"
#include "proto/cleanup.h"
#include "tests/support/suite.h"

/* What is well needs no advice, all else does. */
START_TEST(every_trouble_has_advice) {
        static const enum doctor_code well[] = {
                DOCTOR_SOCKET_WELL, DOCTOR_IDENTITY,     DOCTOR_NAMESPACES,  DOCTOR_SHM_SHARED, DOCTOR_DRIVER_WELL,
                DOCTOR_NODES_WELL,  DOCTOR_DEVICES_SAME, DOCTOR_LIMITS_WELL, DOCTOR_TRIAL_WELL,
        };

        for (int code = 0; code < N_DOCTOR_CODES; code++) {
                bool expected = true;
                for (size_t i = 0; i < ELEMENTSOF(well); i++)
                        expected = expected && well[i] != (enum doctor_code)code;
                ck_assert_msg((advice((enum doctor_code)code) != NULL) == expected, "%s",
                              doctor_code_id((enum doctor_code)code));
        }
        ck_assert_ptr_null(advice(N_DOCTOR_CODES));
}
END_TEST

START_TEST(codes_are_found) {
        enum doctor_code code = N_DOCTOR_CODES;

        ck_assert(advice_find("G101", &code));
        ck_assert_int_eq(code, DOCTOR_NO_SOCKET);
        ck_assert(advice_find("g009", &code));
        ck_assert_int_eq(code, DOCTOR_SAME_PID);
        ck_assert(!advice_find("G99", &code) && !advice_find("", &code) && !advice_find("G1011", &code));
        ck_assert_int_eq(code, DOCTOR_SAME_PID);
}
END_TEST

START_TEST(words_are_filled_in) {
        char text[ADVICE_SIZE], longest[ADVICE_SIZE * 2];

        advice_fill(DOCTOR_NOT_ADMITTED, "UID", "1234", text);
        ck_assert_msg(strstr(text, "  AllowUsers=1234\n") && !strstr(text, "UID"), "%s", text);
        for (size_t i = 0; i < 2; i++) {
                advice_fill(DOCTOR_NOT_ADMITTED, (const char *[]){ "U", "ID" }[i], "1234", text); /* only where it stands alone */
                ck_assert_str_eq(text, advice(DOCTOR_NOT_ADMITTED));
        }
        memset(longest, 'x', sizeof(longest) - 1);
        longest[sizeof(longest) - 1] = 0;
        advice_fill(DOCTOR_NOT_ADMITTED, "UID", longest, text);
        ck_assert_uint_eq(strlen(text), ADVICE_SIZE - 1);
        advice_fill(DOCTOR_SOCKET_WELL, "UID", "1234", text);
        ck_assert_str_eq(text, "");
        for (int code = 0; code < N_DOCTOR_CODES; code++)
                ck_assert_uint_lt(strlen(advice((enum doctor_code)code) ? advice((enum doctor_code)code) : ""), ADVICE_SIZE - 64);
}
END_TEST

START_TEST(levels_have_names) {
        ck_assert_str_eq(finding_level_name(FINDING_OK), "ok");
        ck_assert_str_eq(finding_level_name(FINDING_FAIL), "fail");
}
END_TEST

int main(void) {
        Suite *suite = suite_create("doctor_advice");
        TCase *tc = tcase_create("advice");

        tcase_add_test(tc, every_trouble_has_advice);
        tcase_add_test(tc, codes_are_found);
        tcase_add_test(tc, words_are_filled_in);
        tcase_add_test(tc, levels_have_names);
        suite_add_tcase(suite, tc);
        return suite_run(suite);
}
