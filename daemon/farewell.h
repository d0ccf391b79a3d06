/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a connection whose descriptors came from strangers: closing them may block, so the doorman's lane does it. Loop thread. */
#ifndef DAEMON_FAREWELL_H
#define DAEMON_FAREWELL_H

#include "lane.h"
#include "proto/wire.h"

struct farewell; /* set aside when the connection begins, so that its end cannot fail */

/* NULL: out of memory. */
struct farewell *farewell_new(void);

/* Closes the wire on the lane. Takes both; the wire's queued output must have been dropped. The caller's wire is empty afterwards. */
void farewell_send(struct farewell *farewell_take, struct lane *lane, uid_t uid, struct wire *wire);

/* Not needed after all. NULL is allowed. */
void farewell_free(struct farewell *farewell);

#endif
