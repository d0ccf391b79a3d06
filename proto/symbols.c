/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries that a host may or may not have, found at run time. Any thread enters; the caller sees to it that a table is filled once.
 * Never unloads: a driver starts threads and arms exit handlers of its own. */
#include "symbols.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static void say(char *why, size_t n, const char *what, const char *detail) {
        if (why && n > 0)
                (void)snprintf(why, n, "%s%s", what, detail ? detail : "");
}

/* The loader's words are taken on the next line: they are gone with the thread's next call. */
static void *open_first(const char *const *sonames, char *why, size_t n_why) {
        say(why, n_why, "no library is named", NULL);
        for (; *sonames; sonames++) {
                void *library = dlopen(*sonames, RTLD_NOW | RTLD_LOCAL);
                const char *words = library ? NULL : dlerror();
                if (library)
                        return library;
                say(why, n_why, words ? words : *sonames, words ? NULL : " cannot be loaded");
        }
        return NULL;
}

static void *find(void *library, const char *name) {
        void *found;

        (void)dlerror();
        found = dlsym(library, name);
        return dlerror() ? NULL : found;
}

static void put(void *base, size_t offset, void *found) {
        (void)memcpy((char *)base + offset, &found, sizeof(found));
}

int symbols_load(const char *const *sonames, const struct symbol *symbols, size_t n_symbols, void *base, char *ret_why,
                 size_t n_why) {
        void *library = open_first(sonames, ret_why, n_why);

        if (!library)
                return -ENOENT;
        for (size_t i = 0; i < n_symbols; i++)
                if (!symbols[i].optional && !find(library, symbols[i].name)) {
                        say(ret_why, n_why, symbols[i].name, ": not in this version of the library");
                        return -ENOSYS;
                }
        for (size_t i = 0; i < n_symbols; i++)
                put(base, symbols[i].offset, find(library, symbols[i].name));
        say(ret_why, n_why, "", NULL);
        return 0;
}
