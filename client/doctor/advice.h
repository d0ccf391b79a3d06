/* SPDX-License-Identifier: Apache-2.0 */
/* What to do about each code, for somebody inside a container or for who started it. */
#ifndef DOCTOR_ADVICE_H
#define DOCTOR_ADVICE_H

#include <stdbool.h>

#include "client/doctor_codes.h"

/* Paragraphs, each ended by a newline but the last; one that begins with two blanks is a command, to be shown as it stands. NULL when
 * nothing is the matter. */
const char *advice(enum doctor_code code);

/* "G101", in either case. */
bool advice_find(const char *id, enum doctor_code *ret);

#endif
