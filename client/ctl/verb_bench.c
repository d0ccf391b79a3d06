/* SPDX-License-Identifier: Apache-2.0 */
/* bench: how fast items get from process to process by channels of the daemon, and by what one would use without, in the same run. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "arguments.h"
#include "connect.h"
#include "print.h"
#include "proto/cleanup.h"
#include "proto/codec.h"
#include "report.h"
#include "table.h"
#include "trial.h"

/* clang-format off: rows of tables */
static const struct table_column columns[] = {
        { "WAY", false, 0, 0 },     { "TO", true, 0, 0 },      { "SIZE", true, 0, 0 },    { "P50", true, 0, 0 },
        { "P99", true, 0, 0 },      { "ITEMS/S", true, 0, 0 }, { "BYTES/S", true, 0, 0 },
};
/* clang-format on */

static const struct line_kind *const single[] = { &line_channel, &line_memory, &line_pipe, &line_socket, NULL };
static const struct line_kind *const several[] = { &line_broadcast, &line_pipe, &line_socket, NULL };
static const size_t sizes[] = { 256, 64 << 10, 4 << 20 };

struct bench {
        const struct arguments *arguments;
        const char *device; /* "host" or a GPU's UUID */
        struct table table;
        struct bytes json;
        bool wants_json, exact;
        int64_t usec;
};

static void json_put(struct bench *bench, const struct trial *trial, const struct trial_result *result) {
        char text[320];

        (void)snprintf(text, sizeof(text),
                       "%s{\"way\":\"%s\",\"receivers\":%d,\"size\":%zu,\"p50_usec\":%.3f,\"p99_usec\":%.3f,\"items_per_second\":%.0f,"
                       "\"device\":", bench->json.n > 1 ? "," : "", trial->kind->name, trial->n_receivers, trial->item_bytes,
                       result->p50_usec, result->p99_usec, result->items);
        bytes_append_str(&bench->json, text);
        codec_put_string(&bench->json, bench->device);
        bytes_append_char(&bench->json, '}');
}

static void row_put(struct bench *bench, const struct trial *trial, const struct trial_result *result) {
        struct table *table = &bench->table;
        char text[PRINT_MAX];

        table_row(table, 0);
        table_text(table, trial->kind->name);
        table_format(table, "%d", trial->n_receivers);
        print_bytes(text, (int64_t)trial->item_bytes, bench->exact);
        table_text(table, text);
        for (int i = 0; i < 2; i++) {
                double usec = i == 0 ? result->p50_usec : result->p99_usec;
                if (usec > 0)
                        table_format(table, "%.1f us", usec);
                else
                        table_text(table, NULL);
        }
        table_format(table, "%.0f", result->items);
        print_bytes(text, (int64_t)(result->items * (double)trial->item_bytes), bench->exact);
        table_text(table, text);
}

static int one(struct bench *bench, const struct line_kind *kind, int n_receivers, size_t size) {
        struct trial trial = { .kind = kind, .socket_path = bench->arguments->values[OPTION_SOCKET], .device = bench->device,
                               .item_bytes = size, .n_receivers = n_receivers, .usec = bench->usec };
        struct trial_result result = { .p50_usec = 0 };
        bool tells = isatty(STDERR_FILENO) && !bench->wants_json;
        int r;

        if (tells)
                fprintf(stderr, "\r\033[K%s, %zu bytes, to %d", kind->name, size, n_receivers);
        r = n_receivers == 1 ? trial_apart(trial_handoff, &trial, &result) : 0;
        if (r == 0)
                r = trial_apart(trial_flow, &trial, &result);
        if (tells)
                fprintf(stderr, "\r\033[K");
        if (r < 0)
                return report_failure("bench: %s: %s", kind->name, result.why);
        if (bench->wants_json)
                json_put(bench, &trial, &result);
        else
                row_put(bench, &trial, &result);
        return EXIT_DONE;
}

static int all(struct bench *bench, size_t size) {
        bool host = strcmp(bench->device, "host") == 0;
        int r = EXIT_DONE;

        for (const struct line_kind *const *kind = host ? single : line_gpu_single; r == EXIT_DONE && *kind; kind++)
                r = one(bench, *kind, 1, size);
        for (const struct line_kind *const *kind = host ? several : line_gpu_several; r == EXIT_DONE && *kind; kind++)
                r = one(bench, *kind, LINE_RECEIVERS_MAX, size);
        return r;
}

static int print(struct bench *bench) {
        struct bytes out = { 0 };

        if (bench->wants_json)
                bytes_append(&out, bench->json.data, bench->json.n);
        else
                table_print(&out, &bench->table, print_columns(STDOUT_FILENO), SIZE_MAX);
        bytes_append_str(&out, bench->wants_json ? "]\n" : "");
        if (!out.failed && !bench->json.failed)
                (void)fwrite(out.data, 1, out.n, stdout);
        else
                (void)report_failure("out of memory");
        bytes_deinit(&out);
        return report_flush();
}

/* Nobody to ask is told at once, and what asks is gone before processes are forked. */
static int check_daemon(const struct arguments *arguments) {
        _cleanup_client_ gpuipc_client *client = NULL;

        return ctl_connect(arguments, 0, &client);
}

int verb_bench(const struct arguments *arguments) {
        struct bench bench = { .arguments = arguments, .wants_json = arguments_has(arguments, OPTION_JSON),
                               .exact = arguments_has(arguments, OPTION_BYTES),
                               .device = arguments_has(arguments, OPTION_DEVICE) ? arguments->values[OPTION_DEVICE] : "host" };
        int64_t size = 0, ms = 300;
        int r;

        if (arguments_size(arguments, OPTION_SIZE, &size) != EXIT_DONE || arguments_duration(arguments, OPTION_DURATION, &ms) != EXIT_DONE)
                return EXIT_BAD_USAGE;
        if (arguments_has(arguments, OPTION_SIZE) && (size < 8 || size > (1 << 30)))
                return report_usage(arguments->verb, "--size is 8 bytes to 1G");
        if (ms < 1 || ms > 60000)
                return report_usage(arguments->verb, "--duration is 1ms to 60s");
        if (strcmp(bench.device, "host") != 0 && !line_gpu_single[0])
                return report_failure("bench: this command was built without CUDA, so --device is host");
        r = check_daemon(arguments);
        if (r != EXIT_DONE)
                return r;
        bench.usec = ms * 1000;
        table_init(&bench.table, columns, ELEMENTSOF(columns));
        bytes_append_str(&bench.json, "[");
        if (arguments_has(arguments, OPTION_SIZE))
                r = all(&bench, (size_t)size / 8 * 8);
        for (size_t i = 0; r == EXIT_DONE && !arguments_has(arguments, OPTION_SIZE) && i < ELEMENTSOF(sizes); i++)
                r = all(&bench, sizes[i]);
        if (r == EXIT_DONE)
                r = print(&bench);
        table_deinit(&bench.table);
        bytes_deinit(&bench.json);
        return r;
}
