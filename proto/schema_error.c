/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of errors: which members of struct failure each error carries, and by what names. Constant data; any
 * thread. */
#include "cleanup.h"
#include "schema.h"

#define TEXT(title, member)                                                                                       \
        {                                                                                                         \
                .name = (title), .type = FIELD_CHARS, .offset = offsetof(struct failure, member),                 \
                .max = sizeof(((struct failure *)0)->member)                                                      \
        }
#define NUMBER(title, member)                                                                                     \
        { .name = (title), .type = FIELD_INT, .offset = offsetof(struct failure, member) }
#define ERROR(variable, title, ...)                                                                               \
        static const struct field variable##_fields[] = { __VA_ARGS__ };                                          \
        static const struct schema variable = { .name = (title),                                                  \
                                                .fields = variable##_fields,                                      \
                                                .n_fields = ELEMENTSOF(variable##_fields),                        \
                                                .size = sizeof(struct failure) }
#define PLAIN(variable, title)                                                                                    \
        static const struct schema variable = { .name = (title), .size = sizeof(struct failure) }

ERROR(interface_not_found, "InterfaceNotFound", TEXT("interface", subject));
ERROR(method_not_found, "MethodNotFound", TEXT("method", subject));
ERROR(method_not_implemented, "MethodNotImplemented", TEXT("method", subject));
ERROR(invalid_parameter, "InvalidParameter", TEXT("parameter", subject));
PLAIN(permission_denied, "PermissionDenied");
PLAIN(expected_more, "ExpectedMore");
PLAIN(no_such_buffer, "NoSuchBuffer");
PLAIN(no_such_lease, "NoSuchLease");
PLAIN(no_such_session, "NoSuchSession");
ERROR(no_such_device, "NoSuchDevice", TEXT("device", subject));
ERROR(name_taken, "NameTaken", TEXT("name", subject));
ERROR(access_denied, "AccessDenied", TEXT("reason", reason));
ERROR(quota_exceeded, "QuotaExceeded", TEXT("scope", subject), NUMBER("limit", limit), NUMBER("used", used),
      NUMBER("asked", asked));
ERROR(out_of_memory, "OutOfMemory", TEXT("device", subject), NUMBER("free", free_bytes), NUMBER("asked", asked));
ERROR(handle_unsupported, "HandleUnsupported", TEXT("kind", subject), TEXT("reason", reason));
PLAIN(already_sealed, "AlreadySealed");
PLAIN(timed_out, "TimedOut");
ERROR(device_degraded, "DeviceDegraded", TEXT("device", subject));
ERROR(too_many_requests, "TooManyRequests", TEXT("reason", reason));
ERROR(events_lost, "EventsLost", NUMBER("oldest", oldest));
ERROR(internal, "Internal", TEXT("reference", subject));

const struct schema *const error_schemas[N_VERDICTS] = {
        [VERDICT_INTERFACE_NOT_FOUND] = &interface_not_found,
        [VERDICT_METHOD_NOT_FOUND] = &method_not_found,
        [VERDICT_METHOD_NOT_IMPLEMENTED] = &method_not_implemented,
        [VERDICT_INVALID_PARAMETER] = &invalid_parameter,
        [VERDICT_PERMISSION_DENIED] = &permission_denied,
        [VERDICT_EXPECTED_MORE] = &expected_more,
        [VERDICT_NO_SUCH_BUFFER] = &no_such_buffer,
        [VERDICT_NO_SUCH_LEASE] = &no_such_lease,
        [VERDICT_NO_SUCH_SESSION] = &no_such_session,
        [VERDICT_NO_SUCH_DEVICE] = &no_such_device,
        [VERDICT_NAME_TAKEN] = &name_taken,
        [VERDICT_ACCESS_DENIED] = &access_denied,
        [VERDICT_QUOTA_EXCEEDED] = &quota_exceeded,
        [VERDICT_OUT_OF_MEMORY] = &out_of_memory,
        [VERDICT_HANDLE_UNSUPPORTED] = &handle_unsupported,
        [VERDICT_ALREADY_SEALED] = &already_sealed,
        [VERDICT_TIMED_OUT] = &timed_out,
        [VERDICT_DEVICE_DEGRADED] = &device_degraded,
        [VERDICT_TOO_MANY_REQUESTS] = &too_many_requests,
        [VERDICT_EVENTS_LOST] = &events_lost,
        [VERDICT_INTERNAL] = &internal,
};
