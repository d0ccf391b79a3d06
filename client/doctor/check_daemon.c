/* SPDX-License-Identifier: Apache-2.0 */
/* What the daemon tells of itself and its devices, or why it tells nothing. Loads nothing. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "doctor.h"
#include "path.h"

#define CHECK "daemon"

struct status {
        struct doctor_daemon *daemon;
        bool told;
};

static void copy(char *to, size_t n, const char *from) {
        (void)snprintf(to, n, "%s", from ? from : "");
}

static void device_take(struct doctor_daemon *daemon, const gpuipc_device_info *info) {
        struct doctor_device *device = &daemon->devices[daemon->n_devices];

        if (daemon->n_devices >= DOCTOR_DEVICES_MAX)
                return;
        copy(device->uuid, sizeof(device->uuid), info->uuid);
        copy(device->name, sizeof(device->name), info->name);
        copy(device->zeroed, sizeof(device->zeroed), info->zeroed);
        device->cuda = strcmp(info->kind, "cuda") == 0;
        device->degraded = info->degraded;
        for (size_t i = 0; info->handles && info->handles[i] && device->n_handles < DOCTOR_HANDLES_MAX; i++)
                copy(device->handles[device->n_handles++], sizeof(device->handles[0]), info->handles[i]);
        daemon->n_devices++;
}

static void status_take(const gpuipc_status_info *info, void *data) {
        struct status *status = data;

        copy(status->daemon->version, sizeof(status->daemon->version), info->version);
        status->daemon->pid = info->daemon_pid;
        status->daemon->shm_device = info->shm_device;
        for (size_t i = 0; i < info->n_devices; i++)
                device_take(status->daemon, &info->devices[i]);
        status->told = true;
}

static void say_denied(struct doctor *doctor, const gpuipc_error *error) {
        bool overflow = strstr(error->message, "not mapped") || strstr(error->message, "overflow");
        const char *at = strstr(error->message, "uid "); /* the number it knows this user by */
        unsigned uid = (unsigned)geteuid();
        size_t n = strlen(error->message);
        char number[16];

        n -= n > 0 && error->message[n - 1] == '.';
        if (overflow) {
                doctor_say(doctor, FINDING_FAIL, DOCTOR_OVERFLOW_UID, CHECK, "The daemon answers, and does not let you in: %.*s.",
                           (int)n, error->message);
                return;
        }
        if (strstr(error->message, "Isolation=container")) {
                doctor_say(doctor, FINDING_FAIL, DOCTOR_CONTAINER_UNKNOWN, CHECK,
                           "The daemon answers, and does not let you in: %.*s.", (int)strcspn(error->message, ";"), error->message);
                return;
        }
        if (at && sscanf(at, "uid %u", &uid) != 1)
                uid = (unsigned)geteuid();
        (void)snprintf(number, sizeof(number), "%u", uid);
        /* The rest of its words is what the fix says more fully. */
        n = at ? strcspn(error->message, ";") : n;
        doctor_say_with(doctor, FINDING_FAIL, DOCTOR_NOT_ADMITTED, CHECK, "UID", number,
                        "The daemon answers, and does not let you in: %.*s.", (int)n, error->message);
}

static void say_failed(struct doctor *doctor, const gpuipc_error *error) {
        switch (error->status) {
        case GPUIPC_ERROR_ACCESS_DENIED:
                doctor->answers = true;
                say_denied(doctor, error);
                break;
        case GPUIPC_ERROR_QUOTA_EXCEEDED:
        case GPUIPC_ERROR_TOO_MANY_REQUESTS:
                doctor->answers = true;
                doctor_say(doctor, FINDING_FAIL, DOCTOR_TURNED_AWAY, CHECK, "The daemon answers, and turns you away: %s",
                           error->message);
                break;
        case GPUIPC_ERROR_TIMED_OUT:
        case GPUIPC_ERROR_DISCONNECTED:
                doctor_say(doctor, FINDING_FAIL, DOCTOR_DAEMON_SILENT, CHECK,
                           "Something accepts connections at %s, and does not answer: %s", doctor->socket, error->message);
                break;
        default:
                doctor_say(doctor, FINDING_FAIL, DOCTOR_NOT_THE_DAEMON, CHECK, "%s", error->message);
        }
        gpuipc_client_free(doctor->client);
        doctor->client = NULL;
}

static void check_devices_of(struct doctor *doctor) {
        const struct doctor_daemon *daemon = &doctor->daemon;

        for (size_t i = 0; i < daemon->n_devices; i++) {
                const struct doctor_device *device = &daemon->devices[i];
                if (device->degraded)
                        doctor_say(doctor, FINDING_FAIL, DOCTOR_DEVICE_DEGRADED, CHECK,
                                   "The daemon has a device %s (%s) that no longer answers it.", device->uuid, device->name);
                if (strcmp(device->zeroed, "unknown") == 0)
                        doctor_say(doctor, FINDING_NOTE, DOCTOR_NOT_ZEROED, CHECK,
                                   "New memory on %s may show what others left there: the daemon was told not to wipe it.",
                                   device->uuid);
        }
}

void check_daemon(struct doctor *doctor) {
        struct status status = { .daemon = &doctor->daemon };
        gpuipc_error error;

        if (!doctor->client)
                return;
        if (gpuipc_get_status(doctor->client, status_take, &status, &error) != GPUIPC_OK || !status.told) {
                say_failed(doctor, &error);
                return;
        }
        doctor->answers = true;
        doctor_say(doctor, FINDING_OK, DOCTOR_SOCKET_WELL, CHECK, "gpuipcd %s answers at %s, with %zu %s.",
                   doctor->daemon.version, doctor->socket, doctor->daemon.n_devices,
                   doctor->daemon.n_devices == 1 ? "device" : "devices");
        if (path_is_mount(doctor->socket))
                doctor_say(doctor, FINDING_WARN, DOCTOR_SOCKET_FILE_MOUNT, CHECK,
                           "%s is mounted as a file. When the daemon makes its socket anew, this one leads nowhere.",
                           doctor->socket);
        if (strcmp(doctor->daemon.version, GPUIPC_VERSION) != 0)
                doctor_say(doctor, FINDING_NOTE, DOCTOR_OTHER_VERSION, CHECK, "The daemon is %s, this command %s.",
                           doctor->daemon.version, GPUIPC_VERSION);
        check_devices_of(doctor);
}
