/* SPDX-License-Identifier: Apache-2.0 */
/* Composes top's page: a line about the daemon, rates, a bar for each device, then who holds most. */
#include "look.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "print.h"
#include "proto/cleanup.h"

#define COLOR_TITLE "\033[1m"
#define COLOR_LIVE "\033[32m"
#define COLOR_DRAINING "\033[33m"
#define COLOR_OTHERS "\033[2m"
#define COLOR_HEADING "\033[7m"
#define COLOR_NONE "\033[0m"

struct look {
        const struct look_style *style;
        struct bytes *out;
        int n_lines;
};

void look_rates_clear(struct look_rates *rates) {
        channels_deinit(&rates->channels);
        *rates = (struct look_rates){ 0 };
}

void look_count(struct look_rates *rates, const gpuipc_event_info *event) {
        const char *kind = event->kind ? event->kind : "";

        if (strcmp(kind, "created") == 0) {
                rates->created++;
                rates->bytes += event->buffer && event->buffer->allocated > 0 ? event->buffer->allocated : 0;
        } else if (strcmp(kind, "opened") == 0) {
                rates->opened++;
        } else if (strcmp(kind, "released") == 0) {
                rates->released++;
        } else if (strcmp(kind, "freed") == 0) {
                rates->freed++;
        }
}

static void color_put(struct look *look, const char *color) {
        if (look->style->color)
                bytes_append_str(look->out, color);
}

/* Appends one line, cut at the right edge. */
static void line_put(struct look *look, const char *text) {
        size_t n = look->style->columns > 0 ? print_prefix(text, look->style->columns) : strlen(text);

        bytes_append(look->out, text, n);
        bytes_append_char(look->out, '\n');
        look->n_lines++;
}

static void title_put(struct look *look, const gpuipc_status_info *status) {
        struct bytes version = { 0 };
        char line[256], age[PRINT_MAX], clock[PRINT_MAX];

        print_escaped(&version, status->version ? status->version : "-");
        bytes_append_char(&version, 0);
        print_age(age, status->uptime_usec);
        print_clock(clock, print_now_usec());
        clock[8] = 0; /* whole seconds */
        (void)snprintf(line, sizeof(line),
                       "%s  gpuipcd %s  up %s  %" PRId64 " buffers  %" PRId64 " leases  %" PRId64 " sessions",
                       clock, version.failed ? "-" : version.data, age, status->buffers, status->leases,
                       status->sessions);
        bytes_deinit(&version);
        color_put(look, COLOR_TITLE);
        line_put(look, line);
        color_put(look, COLOR_NONE);
}

static void rates_put(struct look *look, const struct look_rates *rates, int64_t now_usec) {
        double seconds = (double)(now_usec - rates->since_usec) / 1e6;
        char line[256], bytes[PRINT_MAX];

        if (rates->since_usec == 0 || seconds <= 0) {
                line_put(look, "per second  (counting)");
                return;
        }
        print_size(bytes, (int64_t)((double)rates->bytes / seconds));
        (void)snprintf(line, sizeof(line),
                       "per second  %.1f created  %.1f opened  %.1f released  %.1f freed  %s allocated",
                       (double)rates->created / seconds, (double)rates->opened / seconds,
                       (double)rates->released / seconds, (double)rates->freed / seconds, bytes);
        line_put(look, line);
}

/* ---- devices ---------------------------------------------------------------------------------------------- */

static void run_put(struct look *look, const char *color, char c, int n) {
        if (n <= 0)
                return;
        color_put(look, color);
        for (int i = 0; i < n; i++)
                bytes_append_char(look->out, c);
        color_put(look, COLOR_NONE);
}

/* Columns of `bytes`, never none for a part that is there. */
static int share(int64_t bytes, int64_t total, int width) {
        int columns = total > 0 ? (int)(((__int128)bytes * width + total / 2) / total) : 0;

        return bytes > 0 && columns == 0 ? 1 : columns;
}

static void bar_put(struct look *look, const gpuipc_device_info *device, int width) {
        int64_t total = device->total_bytes, used = total - device->free_bytes;
        int64_t live = device->brokered_bytes - device->draining_bytes;
        int64_t spare = device->spare_bytes > 0 ? device->spare_bytes : 0; /* to be had, measured as used as it is */
        int64_t others = used - device->brokered_bytes - spare;
        int draining, ours, rest;

        if (total <= 0) {
                run_put(look, COLOR_OTHERS, '?', width);
                return;
        }
        draining = share(device->draining_bytes, total, width);
        ours = share(live, total, width);
        rest = device->free_bytes >= 0 && others > 0 ? share(others, total, width) : 0;
        draining = draining > width ? width : draining;
        ours = ours > width - draining ? width - draining : ours;
        rest = rest > width - draining - ours ? width - draining - ours : rest;
        run_put(look, COLOR_LIVE, '#', ours);
        run_put(look, COLOR_DRAINING, '%', draining);
        run_put(look, COLOR_OTHERS, ':', rest);
        run_put(look, "", ' ', width - draining - ours - rest);
}

