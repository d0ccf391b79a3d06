/* SPDX-License-Identifier: Apache-2.0 */
/* status: one page about the daemon. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "connect.h"
#include "parse.h"
#include "print.h"
#include "proto/cleanup.h"
#include "proto/schema.h"
#include "rawjson.h"
#include "report.h"
#include "rows.h"
#include "table.h"

struct page {
        struct bytes out;
        const char *socket;
        bool exact;
};

static void line_put(struct bytes *out, const char *title, const char *text) {
        char head[16];

        (void)snprintf(head, sizeof(head), "%-10s", title);
        bytes_append_str(out, head);
        print_escaped(out, text && text[0] ? text : "-");
        bytes_append_char(out, '\n');
}

static void figures_put(struct bytes *out, const gpuipc_status_info *status) {
        char text[128], age[PRINT_MAX];

        print_age(age, status->uptime_usec);
        line_put(out, "uptime", age);
        (void)snprintf(text, sizeof(text), "%" PRId64 " buffers, %" PRId64 " leases, %" PRId64 " sessions",
                       status->buffers, status->leases, status->sessions);
        line_put(out, "now", text);
}

static void features_put(struct bytes *out, const gpuipc_status_info *status) {
        struct bytes text = { 0 };

        for (size_t i = 0; status->features && status->features[i]; i++) {
                bytes_append_str(&text, i > 0 ? ", " : "");
                bytes_append_str(&text, status->features[i]);
        }
        bytes_append_char(&text, 0);
        line_put(out, "features", text.failed ? "" : text.data);
        bytes_deinit(&text);
}

static bool ends_with(const struct rawjson_slice *slice, const char *end) {
        size_t n = strlen(end);

        return slice->n >= n && memcmp(slice->text + slice->n - n, end, n) == 0;
}

static bool contains(const struct rawjson_slice *slice, const char *part) {
        return memmem(slice->text, slice->n, part, strlen(part)) != NULL;
}

/* A limit's value as people read it, by what its name says it counts. */
static void limit_put(struct table *table, const struct rawjson_slice *key, const struct rawjson_slice *value,
                      bool exact) {
        char text[PRINT_MAX], name[128];
        int64_t number;

        (void)snprintf(name, sizeof(name), "%.*s", (int)(key->n < 127 ? key->n : 127), key->text);
        (void)snprintf(text, sizeof(text), "%.*s", (int)(value->n < PRINT_MAX - 1 ? value->n : PRINT_MAX - 1),
                       value->text);
        if (parse_number(text, &number) != 0)
                number = -1;
        if (number == SCHEMA_INT_MAX)
                (void)snprintf(text, sizeof(text), "none");
        else if (number >= 0 && contains(key, "bytes"))
                print_bytes(text, number, exact);
        else if (number >= 0 && ends_with(key, "_ms"))
                print_duration(text, number);
        table_row(table, 0);
        table_text(table, name);
        table_text(table, text);
}

static void limits_put(struct page *page, const char *limits, int width) {
        static const struct table_column columns[] = { { "LIMIT", false, 8, 0 }, { "VALUE", true, 0, 0 } };
        struct rawjson_slice key, value;
        struct table table;

        table_init(&table, columns, ELEMENTSOF(columns));
        while (limits && rawjson_next(&limits, &key, &value))
                limit_put(&table, &key, &value, page->exact);
        if (table.n_rows > 0) {
                bytes_append_char(&page->out, '\n');
                table_print(&page->out, &table, width, SIZE_MAX);
        }
        table_deinit(&table);
}

static void page_fill(const gpuipc_status_info *status, void *data) {
        _cleanup_rows_ struct rows rows = { 0 };
        struct page *page = data;
        int width = print_columns(STDOUT_FILENO);

        line_put(&page->out, "gpuipcd", status->version);
        line_put(&page->out, "backend", status->backend);
        line_put(&page->out, "socket", page->socket);
        figures_put(&page->out, status);
        features_put(&page->out, status);
        bytes_append_char(&page->out, '\n');
        rows_init_devices(&rows, page->exact);
        for (size_t i = 0; i < status->n_devices; i++)
                rows_device(&rows, &status->devices[i]);
        table_print(&page->out, &rows.table, width, SIZE_MAX);
        limits_put(page, status->limits, width);
}

static int page_raw(const char *parameters, void *data) {
        bytes_append_str(data, parameters);
        return 0;
}

int verb_status(const struct arguments *arguments) {
        _cleanup_client_ gpuipc_client *client = NULL;
        struct page page = { .exact = arguments_has(arguments, OPTION_BYTES) };
        bool json = arguments_has(arguments, OPTION_JSON);
        gpuipc_error error;
        int r = ctl_connect(arguments, 0, &client), status;

        if (r != EXIT_DONE)
                return r;
        page.socket = gpuipc_client_socket(client);
        if (json)
                status = gpuipc_call_json(client, "io.gpuipc.Broker.GetStatus", NULL, 0, page_raw, &page.out,
                                          &error);
        else
                status = gpuipc_get_status(client, page_fill, &page, &error);
        if (status != GPUIPC_OK)
                r = report_error(&error);
        else if (json)
                r = rawjson_print(&page.out);
        else if (page.out.failed)
                r = report_failure("out of memory");
        else if (fwrite(page.out.data, 1, page.out.n, stdout) > 0)
                r = report_flush();
        bytes_deinit(&page.out);
        return r;
}
