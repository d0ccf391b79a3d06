/* SPDX-License-Identifier: Apache-2.0 */
/* Where this process runs: on the host or in a container, and on what kind of machine. */
#ifndef DOCTOR_PLACE_H
#define DOCTOR_PLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum platform {
        PLATFORM_PLAIN,
        PLATFORM_WSL,
        PLATFORM_TEGRA,
};

/* `root` stands before each path that is looked at: "" but in tests. */

enum platform place_platform(const char *root);

/* By namespaces that are not the host's, and by what engines leave in a container. */
bool place_is_container(const char *root);

/* The first bytes of a file, ended by a NUL; -1: it cannot be read. */
ssize_t place_read(const char *root, const char *path, char *ret, size_t n);

bool place_has(const char *root, const char *path);

#endif
