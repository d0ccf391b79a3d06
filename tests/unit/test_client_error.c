/* SPDX-License-Identifier: Apache-2.0 */
/* Every way to be turned down, as a status, a name, words, and a code where there is one. */
#include <check.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "client/doctor_codes.h"
#include "client/error.h"
#include "include/gpuipc.h"
#include "proto/cleanup.h"
#include "tests/support/suite.h"

static const struct {
        enum verdict verdict;
        gpuipc_status status;
        const char *word; /* in the message */
} rows[] = {
        { VERDICT_INTERFACE_NOT_FOUND, GPUIPC_ERROR_UNSUPPORTED, "SUBJECT" },
        { VERDICT_METHOD_NOT_FOUND, GPUIPC_ERROR_UNSUPPORTED, "SUBJECT" },
        { VERDICT_METHOD_NOT_IMPLEMENTED, GPUIPC_ERROR_UNSUPPORTED, "SUBJECT" },
        { VERDICT_INVALID_PARAMETER, GPUIPC_ERROR_INVALID_PARAMETER, "SUBJECT" },
        { VERDICT_PERMISSION_DENIED, GPUIPC_ERROR_ACCESS_DENIED, "denies" },
        { VERDICT_EXPECTED_MORE, GPUIPC_ERROR_UNSUPPORTED, "more" },
        { VERDICT_NO_SUCH_BUFFER, GPUIPC_ERROR_NO_SUCH_BUFFER, "gpuipcctl list --buffers" },
        { VERDICT_NO_SUCH_LEASE, GPUIPC_ERROR_NO_SUCH_LEASE, "lease" },
        { VERDICT_NO_SUCH_SESSION, GPUIPC_ERROR_NO_SUCH_SESSION, "session" },
        { VERDICT_NO_SUCH_DEVICE, GPUIPC_ERROR_NO_SUCH_DEVICE, "SUBJECT" },
        { VERDICT_NAME_TAKEN, GPUIPC_ERROR_NAME_TAKEN, "SUBJECT" },
        { VERDICT_ACCESS_DENIED, GPUIPC_ERROR_ACCESS_DENIED, "REASON" },
        { VERDICT_QUOTA_EXCEEDED, GPUIPC_ERROR_QUOTA_EXCEEDED,
          "limit SUBJECT is reached: 22 of 11 in use and 33 more asked for. That is more than it ever allows" },
        { VERDICT_OUT_OF_MEMORY, GPUIPC_ERROR_OUT_OF_MEMORY, "SUBJECT has 44 bytes free and 33 were" },
        { VERDICT_HANDLE_UNSUPPORTED, GPUIPC_ERROR_HANDLE_UNSUPPORTED, "SUBJECT" },
        { VERDICT_ALREADY_SEALED, GPUIPC_ERROR_ALREADY_SEALED, "sealed" },
        { VERDICT_TIMED_OUT, GPUIPC_ERROR_TIMED_OUT, "in time" },
        { VERDICT_DEVICE_DEGRADED, GPUIPC_ERROR_DEVICE_DEGRADED, "SUBJECT" },
        { VERDICT_TOO_MANY_REQUESTS, GPUIPC_ERROR_TOO_MANY_REQUESTS, "REASON" },
        { VERDICT_EVENTS_LOST, GPUIPC_ERROR_EVENTS_LOST, "55" },
        { VERDICT_INTERNAL, GPUIPC_ERROR_INTERNAL, "SUBJECT" },
};

