/* SPDX-License-Identifier: Apache-2.0 */
/* Structs to JSON text, by the tables. Appends straight to a byte string; builds no tree. A value that the
 * interface cannot carry (a required string that is NULL, an enum out of range) poisons the byte string. Any
 * thread. */
#include <string.h>

#include "codec.h"
#include "utf8.h"

#define REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */

static void put_escape(struct bytes *out, unsigned char c) {
        static const char hex[] = "0123456789abcdef", from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
        const char *found = memchr(from, c, sizeof(from) - 1);
        char text[6] = { '\\', 'u', '0', '0', hex[c >> 4], hex[c & 0xF] };

        if (found != NULL)
                text[1] = to[found - from];
        bytes_append(out, text, found != NULL ? 2 : 6);
}

static void put_text(struct bytes *out, const char *text, size_t n) {
        size_t start = 0, at = 0;

        while (at < n) {
                unsigned char c = (unsigned char)text[at];
                size_t length = c < 0x80 ? 1 : utf8_length(text + at, n - at);

                if (c >= 0x20 && c != '"' && c != '\\' && length > 0) {
                        at += length;
                        continue;
                }
                bytes_append(out, text + start, at - start);
                if (length == 0)
                        bytes_append_str(out, REPLACEMENT);
                else
                        put_escape(out, c);
                start = ++at;
        }
        bytes_append(out, text + start, n - start);
}

void codec_put_string(struct bytes *out, const char *text) {
        bytes_append_char(out, '"');
        put_text(out, text, strlen(text));
        bytes_append_char(out, '"');
}

static void put_integer(struct bytes *out, int64_t value) {
        uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
        char text[20], *at = text + sizeof(text);

        do {
                *--at = (char)('0' + rest % 10);
                rest /= 10;
        } while (rest > 0);
        if (value < 0)
                *--at = '-';
        bytes_append(out, at, (size_t)(text + sizeof(text) - at));
}

static void put_string_or_poison(struct bytes *out, const char *text) {
        if (text != NULL)
                codec_put_string(out, text);
        else
                out->failed = true;
}

static void put_verbatim_or_poison(struct bytes *out, const char *text) {
        if (text != NULL)
                bytes_append_str(out, text);
        else
                out->failed = true;
}

static void put_enum(struct bytes *out, const char *const *values, int index) {
        int n = 0;

        while (values[n] != NULL)
                n++;
        put_string_or_poison(out, index >= 0 && index < n ? values[index] : NULL);
}

static void put_strings(struct bytes *out, const struct string_array *array) {
        bytes_append_char(out, '[');
        for (size_t i = 0; i < array->n; i++) {
                if (i > 0)
                        bytes_append_char(out, ',');
                put_string_or_poison(out, array->items[i]);
        }
        bytes_append_char(out, ']');
}

static void put_structs(struct bytes *out, const struct schema *of, const struct struct_array *array) {
        bytes_append_char(out, '[');
        for (size_t i = 0; i < array->n; i++) {
                if (i > 0)
                        bytes_append_char(out, ',');
                codec_put_struct(out, of, (const char *)array->items + i * of->size);
        }
        bytes_append_char(out, ']');
}

static bool is_absent(const struct field *field, const void *member) {
        if (!field->optional)
                return false;
        if (field->type == FIELD_INT)
                return *(const int64_t *)member == SCHEMA_UNSET;
        return *(const void *const *)member == NULL;
}

static void put_member(struct bytes *out, const struct field *field, const void *member) {
        switch (field->type) {
        case FIELD_BOOL: bytes_append_str(out, *(const bool *)member ? "true" : "false"); return;
        case FIELD_INT: put_integer(out, *(const int64_t *)member); return;
        case FIELD_STRING: put_string_or_poison(out, *(const char *const *)member); return;
        case FIELD_ENUM: put_enum(out, field->values, *(const int *)member); return;
        case FIELD_OBJECT: put_verbatim_or_poison(out, *(const char *const *)member); return;
        case FIELD_STRUCT:
                codec_put_struct(out, field->of, field->optional ? *(const void *const *)member : member);
                return;
        case FIELD_STRING_ARRAY: put_strings(out, member); return;
        case FIELD_STRUCT_ARRAY: put_structs(out, field->of, member); return;
        case FIELD_CHARS: codec_put_string(out, member); return;
        }
        out->failed = true;
}

/* Field names are plain letters: nothing to escape. */
static void put_key(struct bytes *out, const char *name, bool first) {
        size_t n = strlen(name);
        char *at = bytes_reserve(out, n + 4);

        if (at == NULL)
                return;
        if (!first)
                *at++ = ',';
        *at++ = '"';
        memcpy(at, name, n);
        at += n;
        *at++ = '"';
        *at++ = ':';
        out->n = (size_t)(at - out->data);
}

void codec_put_struct(struct bytes *out, const struct schema *schema, const void *value) {
        bool first = true;

        bytes_append_char(out, '{');
        for (size_t i = 0; i < schema->n_fields; i++) {
                const struct field *field = &schema->fields[i];
                const void *member = (const char *)value + field->offset;

                if (is_absent(field, member))
                        continue;
                put_key(out, field->name, first);
                put_member(out, field, member);
                first = false;
        }
        bytes_append_char(out, '}');
}

size_t codec_measure(const struct schema *schema, const void *value) {
        struct bytes scratch = { 0 };
        size_t n;

        codec_put_struct(&scratch, schema, value);
        n = scratch.failed ? SIZE_MAX : scratch.n;
        bytes_deinit(&scratch);
        return n;
}

void codec_put_call(struct bytes *out, const char *method, const struct schema *schema, const void *params,
                    const char *text_params, struct codec_call_options options) {
        bytes_append_str(out, "{\"method\":");
        codec_put_string(out, method);
        bytes_append_str(out, ",\"parameters\":");
        if (text_params != NULL)
                bytes_append_str(out, text_params);
        else
                codec_put_struct(out, schema, params);
        if (options.more)
                bytes_append_str(out, ",\"more\":true");
        if (options.oneway)
                bytes_append_str(out, ",\"oneway\":true");
        bytes_append_char(out, '}');
}

void codec_put_reply(struct bytes *out, const struct schema *schema, const void *reply, bool continues) {
        bytes_append_str(out, "{\"parameters\":");
        codec_put_struct(out, schema, reply);
        bytes_append_str(out, continues ? ",\"continues\":true}" : "}");
}

void codec_put_error(struct bytes *out, const struct failure *failure) {
        const char *name = verdict_error_name(failure->verdict);

        if (name == NULL) {
                out->failed = true;
                return;
        }
        bytes_append_str(out, "{\"error\":");
        codec_put_string(out, name);
        bytes_append_str(out, ",\"parameters\":");
        codec_put_struct(out, error_schemas[failure->verdict], failure);
        bytes_append_char(out, '}');
}
