/* SPDX-License-Identifier: Apache-2.0 */
/* Verdicts: the ways a well-formed request can be turned down, one enum for both ends.
 *
 * Functions return 0 for success, a positive verdict that the caller must handle, or a negative errno that
 * is passed up. Only the daemon's dispatch turns verdicts into bytes; only the library turns bytes back. */
#ifndef PROTO_VERDICT_H
#define PROTO_VERDICT_H

#include <stdint.h>

enum verdict {
        VERDICT_OK = 0,
        /* org.varlink.service */
        VERDICT_INTERFACE_NOT_FOUND,
        VERDICT_METHOD_NOT_FOUND,
        VERDICT_METHOD_NOT_IMPLEMENTED,
        VERDICT_INVALID_PARAMETER,
        VERDICT_PERMISSION_DENIED,
        VERDICT_EXPECTED_MORE,
        /* io.gpuipc.Broker */
        VERDICT_NO_SUCH_BUFFER,
        VERDICT_NO_SUCH_LEASE,
        VERDICT_NO_SUCH_SESSION,
        VERDICT_NO_SUCH_DEVICE,
        VERDICT_NAME_TAKEN,
        VERDICT_ACCESS_DENIED,
        VERDICT_QUOTA_EXCEEDED,
        VERDICT_OUT_OF_MEMORY,
        VERDICT_HANDLE_UNSUPPORTED,
        VERDICT_ALREADY_SEALED,
        VERDICT_TIMED_OUT,
        VERDICT_DEVICE_DEGRADED,
        VERDICT_TOO_MANY_REQUESTS,
        VERDICT_EVENTS_LOST,
        VERDICT_INTERNAL,
        N_VERDICTS,

        /* Never on the wire: the request is to be tried again later (the daemon's own). */
        VERDICT_AGAIN = 1000,
};

/* The parameters of every error reply in one struct; which members an error carries is in the schema. Text is
 * cut to fit, never overflows. */
struct failure {
        enum verdict verdict;
        char subject[132]; /* interface, method, parameter, device, name, scope, kind or reference */
        char reason[256];
        int64_t limit, used, asked, free_bytes, oldest;
};

/* "io.gpuipc.Broker.NoSuchBuffer"; NULL when out of range. */
const char *verdict_error_name(enum verdict verdict);

/* The reason of a TooManyRequests that passes with the daemon's restart: whoever holds leases waits for the connection to end,
 * and takes up the session then. */
#define VERDICT_REASON_STOPPING "the daemon is stopping; connect again when it is back"

/* One sentence for a human, naming the cause. Never NULL. */
const char *verdict_sentence(enum verdict verdict);

/* The verdict of a wire error name, VERDICT_OK when unknown. */
enum verdict verdict_from_error_name(const char *name);

/* Each fills `failure` and returns the verdict, so that a caller can return it in one line. */
int fail_plain(struct failure *failure, enum verdict verdict);
int fail_parameter(struct failure *failure, const char *parameter);
int fail_subject(struct failure *failure, enum verdict verdict, const char *subject);
int fail_quota(struct failure *failure, const char *scope, int64_t limit, int64_t used, int64_t asked);
int fail_memory(struct failure *failure, const char *device, int64_t free_bytes, int64_t asked);
int fail_reason(struct failure *failure, enum verdict verdict, const char *subject, const char *format, ...)
        __attribute__((format(printf, 4, 5)));

#endif
