/* SPDX-License-Identifier: Apache-2.0 */
/* doctor: prints findings as they are made, or collects them as JSON; explains a code. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "arguments.h"
#include "client/doctor/advice.h"
#include "client/doctor/doctor.h"
#include "print.h"
#include "proto/codec.h"
#include "report.h"

#define PATIENCE_MS 30000
#define COLUMNS_MAX 80

struct sheet {
        struct bytes json; /* the findings, so far */
        struct bytes failed, warned; /* their codes, each once: " G101, G104" */
        enum doctor_code first;      /* of the failures */
        bool as_json, progress, shown;
        int width;
};

/* ---- text -------------------------------------------------------------------------------------------------- */

/* One paragraph, broken at blanks, every line after the first indented. */
static void wrap(struct bytes *out, const char *text, size_t n, int at, int indent, int width) {
        const char *end = text + n;

        while (text < end) {
                const char *blank = memchr(text, ' ', (size_t)(end - text));
                size_t word = blank ? (size_t)(blank - text) : (size_t)(end - text);
                int columns = print_width(text, word);

                if (at > indent && at + 1 + columns > width) {
                        bytes_append_char(out, '\n');
                        for (at = 0; at < indent; at++)
                                bytes_append_char(out, ' ');
                } else if (at > indent) {
                        bytes_append_char(out, ' ');
                        at++;
                }
                bytes_append(out, text, word);
                at += columns;
                text += word + (blank != NULL);
        }
        bytes_append_char(out, '\n');
}

static void pad(struct bytes *out, int n) {
        while (n-- > 0)
                bytes_append_char(out, ' ');
}

/* Paragraphs as advice() words them, the first after "Fix: "; commands stand as they are. */
static void fix_put(struct bytes *out, const char *fix, int indent, int width) {
        static const char title[] = "Fix: ";
        int at = (int)strlen(title);

        pad(out, indent);
        bytes_append_str(out, title);
        indent += at;
        for (at = indent; *fix; at = 0) {
                size_t n = strcspn(fix, "\n");

                pad(out, indent - at);
                if (fix[0] == ' ') {
                        bytes_append(out, fix, n);
                        bytes_append_char(out, '\n');
                } else {
                        wrap(out, fix, n, indent, indent, width);
                }
                fix += n + (fix[n] != 0);
        }
}

static void out_print(struct bytes *out) {
        bytes_append_char(out, 0);
        (void)fputs(out->failed ? "gpuipcctl: out of memory\n" : out->data, stdout);
        (void)fflush(stdout);
        bytes_deinit(out);
}

static void finding_print(struct sheet *sheet, const struct finding *finding) {
        static const char *const levels[N_FINDING_LEVELS] = { "ok", "note", "WARN", "FAIL" };
        struct bytes out = { 0 }, cause = { 0 };
        char head[64];

        (void)snprintf(head, sizeof(head), "%-4s  %s  ", levels[finding->level], doctor_code_id(finding->code));
        bytes_append_str(&out, head);
        print_escaped(&cause, finding->cause);
        if (!cause.failed)
                wrap(&out, cause.data, cause.n, (int)strlen(head), (int)strlen(head), sheet->width);
        if (finding->fix && finding->level != FINDING_OK)
                fix_put(&out, finding->fix, (int)strlen(head), sheet->width);
        bytes_deinit(&cause);
        out_print(&out);
}

/* ---- JSON -------------------------------------------------------------------------------------------------- */

static void member_put(struct bytes *out, const char *name, const char *text) {
        bytes_append_str(out, name);
        if (text)
                codec_put_string(out, text);
        else
                bytes_append_str(out, "null");
}

static void finding_collect(struct sheet *sheet, const struct finding *finding) {
        struct bytes *out = &sheet->json;

        bytes_append_str(out, out->n > 0 ? "," : "");
        member_put(out, "{\"level\":", finding_level_name(finding->level));
        member_put(out, ",\"code\":", doctor_code_id(finding->code));
        member_put(out, ",\"check\":", finding->check);
        member_put(out, ",\"cause\":", finding->cause);
        member_put(out, ",\"fix\":", finding->fix);
        if (finding->figures) {
                bytes_append_str(out, ",\"figures\":");
                bytes_append_str(out, finding->figures);
        }
        bytes_append_char(out, '}');
}

static int sheet_print(struct sheet *sheet, const struct doctor *doctor, int status) {
        struct bytes out = { 0 };
        char text[160];

        member_put(&out, "{\"version\":", GPUIPC_VERSION);
        member_put(&out, ",\"socket\":", doctor->socket);
        (void)snprintf(text, sizeof(text), ",\"reachable\":%s,\"exit_status\":%d,\"failures\":%zu,\"warnings\":%zu,\"findings\":[",
                       doctor->answers ? "true" : "false", status, doctor->n_found[FINDING_FAIL],
                       doctor->n_found[FINDING_WARN]);
        bytes_append_str(&out, text);
        if (!sheet->json.failed)
                bytes_append(&out, sheet->json.data, sheet->json.n);
        bytes_append_str(&out, "]}\n");
        if (out.failed || sheet->json.failed) {
                bytes_deinit(&out);
                return report_failure("out of memory");
        }
        out_print(&out);
        return report_flush() == EXIT_DONE ? status : EXIT_REFUSED;
}

/* ---- the verb ---------------------------------------------------------------------------------------------- */

static void waiting_clear(struct sheet *sheet) {
        if (sheet->shown)
                (void)fputs("\r\033[K", stderr);
        sheet->shown = false;
}

