/* SPDX-License-Identifier: Apache-2.0 */
/* JSON text to structs. The strict reading comes first; only what passed it is given to cJSON, and what cJSON
 * would alter (integers, objects kept as text) is taken from the text itself. Any thread, one document in one
 * thread at a time; it logs nothing. Printing is in encode.c. */
#include "codec.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "cleanup.h"
#include "strict.h"
#include "utf8.h"

struct codec_doc {
        cJSON *root;
        struct spans spans;  /* of root's values, in the tree's own order */
        const cJSON *params; /* the member "parameters", NULL when absent or null */
        size_t params_span;
        const char *params_text;
        struct arena arena; /* of what is decoded from it */
        char text[];
};

struct decoder {
        struct codec_doc *doc;
        bool strict;
        const char *bad; /* the field that failed */
};

static int decode_struct(struct decoder *decoder, const cJSON *object, size_t span, const struct schema *schema,
                         void *ret);

void codec_doc_free(struct codec_doc *doc) {
        if (doc == NULL)
                return;
        cJSON_Delete(doc->root);
        spans_deinit(&doc->spans);
        arena_deinit(&doc->arena);
        free(doc);
}

/* A value's text as it was received, NUL-ended. */
static const char *doc_text(struct codec_doc *doc, size_t span) {
        const struct span *at = &doc->spans.items[span];

        return arena_copy(&doc->arena, doc->text + at->start, at->end - at->start);
}

static void doc_find_params(struct codec_doc *doc) {
        size_t span = 1;

        for (const cJSON *item = doc->root->child; item != NULL; item = item->next) {
                if (strcmp(item->string, "parameters") == 0 && !cJSON_IsNull(item)) {
                        doc->params = item;
                        doc->params_span = span;
                }
                span = doc->spans.items[span].next;
        }
}

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
        if (doc->text[doc->spans.items[0].start] != '{') {
                *ret_why = "it is no object";
                return -EBADMSG;
        }
        doc->root = cJSON_ParseWithLength(doc->text, n + 1);
        if (doc->root == NULL)
                return -ENOMEM;
        doc_find_params(doc);
        *ret = take_ptr(doc);
        return 0;
}

const char *codec_params_text(struct codec_doc *doc) {
        if (doc->params == NULL)
                return "{}";
        if (doc->params_text == NULL)
                doc->params_text = doc_text(doc, doc->params_span);
        return doc->params_text;
}

/* ---- envelopes -------------------------------------------------------------------------------------------- */

static bool read_flag(const cJSON *item, bool *ret) {
        if (!cJSON_IsBool(item) && !cJSON_IsNull(item))
                return false;
        *ret = cJSON_IsTrue(item);
        return true;
}

static const char *read_call_member(const cJSON *item, struct codec_call *call) {
        bool upgrade = false;

        if (strcmp(item->string, "method") == 0) {
                call->method = cJSON_GetStringValue(item);
                return call->method != NULL ? NULL : "\"method\" is no string";
        }
        if (strcmp(item->string, "parameters") == 0)
                return NULL;
        if (strcmp(item->string, "more") == 0)
                return read_flag(item, &call->more) ? NULL : "\"more\" is no bool";
        if (strcmp(item->string, "oneway") == 0)
                return read_flag(item, &call->oneway) ? NULL : "\"oneway\" is no bool";
        if (strcmp(item->string, "upgrade") == 0)
                return read_flag(item, &upgrade) && !upgrade ? NULL : "\"upgrade\" is not offered";
        return "a call has a member that varlink does not know";
}

int codec_call(struct codec_doc *doc, struct codec_call *ret, const char **ret_why) {
        struct codec_call call = { 0 };
        const char *why = NULL;

        for (const cJSON *item = doc->root->child; item != NULL && why == NULL; item = item->next)
                why = read_call_member(item, &call);
        if (why == NULL && call.method == NULL)
                why = "a call has no \"method\"";
        if (why != NULL) {
                if (ret_why != NULL)
                        *ret_why = why;
                return -EBADMSG;
        }
        *ret = call;
        return 0;
}

