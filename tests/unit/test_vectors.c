/* SPDX-License-Identifier: Apache-2.0 */
/* Every vector, read as an end reads it, comes out as expect.tsv says. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/codec.h"
#include "proto/wire.h"
#include "vectors.h"
#include "tests/support/suite.h"

/* What came of a message, in the words of expect.tsv. */
struct outcome {
        char text[300];
        struct bytes again; /* printed anew */
};

static void outcome_set(struct outcome *outcome, const char *word, const char *detail) {
        (void)snprintf(outcome->text, sizeof(outcome->text), "%s%s%.200s", word, detail != NULL ? ":" : "",
                       detail != NULL ? detail : "");
}

static void read_call(struct codec_doc *doc, struct outcome *outcome) {
        struct codec_call call;
        struct failure failure;
        union method_params params;
        enum method method;
        bool known;
        int r;

        if (codec_call(doc, &call, NULL) < 0) {
                outcome_set(outcome, "close", NULL);
                return;
        }
        method = schema_method(call.method, &known);
        if (method == N_METHODS) {
                const char *dot = strrchr(call.method, '.');
                char interface[200];

                ck_assert_ptr_nonnull(dot);
                (void)snprintf(interface, sizeof(interface), "%.*s", (int)(dot - call.method), call.method);
                outcome_set(outcome, known ? "MethodNotFound" : "InterfaceNotFound",
                            known ? call.method : interface);
                return;
        }
        r = codec_call_params(doc, method_schemas[method].params, &params, &failure);
        if (r != 0) {
                ck_assert_int_eq(r, VERDICT_INVALID_PARAMETER);
                ck_assert_int_eq(failure.verdict, VERDICT_INVALID_PARAMETER);
                outcome_set(outcome, "InvalidParameter", failure.subject);
                return;
        }
        codec_put_call(&outcome->again, call.method, method_schemas[method].params, &params, NULL,
                       (struct codec_call_options){ .more = call.more, .oneway = call.oneway });
        outcome_set(outcome, "ok", NULL);
}

static void read_reply(struct codec_doc *doc, const char *of, struct outcome *outcome) {
        struct codec_reply reply;
        union method_reply members;
        struct failure failure = { 0 };
        const struct method_schema *method = NULL;
        const char *field = "";
        int r = codec_reply(doc, &reply);

        if (r < 0) {
                outcome_set(outcome, "close", NULL);
                return;
        }
        if (reply.error != NULL) {
                failure.verdict = verdict_from_error_name(reply.error);
                ck_assert_str_eq(failure.verdict != VERDICT_OK ? reply.error : "-", of);
                if (failure.verdict != VERDICT_OK)
                        r = codec_reply_params(doc, error_schemas[failure.verdict], &failure, &field);
        } else {
                method = &method_schemas[schema_method(of, NULL)];
                r = codec_reply_params(doc, method->reply, &members, &field);
        }
        if (r < 0) {
                ck_assert_int_eq(r, -EBADMSG);
                outcome_set(outcome, "field", field);
                return;
        }
        if (method != NULL)
                codec_put_reply(&outcome->again, method->reply, &members, reply.continues);
        else if (failure.verdict != VERDICT_OK)
                codec_put_error(&outcome->again, &failure);
        outcome_set(outcome, "ok", NULL);
}

/* As an end does it: a message off the wire, parsed, and read by its method's table. */
static void read_vector(const struct vector *vector, struct outcome *outcome) {
        bool call = strcmp(vector->kind, "call") == 0;
        _cleanup_(codec_doc_freep) struct codec_doc *doc = NULL;
        _cleanup_(wire_deinit) struct wire wire;
        const char *why = NULL;
        char *text;
        size_t n;
        int r;

        wire_init(&wire, -1, WIRE_MESSAGE_MAX);
        bytes_append(&wire.in, vector->data, vector->n + 1);
        r = wire_next(&wire, &text, &n);
        if (r == 1 && strcmp(vector->outcome, "two-messages") == 0) {
                ck_assert_int_eq(codec_parse(text, n, &doc, NULL), 0);
                codec_doc_free(take_ptr(doc));
                r = wire_next(&wire, &text, &n);
        }
        if (r == 1)
                r = codec_parse(text, n, &doc, &why);
        if (r < 0) {
                ck_assert_int_eq(r, why != NULL ? -EBADMSG : -EMSGSIZE);
                outcome_set(outcome, strcmp(vector->outcome, "two-messages") == 0 ? "two-messages" : "close",
                            NULL);
        } else if (call) {
                read_call(doc, outcome);
        } else {
                read_reply(doc, vector->of, outcome);
        }
}

START_TEST(vectors_come_out_as_listed) {
        struct vectors vectors = vectors_load();

        for (size_t i = 0; i < vectors.n; i++) {
                const struct vector *vector = &vectors.items[i];
                struct outcome outcome = { 0 };
                bool same;

                ck_assert_msg((strncmp(vector->file, "ok_", 3) == 0) == (strcmp(vector->outcome, "ok") == 0),
                              "%s does not begin as its outcome", vector->file);
                read_vector(vector, &outcome);
                ck_assert_msg(strcmp(outcome.text, vector->outcome) == 0, "%s: %s, not %s", vector->file,
                              outcome.text, vector->outcome);
                same = outcome.again.n > 0 && outcome.again.n == vector->n &&
                       memcmp(outcome.again.data, vector->data, vector->n) == 0;
                ck_assert_msg(same == (strcmp(vector->form, "canonical") == 0), "%s is printed as %.*s",
                              vector->file, (int)outcome.again.n, outcome.again.data);
                bytes_deinit(&outcome.again);
        }
        vectors_deinit(&vectors);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("vectors");
        TCase *tcase = tcase_create("vectors");

        suite_add_tcase(suite, tcase);
        tcase_add_test(tcase, vectors_come_out_as_listed);
        return suite_run(suite);
}
