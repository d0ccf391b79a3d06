/* SPDX-License-Identifier: Apache-2.0 */
/* A channel and its figures as a JSON object, whose members are always the same. */
#ifndef CTL_CHANNEL_JSON_H
#define CTL_CHANNEL_JSON_H

#include "channels.h"
#include "proto/bytes.h"

/* Without figures "figures" is null; rates are, at the first look. `before` may be NULL. */
void channel_json_put(struct bytes *out, const struct channel_seen *seen, const struct channel_seen *before);

#endif
