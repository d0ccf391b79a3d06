/* SPDX-License-Identifier: Apache-2.0 */
/* Which backends the configuration asks for, and the devices they find. Main thread, at start and end. */
#ifndef DAEMON_DEVICES_H
#define DAEMON_DEVICES_H

#include "config.h"
#include "house.h"

/* Fills house.places and house.backend_name, and sizes the thread pool; says in the log what was found and what is missing.
 * 0 or -errno, of which the log says why. */
int devices_find(struct house *house, const struct config *config, char *const *known, size_t n_known);

/* Once the places are taken down and the loop has run dry: frees them. */
void devices_end(struct house *house);

/* Whether the process may wait for all its threads: not when a driver hangs in one. After devices_end(), or in its stead. */
bool devices_quit(void);

#endif
