/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to structs and back: what vectors cannot show. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/codec.h"
#include "tests/support/suite.h"

#define METHOD_TEXT(method, parameters)                                                                           \
        "{\"method\":\"io.gpuipc.Broker." method "\",\"parameters\":" parameters "}"

/* ---- decoding ---------------------------------------------------------------------------------------------- */

static struct codec_doc *parse(const char *text) {
        struct codec_doc *doc;
        const char *why = NULL;

        ck_assert_msg(codec_parse(text, strlen(text), &doc, &why) == 0, "%s: %s", text, why);
        return doc;
}

START_TEST(what_is_not_given_is_told) {
        struct codec_doc *doc = parse(METHOD_TEXT("Allocate", "{\"size\":5,\"name\":null,\"keep_ms\":null}"));
        struct allocate_params params;
        struct list_params list;
        struct failure failure;

        memset(&params, 0x55, sizeof(params));
        ck_assert_int_eq(codec_call_params(doc, method_schemas[METHOD_ALLOCATE].params, &params, &failure), 0);
        ck_assert_int_eq(params.size, 5);
        ck_assert_ptr_null(params.device);
        ck_assert_ptr_null(params.name);
        ck_assert_ptr_null(params.handle);
        ck_assert_ptr_null(params.mode);
        ck_assert_ptr_null(params.meta);
        ck_assert_ptr_null(params.label);
        ck_assert(params.keep_ms == SCHEMA_UNSET);
        ck_assert(params.wait_ms == SCHEMA_UNSET);
        codec_doc_free(doc);

        doc = parse("{\"method\":\"io.gpuipc.Broker.List\"}");
        memset(&list, 0x55, sizeof(list));
        ck_assert_int_eq(codec_call_params(doc, method_schemas[METHOD_LIST].params, &list, &failure), 0);
        ck_assert(list.uid == SCHEMA_UNSET);
        ck_assert_ptr_null(list.name);
        codec_doc_free(doc);
}
END_TEST

START_TEST(objects_stay_as_they_were_written) {
        static const char meta[] = "{ \"n\":9007199254740993, \"x\" : [1.10, 1E+2,-0],\"\\u0061\":\"\\/\" }";
        char text[300];
        struct allocate_params params;
        struct failure failure;
        struct codec_doc *doc;

        (void)snprintf(text, sizeof(text), METHOD_TEXT("Allocate", "{\"size\":5,\"meta\": %s }"), meta);
        doc = parse(text);
        memset(text, 'x', sizeof(text)); /* the document keeps its own */
        ck_assert_int_eq(codec_call_params(doc, method_schemas[METHOD_ALLOCATE].params, &params, &failure), 0);
        ck_assert_str_eq(params.meta, meta);
        codec_doc_free(doc);
}
END_TEST

START_TEST(parameters_are_given_as_text) {
        struct codec_doc *doc = parse("{\"parameters\" : { \"a\": 1.0 } , \"error\":\"x.y\"}");

        ck_assert_str_eq(codec_params_text(doc), "{ \"a\": 1.0 }");
        ck_assert_ptr_eq(codec_params_text(doc), codec_params_text(doc));
        codec_doc_free(doc);
        doc = parse("{}");
        ck_assert_str_eq(codec_params_text(doc), "{}");
        codec_doc_free(doc);
        doc = parse("{\"parameters\":null}");
        ck_assert_str_eq(codec_params_text(doc), "{}");
        codec_doc_free(doc);
}
END_TEST

START_TEST(call_flags_are_read) {
        struct codec_doc *doc = parse("{\"oneway\":true,\"method\":\"a.b\",\"more\":true}");
        struct codec_call call;

        ck_assert_int_eq(codec_call(doc, &call, NULL), 0);
        ck_assert_str_eq(call.method, "a.b");
        ck_assert(call.more);
        ck_assert(call.oneway);
        codec_doc_free(doc);
        doc = parse("{\"method\":\"a.b\"}");
        ck_assert_int_eq(codec_call(doc, &call, NULL), 0);
        ck_assert(!call.more);
        ck_assert(!call.oneway);
        codec_doc_free(doc);
}
END_TEST

