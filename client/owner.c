/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's own uid through the map of its user namespace. Any thread enters. Never keeps anything. */
#include "owner.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/cleanup.h"

#define EVERY_UID 4294967295

int64_t owner_map_uid(const char *text, int64_t uid, bool *ret_sure) {
        *ret_sure = false;
        while (*text) {
                int64_t inside, outside, count;
                if (sscanf(text, "%" SCNd64 " %" SCNd64 " %" SCNd64, &inside, &outside, &count) != 3)
                        break;
                *ret_sure = inside == 0 && outside == 0 && count == EVERY_UID;
                if (uid >= inside && uid - inside < count)
                        return outside + (uid - inside);
                text += strcspn(text, "\n");
                text += *text == '\n';
        }
        return uid;
}

int64_t owner_uid(bool *ret_sure) {
        char text[4096];
        int64_t uid = (int64_t)geteuid();
        _cleanup_fd_ int fd = open("/proc/self/uid_map", O_RDONLY | O_CLOEXEC);
        ssize_t n;

        *ret_sure = false;
        if (fd < 0)
                return uid;
        n = read(fd, text, sizeof(text) - 1);
        if (n <= 0)
                return uid;
        text[n] = '\0';
        return owner_map_uid(text, uid, ret_sure);
}
