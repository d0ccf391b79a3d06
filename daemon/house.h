/* SPDX-License-Identifier: Apache-2.0 */
/* What operations may reach: the ledger, the devices, and who waits. One per daemon; loop thread only. */
#ifndef DAEMON_HOUSE_H
#define DAEMON_HOUSE_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "list.h"
#include "proto/bytes.h"
#include "registry.h"
#include "store.h"
#include "workplace.h"

struct house {
        uv_loop_t *loop;
        struct registry registry;
        struct workplace *places;
        size_t n_places;
        struct list waiting;        /* request.by_house: waiting for bytes or a name, longest first */
        struct list watching;       /* request.by_house: event streams with nothing to say right now */
        struct list woken;          /* request.by_house: of those, who has yet to look at what is new */
        char *limits_json;
        const char *backend_name;   /* "host", "cuda" or "auto" */
        struct store *store;        /* NULL: a restart keeps nothing */
        const char *held;           /* in words: what an earlier daemon left cannot be read, and is kept as it is; NULL: all is well */
        const char *features[12];
        size_t n_features;
        uint64_t started_usec;      /* monotonic */
        uint64_t last_reference;    /* of Internal errors */
        bool stopping;              /* no new work */
        uint64_t pump_usec;         /* monotonic: when those who wait are to be tried again in any case; UINT64_MAX: not */
        int64_t news_seen;          /* events.next when the watchers were last woken */
        struct bytes scratch;       /* the reply being written */
        void (*kick)(void *session); /* ends a session once its reply is out */
};

#endif