/* People read these in the log. */
START_TEST(refusals_say_why) {
        static const struct {
                const char *text, *word;
        } cases[] = {
                { "{\"method\":\"a\"}x", "follow" },
                { "[]", "no object" },
                { "{\"a\":\"\xFF\"}", "UTF-8" },
                { "{\"a\":1,\"a\":2}", "twice" },
                { "{\"a\":\"\\u0000\"}", "NUL" },
                { "", "not JSON" },
                { "{\"a\":01}", "number" },
                { "{\"method\":\"a\",\"x\":1}", "member" },
                { "{}", "method" },
                { "{\"method\":\"a\",\"upgrade\":true}", "upgrade" },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                struct codec_doc *doc = NULL;
                struct codec_call call;
                const char *why = NULL;
                int r = codec_parse(cases[i].text, strlen(cases[i].text), &doc, &why);

                if (r == 0)
                        r = codec_call(doc, &call, &why);
                ck_assert_int_eq(r, -EBADMSG);
                ck_assert_msg(why != NULL && strstr(why, cases[i].word) != NULL, "%s: %s", cases[i].text, why);
                codec_doc_free(doc);
        }
}
END_TEST

START_TEST(an_error_fills_only_its_own_members) {
        struct codec_doc *doc = parse("{\"error\":\"io.gpuipc.Broker.OutOfMemory\",\"parameters\":{\"device\":"
                                      "\"host\",\"free\":1,\"asked\":2}}");
        struct failure failure = { .verdict = VERDICT_OUT_OF_MEMORY, .limit = 77 };

        ck_assert_int_eq(codec_reply_params(doc, error_schemas[VERDICT_OUT_OF_MEMORY], &failure, NULL), 0);
        ck_assert_int_eq(failure.verdict, VERDICT_OUT_OF_MEMORY);
        ck_assert_str_eq(failure.subject, "host");
        ck_assert_int_eq(failure.free_bytes, 1);
        ck_assert_int_eq(failure.asked, 2);
        ck_assert_int_eq(failure.limit, 77);
        codec_doc_free(doc);
}
END_TEST

START_TEST(long_error_text_is_cut_between_characters) {
        struct failure failure = { .verdict = VERDICT_ACCESS_DENIED };
        char text[800] = "{\"error\":\"io.gpuipc.Broker.AccessDenied\",\"parameters\":{\"reason\":\"";
        struct codec_doc *doc;

        for (int i = 0; i < 200; i++)
                strcat(text, "ö");
        strcat(text, "\"}}");
        doc = parse(text);
        ck_assert_int_eq(codec_reply_params(doc, error_schemas[VERDICT_ACCESS_DENIED], &failure, NULL), 0);
        ck_assert_uint_eq(strlen(failure.reason), 254);
        ck_assert_str_eq(failure.reason + 252, "ö");
        codec_doc_free(doc);
}
END_TEST

START_TEST(a_document_may_be_read_twice) {
        struct codec_doc *doc = parse("{\"parameters\":{\"leases\":[]}}");
        struct list_reply reply;
        const char *field = NULL;

        ck_assert_int_eq(codec_reply_params(doc, method_schemas[METHOD_LIST_BUFFERS].reply, &reply, &field),
                         -EBADMSG);
        ck_assert_str_eq(field, "buffers");
        ck_assert_int_eq(codec_reply_params(doc, method_schemas[METHOD_LIST].reply, &reply, NULL), 0);
        ck_assert_uint_eq(reply.leases.n, 0);
        codec_doc_free(doc);
}
END_TEST

/* ---- printing ---------------------------------------------------------------------------------------------- */

static void expect_bytes(struct bytes *out, const char *text) {
        ck_assert(!out->failed);
        ck_assert_msg(out->n == strlen(text) && memcmp(out->data, text, out->n) == 0, "%.*s, not %s", (int)out->n,
                      out->data, text);
        out->n = 0;
}

