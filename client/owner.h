/* SPDX-License-Identifier: Apache-2.0 */
/* Who this process is to the daemon. */
#ifndef CLIENT_OWNER_H
#define CLIENT_OWNER_H

#include <stdint.h>

/* The effective uid as seen from outside this process's user namespace (one level), which is how a daemon outside
 * knows it. Where that cannot be told, the uid as it is here. */
int64_t owner_uid(void);

/* `text` is /proc/self/uid_map; for tests. */
int64_t owner_map_uid(const char *text, int64_t uid);

#endif
