/* SPDX-License-Identifier: Apache-2.0 */
/* The strict reading of JSON text, before any library sees it: grammar, UTF-8, depth, keys. Any thread; it
 * builds no values, only spans. Its recursion is as deep as `depth_max`. Keys are compared in strict_key.c. */
#include "strict.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "schema.h"
#include "utf8.h"

struct scan {
        const char *text;
        size_t n, at;
        unsigned depth, depth_max;
        struct spans *spans;
        const char *why;
};

static int scan_value(struct scan *scan, size_t *ret_index);

void spans_deinit(struct spans *spans) {
        free(spans->items);
        *spans = (struct spans){ 0 };
}

static int refuse(struct scan *scan, const char *why) {
        scan->why = why;
        return -EBADMSG;
}

/* NUL stands for the end too: neither is ever allowed where it is looked at. */
static char peek(const struct scan *scan) {
        return scan->at < scan->n ? scan->text[scan->at] : '\0';
}

static bool is_digit(char c) {
        return c >= '0' && c <= '9';
}

static void skip_blanks(struct scan *scan) {
        while (scan->at < scan->n) {
                char c = scan->text[scan->at];

                if (c != ' ' && c != '\n' && c != '\t' && c != '\r')
                        return;
                scan->at++;
        }
}

static int span_add(struct spans *spans, size_t *ret_index) {
        if (spans->n == spans->capacity) {
                size_t capacity = spans->capacity > 0 ? spans->capacity * 2 : 16;
                struct span *items = reallocarray(spans->items, capacity, sizeof(*items));

                if (items == NULL)
                        return -ENOMEM;
                spans->items = items;
                spans->capacity = capacity;
        }
        *ret_index = spans->n++;
        return 0;
}

/* ---- strings ---------------------------------------------------------------------------------------------- */

