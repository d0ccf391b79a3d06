/* SPDX-License-Identifier: Apache-2.0 */
/* What the house holds, in one line for people. */
#ifndef DAEMON_DIGEST_H
#define DAEMON_DIGEST_H

#include <stddef.h>

#include "house.h"

/* The live line of the service's status. */
void digest_status(const struct house *house, char *ret, size_t n);

/* Logs what a stop ends and what it leaves in the store. It may be the first half of a restart: before systemd 254 nobody can tell. */
void digest_stop(const struct registry *registry);

#endif
