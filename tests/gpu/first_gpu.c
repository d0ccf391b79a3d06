/* SPDX-License-Identifier: Apache-2.0 */
/* Asks the daemon. Keeps nothing. */
#include "first_gpu.h"

#include <stdio.h>
#include <string.h>

static void note(const gpuipc_status_info *status, void *data) {
        char *uuid = data;

        for (size_t i = 0; i < status->n_devices && !uuid[0]; i++)
                if (strcmp(status->devices[i].kind, "cuda") == 0)
                        snprintf(uuid, FIRST_GPU_SIZE, "%s", status->devices[i].uuid);
}

int first_gpu(gpuipc_client *client, char ret_uuid[FIRST_GPU_SIZE], gpuipc_error *ret_error) {
        ret_uuid[0] = '\0';
        return gpuipc_get_status(client, note, ret_uuid, ret_error);
}