static int hex_value(char c) {
        if (is_digit(c))
                return c - '0';
        c = (char)(c | 0x20);
        return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The four digits of \uXXXX; -1 when they are not. */
static int32_t hex4(const char *text, size_t n) {
        int32_t code = 0;

        if (n < 4)
                return -1;
        for (int i = 0; i < 4; i++) {
                int digit = hex_value(text[i]);

                if (digit < 0)
                        return -1;
                code = code << 4 | digit;
        }
        return code;
}

/* At the four digits after \u; goes past them and past the second half of a pair. */
static int scan_unicode(struct scan *scan) {
        int32_t code = hex4(scan->text + scan->at, scan->n - scan->at), low;

        if (code < 0)
                return refuse(scan, "a string has a broken \\u escape");
        if (code == 0)
                return refuse(scan, "a string has an escaped NUL");
        scan->at += 4;
        if (code < 0xD800 || code > 0xDFFF)
                return 0;
        if (code > 0xDBFF || scan->n - scan->at < 6 || memcmp(scan->text + scan->at, "\\u", 2) != 0)
                return refuse(scan, "a string has an unpaired surrogate");
        low = hex4(scan->text + scan->at + 2, 4);
        if (low < 0xDC00 || low > 0xDFFF)
                return refuse(scan, "a string has an unpaired surrogate");
        scan->at += 6;
        return 0;
}

static int scan_escape(struct scan *scan) {
        char c;

        scan->at++;
        c = peek(scan);
        if (c == '\0' || strchr("\"\\/bfnrtu", c) == NULL)
                return refuse(scan, "a string has an escape that JSON does not know");
        scan->at++;
        return c == 'u' ? scan_unicode(scan) : 0;
}

/* At the opening quote; goes past the closing one. */
static int scan_string(struct scan *scan, bool *ret_escaped) {
        bool escaped = false;

        scan->at++;
        while (scan->at < scan->n) {
                unsigned char c = (unsigned char)scan->text[scan->at];
                size_t length = 1;
                int r = 0;

                if (c == '"') {
                        scan->at++;
                        *ret_escaped = escaped;
                        return 0;
                }
                if (c < 0x20)
                        return refuse(scan, "a string holds a control character that is not escaped");
                if (c == '\\') {
                        escaped = true;
                        r = scan_escape(scan);
                        if (r < 0)
                                return r;
                        continue;
                }
                if (c >= 0x80)
                        length = utf8_length(scan->text + scan->at, scan->n - scan->at);
                if (length == 0)
                        return refuse(scan, "a string is not valid UTF-8");
                scan->at += length;
        }
        return refuse(scan, "a string has no end");
}

/* ---- numbers and words ------------------------------------------------------------------------------------ */

static bool scan_digits(struct scan *scan) {
        size_t start = scan->at;

        while (is_digit(peek(scan)))
                scan->at++;
        return scan->at > start;
}

static int scan_number(struct scan *scan) {
        static const char why[] = "a number is not written as JSON demands";

        if (peek(scan) == '-')
                scan->at++;
        if (peek(scan) == '0')
                scan->at++;
        else if (!scan_digits(scan))
                return refuse(scan, why);
        if (is_digit(peek(scan)))
                return refuse(scan, why);
        if (peek(scan) == '.') {
                scan->at++;
                if (!scan_digits(scan))
                        return refuse(scan, why);
        }
        if ((peek(scan) | 0x20) == 'e') {
                scan->at++;
                if (peek(scan) == '+' || peek(scan) == '-')
                        scan->at++;
                if (!scan_digits(scan))
                        return refuse(scan, why);
        }
        return 0;
}

static int scan_word(struct scan *scan) {
        static const char *const words[] = { "true", "false", "null" };

        for (size_t i = 0; i < ELEMENTSOF(words); i++) {
                size_t n = strlen(words[i]);

                if (scan->n - scan->at < n || memcmp(scan->text + scan->at, words[i], n) != 0)
                        continue;
                scan->at += n;
                return 0;
        }
        return refuse(scan, "it is not JSON");
}

bool strict_integer(const char *text, size_t n, int64_t *ret) {
        bool negative = n > 0 && text[0] == '-';
        int64_t value = 0;
        size_t i = negative ? 1 : 0, n_digits = n - i;

        if (n_digits == 0 || n_digits > 16 || (text[i] == '0' && (negative || n_digits > 1)))
                return false;
        for (; i < n; i++) {
                if (!is_digit(text[i]))
                        return false;
                value = value * 10 + (text[i] - '0');
        }
        if (value > SCHEMA_INT_MAX)
                return false;
        *ret = negative ? -value : value;
        return true;
}

/* ---- containers ------------------------------------------------------------------------------------------- */

static int scan_member(struct scan *scan) {
        size_t start = scan->at + 1, n_key, index;
        bool escaped;
        int r;

        if (peek(scan) != '"')
                return refuse(scan, "an object's key is no string");
        r = scan_string(scan, &escaped);
        if (r < 0)
                return r;
        n_key = scan->at - 1 - start;
        skip_blanks(scan);
        if (peek(scan) != ':')
                return refuse(scan, "an object's key has no value");
        scan->at++;
        skip_blanks(scan);
        r = scan_value(scan, &index);
        if (r < 0)
                return r;
        scan->spans->items[index].key = (uint32_t)start;
        scan->spans->items[index].n_key = (uint32_t)n_key;
        scan->spans->items[index].key_escaped = escaped;
        return 0;
}

/* At the opening bracket; goes past the closing one. */
static int scan_container(struct scan *scan, bool object) {
        const char close = object ? '}' : ']';
        size_t first = scan->spans->n, n_members = 0, index;
        int r;

        if (++scan->depth > scan->depth_max)
                return refuse(scan, "it is nested too deep");
        scan->at++;
        skip_blanks(scan);
        while (peek(scan) != close || n_members > 0) {
                r = object ? scan_member(scan) : scan_value(scan, &index);

                if (r < 0)
                        return r;
                n_members++;
                skip_blanks(scan);
                if (peek(scan) == close)
                        break;
                if (peek(scan) != ',')
                        return refuse(scan, object ? "an object has no end" : "an array has no end");
                scan->at++;
                skip_blanks(scan);
        }
        scan->at++;
        scan->depth--;
        if (!object || n_members < 2)
                return 0;
        r = strict_key_twice(scan->text, scan->spans, first, n_members);
        return r > 0 ? refuse(scan, "an object has a key twice") : r;
}

static int scan_value(struct scan *scan, size_t *ret_index) {
        size_t index, start = scan->at;
        bool escaped = false;
        char c = peek(scan);
        int r = span_add(scan->spans, &index);

        if (r < 0)
                return r;
        if (c == '{' || c == '[')
                r = scan_container(scan, c == '{');
        else if (c == '"')
                r = scan_string(scan, &escaped);
        else if (c == '-' || is_digit(c))
                r = scan_number(scan);
        else
                r = scan_word(scan);
        if (r < 0)
                return r;
        scan->spans->items[index] = (struct span){
                .start = (uint32_t)start,
                .end = (uint32_t)scan->at,
                .next = (uint32_t)scan->spans->n,
                .escaped = escaped,
        };
        *ret_index = index;
        return 0;
}

int strict_check(const char *text, size_t n, unsigned depth_max, struct spans *ret, const char **ret_why) {
        struct scan scan = { .text = text, .n = n, .depth_max = depth_max, .spans = ret };
        size_t index;
        int r;

        if (n > UINT32_MAX / 2) {
                *ret_why = "it is too long";
                return -EBADMSG;
        }
        skip_blanks(&scan);
        r = scan_value(&scan, &index);
        skip_blanks(&scan);
        if (r == 0 && scan.at < n)
                r = refuse(&scan, "bytes follow its end");
        if (r == -EBADMSG)
                *ret_why = scan.why;
        return r;
}
