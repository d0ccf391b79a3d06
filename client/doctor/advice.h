/* SPDX-License-Identifier: Apache-2.0 */
/* What to do about each code, for somebody inside a container or for who started it. */
#ifndef DOCTOR_ADVICE_H
#define DOCTOR_ADVICE_H

#include <stdbool.h>

#include "client/doctor_codes.h"

/* Paragraphs, each ended by a newline but the last; one that begins with two blanks is a command, to be shown as it stands. NULL when
 * nothing is the matter. */
const char *advice(enum doctor_code code);

#define ADVICE_SIZE 1024

/* The same with each `word` that stands alone, "UID", replaced by `value`. */
void advice_fill(enum doctor_code code, const char *word, const char *value, char ret[ADVICE_SIZE]);

/* "G101", in either case. */
bool advice_find(const char *id, enum doctor_code *ret);

#endif
