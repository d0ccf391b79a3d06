/* SPDX-License-Identifier: Apache-2.0 */
/* Platforms on which CUDA shares less. Loads nothing. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "doctor.h"
#include "proto/cleanup.h"

#define CHECK "platform"

static bool file_has(const char *path, const char *word) {
        _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
        char text[1024];
        ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text));

        return n > 0 && memmem(text, (size_t)n, word, strlen(word));
}

void check_platform(struct doctor *doctor) {
        if (file_has("/proc/version", "icrosoft") || access("/dev/dxg", F_OK) == 0)
                doctor_say(doctor, FINDING_NOTE, DOCTOR_WSL, CHECK, "This is Windows Subsystem for Linux.");
        if (access("/etc/nv_tegra_release", F_OK) == 0 ||
            file_has("/sys/firmware/devicetree/base/compatible", "nvidia,tegra"))
                doctor_say(doctor, FINDING_NOTE, DOCTOR_TEGRA, CHECK,
                           "This is a Tegra board: its GPU uses the host's memory.");
}
