/* SPDX-License-Identifier: Apache-2.0 */
/* Parsed messages to structs, by the tables. Any thread, one document in one thread at a time; it never looks
 * at text that has not passed the strict reading. */
#include <errno.h>
#include <string.h>

#include "codec.h"
#include "doc.h"
#include "utf8.h"

struct decoder {
        struct codec_doc *doc;
        bool strict;
        const char *bad; /* the field that failed */
};

static int decode_struct(struct decoder *decoder, size_t object, const struct schema *schema, void *ret);

static int bad_field(struct decoder *decoder, const char *name) {
        decoder->bad = name;
        return -EBADMSG;
}

static int decode_bool(struct decoder *decoder, size_t value, const struct field *field, bool *ret) {
        char kind = doc_kind(decoder->doc, value);

        if (kind != 't' && kind != 'f')
                return bad_field(decoder, field->name);
        *ret = kind == 't';
        return 0;
}

static int decode_integer(struct decoder *decoder, size_t value, const struct field *field, int64_t *ret) {
        const struct span *span = doc_span(decoder->doc, value);
        bool limited = field->min != 0 || field->max != 0;
        int64_t number;

        if (!strict_integer(decoder->doc->text + span->start, span->end - span->start, &number))
                return bad_field(decoder, field->name);
        if (limited && (number < field->min || number > field->max))
                return bad_field(decoder, field->name);
        *ret = number;
        return 0;
}

static int decode_string(struct decoder *decoder, size_t value, const struct field *field, const char **ret) {
        const char *text;

        if (doc_kind(decoder->doc, value) != '"')
                return bad_field(decoder, field->name);
        text = doc_string(decoder->doc, value);
        if (text == NULL)
                return -ENOMEM;
        if (field->type != FIELD_CHARS && field->max > 0 && strlen(text) > (size_t)field->max)
                return bad_field(decoder, field->name);
        if (field->valid != NULL && !field->valid(text))
                return bad_field(decoder, field->name);
        *ret = text;
        return 0;
}

static int decode_chars(struct decoder *decoder, size_t value, const struct field *field, char *ret) {
        const char *text;
        size_t n;
        int r = decode_string(decoder, value, field, &text);

        if (r < 0)
                return r;
        n = utf8_cut(text, strlen(text), (size_t)field->max - 1);
        memcpy(ret, text, n);
        ret[n] = '\0';
        return 0;
}

static int decode_enum(struct decoder *decoder, size_t value, const struct field *field, int *ret) {
        const struct span *span = doc_span(decoder->doc, value);

        if (doc_kind(decoder->doc, value) != '"')
                return bad_field(decoder, field->name);
        for (int i = 0; field->values[i] != NULL; i++) {
                if (!strict_equal(decoder->doc->text + span->start + 1, span->end - span->start - 2, span->escaped,
                                  field->values[i]))
                        continue;
                *ret = i;
                return 0;
        }
        return bad_field(decoder, field->name);
}

static int decode_text(struct decoder *decoder, size_t value, const struct field *field, const char **ret) {
        const struct span *span = doc_span(decoder->doc, value);

        if (doc_kind(decoder->doc, value) != '{' || (field->max > 0 && span->end - span->start > field->max))
                return bad_field(decoder, field->name);
        *ret = doc_raw(decoder->doc, value);
        return *ret != NULL ? 0 : -ENOMEM;
}

/* Room for what is in an array. */
static int make_items(struct decoder *decoder, size_t array, const struct field *field, size_t size,
                      void *ret_items) {
        size_t n = 0;

        if (doc_kind(decoder->doc, array) != '[')
                return bad_field(decoder, field->name);
        doc_for_each(decoder->doc, value, array) n++;
        *(void **)ret_items = arena_alloc(&decoder->doc->arena, n, size);
        return *(void **)ret_items != NULL ? 0 : -ENOMEM;
}

static int decode_strings(struct decoder *decoder, size_t array, const struct field *field,
                          struct string_array *ret) {
        const char **items = NULL;
        size_t n = 0;
        int r = make_items(decoder, array, field, sizeof(*items), &items);

        if (r < 0)
                return r;
        doc_for_each(decoder->doc, value, array) {
                r = decode_string(decoder, value, field, &items[n++]);
                if (r < 0)
                        return r;
        }
        *ret = (struct string_array){ .items = items, .n = n };
        return 0;
}