int codec_reply(struct codec_doc *doc, struct codec_reply *ret) {
        struct codec_reply reply = { 0 };

        for (const cJSON *item = doc->root->child; item != NULL; item = item->next) {
                if (strcmp(item->string, "method") == 0)
                        return -EBADMSG;
                if (strcmp(item->string, "continues") == 0 && !read_flag(item, &reply.continues))
                        return -EBADMSG;
                if (strcmp(item->string, "error") != 0 || cJSON_IsNull(item))
                        continue;
                reply.error = cJSON_GetStringValue(item);
                if (reply.error == NULL)
                        return -EBADMSG;
        }
        *ret = reply;
        return 0;
}

/* ---- values ----------------------------------------------------------------------------------------------- */

static int bad_field(struct decoder *decoder, const char *name) {
        decoder->bad = name;
        return -EBADMSG;
}

static bool decode_integer(struct decoder *decoder, size_t span, const struct field *field, int64_t *ret) {
        const struct span *at = &decoder->doc->spans.items[span];
        bool limited = field->min != 0 || field->max != 0;
        int64_t value;

        if (!strict_integer(decoder->doc->text + at->start, at->end - at->start, &value))
                return false;
        if (limited && (value < field->min || value > field->max))
                return false;
        *ret = value;
        return true;
}

static bool decode_string(const cJSON *item, const struct field *field, const char **ret) {
        const char *text = cJSON_GetStringValue(item);

        if (text == NULL || (field->max > 0 && strlen(text) > (size_t)field->max))
                return false;
        if (field->valid != NULL && !field->valid(text))
                return false;
        *ret = text;
        return true;
}

static bool decode_chars(const cJSON *item, const struct field *field, char *ret) {
        const char *text = cJSON_GetStringValue(item);
        size_t n;

        if (text == NULL)
                return false;
        n = utf8_cut(text, strlen(text), (size_t)field->max - 1);
        memcpy(ret, text, n);
        ret[n] = '\0';
        return true;
}

static bool decode_enum(const cJSON *item, const struct field *field, int *ret) {
        const char *text = cJSON_GetStringValue(item);

        for (int i = 0; text != NULL && field->values[i] != NULL; i++) {
                if (strcmp(field->values[i], text) == 0) {
                        *ret = i;
                        return true;
                }
        }
        return false;
}

static int decode_text(struct decoder *decoder, const cJSON *item, size_t span, const struct field *field,
                       const char **ret) {
        const struct span *at = &decoder->doc->spans.items[span];

        if (!cJSON_IsObject(item) || (field->max > 0 && at->end - at->start > field->max))
                return bad_field(decoder, field->name);
        *ret = doc_text(decoder->doc, span);
        return *ret != NULL ? 0 : -ENOMEM;
}

static int decode_strings(struct decoder *decoder, const cJSON *item, const struct field *field,
                          struct string_array *ret) {
        size_t n = (size_t)cJSON_GetArraySize(item), i = 0;
        const char **items;

        if (!cJSON_IsArray(item))
                return bad_field(decoder, field->name);
        items = arena_alloc(&decoder->doc->arena, n, sizeof(*items));
        if (items == NULL)
                return -ENOMEM;
        for (const cJSON *one = item->child; one != NULL; one = one->next) {
                items[i] = cJSON_GetStringValue(one);
                if (items[i++] == NULL)
                        return bad_field(decoder, field->name);
        }
        *ret = (struct string_array){ .items = items, .n = n };
        return 0;
}

static int decode_structs(struct decoder *decoder, const cJSON *item, size_t span, const struct field *field,
                          struct struct_array *ret) {
        size_t n = (size_t)cJSON_GetArraySize(item), i = 0;
        char *items;
        int r;

        if (!cJSON_IsArray(item))
                return bad_field(decoder, field->name);
        items = arena_alloc(&decoder->doc->arena, n, field->of->size);
        if (items == NULL)
                return -ENOMEM;
        span++;
        for (const cJSON *one = item->child; one != NULL; one = one->next) {
                if (!cJSON_IsObject(one))
                        return bad_field(decoder, field->name);
                r = decode_struct(decoder, one, span, field->of, items + i++ * field->of->size);
                if (r < 0)
                        return r;
                span = decoder->doc->spans.items[span].next;
        }
        *ret = (struct struct_array){ .items = items, .n = n };
        return 0;
}

static int decode_inner(struct decoder *decoder, const cJSON *item, size_t span, const struct field *field,
                        void *member) {
        void *inner = member;

        if (!cJSON_IsObject(item))
                return bad_field(decoder, field->name);
        if (field->optional) {
                inner = arena_alloc(&decoder->doc->arena, 1, field->of->size);
                if (inner == NULL)
                        return -ENOMEM;
                *(const void **)member = inner;
        }
        return decode_struct(decoder, item, span, field->of, inner);
}

