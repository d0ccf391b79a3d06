/* SPDX-License-Identifier: Apache-2.0 */
/* A set of ids that costs one copy each while all goes well, and is put in order only when it is needed. One thread. */
#include "seen.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void seen_deinit(struct seen *seen) {
        for (size_t i = 0; i < seen->n; i++)
                free(seen->ids[i]);
        free(seen->ids);
        *seen = (struct seen){ 0 };
}

static int compare(const void *a, const void *b) {
        return strcmp(*(const char *const *)a, *(const char *const *)b);
}

void seen_again(struct seen *seen) {
        if (seen->n > 0)
                qsort(seen->ids, seen->n, sizeof(*seen->ids), compare);
        seen->n_before = seen->n;
}

bool seen_has(const struct seen *seen, const char *id) {
        return seen->n_before > 0 && bsearch(&id, seen->ids, seen->n_before, sizeof(*seen->ids), compare);
}

int seen_add(struct seen *seen, const char *id) {
        if (seen->n == seen->capacity) {
                size_t capacity = seen->capacity > 0 ? 2 * seen->capacity : 64;
                char **ids = reallocarray(seen->ids, capacity, sizeof(*ids));
                if (!ids)
                        return -ENOMEM;
                seen->ids = ids;
                seen->capacity = capacity;
        }
        seen->ids[seen->n] = strdup(id);
        if (!seen->ids[seen->n])
                return -ENOMEM;
        seen->n++;
        return 0;
}