START_TEST(strings_are_escaped) {
        static const struct {
                const char *text, *printed;
        } cases[] = {
                { "", "\"\"" },
                { "plain /", "\"plain /\"" },
                { "\"\\\b\f\n\r\t", "\"\\\"\\\\\\b\\f\\n\\r\\t\"" },
                { "\x01\x1b\x1f\x7f", "\"\\u0001\\u001b\\u001f\x7f\"" },
                { "ö大🦊", "\"ö大🦊\"" },
                { "\xFF", "\"\xEF\xBF\xBD\"" },
                { "a\xC3", "\"a\xEF\xBF\xBD\"" },
                { "a\xC0\x80z", "\"a\xEF\xBF\xBD\xEF\xBF\xBDz\"" },
                { "\xF0\x9F\xA6", "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"" },
                { "\xED\xA0\x80", "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"" },
        };
        struct bytes out = { 0 };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                codec_put_string(&out, cases[i].text);
                expect_bytes(&out, cases[i].printed);
        }
        bytes_deinit(&out);
}
END_TEST

START_TEST(integers_are_printed_exactly) {
        static const struct {
                int64_t value;
                const char *printed;
        } cases[] = {
                { 0, "0" },
                { -1, "-1" },
                { 10, "10" },
                { SCHEMA_INT_MAX, "9007199254740991" },
                { -SCHEMA_INT_MAX, "-9007199254740991" },
                { 9007199254740993, "9007199254740993" },
                { INT64_MAX, "9223372036854775807" },
                { INT64_MIN, "-9223372036854775808" },
        };
        struct bytes out = { 0 };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                struct failure failure = { .verdict = VERDICT_EVENTS_LOST, .oldest = cases[i].value };
                char text[100];

                (void)snprintf(text, sizeof(text), "{\"oldest\":%s}", cases[i].printed);
                codec_put_struct(&out, error_schemas[VERDICT_EVENTS_LOST], &failure);
                expect_bytes(&out, text);
        }
        bytes_deinit(&out);
}
END_TEST

START_TEST(calls_are_printed) {
        struct bytes out = { 0 };
        struct open_params params = { .name = "a", .owner = SCHEMA_UNSET, .wait_ms = 0 };
        const struct schema *schema = method_schemas[METHOD_OPEN].params;

        codec_put_call(&out, "a.b", schema, &params, NULL, (struct codec_call_options){ .oneway = true });
        expect_bytes(&out, "{\"method\":\"a.b\",\"parameters\":{\"name\":\"a\",\"wait_ms\":0},\"oneway\":true}");
        codec_put_call(&out, "a.b", NULL, NULL, "{\"x\": 1}", (struct codec_call_options){ .more = true });
        expect_bytes(&out, "{\"method\":\"a.b\",\"parameters\":{\"x\": 1},\"more\":true}");
        bytes_deinit(&out);
}
END_TEST

START_TEST(what_the_interface_cannot_carry_poisons) {
        struct buffer_info buffer = { .id = NULL };
        struct lease_info lease = { .id = "l", .buffer = "b", .device = "d", .session = "s", .access = 2 };
        struct failure failure = { .verdict = VERDICT_OK };
        struct bytes out = { 0 };

        codec_put_struct(&out, &schema_buffer, &buffer);
        ck_assert(out.failed);
        ck_assert_uint_eq(codec_measure(&schema_buffer, &buffer), SIZE_MAX);
        bytes_deinit(&out);
        codec_put_struct(&out, &schema_lease, &lease);
        ck_assert(out.failed);
        bytes_deinit(&out);
        lease.access = -1;
        codec_put_struct(&out, &schema_lease, &lease);
        ck_assert(out.failed);
        bytes_deinit(&out);
        codec_put_error(&out, &failure);
        ck_assert(out.failed);
        bytes_deinit(&out);
}
END_TEST

START_TEST(measures_what_it_prints) {
        struct lease_info lease = {
                .id = "l-1", .buffer = "b\n", .device = "host", .session = "s", .label = "ö\x01"
        };
        struct bytes out = { 0 };

        codec_put_struct(&out, &schema_lease, &lease);
        ck_assert_uint_eq(codec_measure(&schema_lease, &lease), out.n);
        bytes_deinit(&out);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("codec");
        TCase *tcase = tcase_create("codec");

        suite_add_tcase(suite, tcase);
        tcase_add_test(tcase, what_is_not_given_is_told);
        tcase_add_test(tcase, objects_stay_as_they_were_written);
        tcase_add_test(tcase, parameters_are_given_as_text);
        tcase_add_test(tcase, call_flags_are_read);
        tcase_add_test(tcase, refusals_say_why);
        tcase_add_test(tcase, an_error_fills_only_its_own_members);
        tcase_add_test(tcase, long_error_text_is_cut_between_characters);
        tcase_add_test(tcase, a_document_may_be_read_twice);
        tcase_add_test(tcase, strings_are_escaped);
        tcase_add_test(tcase, integers_are_printed_exactly);
        tcase_add_test(tcase, calls_are_printed);
        tcase_add_test(tcase, what_the_interface_cannot_carry_poisons);
        tcase_add_test(tcase, measures_what_it_prints);
        return suite_run(suite);
}
