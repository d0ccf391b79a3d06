/* SPDX-License-Identifier: Apache-2.0 */
/* The device nodes of NVIDIA's driver: what is missing, and what this process may not open. They explain why CUDA does not start; where it
 * does, they are not asked for; nor where nobody wants them. Opens and closes them, nothing else. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doctor.h"
#include "path.h"

#define CHECK "nodes"

struct nodes {
        char missing[128];
        char closed[64];
        int closed_errno;
        size_t n_gpus, n_open;
};

static void node_look(struct nodes *nodes, const char *name) {
        char path[280];
        int fd;

        (void)snprintf(path, sizeof(path), "/dev/%s", name);
        fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
        if (fd >= 0) {
                (void)close(fd);
                nodes->n_open++;
        } else if (errno == ENOENT) {
                size_t n = strlen(nodes->missing);
                (void)snprintf(nodes->missing + n, sizeof(nodes->missing) - n, "%s%s", n > 0 ? ", " : "", path);
        } else if (!nodes->closed[0]) {
                nodes->closed_errno = errno;
                (void)snprintf(nodes->closed, sizeof(nodes->closed), "%.63s", path);
        }
}

/* nvidia0, nvidia1 and so on. */
static bool is_gpu(const char *name) {
        return strncmp(name, "nvidia", 6) == 0 && name[6] && strspn(name + 6, "0123456789") == strlen(name + 6);
}

static void nodes_read(struct nodes *nodes) {
        const struct dirent *entry;
        DIR *dev = opendir("/dev");

        node_look(nodes, "nvidiactl");
        node_look(nodes, "nvidia-uvm");
        while (dev && (entry = readdir(dev)))
                if (is_gpu(entry->d_name)) {
                        nodes->n_gpus++;
                        node_look(nodes, entry->d_name);
                }
        if (dev)
                (void)closedir(dev);
        if (nodes->n_gpus == 0)
                node_look(nodes, "nvidia0");
}

static void say(struct doctor *doctor, const struct nodes *nodes) {
        enum finding_level level = doctor_cuda_level(doctor);
        bool loaded = access("/proc/driver/nvidia/version", F_OK) == 0;
        char owner[PATH_WORDS_SIZE] = "", own[PATH_WORDS_SIZE];

        if (nodes->closed[0]) {
                (void)path_owner_words(nodes->closed, owner);
                path_own_words(own);
                doctor_say(doctor, level, DOCTOR_DEVICE_NODE_CLOSED, CHECK, "%s cannot be opened: %s. It is %s; you are %s.",
                           nodes->closed, strerror(nodes->closed_errno), owner, own);
        }
        if (nodes->missing[0] && (loaded || nodes->n_open > 0 || nodes->closed[0]))
                doctor_say(doctor, level, DOCTOR_NO_DEVICE_NODE, CHECK, "Missing: %s.", nodes->missing);
        else if (nodes->missing[0] && doctor->proc_is_own)
                doctor_say(doctor, level, DOCTOR_NO_KERNEL_DRIVER, CHECK,
                           "There is no /proc/driver/nvidia, and no %s either: the kernel that runs here, the host's, has no NVIDIA "
                           "driver loaded.", nodes->missing);
        else if (nodes->missing[0])
                doctor_say(doctor, level, DOCTOR_NO_DEVICE_NODE, CHECK, "Missing: %s.", nodes->missing);
        else if (!nodes->closed[0])
                doctor_say(doctor, FINDING_OK, DOCTOR_NODES_WELL, CHECK,
                           "/dev/nvidiactl, /dev/nvidia-uvm and %zu of /dev/nvidia0 and so on are there and open.", nodes->n_gpus);
}

/* Where another cause is known, they would only distract. */
static bool nodes_matter(const struct doctor *doctor) {
        switch (doctor->cuda_fault) {
        case N_DOCTOR_CODES:
        case DOCTOR_NO_DRIVER_LIBRARY:
        case DOCTOR_NO_GPU:
        case DOCTOR_DRIVER_INIT:
        case DOCTOR_DRIVER_HANGS:
        case DOCTOR_DRIVER_CRASHES:
                return doctor_cuda_level(doctor) > FINDING_NOTE;
        default:
                return false;
        }
}

void check_nodes(struct doctor *doctor) {
        struct nodes nodes = { .missing = "" };

        if (!nodes_matter(doctor))
                return;
        nodes_read(&nodes);
        /* WSL and Tegra have others, and CUDA working is proof enough. */
        if (doctor->here.end == PROBE_DONE && (nodes.missing[0] || nodes.closed[0]))
                return;
        say(doctor, &nodes);
}
