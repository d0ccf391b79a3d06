/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a message: read as the daemon reads a call and as a client reads every reply. What decodes is printed, and that
 * must decode to the same again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/codec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void insist(bool condition) {
        if (!condition)
                abort();
}

static bool same_bytes(const struct bytes *a, const struct bytes *b) {
        return a->n == b->n && memcmp(a->data, b->data, a->n) == 0;
}

static struct codec_doc *parse_again(const struct bytes *text) {
        struct codec_doc *doc = NULL;

        insist(!text->failed);
        insist(codec_parse(text->data, text->n, &doc, NULL) == 0);
        return doc;
}

static void print_call(struct bytes *out, const struct codec_call *call, const struct schema *schema,
                       const void *params) {
        codec_put_call(out, call->method, schema, params, NULL,
                       (struct codec_call_options){ .more = call->more, .oneway = call->oneway });
}

static void try_call(struct codec_doc *doc) {
        _cleanup_(bytes_deinit) struct bytes first = { 0 }, second = { 0 };
        _cleanup_(codec_doc_freep) struct codec_doc *again = NULL;
        union method_params params, params_again;
        struct codec_call call, call_again;
        struct failure failure = { 0 };
        const struct schema *schema;
        enum method method;
        int r;

        if (codec_call(doc, &call, NULL) < 0)
                return;
        method = schema_method(call.method, NULL);
        if (method == N_METHODS)
                return;
        schema = method_schemas[method].params;
        r = codec_call_params(doc, schema, &params, &failure);
        if (r != 0) {
                insist(r == VERDICT_INVALID_PARAMETER && failure.verdict == VERDICT_INVALID_PARAMETER);
                codec_put_error(&first, &failure);
                again = parse_again(&first);
                return;
        }
        print_call(&first, &call, schema, &params);
        again = parse_again(&first);
        insist(codec_call(again, &call_again, NULL) == 0);
        insist(call.more == call_again.more && call.oneway == call_again.oneway);
        insist(strcmp(call.method, call_again.method) == 0);
        insist(codec_call_params(again, schema, &params_again, &failure) == 0);
        print_call(&second, &call_again, schema, &params_again);
        insist(same_bytes(&first, &second));
}

static void try_reply(struct codec_doc *doc, const struct schema *schema, bool continues) {
        _cleanup_(bytes_deinit) struct bytes first = { 0 }, second = { 0 };
        _cleanup_(codec_doc_freep) struct codec_doc *again = NULL;
        union method_reply reply, reply_again;
        struct codec_reply parts;
        const char *field = NULL;

        if (codec_reply_params(doc, schema, &reply, &field) < 0) {
                insist(field != NULL);
                return;
        }
        codec_put_reply(&first, schema, &reply, continues);
        again = parse_again(&first);
        insist(codec_reply(again, &parts) == 0);
        insist(parts.error == NULL && parts.continues == continues);
        insist(codec_reply_params(again, schema, &reply_again, NULL) == 0);
        codec_put_reply(&second, schema, &reply_again, continues);
        insist(same_bytes(&first, &second));
}

static void try_error(struct codec_doc *doc, enum verdict verdict) {
        _cleanup_(bytes_deinit) struct bytes first = { 0 }, second = { 0 };
        _cleanup_(codec_doc_freep) struct codec_doc *again = NULL;
        struct failure failure = { .verdict = verdict }, failure_again = { .verdict = verdict };
        struct codec_reply parts;

        if (codec_reply_params(doc, error_schemas[verdict], &failure, NULL) < 0)
                return;
        codec_put_error(&first, &failure);
        again = parse_again(&first);
        insist(codec_reply(again, &parts) == 0);
        insist(parts.error != NULL && verdict_from_error_name(parts.error) == verdict);
        insist(codec_reply_params(again, error_schemas[verdict], &failure_again, NULL) == 0);
        codec_put_error(&second, &failure_again);
        insist(same_bytes(&first, &second));
}

/* Text of parameters that is passed on as it came must still be the same message. */
static void try_text(struct codec_doc *doc) {
        _cleanup_(bytes_deinit) struct bytes text = { 0 };
        _cleanup_(codec_doc_freep) struct codec_doc *again = NULL;
        const char *params = codec_params_text(doc);

        insist(params != NULL);
        codec_put_call(&text, "a.b", NULL, NULL, params, (struct codec_call_options){ 0 });
        again = parse_again(&text);
        insist(strcmp(codec_params_text(again), params) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        _cleanup_(codec_doc_freep) struct codec_doc *doc = NULL;
        const char *why = NULL;
        struct codec_reply reply;

        if (codec_parse((const char *)data, n, &doc, &why) < 0) {
                insist(why != NULL);
                return 0;
        }
        try_text(doc);
        try_call(doc);
        if (codec_reply(doc, &reply) < 0)
                return 0;
        for (int i = 0; i < N_METHODS; i++)
                try_reply(doc, method_schemas[i].reply, reply.continues);
        for (int i = 1; i < N_VERDICTS; i++)
                try_error(doc, (enum verdict)i);
        return 0;
}
