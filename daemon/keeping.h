/* SPDX-License-Identifier: Apache-2.0 */
/* What Allocate and Open see to before they are committed where a restart keeps buffers: the state knows of them, and the descriptors
 * the next daemon will need are on their way to the store. */
#ifndef DAEMON_KEEPING_H
#define DAEMON_KEEPING_H

#include "request.h"

/* After work: writes down what was reserved. True when something is to be sent first: request->errand, filled but for `done`; then
 * keeping_end() follows. Whether it went well is request->kept: 0 or -errno. */
bool keeping_begin(struct request *request);
void keeping_end(struct request *request);

#endif
