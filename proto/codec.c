/* SPDX-License-Identifier: Apache-2.0 */
/* Messages from JSON text. The strict reading comes first and tells where each value stands; values are then
 * read from the text itself, so that no number passes through a double and no tree is built of what nobody
 * asks for. What is left to cJSON, one checked string at a time, is to resolve escapes. Any thread, one
 * document in one thread at a time; it logs nothing. Structs are read in decode.c and printed in encode.c. */
#include "codec.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "doc.h"

void codec_doc_free(struct codec_doc *doc) {
        if (doc == NULL)
                return;
        spans_deinit(&doc->spans);
        arena_deinit(&doc->arena);
        free(doc);
}

const char *doc_raw(struct codec_doc *doc, size_t value) {
        const struct span *span = doc_span(doc, value);

        return arena_copy(&doc->arena, doc->text + span->start, span->end - span->start);
}

/* The characters of a string from its quote to its quote; NULL when out of memory. */
static const char *unescape(struct codec_doc *doc, size_t quote, size_t n, bool escaped) {
        const char *text = NULL;
        cJSON *string;

        if (!escaped)
                return arena_copy(&doc->arena, doc->text + quote + 1, n - 2);
        string = cJSON_ParseWithLength(doc->text + quote, n);
        if (string != NULL)
                text = arena_copy(&doc->arena, string->valuestring, strlen(string->valuestring));
        cJSON_Delete(string);
        return text;
}

const char *doc_string(struct codec_doc *doc, size_t value) {
        const struct span *span = doc_span(doc, value);

        return unescape(doc, span->start, span->end - span->start, span->escaped);
}

const char *doc_key(struct codec_doc *doc, size_t value) {
        const struct span *span = doc_span(doc, value);

        return unescape(doc, span->key - 1, span->n_key + 2, span->key_escaped);
}

/* ---- messages --------------------------------------------------------------------------------------------- */

int codec_parse(const char *text, size_t n, struct codec_doc **ret, const char **ret_why) {
        _cleanup_(codec_doc_freep) struct codec_doc *doc = NULL;
        const char *why = NULL;
        int r;

        if (ret_why == NULL)
                ret_why = &why;
        doc = malloc(sizeof(*doc) + n + 1);
        if (doc == NULL)
                return -ENOMEM;
        *doc = (struct codec_doc){ 0 };
        memcpy(doc->text, text, n);
        doc->text[n] = '\0';
        r = strict_check(doc->text, n, CODEC_DEPTH_MAX, &doc->spans, ret_why);
        if (r < 0)
                return r;
        if (doc_kind(doc, 0) != '{') {
                *ret_why = "it is no object";
                return -EBADMSG;
        }
        doc_for_each(doc, value, 0) if (doc_key_is(doc, value, "parameters") && !doc_is_null(doc, value))
                doc->params = value;
        *ret = take_ptr(doc);
        return 0;
}

const char *codec_params_text(struct codec_doc *doc) {
        if (doc->params == 0)
                return "{}";
        if (doc->params_text == NULL)
                doc->params_text = doc_raw(doc, doc->params);
        return doc->params_text;
}

static bool read_flag(const struct codec_doc *doc, size_t value, bool *ret) {
        char kind = doc_kind(doc, value);

        if (kind != 't' && kind != 'f' && kind != 'n')
                return false;
        *ret = kind == 't';
        return true;
}

/* NULL when it is well. */
static const char *read_call_member(struct codec_doc *doc, size_t value, size_t *method, struct codec_call *call) {
        bool upgrade = false;

        if (doc_key_is(doc, value, "method")) {
                *method = value;
                return doc_kind(doc, value) == '"' ? NULL : "\"method\" is no string";
        }
        if (doc_key_is(doc, value, "parameters"))
                return NULL;
        if (doc_key_is(doc, value, "more"))
                return read_flag(doc, value, &call->more) ? NULL : "\"more\" is no bool";
        if (doc_key_is(doc, value, "oneway"))
                return read_flag(doc, value, &call->oneway) ? NULL : "\"oneway\" is no bool";
        if (doc_key_is(doc, value, "upgrade"))
                return read_flag(doc, value, &upgrade) && !upgrade ? NULL : "\"upgrade\" is not offered";
        return "a call has a member that varlink does not know";
}

int codec_call(struct codec_doc *doc, struct codec_call *ret, const char **ret_why) {
        struct codec_call call = { 0 };
        const char *why = NULL;
        size_t method = 0;

        doc_for_each(doc, value, 0) {
                why = read_call_member(doc, value, &method, &call);
                if (why != NULL)
                        break;
        }
        if (why == NULL && method == 0)
                why = "a call has no \"method\"";
        if (why != NULL) {
                if (ret_why != NULL)
                        *ret_why = why;
                return -EBADMSG;
        }
        call.method = doc_string(doc, method);
        if (call.method == NULL)
                return -ENOMEM;
        *ret = call;
        return 0;
}

int codec_reply(struct codec_doc *doc, struct codec_reply *ret) {
        struct codec_reply reply = { 0 };

        doc_for_each(doc, value, 0) {
                if (doc_key_is(doc, value, "method"))
                        return -EBADMSG;
                if (doc_key_is(doc, value, "continues") && !read_flag(doc, value, &reply.continues))
                        return -EBADMSG;
                if (!doc_key_is(doc, value, "error") || doc_is_null(doc, value))
                        continue;
                if (doc_kind(doc, value) != '"')
                        return -EBADMSG;
                reply.error = doc_string(doc, value);
                if (reply.error == NULL)
                        return -ENOMEM;
        }
        *ret = reply;
        return 0;
}
