/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts JSON text into members without reading their values, and joins the pages of a list. It trusts nothing: text that
 * is no JSON ends the walk. */
#include <stdio.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/codec.h"
#include "rawjson.h"
#include "report.h"

static const char *space_skip(const char *p) {
        return p + strspn(p, " \t\r\n");
}

/* Behind the string that starts at `p`, NULL when it does not end. */
static const char *string_skip(const char *p) {
        for (p++; *p; p++) {
                if (*p == '"')
                        return p + 1;
                if (*p == '\\' && *++p == 0)
                        return NULL;
        }
        return NULL;
}

/* Behind the value that starts at `p`, NULL when it does not end. */
static const char *value_skip(const char *p) {
        int depth = 0;

        do {
                if (*p == 0)
                        return NULL;
                if (*p == '"') {
                        p = string_skip(p);
                        if (!p)
                                return NULL;
                        continue;
                }
                if (*p == '{' || *p == '[')
                        depth++;
                else if (*p == '}' || *p == ']')
                        depth--;
                p++;
        } while (depth > 0 || (*p && !strchr(",}] \t\r\n", *p)));
        return depth < 0 ? NULL : p;
}

bool rawjson_next(const char **cursor, struct rawjson_slice *ret_key, struct rawjson_slice *ret_value) {
        struct rawjson_slice key, value;
        const char *p = space_skip(*cursor), *end;

        if (*p != '{' && *p != ',')
                return false;
        p = space_skip(p + 1);
        end = *p == '"' ? string_skip(p) : NULL;
        if (!end)
                return false;
        key = (struct rawjson_slice){ p + 1, (size_t)(end - p) - 2 };
        p = space_skip(end);
        if (*p != ':')
                return false;
        p = space_skip(p + 1);
        end = value_skip(p);
        if (!end)
                return false;
        value = (struct rawjson_slice){ p, (size_t)(end - p) };
        *cursor = end;
        *ret_key = key;
        *ret_value = value;
        return true;
}

bool rawjson_is(const struct rawjson_slice *slice, const char *text) {
        return slice->n == strlen(text) && memcmp(slice->text, text, slice->n) == 0;
}

bool rawjson_member(const char *object, const char *name, struct rawjson_slice *ret_value) {
        struct rawjson_slice key, value;

        while (rawjson_next(&object, &key, &value)) {
                if (!rawjson_is(&key, name))
                        continue;
                *ret_value = value;
                return true;
        }
        return false;
}

struct collector {
        const char *member;
        struct bytes *out;
        bool any, bad;
};

static int collect_page(const char *parameters, void *data) {
        struct collector *collector = data;
        struct rawjson_slice array;
        const char *body;
        size_t n;

        if (!rawjson_member(parameters, collector->member, &array) || array.n < 2 || array.text[0] != '[') {
                collector->bad = true;
                return 1;
        }
        body = space_skip(array.text + 1);
        n = (size_t)(array.text + array.n - 1 - body);
        if (*body == ']')
                return 0;
        if (collector->any)
                bytes_append_char(collector->out, ',');
        collector->any = true;
        bytes_append(collector->out, body, n);
        return 0;
}

int rawjson_collect(gpuipc_client *client, const char *method, const char *parameters, const char *member,
                    struct bytes *out) {
        struct collector collector = { member, out, false, false };
        gpuipc_error error;

        bytes_append_char(out, '[');
        if (gpuipc_call_json(client, method, parameters, 1, collect_page, &collector, &error) != GPUIPC_OK)
                return report_error(&error);
        if (collector.bad)
                return report_failure("the answer to %s has no array \"%s\"", method, member);
        bytes_append_char(out, ']');
        return EXIT_DONE;
}

int rawjson_filter(const struct arguments *arguments, struct bytes *out) {
        const char *name = arguments->values[OPTION_NAME];
        int64_t uid = -1;
        char text[32];

        if (arguments_uid(arguments, OPTION_UID, &uid) != EXIT_DONE)
                return EXIT_BAD_USAGE;
        bytes_append_char(out, '{');
        if (uid >= 0) {
                (void)snprintf(text, sizeof(text), "\"uid\":%lld%s", (long long)uid, name ? "," : "");
                bytes_append_str(out, text);
        }
        if (name) {
                bytes_append_str(out, "\"name\":");
                codec_put_string(out, name);
        }
        bytes_append_char(out, '}');
        bytes_append_char(out, 0);
        return out->failed ? report_failure("out of memory") : EXIT_DONE;
}

int rawjson_print(struct bytes *text) {
        bytes_append_char(text, '\n');
        if (text->failed)
                return report_failure("out of memory");
        (void)fwrite(text->data, 1, text->n, stdout);
        return report_flush();
}
