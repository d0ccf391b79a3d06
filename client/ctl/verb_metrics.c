/* SPDX-License-Identifier: Apache-2.0 */
/* metrics: figures in the text format of Prometheus. Bytes and counts are sums over the lists of buffers and leases, so
 * they are about what the caller may see: everything, for an administrator. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "connect.h"
#include "parse.h"
#include "proto/cleanup.h"
#include "rawjson.h"
#include "report.h"
#include "tally.h"

enum metric {
        METRIC_BUILD,
        METRIC_UPTIME,
        METRIC_SESSIONS,
        METRIC_TOTAL,
        METRIC_FREE,
        METRIC_DEGRADED,
        METRIC_SPARE,
        METRIC_BROKERED,
        METRIC_DRAINING,
        METRIC_BUFFERS,
        METRIC_LEASES,
        METRIC_CHARGED,
        METRIC_LIMIT,
        N_METRICS,
};

static const struct {
        const char *name, *help;
} metrics[N_METRICS] = {
        [METRIC_BUILD] = { "gpuipc_build_info", "The daemon that answers; always 1." },
        [METRIC_UPTIME] = { "gpuipc_uptime_seconds", "Since the daemon started." },
        [METRIC_SESSIONS] = { "gpuipc_sessions", "Connections to the daemon, this one included." },
        [METRIC_TOTAL] = { "gpuipc_device_total_bytes", "What a device has." },
        [METRIC_FREE] = { "gpuipc_device_free_bytes", "What a device has free, whoever uses the rest." },
        [METRIC_DEGRADED] = { "gpuipc_device_degraded", "1 when the device has stopped answering." },
        [METRIC_SPARE] = { "gpuipc_device_spare_bytes", "Made ahead for the next allocation, given back when needed." },
        [METRIC_BROKERED] = { "gpuipc_brokered_bytes", "What buffers take, draining ones included." },
        [METRIC_DRAINING] = { "gpuipc_draining_bytes",
                              "What buffers take whose leases are over but whose holders still live." },
        [METRIC_BUFFERS] = { "gpuipc_buffers", "Buffers." },
        [METRIC_LEASES] = { "gpuipc_leases", "Leases." },
        [METRIC_CHARGED] = { "gpuipc_charged_bytes",
                             "What buffers take, by the user whose quota they count against." },
        [METRIC_LIMIT] = { "gpuipc_limit", "The daemon's limits, by name." },
};

struct sums {
        struct tally tallies[N_METRICS];
};

static void sums_deinit(struct sums *sums) {
        for (size_t i = 0; i < N_METRICS; i++)
                tally_deinit(&sums->tallies[i]);
}

/* Adds under at most two labels; a NULL key ends them. */
static void add(struct sums *sums, enum metric metric, int64_t value, const char *key, const char *text,
                const char *key2, const char *text2) {
        struct bytes labels = { 0 };

        if (key)
                tally_label(&labels, key, text);
        if (key2)
                tally_label(&labels, key2, text2);
        bytes_append_char(&labels, 0);
        if (labels.failed)
                sums->tallies[metric].failed = true;
        else
                tally_add(&sums->tallies[metric], labels.data, value);
        bytes_deinit(&labels);
}

static void limits_add(struct sums *sums, const char *limits) {
        struct rawjson_slice key, value;
        char name[128], text[32];
        int64_t number;

        while (limits && rawjson_next(&limits, &key, &value)) {
                (void)snprintf(name, sizeof(name), "%.*s", (int)(key.n < 127 ? key.n : 127), key.text);
                (void)snprintf(text, sizeof(text), "%.*s", (int)(value.n < 31 ? value.n : 31), value.text);
                if (parse_number(text, &number) == 0)
                        add(sums, METRIC_LIMIT, number, "name", name, NULL, NULL);
        }
}

static void status_add(const gpuipc_status_info *status, void *data) {
        struct sums *sums = data;

        add(sums, METRIC_BUILD, 1, "version", status->version, "backend", status->backend);
        add(sums, METRIC_UPTIME, status->uptime_usec / 1000000, NULL, NULL, NULL, NULL);
        add(sums, METRIC_SESSIONS, status->sessions, NULL, NULL, NULL, NULL);
        add(sums, METRIC_BUFFERS, 0, NULL, NULL, NULL, NULL);
        add(sums, METRIC_LEASES, 0, NULL, NULL, NULL, NULL);
        for (size_t i = 0; i < status->n_devices; i++) {
                const gpuipc_device_info *device = &status->devices[i];

                if (device->total_bytes >= 0)
                        add(sums, METRIC_TOTAL, device->total_bytes, "device", device->uuid, NULL, NULL);
                if (device->free_bytes >= 0)
                        add(sums, METRIC_FREE, device->free_bytes, "device", device->uuid, NULL, NULL);
                add(sums, METRIC_DEGRADED, device->degraded != 0, "device", device->uuid, NULL, NULL);
                if (device->spare_bytes >= 0)
                        add(sums, METRIC_SPARE, device->spare_bytes, "device", device->uuid, NULL, NULL);
                add(sums, METRIC_BROKERED, 0, "device", device->uuid, NULL, NULL);
                add(sums, METRIC_DRAINING, 0, "device", device->uuid, NULL, NULL);
        }
        limits_add(sums, status->limits);
}

static int buffer_add(const gpuipc_buffer_info *buffer, void *data) {
        bool draining = buffer->state && strcmp(buffer->state, "draining") == 0;
        struct sums *sums = data;
        char uid[32];

        (void)snprintf(uid, sizeof(uid), "%" PRId64, buffer->charged_uid);
        add(sums, METRIC_BROKERED, buffer->allocated, "device", buffer->device, NULL, NULL);
        add(sums, METRIC_DRAINING, draining ? buffer->allocated : 0, "device", buffer->device, NULL, NULL);
        add(sums, METRIC_CHARGED, buffer->allocated, "uid", uid, NULL, NULL);
        add(sums, METRIC_BUFFERS, 1, NULL, NULL, NULL, NULL);
        return 0;
}

static int lease_add(const gpuipc_lease_info *lease, void *data) {
        (void)lease;
        add(data, METRIC_LEASES, 1, NULL, NULL, NULL, NULL);
        return 0;
}

int verb_metrics(const struct arguments *arguments) {
        _cleanup_client_ gpuipc_client *client = NULL;
        _cleanup_(sums_deinit) struct sums sums = { 0 };
        struct bytes out = { 0 };
        gpuipc_error error;
        int r = ctl_connect(arguments, 0, &client);

        if (r != EXIT_DONE)
                return r;
        if (gpuipc_get_status(client, status_add, &sums, &error) != GPUIPC_OK ||
            gpuipc_list_buffers(client, NULL, buffer_add, &sums, &error) != GPUIPC_OK ||
            gpuipc_list(client, NULL, lease_add, &sums, &error) != GPUIPC_OK)
                return report_error(&error);
        for (size_t i = 0; i < N_METRICS; i++)
                tally_print(&out, &sums.tallies[i], metrics[i].name, metrics[i].help);
        if (out.failed)
                r = report_failure("out of memory");
        else
                (void)fwrite(out.data, 1, out.n, stdout);
        bytes_deinit(&out);
        return r == EXIT_DONE ? report_flush() : r;
}
