/* SPDX-License-Identifier: Apache-2.0 */
/* Verdicts: their names on the wire, a sentence for people, and the struct that carries their details. Any thread;
 * it never allocates. */
#include "verdict.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "utf8.h"

#define SERVICE "org.varlink.service."
#define BROKER "io.gpuipc.Broker."

static const struct {
        const char *name, *sentence;
} verdicts[N_VERDICTS] = {
        [VERDICT_OK] = { NULL, "done" },
        [VERDICT_INTERFACE_NOT_FOUND] = { SERVICE "InterfaceNotFound", "no such interface is offered here" },
        [VERDICT_METHOD_NOT_FOUND] = { SERVICE "MethodNotFound", "the interface has no such method" },
        [VERDICT_METHOD_NOT_IMPLEMENTED] = { SERVICE "MethodNotImplemented",
                                             "the interface has this method but the daemon does not offer it" },
        [VERDICT_INVALID_PARAMETER] = { SERVICE "InvalidParameter",
                                        "a parameter is missing, unknown, or not what the method takes" },
        [VERDICT_PERMISSION_DENIED] = { SERVICE "PermissionDenied", "the caller may not do this" },
        [VERDICT_EXPECTED_MORE] = { SERVICE "ExpectedMore",
                                    "the answer takes several replies: call it with 'more'" },
        [VERDICT_NO_SUCH_BUFFER] = { BROKER "NoSuchBuffer",
                                     "no buffer of this id or name exists that the caller may open" },
        [VERDICT_NO_SUCH_LEASE] = { BROKER "NoSuchLease", "this session holds no such lease" },
        [VERDICT_NO_SUCH_SESSION] = { BROKER "NoSuchSession", "no such session exists that the caller may see" },
        [VERDICT_NO_SUCH_DEVICE] = { BROKER "NoSuchDevice", "the daemon serves no such device" },
        [VERDICT_NAME_TAKEN] = { BROKER "NameTaken", "another buffer has this name" },
        [VERDICT_ACCESS_DENIED] = { BROKER "AccessDenied", "the caller may not do this" },
        [VERDICT_QUOTA_EXCEEDED] = { BROKER "QuotaExceeded", "this would go over a limit of the daemon's" },
        [VERDICT_OUT_OF_MEMORY] = { BROKER "OutOfMemory", "the device has not that much memory free" },
        [VERDICT_HANDLE_UNSUPPORTED] = { BROKER "HandleUnsupported",
                                         "the device cannot share memory by a handle of this kind" },
        [VERDICT_ALREADY_SEALED] = { BROKER "AlreadySealed",
                                     "the buffer is sealed: it can be opened with access \"ro\" only" },
        [VERDICT_TIMED_OUT] = { BROKER "TimedOut", "what was waited for did not come in time" },
        [VERDICT_DEVICE_DEGRADED] = { BROKER "DeviceDegraded", "the device's driver no longer answers" },
        [VERDICT_TOO_MANY_REQUESTS] = { BROKER "TooManyRequests", "too many calls are under way already" },
        [VERDICT_EVENTS_LOST] = { BROKER "EventsLost",
                                  "the events asked for are no longer all remembered: list anew, then watch" },
        [VERDICT_INTERNAL] = { BROKER "Internal", "a fault of the daemon's own: its log has the reference" },
};

const char *verdict_error_name(enum verdict verdict) {
        return (unsigned)verdict < N_VERDICTS ? verdicts[verdict].name : NULL;
}

const char *verdict_sentence(enum verdict verdict) {
        if ((unsigned)verdict < N_VERDICTS)
                return verdicts[verdict].sentence;
        return verdict == VERDICT_AGAIN ? "to be tried again later" : "an unknown verdict";
}

enum verdict verdict_from_error_name(const char *name) {
        for (int i = VERDICT_OK + 1; i < N_VERDICTS; i++)
                if (strcmp(verdicts[i].name, name) == 0)
                        return (enum verdict)i;
        return VERDICT_OK;
}

static void set_text(char *to, size_t size, const char *text) {
        size_t n = utf8_cut(text, strlen(text), size - 1);

        memcpy(to, text, n);
        to[n] = '\0';
}

/* snprintf() cuts anywhere: take back a last character that is not whole. */
static void trim_text(char *text) {
        size_t n = strlen(text), start = n;

        while (start > 0 && n - start < 4) {
                start--;
                if (((unsigned char)text[start] & 0xC0) != 0x80)
                        break;
        }
        if (n > 0 && utf8_length(text + start, n - start) != n - start)
                text[start] = '\0';
}

int fail_plain(struct failure *failure, enum verdict verdict) {
        *failure = (struct failure){ .verdict = verdict };
        return (int)verdict;
}

int fail_subject(struct failure *failure, enum verdict verdict, const char *subject) {
        (void)fail_plain(failure, verdict);
        set_text(failure->subject, sizeof(failure->subject), subject);
        return (int)verdict;
}

int fail_parameter(struct failure *failure, const char *parameter) {
        return fail_subject(failure, VERDICT_INVALID_PARAMETER, parameter);
}

int fail_quota(struct failure *failure, const char *scope, int64_t limit, int64_t used, int64_t asked) {
        (void)fail_subject(failure, VERDICT_QUOTA_EXCEEDED, scope);
        failure->limit = limit;
        failure->used = used;
        failure->asked = asked;
        return VERDICT_QUOTA_EXCEEDED;
}

int fail_memory(struct failure *failure, const char *device, int64_t free_bytes, int64_t asked) {
        (void)fail_subject(failure, VERDICT_OUT_OF_MEMORY, device);
        failure->free_bytes = free_bytes;
        failure->asked = asked;
        return VERDICT_OUT_OF_MEMORY;
}

int fail_reason(struct failure *failure, enum verdict verdict, const char *subject, const char *format, ...) {
        va_list args;
        int n;

        (void)fail_subject(failure, verdict, subject != NULL ? subject : "");
        va_start(args, format);
        n = vsnprintf(failure->reason, sizeof(failure->reason), format, args);
        va_end(args);
        if (n < 0)
                failure->reason[0] = '\0';
        else if ((size_t)n >= sizeof(failure->reason))
                trim_text(failure->reason);
        return (int)verdict;
}
