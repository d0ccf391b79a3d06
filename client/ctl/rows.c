/* SPDX-License-Identifier: Apache-2.0 */
/* Turns the library's infos into cells. Everything that came from elsewhere is escaped by the table. */
#include "rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "print.h"
#include "proto/cleanup.h"
#include "report.h"

/* clang-format off: rows of tables */
static const struct table_column lease_columns[] = {
        { "LEASE", false, 0, 0 }, { "BUFFER", false, 0, 0 },  { "NAME", false, 8, 0 },      { "SIZE", true, 0, 0 },
        { "DEV", false, 4, 4 },   { "ACC", false, 0, 2 },     { "STATE", false, 0, 1 },     { "PID", true, 0, 0 },
        { "UID", true, 0, 0 },    { "COMMAND", false, 7, 0 }, { "CONTAINER", false, 9, 3 }, { "AGE", true, 0, 0 },
        { "LABEL", false, 5, 5 },
};

static const struct table_column buffer_columns[] = {
        { "BUFFER", false, 0, 0 }, { "NAME", false, 8, 0 },  { "SIZE", true, 0, 0 },   { "DEV", false, 4, 4 },
        { "HANDLE", false, 0, 5 }, { "MODE", false, 0, 3 },  { "STATE", false, 0, 0 }, { "OWNER", true, 0, 0 },
        { "CHARGED", true, 0, 2 }, { "LEASES", true, 0, 0 }, { "AGE", true, 0, 0 },
};

static const struct table_column channel_columns[] = {
        { "CHANNEL", false, 0, 0 }, { "NAME", false, 8, 0 },   { "DEV", false, 4, 5 },     { "KIND", false, 0, 0 },
        { "SLOTS", true, 0, 0 },    { "SLOT", true, 0, 4 },    { "DEPTH", true, 0, 0 },    { "ITEMS/S", true, 0, 0 },
        { "BYTES/S", true, 0, 0 },  { "PROD", true, 0, 0 },    { "CONS", true, 0, 0 },     { "DROPPED", true, 0, 2 },
        { "BROKEN", true, 0, 3 },   { "LAGS", false, 8, 0 },
};

static const struct table_column device_columns[] = {
        { "DEVICE", false, 12, 0 }, { "NAME", false, 6, 3 },    { "KIND", false, 0, 4 },
        { "TOTAL", true, 0, 0 },    { "FREE", true, 0, 0 },     { "BROKERED", true, 0, 0 },
        { "DRAINING", true, 0, 0 }, { "SPARE", true, 0, 5 },    { "HANDLES", false, 7, 2 },
        { "ZEROED", false, 0, 1 },  { "STATE", false, 0, 0 },
};
/* clang-format on */

static void rows_init(struct rows *rows, const struct table_column *columns, size_t n, bool exact) {
        *rows = (struct rows){ .now_usec = print_now_usec(), .exact = exact };
        table_init(&rows->table, columns, n);
}

void rows_init_leases(struct rows *rows, bool exact) {
        rows_init(rows, lease_columns, ELEMENTSOF(lease_columns), exact);
}

void rows_init_buffers(struct rows *rows, bool exact) {
        rows_init(rows, buffer_columns, ELEMENTSOF(buffer_columns), exact);
}

void rows_init_channels(struct rows *rows, bool exact) {
        rows_init(rows, channel_columns, ELEMENTSOF(channel_columns), exact);
}

void rows_init_devices(struct rows *rows, bool exact) {
        rows_init(rows, device_columns, ELEMENTSOF(device_columns), exact);
}

void rows_size_put(struct rows *rows, int64_t bytes) {
        char text[PRINT_MAX];

        print_bytes(text, bytes, rows->exact);
        table_text(&rows->table, text);
}

void rows_number_put(struct rows *rows, int64_t number) {
        if (number < 0)
                table_text(&rows->table, NULL);
        else
                table_format(&rows->table, "%" PRId64, number);
}

static void age_put(struct rows *rows, int64_t since_usec) {
        char text[PRINT_MAX];
        int64_t age = rows->now_usec - since_usec;

        print_age(text, since_usec < 0 ? -1 : age < 0 ? 0 : age);
        table_text(&rows->table, text);
}

