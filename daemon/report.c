/* SPDX-License-Identifier: Apache-2.0 */
/* One structured line per request, written by dispatch at its end. Loop thread; never blocks. */
#include "report.h"

#include <inttypes.h>
#include <stdio.h>

#include "clock.h"
#include "log.h"
#include "ops.h"
#include "proto/cleanup.h"

struct report {
        struct log_field fields[8];
        size_t n;
        char uid[16], pid[16], usec[24];
};

static void report_add(struct report *report, const char *key, const char *value) {
        if (value)
                report->fields[report->n++] = (struct log_field){key, value};
}

static void report_fill(struct report *report, const struct request *request) {
        report->n = 0;
        report_add(report, "SESSION", rcstr_text(request->client->id));
        snprintf(report->uid, sizeof(report->uid), "%u", (unsigned)request->client->peer.principal.uid);
        report_add(report, "UID", report->uid);
        snprintf(report->pid, sizeof(report->pid), "%d", (int)request->holder->pid);
        report_add(report, "PID", report->pid);
        report_add(report, "COMMAND", rcstr_text(request->holder->command));
        snprintf(report->usec, sizeof(report->usec), "%" PRIu64, clock_monotonic_usec() - request->started_usec);
        report_add(report, "USEC", report->usec);
}

void report_done(const struct request *request) {
        struct report report;

        if (!log_wants(request->op->log_level))
                return;
        report_fill(&report, request);
        if (request->pinned)
                report_add(&report, "BUFFER", rcstr_text(request->buffer->id));
        log_line(request->op->log_level, MESSAGE_REQUEST, report.fields, report.n, "%s",
                 method_schemas[request->op->method].name);
}

/* Whether those who watch care: the client was turned down, not merely mistaken. */
static bool report_is_refusal(enum verdict verdict) {
        switch (verdict) {
        case VERDICT_ACCESS_DENIED:
        case VERDICT_QUOTA_EXCEEDED:
        case VERDICT_OUT_OF_MEMORY:
        case VERDICT_DEVICE_DEGRADED:
        case VERDICT_TOO_MANY_REQUESTS:
        case VERDICT_TIMED_OUT:
                return true;
        default:
                return false;
        }
}

void report_refused(struct request *request) {
        const struct failure *failure = &request->failure;
        struct report report;

        /* What is turned away because the daemon stops is no event: nobody is left to see it, and watches that come back would be told
         * that they missed one. */
        if (report_is_refusal(failure->verdict) && !request->house->stopping)
                registry_refused(request_registry(request), NULL, clock_real_usec());
        if (!log_wants(LOG_INFO))
                return;
        report_fill(&report, request);
        report_add(&report, "ERROR", verdict_error_name(failure->verdict));
        report_add(&report, "SUBJECT", failure->subject[0] ? failure->subject : NULL);
        log_line(LOG_INFO, MESSAGE_REFUSED, report.fields, report.n, "%s refused: %s",
                 request->op ? method_schemas[request->op->method].name : "unknown method",
                 failure->reason[0] ? failure->reason : verdict_sentence(failure->verdict));
}
