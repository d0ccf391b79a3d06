/* SPDX-License-Identifier: Apache-2.0 */
/* Every limit, by the name under which configuration, GetStatus and QuotaExceeded know it. */
#ifndef DAEMON_LIMITS_H
#define DAEMON_LIMITS_H

#include <stddef.h>
#include <stdint.h>

/* With fewer open files nothing could be lent, and at last no connection be accepted. */
#define LIMITS_DESCRIPTORS_LEAST 128

struct limits {
        int64_t clients;            /* sessions in all */
        int64_t clients_per_uid;    /* sessions of one uid */
        int64_t leases_per_session;
        int64_t leases_per_uid;
        int64_t bytes_per_uid;      /* allocated bytes charged to one uid */
        int64_t bytes_per_session;  /* allocated bytes whose first lease a session holds */
        int64_t keep_free_bytes;    /* left free on each device */
        int64_t spare_bytes;        /* largest buffer that is made ahead; 0: none is */
        int64_t host_bytes;         /* capacity of device "host"; 0: half of the smaller of RAM and the memory limit */
        int64_t buffers;            /* in all */
        int64_t names_per_uid;
        int64_t waits_per_session;  /* calls waiting at once */
        int64_t waits_per_uid;
        int64_t wait_ms;            /* longest wait a client may ask for */
        int64_t keep_ms;            /* longest keep */
        int64_t message_bytes;      /* longest message from a client */
        int64_t events;             /* remembered for Watch */
        int64_t unread_bytes;       /* output queued for a client before it is paused */
        int64_t unread_ms;          /* how long output may stay unread before the client is dropped */
        int64_t stored_descriptors; /* in the service manager's store: buffers, processes, the state itself */
        int64_t stored_per_uid;     /* of these: buffers charged to one uid, and its processes */
        int64_t resume_ms;          /* how long detached leases wait for their session after a restart */
        int64_t descriptors;        /* 0: the hard RLIMIT_NOFILE; used for buffers, sessions and processes */
};

/* Name in GetStatus ("bytes_per_uid") and offset in struct limits of each; NULL-ended. */
struct limit_field {
        const char *name;
        size_t offset;
};
extern const struct limit_field limit_fields[];

#endif
