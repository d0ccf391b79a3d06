/* SPDX-License-Identifier: Apache-2.0 */
/* Counted strings. Loop thread; the count is not atomic. */
#include "rcstr.h"

#include <stdlib.h>
#include <string.h>

struct rcstr *rcstr_new(const char *text) {
        struct rcstr *s;
        size_t n;

        if (!text)
                return NULL;
        n = strlen(text) + 1;
        s = malloc(sizeof(*s) + n);
        if (!s)
                return NULL;
        s->refs = 1;
        memcpy(s->text, text, n);
        return s;
}

struct rcstr *rcstr_ref(struct rcstr *s) {
        if (s)
                s->refs++;
        return s;
}

void rcstr_unref(struct rcstr *s) {
        if (s && --s->refs == 0)
                free(s);
}
