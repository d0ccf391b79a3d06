/* SPDX-License-Identifier: Apache-2.0 */
/* A counted, immutable string: names, labels and ids are shared by buffers, leases and remembered events. Loop thread
 * only. NULL stands for "none" and is allowed everywhere. */
#ifndef DAEMON_RCSTR_H
#define DAEMON_RCSTR_H

#include <stddef.h>

struct rcstr {
        unsigned refs;
        char text[];
};

/* NULL when out of memory, or when text is NULL: tell the two apart by text. */
struct rcstr *rcstr_new(const char *text);
struct rcstr *rcstr_ref(struct rcstr *s);
void rcstr_unref(struct rcstr *s);
static inline void rcstr_unrefp(struct rcstr **s) {
        rcstr_unref(*s);
        *s = NULL;
}

static inline const char *rcstr_text(const struct rcstr *s) {
        return s ? s->text : NULL;
}

#endif
