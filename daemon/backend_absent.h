/* SPDX-License-Identifier: Apache-2.0 */
/* A device that an earlier daemon had and this one does not find: what is left of its memory is held and lent, nothing is made. */
#ifndef DAEMON_BACKEND_ABSENT_H
#define DAEMON_BACKEND_ABSENT_H

#include "backend.h"

extern const struct backend backend_absent;

/* The device of that uuid; lives as long as the process. NULL: out of memory. */
struct backend_device *backend_absent_device(const char *uuid);

#endif