/* The driver's UUIDs are told apart by their first eight digits, containers by their first twelve. */
void rows_short_device(char ret[16], const char *uuid) {
        bool is_uuid = uuid && (strncmp(uuid, "GPU-", 4) == 0 || strncmp(uuid, "MIG-", 4) == 0);

        (void)snprintf(ret, 16, "%.*s", is_uuid ? 12 : 15, uuid ? uuid : "");
}

void rows_device_put(struct rows *rows, const char *uuid) {
        char text[16];

        rows_short_device(text, uuid);
        table_text(&rows->table, text);
}

static void container_put(struct rows *rows, const char *container) {
        char text[13];

        if (!container || strspn(container, "0123456789abcdef") != 64 || container[64]) {
                table_text(&rows->table, container);
                return;
        }
        (void)snprintf(text, sizeof(text), "%.12s", container);
        table_text(&rows->table, text);
}

int rows_lease(const gpuipc_lease_info *lease, void *data) {
        struct rows *rows = data;
        struct table *table = &rows->table;

        table_row(table, lease->size);
        table_text(table, lease->id);
        table_text(table, lease->buffer);
        table_text(table, lease->name);
        rows_size_put(rows, lease->size);
        rows_device_put(rows, lease->device);
        table_text(table, lease->access);
        table_text(table, lease->state);
        if (lease->pid == 0)
                table_text(table, "outside");
        else
                rows_number_put(rows, lease->pid);
        rows_number_put(rows, lease->uid);
        table_text(table, lease->command);
        container_put(rows, lease->container);
        age_put(rows, lease->since_usec);
        table_text(table, lease->label);
        rows->n++;
        return 0;
}

int rows_buffer(const gpuipc_buffer_info *buffer, void *data) {
        struct rows *rows = data;
        struct table *table = &rows->table;

        table_row(table, buffer->allocated);
        table_text(table, buffer->id);
        table_text(table, buffer->name);
        rows_size_put(rows, buffer->size);
        rows_device_put(rows, buffer->device);
        table_text(table, buffer->handle);
        table_format(table, "%.8s%s", buffer->mode ? buffer->mode : "-", buffer->sealed ? "s" : "");
        table_text(table, buffer->state);
        rows_number_put(rows, buffer->owner_uid);
        rows_number_put(rows, buffer->charged_uid);
        rows_number_put(rows, buffer->leases);
        age_put(rows, buffer->created_usec);
        rows->bytes += buffer->allocated > 0 ? buffer->allocated : 0;
        rows->n++;
        return 0;
}

void rows_device(struct rows *rows, const gpuipc_device_info *device) {
        struct table *table = &rows->table;
        struct bytes handles = { 0 };

        table_row(table, 0);
        table_text(table, device->uuid);
        table_text(table, device->name);
        table_text(table, device->kind);
        rows_size_put(rows, device->total_bytes);
        rows_size_put(rows, device->free_bytes);
        rows_size_put(rows, device->brokered_bytes);
        rows_size_put(rows, device->draining_bytes);
        rows_size_put(rows, device->spare_bytes);
        for (size_t i = 0; device->handles && device->handles[i]; i++) {
                bytes_append_str(&handles, i > 0 ? "," : "");
                bytes_append_str(&handles, device->handles[i]);
        }
        bytes_append_char(&handles, 0);
        table_text(table, handles.failed ? NULL : handles.data);
        bytes_deinit(&handles);
        table_text(table, device->zeroed);
        table_text(table, device->degraded ? "degraded" : "ok");
        rows->n++;
}

const char *rows_plural(size_t n) {
        return n == 1 ? "" : "s";
}

int rows_print(struct rows *rows) {
        struct bytes out = { 0 };

        table_print(&out, &rows->table, print_columns(STDOUT_FILENO), SIZE_MAX);
        if (!out.failed)
                (void)fwrite(out.data, 1, out.n, stdout);
        bytes_deinit(&out);
        return out.failed ? report_failure("out of memory") : EXIT_DONE;
}