START_TEST(every_verdict) {
        bool seen[N_VERDICTS] = { [VERDICT_OK] = true };

        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
                struct failure failure = { .verdict = rows[i].verdict, .subject = "SUBJECT", .reason = "REASON", .limit = 11,
                                           .used = 22, .asked = 33, .free_bytes = 44, .oldest = 55 };
                gpuipc_error error;

                seen[rows[i].verdict] = true;
                ck_assert_int_eq(error_failure(NULL, METHOD_ALLOCATE, &failure), rows[i].status);
                ck_assert_int_eq(error_failure(&error, METHOD_ALLOCATE, &failure), rows[i].status);
                ck_assert_int_eq(error.status, rows[i].status);
                ck_assert_str_eq(error.name, verdict_error_name(rows[i].verdict));
                ck_assert_str_eq(error.subject, "SUBJECT");
                ck_assert_msg(strstr(error.message, rows[i].word), "%s", error.message);
                ck_assert_int_eq(error.limit, rows[i].status == GPUIPC_ERROR_QUOTA_EXCEEDED ? 11 : -1);
                ck_assert_int_eq(error.used, rows[i].status == GPUIPC_ERROR_QUOTA_EXCEEDED ? 22 : -1);
                ck_assert_int_eq(error.asked, rows[i].status == GPUIPC_ERROR_QUOTA_EXCEEDED ||
                                                       rows[i].status == GPUIPC_ERROR_OUT_OF_MEMORY ? 33 : -1);
                ck_assert_int_eq(error.free_bytes, rows[i].status == GPUIPC_ERROR_OUT_OF_MEMORY ? 44 : -1);
                ck_assert_int_eq(error.oldest, rows[i].status == GPUIPC_ERROR_EVENTS_LOST ? 55 : -1);
        }
        for (int verdict = 0; verdict < N_VERDICTS; verdict++)
                ck_assert_msg(seen[verdict], "verdict %d has no row here", verdict);
}
END_TEST

/* A limit on one request is not "reached" by anyone. */
START_TEST(what_one_request_may_ask) {
        struct failure failure = { .verdict = VERDICT_QUOTA_EXCEEDED, .subject = "wait_ms", .limit = 11, .asked = 12 };
        gpuipc_error error;

        (void)error_failure(&error, METHOD_ALLOCATE, &failure);
        ck_assert_str_eq(error.message, "The limit wait_ms allows 11, and 12 was asked for. Ask for less, or have the "
                                        "administrator raise it.");
        failure.asked = 11;
        (void)error_failure(&error, METHOD_ALLOCATE, &failure);
        ck_assert_ptr_nonnull(strstr(error.message, "is reached"));
}
END_TEST

START_TEST(parameter_hints) {
        struct failure failure = { .verdict = VERDICT_INVALID_PARAMETER, .subject = "mode" };
        gpuipc_error error;

        (void)error_failure(&error, METHOD_ALLOCATE, &failure);
        ck_assert_ptr_nonnull(strstr(error.message, "'mode' is not valid: it must be "));
        ck_assert_ptr_nonnull(strstr(error.message, schema_hint(METHOD_ALLOCATE, "mode")));
        (void)error_failure(&error, N_METHODS, &failure);
        ck_assert_str_eq(error.message, "The parameter 'mode' is not valid.");
}
END_TEST

START_TEST(hostile_text) {
        struct failure failure = { .verdict = VERDICT_ACCESS_DENIED, .reason = "\x1b[2Jgone\r\nnow\x7f" };
        char longer[2000];
        gpuipc_error error;

        (void)error_failure(&error, N_METHODS, &failure);
        ck_assert_str_eq(error.message, "?[2Jgone??now?");
        memset(longer, '%', sizeof(longer) - 1);
        longer[sizeof(longer) - 1] = '\0';
        ck_assert_int_eq(error_unknown(&error, longer), GPUIPC_ERROR_PROTOCOL);
        ck_assert_uint_lt(strlen(error.subject), sizeof(error.subject));
        ck_assert_uint_lt(strlen(error.message), sizeof(error.message));
        ck_assert_int_eq(error_connect(&error, ENOENT, longer), GPUIPC_ERROR_UNREACHABLE);
        ck_assert_uint_lt(strlen(error.message), sizeof(error.message));
        ck_assert_int_eq(error_set(NULL, GPUIPC_ERROR_MAP, 0, NULL, "x"), GPUIPC_ERROR_MAP);
}
END_TEST

