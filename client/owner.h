/* SPDX-License-Identifier: Apache-2.0 */
/* Who this process is to the daemon. */
#ifndef CLIENT_OWNER_H
#define CLIENT_OWNER_H

#include <stdbool.h>
#include <stdint.h>

/* The effective uid as seen from outside this process's user namespace, or where that cannot be told, as it is here.
 * `ret_sure` is false in a user namespace: there may be another one around it, so that only the daemon knows. */
int64_t owner_uid(bool *ret_sure);

/* The same of the text of /proc/self/uid_map; for tests. */
int64_t owner_map_uid(const char *text, int64_t uid, bool *ret_sure);

#endif
