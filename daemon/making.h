/* SPDX-License-Identifier: Apache-2.0 */
/* What Allocate and ChannelCreate have in common: a new buffer is reserved, made and, when that fails, undone. Loop thread. */
#ifndef DAEMON_MAKING_H
#define DAEMON_MAKING_H

#include "request.h"

/* The device of that uuid (NULL: the default) if it can be had: 0, a verdict. */
int making_find_device(struct request *request, const char *uuid, struct device **ret);

/* Bytes of the device; 0, or VERDICT_OUT_OF_MEMORY when that is more than there can be. */
int making_round(struct request *request, struct device *device, int64_t bytes, const char *handle, int64_t *ret);

/* Waits for its turn if it may, and reserves: request->buffer, lease, place. 0, a verdict, VERDICT_AGAIN, -errno. */
int making_reserve(struct request *request, const struct buffer_spec *spec);

/* After work: 0 when it is to be committed, else everything is undone: a verdict, VERDICT_AGAIN. */
int making_judge(struct request *request);

void making_undo(struct request *request);

#endif
