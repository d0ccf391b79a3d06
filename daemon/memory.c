/* SPDX-License-Identifier: Apache-2.0 */
/* Memory figures, from /proc/meminfo and the cgroup file systems. Any thread; never blocks for long, never fails loudly. */
#include "memory.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>

#include "proto/cleanup.h"
#include "proto/schema.h"

static void file_closep(FILE **file) {
        if (*file)
                fclose(*file);
}

static FILE *memory_open(const char *root, const char *path) {
        char full[3 * PATH_MAX];

        if (snprintf(full, sizeof(full), "%s%s", root, path) >= (int)sizeof(full))
                return NULL;
        return fopen(full, "re");
}

/* A line "MemTotal:   2048 kB" of /proc/meminfo, in bytes. */
static int64_t memory_info(const char *key) {
        _cleanup_(file_closep) FILE *file = memory_open("", "/proc/meminfo");
        size_t n = strlen(key);
        char line[128];
        long long kib;

        while (file && fgets(line, sizeof(line), file))
                if (strncmp(line, key, n) == 0 && sscanf(line + n, ": %lld kB", &kib) == 1)
                        return kib * 1024;
        return SCHEMA_UNSET;
}

int64_t memory_total_bytes(void) {
        int64_t total = memory_info("MemTotal");
        struct sysinfo info;

        if (total != SCHEMA_UNSET)
                return total;
        if (sysinfo(&info) < 0)
                return SCHEMA_UNSET;
        return (int64_t)info.totalram * info.mem_unit;
}

int64_t memory_available_bytes(void) {
        int64_t available = memory_info("MemAvailable");
        struct sysinfo info;

        if (available != SCHEMA_UNSET)
                return available;
        if (sysinfo(&info) < 0)
                return SCHEMA_UNSET;
        return (int64_t)info.freeram * info.mem_unit;
}

/* Whether a comma-separated list holds "memory". */
static bool memory_among(const char *list) {
        for (; *list; list += strcspn(list, ","), list += *list == ',')
                if (strcspn(list, ",") == strlen("memory") && strncmp(list, "memory", strlen("memory")) == 0)
                        return true;
        return false;
}

/* The path of this process in the hierarchy that counts memory: version 1's "4:memory:/x", else version 2's "0::/x". */
static bool memory_cgroup(const char *root, char ret_path[PATH_MAX], bool *ret_v1) {
        _cleanup_(file_closep) FILE *file = memory_open(root, "/proc/self/cgroup");
        char line[PATH_MAX + 256];
        bool found = false;

        while (file && fgets(line, sizeof(line), file)) {
                char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
                bool v1;

                if (!path)
                        continue;
                *path++ = '\0';
                controllers++;
                path[strcspn(path, "\n")] = '\0';
                v1 = memory_among(controllers);
                if ((!v1 && *controllers) || strlen(path) >= PATH_MAX)
                        continue;
                strcpy(ret_path, path);
                *ret_v1 = v1;
                found = true;
                if (v1)
                        break;
        }
        return found;
}

/* Where that hierarchy is mounted, and which of its directories is the mount's root ("/" but in containers that see a part). */
static bool memory_mount(const char *root, bool v1, char ret_point[PATH_MAX], char ret_top[PATH_MAX]) {
        _cleanup_(file_closep) FILE *file = memory_open(root, "/proc/self/mountinfo");
        char line[4 * PATH_MAX];

        while (file && fgets(line, sizeof(line), file)) {
                char *tail = strstr(line, " - "), type[32], options[1024];

                if (!tail || sscanf(tail, " - %31s %*s %1023s", type, options) != 2)
                        continue;
                if (v1 ? strcmp(type, "cgroup") != 0 || !memory_among(options) : strcmp(type, "cgroup2") != 0)
                        continue;
                if (sscanf(line, "%*s %*s %*s %4095s %4095s", ret_top, ret_point) == 2)
                        return true;
        }
        return false;
}

#define NO_LIMIT (INT64_C(1) << 60) /* version 1 says "none" by a number near 2^63 */

/* The limit in one directory; INT64_MAX when there is none. */
static int64_t memory_limit_at(const char *root, const char *directory, bool v1) {
        char path[2 * PATH_MAX + 32], text[32];
        long long limit;

        snprintf(path, sizeof(path), "%s/%s", directory, v1 ? "memory.limit_in_bytes" : "memory.max");
        _cleanup_(file_closep) FILE *file = memory_open(root, path);
        if (!file || !fgets(text, sizeof(text), file) || sscanf(text, "%lld", &limit) != 1 || limit < 0 || limit >= NO_LIMIT)
                return INT64_MAX;
        return limit;
}

int64_t memory_limit_bytes(const char *root) {
        char path[PATH_MAX], point[PATH_MAX], top[PATH_MAX], directory[2 * PATH_MAX];
        int64_t least = INT64_MAX;
        const char *below = path;
        size_t n;
        bool v1;

        if (!memory_cgroup(root, path, &v1) || !memory_mount(root, v1, point, top))
                return INT64_MAX;
        n = strcmp(top, "/") == 0 ? 0 : strlen(top);
        if (n > 0)
                below = strncmp(path, top, n) == 0 && (path[n] == '/' || !path[n]) ? path + n : "";
        snprintf(directory, sizeof(directory), "%s%s", point, below);

        for (;;) {
                int64_t limit = memory_limit_at(root, directory, v1);

                if (limit < least)
                        least = limit;
                if (strlen(directory) <= strlen(point))
                        return least;
                *strrchr(directory, '/') = '\0';
        }
}

int64_t memory_usable_bytes(void) {
        int64_t total = memory_total_bytes(), limit = memory_limit_bytes("");

        if (total == SCHEMA_UNSET)
                return limit < INT64_MAX ? limit : SCHEMA_UNSET;
        return limit < total ? limit : total;
}
