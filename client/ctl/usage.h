/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTL_USAGE_H
#define CTL_USAGE_H

#include <stdio.h>

#include "verbs.h"

/* The list of verbs, or all about one. */
void usage_overview(FILE *to);
void usage_verb(FILE *to, const struct verb *verb);

#endif