static void device_put(struct look *look, const gpuipc_device_info *device) {
        char name[16], brokered[PRINT_MAX], draining[PRINT_MAX], free_bytes[PRINT_MAX], total[PRINT_MAX],
                line[256];
        int columns = look->style->columns > 0 ? look->style->columns : 120;
        struct bytes escaped = { 0 };
        int width;

        rows_short_device(name, device->uuid);
        print_escaped(&escaped, name);
        bytes_append_char(&escaped, 0);
        print_bytes(brokered, device->brokered_bytes, look->style->exact);
        print_bytes(draining, device->draining_bytes, look->style->exact);
        print_bytes(free_bytes, device->free_bytes, look->style->exact);
        print_bytes(total, device->total_bytes, look->style->exact);
        /* Where there is little room, what is not draining need not be said. */
        (void)snprintf(line, sizeof(line), "%s brokered%s%s%s  %s of %s free%s", brokered,
                       device->draining_bytes > 0 || columns >= 100 ? "  " : "",
                       device->draining_bytes > 0 || columns >= 100 ? draining : "",
                       device->draining_bytes > 0 || columns >= 100 ? " draining" : "", free_bytes, total,
                       device->degraded ? "  DEGRADED" : "");
        width = columns - 12 - 5 - (int)strlen(line);
        width = width > 60 ? 60 : width;
        (void)snprintf(name, sizeof(name), "%-12s", escaped.failed ? "-" : escaped.data);
        bytes_deinit(&escaped);
        bytes_append(look->out, name, columns < 14 ? print_prefix(name, columns) : strlen(name));
        if (width >= 8) {
                bytes_append_str(look->out, " [");
                bar_put(look, device, width);
                bytes_append_str(look->out, "]");
        }
        bytes_append_str(look->out, columns < 14 ? "" : "  ");
        bytes_append(look->out, line, look->style->columns > 0 ? print_prefix(line, columns - 14) : strlen(line));
        bytes_append_char(look->out, '\n');
        look->n_lines++;
}

/* ---- the table -------------------------------------------------------------------------------------------- */

/* Columns have a least width each: where these are too wide together, lines are cut, since one that wraps would push others out. */
static void lines_cut(struct bytes *text, int columns) {
        struct bytes cut = { 0 };

        for (char *line = text->data, *end; (end = memchr(line, '\n', text->n - (size_t)(line - text->data)));
             line = end + 1) {
                *end = 0;
                bytes_append(&cut, line, print_prefix(line, columns));
                bytes_append_char(&cut, '\n');
        }
        bytes_deinit(text);
        *text = cut;
}

/* The headings in reverse, over the whole width. */
static void table_put(struct look *look, const struct rows *rows, size_t max_rows) {
        struct bytes text = { 0 };
        const char *end;
        size_t n;

        table_print(&text, &rows->table, look->style->columns, max_rows);
        if (!text.failed && look->style->columns > 0)
                lines_cut(&text, look->style->columns);
        end = text.failed ? NULL : memchr(text.data, '\n', text.n);
        if (!end) {
                look->out->failed = true;
                bytes_deinit(&text);
                return;
        }
        n = (size_t)(end - text.data);
        color_put(look, COLOR_HEADING);
        bytes_append(look->out, text.data, n);
        for (size_t i = n; look->style->color && i < (size_t)look->style->columns; i++)
                bytes_append_char(look->out, ' ');
        color_put(look, COLOR_NONE);
        bytes_append(look->out, end, text.n - n);
        bytes_deinit(&text);
}

static void body_put(struct look *look, struct rows *rows) {
        size_t max_rows = SIZE_MAX;
        char line[64];

        /* The empty line, the headings, and perhaps the line about what is not shown. */
        if (look->style->lines > 0) {
                int room = look->style->lines - look->n_lines - 2;

                max_rows = room > 0 ? (size_t)room : 0;
                if (rows->n > max_rows && max_rows > 0)
                        max_rows--;
        }
        table_sort(&rows->table);
        line_put(look, "");
        table_put(look, rows, max_rows);
        if (rows->n <= max_rows || max_rows == 0)
                return;
        (void)snprintf(line, sizeof(line), "and %zu smaller", rows->n - max_rows);
        line_put(look, line);
}

struct look_head {
        struct look *look;
        const struct look_rates *rates;
        int64_t now_usec;
};

static void head_put(const gpuipc_status_info *status, void *data) {
        struct look_head *head = data;

        title_put(head->look, status);
        rates_put(head->look, head->rates, head->now_usec);
        for (size_t i = 0; i < status->n_devices; i++)
                device_put(head->look, &status->devices[i]);
}

static int rows_take(gpuipc_client *client, const struct look_style *style, struct look_rates *rates, struct rows *rows,
                     gpuipc_error *ret_error) {
        switch (style->view) {
        case LOOK_BUFFERS:
                rows_init_buffers(rows, style->exact);
                return gpuipc_list_buffers(client, NULL, rows_buffer, rows, ret_error);
        case LOOK_CHANNELS:
                return channels_take(client, style->exact, &rates->channels, rows, ret_error);
        default:
                rows_init_leases(rows, style->exact);
                return gpuipc_list(client, NULL, rows_lease, rows, ret_error);
        }
}

int look_take(gpuipc_client *client, const struct look_style *style, struct look_rates *rates, struct bytes *out,
              gpuipc_error *ret_error) {
        _cleanup_rows_ struct rows rows = { 0 };
        struct bytes text = { 0 };
        struct look look = { style, &text, 0 };
        struct look_head head = { &look, rates, print_now_usec() };
        int r;

        r = gpuipc_get_status(client, head_put, &head, ret_error);
        if (r == GPUIPC_OK)
                r = rows_take(client, style, rates, &rows, ret_error);
        if (r == GPUIPC_OK) {
                body_put(&look, &rows);
                if (text.failed)
                        out->failed = true;
                else
                        bytes_append(out, text.data, text.n);
                *rates = (struct look_rates){ .since_usec = head.now_usec, .channels = rates->channels };
        }
        bytes_deinit(&text);
        return r;
}