static int decode_structs(struct decoder *decoder, size_t array, const struct field *field,
                          struct struct_array *ret) {
        char *items = NULL;
        size_t n = 0;
        int r = make_items(decoder, array, field, field->of->size, &items);

        if (r < 0)
                return r;
        doc_for_each(decoder->doc, value, array) {
                if (doc_kind(decoder->doc, value) != '{')
                        return bad_field(decoder, field->name);
                r = decode_struct(decoder, value, field->of, items + n++ * field->of->size);
                if (r < 0)
                        return r;
        }
        *ret = (struct struct_array){ .items = items, .n = n };
        return 0;
}

static int decode_inner(struct decoder *decoder, size_t value, const struct field *field, void *member) {
        void *inner = member;

        if (doc_kind(decoder->doc, value) != '{')
                return bad_field(decoder, field->name);
        if (field->optional) {
                inner = arena_alloc(&decoder->doc->arena, 1, field->of->size);
                if (inner == NULL)
                        return -ENOMEM;
                *(const void **)member = inner;
        }
        return decode_struct(decoder, value, field->of, inner);
}

static int decode_member(struct decoder *decoder, size_t value, const struct field *field, void *member) {
        switch (field->type) {
        case FIELD_BOOL: return decode_bool(decoder, value, field, member);
        case FIELD_INT: return decode_integer(decoder, value, field, member);
        case FIELD_STRING: return decode_string(decoder, value, field, member);
        case FIELD_CHARS: return decode_chars(decoder, value, field, member);
        case FIELD_ENUM: return decode_enum(decoder, value, field, member);
        case FIELD_OBJECT: return decode_text(decoder, value, field, member);
        case FIELD_STRUCT: return decode_inner(decoder, value, field, member);
        case FIELD_STRING_ARRAY: return decode_strings(decoder, value, field, member);
        case FIELD_STRUCT_ARRAY: return decode_structs(decoder, value, field, member);
        }
        return bad_field(decoder, field->name);
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
static size_t find_field(const struct codec_doc *doc, size_t value, const struct schema *schema, size_t expected) {
        for (size_t i = 0; i < schema->n_fields; i++) {
                size_t at = expected + i < schema->n_fields ? expected + i : expected + i - schema->n_fields;

                if (doc_key_is(doc, value, schema->fields[at].name))
                        return at;
        }
        return schema->n_fields;
}

static int unknown_field(struct decoder *decoder, size_t value) {
        const char *name = doc_key(decoder->doc, value);

        return name != NULL ? bad_field(decoder, name) : -ENOMEM;
}

static int require(struct decoder *decoder, const struct schema *schema, uint64_t seen) {
        for (size_t i = 0; i < schema->n_fields; i++)
                if (!schema->fields[i].optional && (seen >> i & 1) == 0)
                        return bad_field(decoder, schema->fields[i].name);
        return 0;
}

/* A null is an absent member: fine for an optional field, missing for another. */
static int decode_struct(struct decoder *decoder, size_t object, const struct schema *schema, void *ret) {
        uint64_t seen = 0;
        size_t expected = 0;
        int r;

        unset_optionals(schema, ret);
        doc_for_each(decoder->doc, value, object) {
                size_t at = find_field(decoder->doc, value, schema, expected);

                if (at == schema->n_fields && decoder->strict)
                        return unknown_field(decoder, value);
                if (at == schema->n_fields)
                        continue;
                expected = at + 1;
                if (doc_is_null(decoder->doc, value))
                        continue;
                r = decode_member(decoder, value, &schema->fields[at], (char *)ret + schema->fields[at].offset);
                if (r < 0)
                        return r;
                seen |= UINT64_C(1) << at;
        }
        return require(decoder, schema, seen);
}

static int decode_params(struct decoder *decoder, const struct schema *schema, void *ret) {
        size_t params = decoder->doc->params;

        if (params == 0) {
                unset_optionals(schema, ret);
                return require(decoder, schema, 0);
        }
        if (doc_kind(decoder->doc, params) != '{')
                return bad_field(decoder, "parameters");
        return decode_struct(decoder, params, schema, ret);
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