static int decode_member(struct decoder *decoder, const cJSON *item, size_t span, const struct field *field,
                         void *member) {
        bool ok = false;

        switch (field->type) {
        case FIELD_BOOL:
                ok = cJSON_IsBool(item);
                *(bool *)member = cJSON_IsTrue(item);
                break;
        case FIELD_INT: ok = decode_integer(decoder, span, field, member); break;
        case FIELD_STRING: ok = decode_string(item, field, member); break;
        case FIELD_ENUM: ok = decode_enum(item, field, member); break;
        case FIELD_CHARS: ok = decode_chars(item, field, member); break;
        case FIELD_OBJECT: return decode_text(decoder, item, span, field, member);
        case FIELD_STRUCT: return decode_inner(decoder, item, span, field, member);
        case FIELD_STRING_ARRAY: return decode_strings(decoder, item, field, member);
        case FIELD_STRUCT_ARRAY: return decode_structs(decoder, item, span, field, member);
        }
        return ok ? 0 : bad_field(decoder, field->name);
}

/* ---- structs ---------------------------------------------------------------------------------------------- */

static void unset_optionals(const struct schema *schema, void *value) {
        for (size_t i = 0; i < schema->n_fields; i++) {
                const struct field *field = &schema->fields[i];
                void *member = (char *)value + field->offset;

                if (!field->optional)
                        continue;
                if (field->type == FIELD_INT)
                        *(int64_t *)member = SCHEMA_UNSET;
                else
                        *(const void **)member = NULL;
        }
}

/* Members mostly come in the table's order: the search starts at the one expected next. */
static size_t find_field(const struct schema *schema, const char *name, size_t expected) {
        for (size_t i = 0; i < schema->n_fields; i++) {
                size_t at = expected + i < schema->n_fields ? expected + i : expected + i - schema->n_fields;

                if (strcmp(schema->fields[at].name, name) == 0)
                        return at;
        }
        return schema->n_fields;
}

static int decode_struct(struct decoder *decoder, const cJSON *object, size_t span, const struct schema *schema,
                         void *ret) {
        uint64_t seen = 0;
        size_t expected = 0;
        int r;

        unset_optionals(schema, ret);
        span++;
        for (const cJSON *item = object->child; item != NULL; item = item->next) {
                size_t at = find_field(schema, item->string, expected), own = span;
                const struct field *field;

                span = decoder->doc->spans.items[span].next;
                if (at == schema->n_fields) {
                        if (decoder->strict)
                                return bad_field(decoder, item->string);
                        continue;
                }
                expected = at + 1;
                field = &schema->fields[at];
                if (cJSON_IsNull(item))
                        continue; /* absent: fine for an optional field, missing for another */
                r = decode_member(decoder, item, own, field, (char *)ret + field->offset);
                if (r < 0)
                        return r;
                seen |= UINT64_C(1) << at;
        }
        for (size_t i = 0; i < schema->n_fields; i++)
                if (!schema->fields[i].optional && (seen >> i & 1) == 0)
                        return bad_field(decoder, schema->fields[i].name);
        return 0;
}

static int decode_params(struct decoder *decoder, const struct schema *schema, void *ret) {
        static const cJSON nothing = { .type = cJSON_Object };
        const cJSON *params = decoder->doc->params;

        if (params == NULL)
                return decode_struct(decoder, &nothing, 0, schema, ret);
        if (!cJSON_IsObject(params))
                return bad_field(decoder, "parameters");
        return decode_struct(decoder, params, decoder->doc->params_span, schema, ret);
}

int codec_call_params(struct codec_doc *doc, const struct schema *schema, void *ret, struct failure *failure) {
        struct decoder decoder = { .doc = doc, .strict = true };
        int r = decode_params(&decoder, schema, ret);

        return r == -EBADMSG ? fail_parameter(failure, decoder.bad) : r;
}

int codec_reply_params(struct codec_doc *doc, const struct schema *schema, void *ret, const char **ret_field) {
        struct decoder decoder = { .doc = doc };
        int r = decode_params(&decoder, schema, ret);

        if (r == -EBADMSG && ret_field != NULL)
                *ret_field = decoder.bad;
        return r;
}