static void code_collect(struct bytes *codes, enum doctor_code code) {
        const char *id = doctor_code_id(code);

        if (codes->n > 0 && memmem(codes->data, codes->n, id, strlen(id)))
                return;
        bytes_append_str(codes, codes->n > 0 ? ", " : "");
        bytes_append_str(codes, id);
}

static void on_finding(const struct finding *finding, void *data) {
        struct sheet *sheet = data;

        waiting_clear(sheet);
        if (finding->level == FINDING_FAIL && sheet->failed.n == 0)
                sheet->first = finding->code;
        if (finding->level == FINDING_FAIL)
                code_collect(&sheet->failed, finding->code);
        else if (finding->level == FINDING_WARN)
                code_collect(&sheet->warned, finding->code);
        if (sheet->as_json)
                finding_collect(sheet, finding);
        else
                finding_print(sheet, finding);
}

static void on_waiting(const char *what, int64_t waited_ms, void *data) {
        struct sheet *sheet = data;

        if (!what || !sheet->progress) {
                waiting_clear(sheet);
                return;
        }
        if (waited_ms < 1000)
                return;
        (void)fprintf(stderr, "\r\033[Kwaiting for %.60s, %" PRId64 " s", what[0] ? what : "a process", waited_ms / 1000);
        (void)fflush(stderr);
        sheet->shown = true;
}

static int text_width(void) {
        int columns = print_columns(STDOUT_FILENO);

        return columns < 40 || columns > COLUMNS_MAX ? COLUMNS_MAX : columns;
}

static int explain(const struct arguments *arguments) {
        struct bytes out = { 0 };
        enum doctor_code code;
        const char *fix;
        char what[128];

        if (!advice_find(arguments->operands[0], &code))
                return report_usage(arguments->verb, "there is no code \"%s\"; gpuipcctl(1) lists them", arguments->operands[0]);
        fix = advice(code);
        (void)snprintf(what, sizeof(what), "%s.", doctor_code_what(code));
        what[0] = (char)toupper((unsigned char)what[0]);
        bytes_append_str(&out, doctor_code_id(code));
        bytes_append_str(&out, "  ");
        wrap(&out, what, strlen(what), 6, 6, text_width());
        if (fix)
                fix_put(&out, fix, 6, text_width());
        out_print(&out);
        return report_flush();
}

static const char *plural(size_t n) {
        return n == 1 ? "" : "s";
}

/* " (G101, G104)" */
static void codes_put(struct bytes *out, const struct bytes *codes) {
        if (codes->n == 0 || codes->failed)
                return;
        bytes_append_str(out, " (");
        bytes_append(out, codes->data, codes->n);
        bytes_append_char(out, ')');
}

static void verdict_print(const struct sheet *sheet, const struct doctor *doctor) {
        size_t failures = doctor->n_found[FINDING_FAIL], warnings = doctor->n_found[FINDING_WARN];
        struct bytes text = { 0 }, out = { 0 };
        char part[64];

        if (failures + warnings == 0) {
                (void)printf("\nAll is well%s.\n", doctor_daemon_has_gpu(doctor) ? "" : ", for host memory: the daemon has no GPU");
                return;
        }
        (void)snprintf(part, sizeof(part), "%zu failure%s", failures, plural(failures));
        bytes_append_str(&text, part);
        codes_put(&text, &sheet->failed);
        (void)snprintf(part, sizeof(part), ", %zu warning%s", warnings, plural(warnings));
        bytes_append_str(&text, part);
        codes_put(&text, &sheet->warned);
        (void)snprintf(part, sizeof(part), ". Cure %s first, then run doctor again.", doctor_code_id(sheet->first));
        bytes_append_str(&text, failures > 0 ? part : ".");
        bytes_append_char(&out, '\n');
        if (!text.failed)
                wrap(&out, text.data, text.n, 0, 0, sheet->width);
        bytes_deinit(&text);
        out_print(&out);
}

int verb_doctor(const struct arguments *arguments) {
        struct sheet sheet = { .as_json = arguments_has(arguments, OPTION_JSON), .width = text_width() };
        struct doctor_options options = { .socket = arguments->values[OPTION_SOCKET], .patience_ms = PATIENCE_MS,
                                          .found = on_finding, .waiting = on_waiting, .data = &sheet };
        struct doctor doctor;
        int64_t patience_ms = PATIENCE_MS;
        int status;

        if (arguments->n_operands > 0)
                return explain(arguments);
        if (arguments_duration(arguments, OPTION_WAIT, &patience_ms) != EXIT_DONE)
                return EXIT_BAD_USAGE;
        if (patience_ms < 1 || patience_ms > INT32_MAX)
                return report_usage(arguments->verb, "--wait \"%s\": give at least 1ms and at most 24d",
                                    arguments->values[OPTION_WAIT]);
        options.patience_ms = (int)patience_ms;
        sheet.progress = isatty(STDERR_FILENO) && isatty(STDOUT_FILENO);
        doctor_run(&doctor, &options);
        status = !doctor.answers ? EXIT_NO_DAEMON : doctor.n_found[FINDING_FAIL] > 0 ? EXIT_REFUSED : EXIT_DONE;
        if (sheet.as_json)
                status = sheet_print(&sheet, &doctor, status);
        else
                verdict_print(&sheet, &doctor);
        bytes_deinit(&sheet.json);
        bytes_deinit(&sheet.failed);
        bytes_deinit(&sheet.warned);
        return report_flush() == EXIT_DONE ? status : EXIT_REFUSED;
}
