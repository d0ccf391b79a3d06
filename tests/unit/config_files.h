/* SPDX-License-Identifier: Apache-2.0 */
/* Configuration files of a test's own, and loading with and without success. */
#ifndef UNIT_CONFIG_FILES_H
#define UNIT_CONFIG_FILES_H

#include "daemon/config.h"

extern char config_root[64]; /* a fresh directory for each test */
extern char config_path[96]; /* gpuipcd.conf in it */

/* Fixture. */
void config_setup(void);
void config_teardown(void);

/* Writes `text` to a file below the root, making its directory. */
void config_write(const char *name, const char *text);

/* Loads --config config_path with up to three more arguments; fails the test unless it succeeds. */
struct config config_good(const char *a, const char *b, const char *c);

/* The same, which must fail with -EINVAL; the message, "ROOT" for the root's path. Valid until the next call. */
const char *config_bad(const char *a, const char *b, const char *c);

#endif
