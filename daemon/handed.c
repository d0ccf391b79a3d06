/* SPDX-License-Identifier: Apache-2.0 */
/* What came with the start. Main thread, before any other runs: it changes the environment. */
#include "handed.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <systemd/sd-daemon.h>

#include "proto/cleanup.h"

int handed_take(struct handed *ret) {
        char **names = NULL;
        int n = sd_listen_fds_with_names(true, &names);

        *ret = (struct handed){0};
        if (n <= 0)
                return n;
        ret->items = calloc((size_t)n, sizeof(*ret->items));
        if (!ret->items) {
                for (int i = 0; i < n; i++)
                        free(names[i]);
                free(names);
                return -ENOMEM;
        }
        for (int i = 0; i < n; i++)
                ret->items[i] = (struct handed_item){.fd = SD_LISTEN_FDS_START + i, .name = names[i]};
        ret->n = (size_t)n;
        free(names);
        return 0;
}

void handed_deinit(struct handed *handed) {
        for (size_t i = 0; i < handed->n; i++) {
                fd_closep(&handed->items[i].fd);
                free(handed->items[i].name);
        }
        free(handed->items);
        *handed = (struct handed){0};
}
