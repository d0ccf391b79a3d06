/* SPDX-License-Identifier: Apache-2.0 */
/* One structured line per request, and the `refused` event. Loop thread; never blocks. */
#ifndef DAEMON_REPORT_H
#define DAEMON_REPORT_H

#include "request.h"

void report_done(const struct request *request);

/* request->failure says why; request->op may be NULL (no such method). */
void report_refused(struct request *request);

#endif
