/* SPDX-License-Identifier: Apache-2.0 */
/* A shared library found at run time, as a table of function pointers. Both ends; silent. */
#ifndef PROTO_SYMBOLS_H
#define PROTO_SYMBOLS_H

#include <stdbool.h>
#include <stddef.h>

struct symbol {
        const char *name;   /* "cuMemCreate" */
        size_t offset;      /* of the pointer in the table */
        bool optional;      /* NULL when the library has none */
};

/* Opens the first of `sonames` (NULL-ended) that is there and fills the table at `base`. 0; -ENOENT: no such library; -ENOSYS: it lacks
 * a symbol that is not optional. `ret_why` (may be NULL, n bytes) gets the loader's own words. The library stays loaded for the life
 * of the process. */
int symbols_load(const char *const *sonames, const struct symbol *symbols, size_t n_symbols, void *base, char *ret_why,
                 size_t n_why);

#endif
