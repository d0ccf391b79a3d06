/* SPDX-License-Identifier: Apache-2.0 */
/* What went wrong, in words: the daemon's verdicts and the library's own errors become a gpuipc_error with cause and
 * remedy. Any thread enters. Never keeps anything, never allocates. */
#include "error.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "doctor_codes.h"

#define STATUS(s, wire) [GPUIPC_##s] = { "GPUIPC_" #s, wire }

/* Library errors carry a name of their own; the daemon's come from the verdict. */
static const struct {
        const char *symbol, *name;
} statuses[] = {
        STATUS(OK, "gpuipc.Ok"),
        STATUS(ERROR_NO_SUCH_BUFFER, "gpuipc.NoSuchBuffer"),
        STATUS(ERROR_NO_SUCH_LEASE, "gpuipc.NoSuchLease"),
        STATUS(ERROR_NO_SUCH_SESSION, "gpuipc.NoSuchSession"),
        STATUS(ERROR_NO_SUCH_DEVICE, "gpuipc.NoSuchDevice"),
        STATUS(ERROR_NAME_TAKEN, "gpuipc.NameTaken"),
        STATUS(ERROR_ACCESS_DENIED, "gpuipc.AccessDenied"),
        STATUS(ERROR_QUOTA_EXCEEDED, "gpuipc.QuotaExceeded"),
        STATUS(ERROR_OUT_OF_MEMORY, "gpuipc.OutOfMemory"),
        STATUS(ERROR_HANDLE_UNSUPPORTED, "gpuipc.HandleUnsupported"),
        STATUS(ERROR_ALREADY_SEALED, "gpuipc.AlreadySealed"),
        STATUS(ERROR_TIMED_OUT, "gpuipc.TimedOut"),
        STATUS(ERROR_DEVICE_DEGRADED, "gpuipc.DeviceDegraded"),
        STATUS(ERROR_TOO_MANY_REQUESTS, "gpuipc.TooManyRequests"),
        STATUS(ERROR_EVENTS_LOST, "gpuipc.EventsLost"),
        STATUS(ERROR_INTERNAL, "gpuipc.Internal"),
        STATUS(ERROR_INVALID_PARAMETER, "gpuipc.InvalidParameter"),
        STATUS(ERROR_UNSUPPORTED, "gpuipc.Unsupported"),
        STATUS(ERROR_UNREACHABLE, "gpuipc.Unreachable"),
        STATUS(ERROR_DISCONNECTED, "gpuipc.Disconnected"),
        STATUS(ERROR_PROTOCOL, "gpuipc.Protocol"),
        STATUS(ERROR_FORKED, "gpuipc.Forked"),
        STATUS(ERROR_MAP, "gpuipc.Map"),
        STATUS(ERROR_NO_MEMORY, "gpuipc.NoMemory"),
        STATUS(ERROR_CLOSED, "gpuipc.Closed"),
        STATUS(ERROR_LEASE_LOST, "gpuipc.LeaseLost"),
        STATUS(ERROR_CORRUPT, "gpuipc.Corrupt"),
};

const char *gpuipc_status_name(gpuipc_status status) {
        size_t i = (size_t)status;
        if (i >= sizeof(statuses) / sizeof(statuses[0]) || !statuses[i].symbol)
                return "GPUIPC_ERROR_UNKNOWN";
        return statuses[i].symbol;
}

/* Text from the wire ends on terminals: no control characters. */
static void make_printable(char *text) {
        for (; *text; text++)
                if ((unsigned char)*text < 0x20 || *text == 0x7f)
                        *text = '?';
}

#define CODE_SIZE sizeof(" [G101]")

/* A text that ends with " [G101]" carries that code. */
static const char *code_of(const char *text) {
        size_t n = strlen(text);

        if (n < CODE_SIZE || text[n - 1] != ']' || text[n - 6] != '[')
                return NULL;
        for (int code = 0; code < N_DOCTOR_CODES; code++)
                if (strncmp(text + n - 5, doctor_code_id((enum doctor_code)code), 4) == 0)
                        return doctor_code_id((enum doctor_code)code);
        return NULL;
}

