/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes, durations, numbers and users as people write them. No floating point: what is asked for is what is meant. */
#include <errno.h>
#include <pwd.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "parse.h"
#include "proto/cleanup.h"
#include "proto/schema.h"

/* A decimal number as whole + part/scale. */
struct decimal {
        int64_t whole, part, scale;
};

static bool is_digit(char c) {
        return c >= '0' && c <= '9';
}

/* Reads digits and at most one point from *text and moves it on. -ERANGE beyond 2^53-1; digits after the point beyond
 * the twelfth must be zero. */
static int decimal_read(const char **text, struct decimal *ret) {
        struct decimal out = { 0, 0, 1 };
        const char *p = *text;
        bool any = false;

        for (; is_digit(*p); p++, any = true) {
                out.whole = out.whole * 10 + (*p - '0');
                if (out.whole > SCHEMA_INT_MAX)
                        return -ERANGE;
        }
        if (*p == '.') {
                for (p++; is_digit(*p); p++, any = true) {
                        if (out.scale == INT64_C(1000000000000)) {
                                if (*p != '0')
                                        return -ERANGE;
                                continue;
                        }
                        out.scale *= 10;
                        out.part = out.part * 10 + (*p - '0');
                }
        }
        if (!any)
                return -EINVAL;
        *text = p;
        *ret = out;
        return 0;
}

/* unit × decimal, rounded up. */
static int decimal_times(const struct decimal *decimal, int64_t unit, int64_t *ret) {
        __int128 product = (__int128)decimal->whole * unit +
                           ((__int128)decimal->part * unit + decimal->scale - 1) / decimal->scale;

        if (product > SCHEMA_INT_MAX)
                return -ERANGE;
        *ret = (int64_t)product;
        return 0;
}

int parse_size(const char *text, int64_t *ret_bytes) {
        static const char letters[] = "KMGTP";
        struct decimal decimal;
        int64_t unit = 1, bytes;
        int r = decimal_read(&text, &decimal);

        if (r < 0)
                return r;
        if (*text) {
                const char *letter = strchr(letters, *text >= 'a' ? *text - 'a' + 'A' : *text);

                if (!letter || (text[1] && strcmp(text + 1, "iB") != 0))
                        return -EINVAL;
                unit = INT64_C(1) << (10 * (letter - letters + 1));
        } else if (decimal.part != 0) {
                return -EINVAL;
        }
        r = decimal_times(&decimal, unit, &bytes);
        if (r < 0)
                return r;
        if (bytes == 0)
                return -ERANGE;
        *ret_bytes = bytes;
        return 0;
}

/* The longest unit that starts `text`, NULL when none does. */
static const char *duration_unit(const char *text, int64_t *ret_ms) {
        static const struct {
                const char *name;
                int64_t ms;
        } units[] = { { "ms", 1 }, { "s", 1000 }, { "m", 60000 }, { "h", 3600000 }, { "d", 86400000 } };

        for (size_t i = 0; i < ELEMENTSOF(units); i++) {
                size_t n = strlen(units[i].name);

                if (strncmp(text, units[i].name, n) == 0) {
                        *ret_ms = units[i].ms;
                        return text + n;
                }
        }
        return NULL;
}

int parse_duration(const char *text, int64_t *ret_ms) {
        int64_t total = 0, last_unit = INT64_MAX;

        do {
                struct decimal decimal;
                int64_t unit = 1000, ms;
                int r = decimal_read(&text, &decimal);

                if (r < 0)
                        return r;
                if (*text || last_unit != INT64_MAX) {
                        text = duration_unit(text, &unit);
                        if (!text || unit >= last_unit)
                                return -EINVAL;
                }
                r = decimal_times(&decimal, unit, &ms);
                if (r < 0)
                        return r;
                last_unit = unit;
                total += ms;
                if (total > SCHEMA_INT_MAX)
                        return -ERANGE;
        } while (*text);
        *ret_ms = total;
        return 0;
}

int parse_number(const char *text, int64_t *ret) {
        int64_t number = 0;

        if (!*text)
                return -EINVAL;
        for (; is_digit(*text); text++) {
                number = number * 10 + (*text - '0');
                if (number > SCHEMA_INT_MAX)
                        return -ERANGE;
        }
        if (*text)
                return -EINVAL;
        *ret = number;
        return 0;
}

int parse_uid(const char *text, int64_t *ret_uid) {
        const struct passwd *user;
        int64_t number;

        if (parse_number(text, &number) == 0) {
                if (number > UINT32_MAX - 1)
                        return -ERANGE;
                *ret_uid = number;
                return 0;
        }
        user = getpwnam(text);
        if (!user)
                return -EINVAL;
        *ret_uid = user->pw_uid;
        return 0;
}