START_TEST(names_of_statuses) {
        ck_assert_str_eq(gpuipc_status_name(GPUIPC_OK), "GPUIPC_OK");
        ck_assert_str_eq(gpuipc_status_name(GPUIPC_ERROR_NAME_TAKEN), "GPUIPC_ERROR_NAME_TAKEN");
        ck_assert_str_eq(gpuipc_status_name(GPUIPC_ERROR_CLOSED), "GPUIPC_ERROR_CLOSED");
        ck_assert_str_eq(gpuipc_status_name((gpuipc_status)20), "GPUIPC_ERROR_UNKNOWN");
        ck_assert_str_eq(gpuipc_status_name((gpuipc_status)-1), "GPUIPC_ERROR_UNKNOWN");
        ck_assert_str_eq(gpuipc_status_name((gpuipc_status)1000), "GPUIPC_ERROR_UNKNOWN");
        for (int status = 0; status <= GPUIPC_ERROR_CLOSED; status++) {
                bool gap = status > GPUIPC_ERROR_UNSUPPORTED && status < GPUIPC_ERROR_UNREACHABLE;
                ck_assert_int_eq(strcmp(gpuipc_status_name((gpuipc_status)status), "GPUIPC_ERROR_UNKNOWN") == 0, gap);
        }
        ck_assert_str_eq(gpuipc_version(), GPUIPC_VERSION);
}
END_TEST

/* ---- codes -------------------------------------------------------------------------------------------------- */

START_TEST(errors_carry_codes) {
        static const struct {
                int number;
                const char *code;
        } connects[] = {
                { ENOENT, "G101" },     { ENOTDIR, "G101" },   { ECONNREFUSED, "G103" }, { EACCES, "G104" },       { EPERM, "G104" },
                { EPROTOTYPE, "G105" }, { ETIMEDOUT, "G106" }, { EMFILE, "G108" },       { ENAMETOOLONG, "G108" },
        };
        struct failure degraded = { .verdict = VERDICT_DEVICE_DEGRADED, .subject = "GPU-1" };
        gpuipc_error error;

        for (size_t i = 0; i < ELEMENTSOF(connects); i++) {
                (void)error_connect(&error, connects[i].number, "/run/s");
                ck_assert_str_eq(error.code, connects[i].code);
                ck_assert(strstr(error.message, connects[i].code));
        }
        (void)error_protocol(&error, "it is empty");
        ck_assert_str_eq(error.code, "G107");
        (void)error_failure(&error, METHOD_ALLOCATE, &degraded);
        ck_assert_str_eq(error.code, "G502");
}
END_TEST

START_TEST(other_errors_carry_none) {
        gpuipc_error error = { .code = "" };

        (void)error_set(&error, GPUIPC_ERROR_MAP, 0, NULL, "No code at all.");
        ck_assert_ptr_null(error.code);
        (void)error_set(&error, GPUIPC_ERROR_MAP, 0, NULL, "[G101]");
        ck_assert_ptr_null(error.code);
        (void)error_set(&error, GPUIPC_ERROR_MAP, 0, NULL, "Nobody knows it. [G999]");
        ck_assert_ptr_null(error.code);
        (void)error_set(&error, GPUIPC_ERROR_MAP, 0, NULL, "In its middle [G101] only.");
        ck_assert_ptr_null(error.code);
}
END_TEST

/* However long the text, its code is there. */
START_TEST(long_errors_keep_their_code) {
        char path[600];
        gpuipc_error error;

        memset(path, 'x', sizeof(path) - 1);
        path[sizeof(path) - 1] = 0;
        for (size_t n = 300; n < sizeof(path); n++) {
                (void)error_set(&error, GPUIPC_ERROR_MAP, 0, NULL, "%.*s. [%s]", (int)n, path, doctor_code_id(DOCTOR_SAME_PID));
                ck_assert_str_eq(error.code, "G009");
                ck_assert_uint_le(strlen(error.message), sizeof(error.message) - 1);
                ck_assert_str_eq(error.message + strlen(error.message) - 7, " [G009]");
        }
}
END_TEST

int main(void) {
        Suite *suite = suite_create("client_error");
        TCase *tcase = tcase_create("error");

        tcase_add_test(tcase, every_verdict);
        tcase_add_test(tcase, what_one_request_may_ask);
        tcase_add_test(tcase, parameter_hints);
        tcase_add_test(tcase, hostile_text);
        tcase_add_test(tcase, names_of_statuses);
        tcase_add_test(tcase, errors_carry_codes);
        tcase_add_test(tcase, other_errors_carry_none);
        tcase_add_test(tcase, long_errors_keep_their_code);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