__attribute__((format(printf, 5, 0)))
static int fill(gpuipc_error *error, gpuipc_status status, int system_errno, const char *subject,
                const char *format, va_list arguments) {
        char text[1024];

        *error = (gpuipc_error){ .status = status, .system_errno = system_errno, .name = statuses[status].name,
                                 .limit = -1, .used = -1, .asked = -1, .free_bytes = -1, .oldest = -1 };
        (void)vsnprintf(text, sizeof(text), format, arguments);
        (void)snprintf(error->subject, sizeof(error->subject), "%s", subject ? subject : "");
        (void)snprintf(error->message, sizeof(error->message), "%.*s", (int)sizeof(error->message) - 1, text);
        error->code = code_of(text);
        /* What is too long loses its end, but not its code. */
        if (error->code && strlen(text) >= sizeof(error->message))
                (void)snprintf(error->message + sizeof(error->message) - CODE_SIZE, CODE_SIZE, " [%s]", error->code);
        make_printable(error->subject);
        make_printable(error->message);
        return (int)status;
}

int error_set(gpuipc_error *ret_error, gpuipc_status status, int system_errno, const char *subject,
              const char *format, ...) {
        va_list arguments;

        if (!ret_error)
                return (int)status;
        va_start(arguments, format);
        (void)fill(ret_error, status, system_errno, subject, format, arguments);
        va_end(arguments);
        return (int)status;
}

int error_no_memory(gpuipc_error *ret_error) {
        return error_set(ret_error, GPUIPC_ERROR_NO_MEMORY, ENOMEM, NULL, "This process is out of memory.");
}

int error_parameter(gpuipc_error *ret_error, const char *parameter, const char *want) {
        return error_set(ret_error, GPUIPC_ERROR_INVALID_PARAMETER, 0, parameter,
                         "The parameter '%s' is not valid: it must be %s.", parameter, want);
}

int error_protocol(gpuipc_error *ret_error, const char *format, ...) {
        char detail[256];
        va_list arguments;

        va_start(arguments, format);
        (void)vsnprintf(detail, sizeof(detail), format, arguments);
        va_end(arguments);
        return error_set(ret_error, GPUIPC_ERROR_PROTOCOL, 0, NULL,
                         "The daemon's answer makes no sense: %s. Is it gpuipcd that listens at this socket? [%s]", detail,
                         doctor_code_id(DOCTOR_NOT_THE_DAEMON));
}

static const gpuipc_status verdict_statuses[N_VERDICTS] = {
        [VERDICT_INTERFACE_NOT_FOUND] = GPUIPC_ERROR_UNSUPPORTED,
        [VERDICT_METHOD_NOT_FOUND] = GPUIPC_ERROR_UNSUPPORTED,
        [VERDICT_METHOD_NOT_IMPLEMENTED] = GPUIPC_ERROR_UNSUPPORTED,
        [VERDICT_INVALID_PARAMETER] = GPUIPC_ERROR_INVALID_PARAMETER,
        [VERDICT_PERMISSION_DENIED] = GPUIPC_ERROR_ACCESS_DENIED,
        [VERDICT_EXPECTED_MORE] = GPUIPC_ERROR_UNSUPPORTED,
        [VERDICT_NO_SUCH_BUFFER] = GPUIPC_ERROR_NO_SUCH_BUFFER,
        [VERDICT_NO_SUCH_LEASE] = GPUIPC_ERROR_NO_SUCH_LEASE,
        [VERDICT_NO_SUCH_SESSION] = GPUIPC_ERROR_NO_SUCH_SESSION,
        [VERDICT_NO_SUCH_DEVICE] = GPUIPC_ERROR_NO_SUCH_DEVICE,
        [VERDICT_NAME_TAKEN] = GPUIPC_ERROR_NAME_TAKEN,
        [VERDICT_ACCESS_DENIED] = GPUIPC_ERROR_ACCESS_DENIED,
        [VERDICT_QUOTA_EXCEEDED] = GPUIPC_ERROR_QUOTA_EXCEEDED,
        [VERDICT_OUT_OF_MEMORY] = GPUIPC_ERROR_OUT_OF_MEMORY,
        [VERDICT_HANDLE_UNSUPPORTED] = GPUIPC_ERROR_HANDLE_UNSUPPORTED,
        [VERDICT_ALREADY_SEALED] = GPUIPC_ERROR_ALREADY_SEALED,
        [VERDICT_TIMED_OUT] = GPUIPC_ERROR_TIMED_OUT,
        [VERDICT_DEVICE_DEGRADED] = GPUIPC_ERROR_DEVICE_DEGRADED,
        [VERDICT_TOO_MANY_REQUESTS] = GPUIPC_ERROR_TOO_MANY_REQUESTS,
        [VERDICT_EVENTS_LOST] = GPUIPC_ERROR_EVENTS_LOST,
        [VERDICT_INTERNAL] = GPUIPC_ERROR_INTERNAL,
};

