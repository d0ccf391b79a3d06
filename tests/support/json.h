/* SPDX-License-Identifier: Apache-2.0 */
/* One value out of a JSON text, by a path such as "parameters.devices.0.brokered_bytes". */
#ifndef SUPPORT_JSON_H
#define SUPPORT_JSON_H

#include <stdbool.h>
#include <stdint.h>

/* The value at path: a string's own text, anything else as JSON; heap. NULL when there is none. */
char *json_get(const char *text, const char *path);

/* The integer at path; fails the test when there is none. */
int64_t json_int(const char *text, const char *path);

/* Elements of the array at path; fails the test when there is none. */
int json_length(const char *text, const char *path);

/* Whether the value at path is that string. */
bool json_is(const char *text, const char *path, const char *expected);

#endif
