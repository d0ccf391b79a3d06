/* SPDX-License-Identifier: Apache-2.0 */
/* The device nodes of NVIDIA's driver: what is missing, and what this process may not open. Where they explain why CUDA does not start,
 * they are told of in its place; where it starts, or nobody wants it, they are not asked for. Opens and closes them, nothing else. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doctor.h"
#include "path.h"

#define CHECK "nodes"
#define CHECK_DRIVER "driver" /* whose finding it is where the nodes are well */

struct nodes {
        char missing[128];
        char closed[64];
        int closed_errno;
        size_t n_gpus, n_open;
};

static void node_look(struct nodes *nodes, const char *root, const char *name) {
        char path[280], whole[PATH_MAX];
        int fd;

        (void)snprintf(path, sizeof(path), "/dev/%s", name);
        (void)snprintf(whole, sizeof(whole), "%s%s", root, path);
        fd = open(whole, O_RDWR | O_CLOEXEC | O_NONBLOCK);
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

static void nodes_read(struct nodes *nodes, const char *root) {
        const struct dirent *entry;
        char path[PATH_MAX];
        DIR *dev;

        (void)snprintf(path, sizeof(path), "%s/dev", root);
        dev = opendir(path);
        node_look(nodes, root, "nvidiactl");
        node_look(nodes, root, "nvidia-uvm");
        while (dev && (entry = readdir(dev)))
                if (is_gpu(entry->d_name)) {
                        nodes->n_gpus++;
                        node_look(nodes, root, entry->d_name);
                }
        if (dev)
                (void)closedir(dev);
        if (nodes->n_gpus == 0)
                node_look(nodes, root, "nvidia0");
}

/* Whether the kernel has the driver: some of its nodes are here, its directory is in /proc (if that can be told), or the daemon has a GPU
 * by it. On WSL it is Windows'. */
static bool driver_is_loaded(const struct doctor *doctor, const struct nodes *nodes) {
        return doctor->platform == PLATFORM_WSL || nodes->n_open > 0 || nodes->closed[0] || doctor_daemon_has_gpu(doctor) ||
               !doctor->proc_is_own || place_has(doctor->root, "/proc/driver/nvidia/version");
}

/* " That is why cuInit() says ...", or nothing when that is said already. */
static void consequence(struct doctor *doctor, char ret[300]) {
        ret[0] = 0;
        if (doctor->cuda_unsaid)
                (void)snprintf(ret, 300, " That %s why %s.", doctor->cuda_fault == DOCTOR_NO_GPU ? "is" : "may be",
                               doctor->here.words);
        doctor->cuda_unsaid = false;
}

static void say_closed(struct doctor *doctor, const struct nodes *nodes) {
        char owner[PATH_WORDS_SIZE] = "not to be told", own[PATH_WORDS_SIZE], whole[PATH_MAX], why[300];

        (void)snprintf(whole, sizeof(whole), "%s%s", doctor->root, nodes->closed);
        (void)path_owner_words(whole, owner);
        path_own_words(own);
        consequence(doctor, why);
        doctor_say(doctor, doctor_cuda_level(doctor), DOCTOR_DEVICE_NODE_CLOSED, CHECK,
                   "%s cannot be opened: %s. It is %s; you are %s.%s", nodes->closed, strerror(nodes->closed_errno), owner, own, why);
}

static void say_missing(struct doctor *doctor, const struct nodes *nodes, enum doctor_code code) {
        char why[300];

        consequence(doctor, why);
        if (code == DOCTOR_NO_KERNEL_DRIVER)
                doctor_say(doctor, doctor_cuda_level(doctor), code, CHECK,
                           "There is no /proc/driver/nvidia, and no %s either: the kernel that runs here, the host's, has no NVIDIA "
                           "driver loaded.%s", nodes->missing, why);
        else
                doctor_say(doctor, doctor_cuda_level(doctor), code, CHECK, "Missing: %s.%s", nodes->missing, why);
}

/* The first code they give; N_DOCTOR_CODES: all is well with them. */
static enum doctor_code say(struct doctor *doctor, const struct nodes *nodes) {
        enum doctor_code code = N_DOCTOR_CODES;

        if (nodes->missing[0]) {
                code = driver_is_loaded(doctor, nodes) ? DOCTOR_NO_DEVICE_NODE : DOCTOR_NO_KERNEL_DRIVER;
                say_missing(doctor, nodes, code);
        }
        if (nodes->closed[0]) {
                say_closed(doctor, nodes);
                code = code == N_DOCTOR_CODES ? DOCTOR_DEVICE_NODE_CLOSED : code;
        }
        if (code == N_DOCTOR_CODES)
                doctor_say(doctor, FINDING_OK, DOCTOR_NODES_WELL, CHECK,
                           "/dev/nvidiactl, /dev/nvidia-uvm and %zu of /dev/nvidia0 and so on are there and open.", nodes->n_gpus);
        return code;
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
                return doctor_cuda_level(doctor) > FINDING_NOTE && doctor->platform != PLATFORM_TEGRA;
        default:
                return false;
        }
}

static enum doctor_code look(struct doctor *doctor) {
        struct nodes nodes = { .missing = "" };
        bool troubled;

        if (!nodes_matter(doctor))
                return N_DOCTOR_CODES;
        if (doctor->platform == PLATFORM_PLAIN)
                nodes_read(&nodes, doctor->root);
        else if (place_has(doctor->root, "/dev/dxg"))
                return N_DOCTOR_CODES; /* all there is on WSL */
        else
                (void)strcpy(nodes.missing, "/dev/dxg");
        troubled = nodes.missing[0] || nodes.closed[0];
        /* CUDA working is proof enough. And who has neither library nor nodes was given no GPU: one finding, one remedy. */
        if (troubled && (doctor->here.end == PROBE_DONE ||
                         (doctor->cuda_fault == DOCTOR_NO_DRIVER_LIBRARY && nodes.n_open == 0 && !nodes.closed[0])))
                return N_DOCTOR_CODES;
        return say(doctor, &nodes);
}

void check_nodes(struct doctor *doctor) {
        bool unsaid = doctor->cuda_unsaid;
        enum doctor_code code = look(doctor);

        if (unsaid && code != N_DOCTOR_CODES)
                doctor->cuda_fault = code;
        else if (unsaid)
                doctor_say(doctor, doctor_cuda_level(doctor), doctor->cuda_fault, CHECK_DRIVER, "%s.", doctor->here.words);
        doctor->cuda_unsaid = false;
}