/* What needs no figures. */
static const char *const plain_sentences[N_VERDICTS] = {
        [VERDICT_PERMISSION_DENIED] = "The daemon denies this user access.",
        [VERDICT_EXPECTED_MORE] = "The answer takes several replies: call the method with 'more'.",
        [VERDICT_NO_SUCH_BUFFER] = "No such buffer, or none that this user may open. 'gpuipcctl list --buffers' shows "
                                   "what there is; its owner and mode decide who may open it.",
        [VERDICT_NO_SUCH_LEASE] = "This session holds no such lease: it was released, or its session was closed.",
        [VERDICT_NO_SUCH_SESSION] = "No such session, or it is another user's.",
        [VERDICT_ALREADY_SEALED] = "The buffer is sealed: it can be opened read-only, nothing else.",
        [VERDICT_TIMED_OUT] = "What was waited for did not come in time. Wait longer (wait_ms, on the command line "
                              "--wait), or look with 'gpuipcctl list' why it does not come.",
};

/* The verdict's particulars and what to do, in one or two sentences. */
static void explain(const struct failure *f, enum method method, char *out, size_t n) {
        const char *hint = f->verdict == VERDICT_INVALID_PARAMETER ? schema_hint(method, f->subject) : NULL;

        switch (f->verdict) {
        case VERDICT_INVALID_PARAMETER:
                (void)snprintf(out, n, "The parameter '%s' is not valid%s%s.", f->subject,
                               hint ? ": it must be " : "", hint ? hint : "");
                return;
        case VERDICT_INTERFACE_NOT_FOUND:
        case VERDICT_METHOD_NOT_FOUND:
        case VERDICT_METHOD_NOT_IMPLEMENTED:
                (void)snprintf(out, n, "The daemon does not know '%s'. Is it older than this program?", f->subject);
                return;
        case VERDICT_NO_SUCH_DEVICE:
                (void)snprintf(out, n, "The daemon has no device '%s'. 'gpuipcctl devices' shows what it has.",
                               f->subject);
                return;
        case VERDICT_NAME_TAKEN:
                (void)snprintf(out, n, "The name '%s' is taken. Choose another, open the buffer that has it, or have its "
                                       "owner free it.", f->subject);
                return;
        case VERDICT_QUOTA_EXCEEDED:
                if (f->used == 0 && f->asked > f->limit) {
                        (void)snprintf(out, n, "The limit %s allows %" PRId64 ", and %" PRId64 " was asked for. Ask for less, "
                                               "or have the administrator raise it.", f->subject, f->limit, f->asked);
                        return;
                }
                (void)snprintf(out, n, "The limit %s is reached: %" PRId64 " of %" PRId64 " in use and %" PRId64
                                       " more asked for. %s, or have the administrator raise it.", f->subject, f->used, f->limit,
                               f->asked, f->asked > f->limit ? "That is more than it ever allows: ask for less"
                                                             : "Release something, wait for it (wait_ms, on the command line --wait)");
                return;
        case VERDICT_OUT_OF_MEMORY:
                (void)snprintf(out, n, "The device %s has %" PRId64 " bytes free and %" PRId64 " were asked for. Release "
                                       "something on it or wait for it (wait_ms, on the command line --wait).",
                               f->subject, f->free_bytes, f->asked);
                return;
        case VERDICT_HANDLE_UNSUPPORTED:
                (void)snprintf(out, n, "A handle '%s' cannot be had here: %s", f->subject, f->reason);
                return;
        case VERDICT_DEVICE_DEGRADED:
                (void)snprintf(out, n, "The device '%s' no longer answers the daemon. The daemon's log and the driver's "
                                       "tell more. [%s]", f->subject, doctor_code_id(DOCTOR_DEVICE_DEGRADED));
                return;
        case VERDICT_EVENTS_LOST:
                (void)snprintf(out, n, "Events were lost: the first one remembered is %" PRId64
                                       ". List anew, then watch from there.", f->oldest);
                return;
        case VERDICT_INTERNAL:
                (void)snprintf(out, n, "A fault of the daemon's own. Its log tells more under '%s'.", f->subject);
                return;
        default:
                (void)snprintf(out, n, "%s", f->reason[0] ? f->reason : verdict_sentence(f->verdict));
        }
}

