/* SPDX-License-Identifier: Apache-2.0 */
/* A command line, split by the table of verbs. Everything is borrowed from argv. */
#ifndef CTL_ARGUMENTS_H
#define CTL_ARGUMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "verbs.h"

#define ARGUMENTS_OPERANDS_MAX 2

struct arguments {
        const struct verb *verb;
        const char *values[N_OPTIONS]; /* "" for a given option that takes none; NULL: not given */
        const char *operands[ARGUMENTS_OPERANDS_MAX + 1];
        int n_operands;
        char **command; /* after "--", NULL-ended; NULL: none */
        bool help;
};

/* EXIT_DONE, or EXIT_BAD_USAGE after saying why on stderr. `verb` is NULL when none was given. */
int arguments_parse(struct arguments *ret, int argc, char **argv);

static inline bool arguments_has(const struct arguments *arguments, enum option_id id) {
        return arguments->values[id] != NULL;
}

/* Each leaves *ret alone when the option was not given, and answers EXIT_DONE or EXIT_BAD_USAGE (having said why). */
int arguments_size(const struct arguments *arguments, enum option_id id, int64_t *ret);
int arguments_duration(const struct arguments *arguments, enum option_id id, int64_t *ret_ms);
int arguments_number(const struct arguments *arguments, enum option_id id, int64_t min, int64_t *ret);
int arguments_uid(const struct arguments *arguments, enum option_id id, int64_t *ret);

#endif
