/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at files that tell where one is. Any thread. Loads and changes nothing. */
#include "place.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/cleanup.h"

static const char *join(char path[PATH_MAX], const char *root, const char *end) {
        (void)snprintf(path, PATH_MAX, "%s%s", root, end);
        return path;
}

bool place_has(const char *root, const char *path) {
        char whole[PATH_MAX];

        return access(join(whole, root, path), F_OK) == 0;
}

ssize_t place_read(const char *root, const char *path, char *ret, size_t n) {
        char whole[PATH_MAX];
        _cleanup_fd_ int fd = open(join(whole, root, path), O_RDONLY | O_CLOEXEC);
        ssize_t length = fd < 0 ? -1 : read(fd, ret, n - 1);

        ret[length > 0 ? length : 0] = 0;
        return length;
}

static bool file_has(const char *root, const char *path, const char *word) {
        char text[1024];
        ssize_t n = place_read(root, path, text, sizeof(text));

        return n > 0 && memmem(text, (size_t)n, word, strlen(word));
}

enum platform place_platform(const char *root) {
        if (file_has(root, "/proc/version", "icrosoft") || place_has(root, "/dev/dxg"))
                return PLATFORM_WSL;
        if (place_has(root, "/etc/nv_tegra_release") ||
            file_has(root, "/sys/firmware/devicetree/base/compatible", "nvidia,tegra"))
                return PLATFORM_TEGRA;
        return PLATFORM_PLAIN;
}

/* Whether a namespace is not the one the kernel booted with, whose number is fixed (linux/proc_ns.h). */
static bool namespace_is_own(const char *root, const char *name, unsigned long first) {
        char path[PATH_MAX], end[32], text[64];
        unsigned long inode;
        ssize_t n;

        (void)snprintf(end, sizeof(end), "/proc/self/ns/%s", name);
        n = readlink(join(path, root, end), text, sizeof(text) - 1);
        text[n > 0 ? n : 0] = 0;
        return strchr(text, '[') && sscanf(strchr(text, '['), "[%lu]", &inode) == 1 && inode != first;
}

bool place_is_container(const char *root) {
        if (namespace_is_own(root, "pid", 0xEFFFFFFC))
                return true;
        /* With --pid=host it has others. A machine that was made from an image has the files, too, and no such namespace. */
        return (place_has(root, "/.dockerenv") || place_has(root, "/run/.containerenv")) &&
               (namespace_is_own(root, "uts", 0xEFFFFFFE) || namespace_is_own(root, "ipc", 0xEFFFFFFF));
}