int error_failure(gpuipc_error *ret_error, enum method method, const struct failure *failure) {
        bool known = failure->verdict > VERDICT_OK && failure->verdict < N_VERDICTS;
        gpuipc_status status = known ? verdict_statuses[failure->verdict] : GPUIPC_ERROR_PROTOCOL;
        char text[sizeof(ret_error->message)];

        if (!ret_error)
                return (int)status;
        if (known && plain_sentences[failure->verdict])
                (void)snprintf(text, sizeof(text), "%s", plain_sentences[failure->verdict]);
        else
                explain(failure, method, text, sizeof(text));
        (void)error_set(ret_error, status, 0, failure->subject, "%s", text);
        if (known)
                ret_error->name = verdict_error_name(failure->verdict);
        if (failure->verdict == VERDICT_QUOTA_EXCEEDED) {
                ret_error->limit = failure->limit;
                ret_error->used = failure->used;
        }
        if (failure->verdict == VERDICT_OUT_OF_MEMORY)
                ret_error->free_bytes = failure->free_bytes;
        if (failure->verdict == VERDICT_QUOTA_EXCEEDED || failure->verdict == VERDICT_OUT_OF_MEMORY)
                ret_error->asked = failure->asked;
        if (failure->verdict == VERDICT_EVENTS_LOST)
                ret_error->oldest = failure->oldest;
        return (int)status;
}

int error_unknown(gpuipc_error *ret_error, const char *name) {
        return error_set(ret_error, GPUIPC_ERROR_PROTOCOL, 0, name,
                         "The daemon answered with the error '%.200s', which this version of the library does not know. "
                         "Is the daemon newer than this program?", name);
}

static enum doctor_code connect_code(int system_errno) {
        switch (system_errno) {
        case ENOENT:
        case ENOTDIR:
                return DOCTOR_NO_SOCKET;
        case ECONNREFUSED:
                return DOCTOR_NOBODY_LISTENS;
        case EACCES:
        case EPERM:
                return DOCTOR_SOCKET_DENIED;
        case EPROTOTYPE:
        case ENOTSOCK:
                return DOCTOR_NOT_A_SOCKET;
        case ETIMEDOUT:
                return DOCTOR_DAEMON_SILENT;
        default:
                return DOCTOR_SOCKET_UNREACHABLE;
        }
}

static const char *connect_remedy(int system_errno) {
        switch (system_errno) {
        case ENOENT:
        case ENOTDIR:
                return "There is no such socket. Is gpuipcd running? In a container, is the host's directory /run/gpuipcd "
                       "mounted? Another path can be set in $GPUIPC_SOCKET.";
        case ECONNREFUSED:
                return "Nobody listens there. Is gpuipcd running? In a container, mount the directory /run/gpuipcd, not "
                       "the socket: a mounted socket goes stale when the daemon makes it anew.";
        case EACCES:
        case EPERM:
                return "This user may not. The shared socket is open to everyone; the admin socket is for root and the "
                       "group gpuipc-admin.";
        case ENAMETOOLONG:
                return "A socket's path has at most 107 bytes.";
        case EPROTOTYPE:
                return "It is a socket of another type. Is the path right?";
        case ENOTSOCK:
                return "It is no socket. $GPUIPC_SOCKET, if set, is the path of the socket itself, not of its directory.";
        case ETIMEDOUT:
                return "The daemon accepts no connection in time: it is stopped, stuck or overrun.";
        case EMFILE:
        case ENFILE:
                return "No descriptor is free: close some or raise the limit (ulimit -n).";
        default:
                return "";
        }
}

/* A directory or a file refuses connections as a socket does that nobody listens at. */
static int connect_cause(int system_errno, const char *path) {
        struct stat st;

        return system_errno == ECONNREFUSED && stat(path, &st) == 0 && !S_ISSOCK(st.st_mode) ? ENOTSOCK : system_errno;
}

int error_connect(gpuipc_error *ret_error, int system_errno, const char *path) {
        int cause = connect_cause(system_errno, path);
        const char *remedy = connect_remedy(cause);

        return error_set(ret_error, GPUIPC_ERROR_UNREACHABLE, system_errno, path, "Cannot connect to %s: %s.%s%s [%s]",
                         path, strerrordesc_np(system_errno), remedy[0] ? " " : "", remedy,
                         doctor_code_id(connect_code(cause)));
}
