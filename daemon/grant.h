/* SPDX-License-Identifier: Apache-2.0 */
/* What Allocate and Open have in common: waits they may ask for, and the reply that lends a handle. */
#ifndef DAEMON_GRANT_H
#define DAEMON_GRANT_H

#include "request.h"

/* Checks a duration against its limit: 0 or VERDICT_QUOTA_EXCEEDED with the limit's name as scope. Absent is fine. */
int grant_check_duration(struct request *request, const char *scope, int64_t limit_ms, int64_t asked_ms);

/* Notes how long the request may wait; whether it may at all. */
bool grant_patient(struct request *request, int64_t wait_ms);

/* Fills the reply of a committed lease and pins its buffer for it. The reply's strings are borrowed from the ledger. */
void grant_fill(struct request *request, struct lease *lease);

#endif
