/* SPDX-License-Identifier: Apache-2.0 */
/* Reads /proc/PID/fd. */
#include "fds.h"

#include <check.h>
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory_kind.h"
#include "wait.h"

#define SETTLE_MS 2000 /* what is left for so long is left for good */

static int by_number(const struct dirent **a, const struct dirent **b) {
        return atoi((*a)->d_name) - atoi((*b)->d_name);
}

static int is_number(const struct dirent *entry) {
        return entry->d_name[0] != '.';
}

struct fds fds_of(pid_t pid) {
        char directory[32], path[64], target[PATH_MAX];
        snprintf(directory, sizeof(directory), "/proc/%d/fd", pid ? pid : getpid());
        struct dirent **entries = NULL;
        int n = scandir(directory, &entries, is_number, by_number);
        ck_assert_msg(n >= 0, "%s cannot be read: %m", directory);
        struct fds fds = { 0 };
        size_t size = 0;
        FILE *stream = open_memstream(&fds.text, &size);
        ck_assert_ptr_nonnull(stream);
        for (int i = 0; i < n; i++) {
                snprintf(path, sizeof(path), "%.31s/%.16s", directory, entries[i]->d_name);
                ssize_t length = readlink(path, target, sizeof(target) - 1);
                /* The directory's own descriptor is gone by now; so may be others of a running process. */
                if (length >= 0) {
                        target[length] = '\0';
                        fprintf(stream, "  %s -> %s\n", entries[i]->d_name, target);
                        fds.n++;
                }
                free(entries[i]);
        }
        free(entries);
        ck_assert_int_eq(fclose(stream), 0);
        return fds;
}

void fds_deinit(struct fds *fds) {
        free(fds->text);
        *fds = (struct fds){ 0 };
}

size_t fds_count(pid_t pid) {
        struct fds fds = fds_of(pid);
        size_t n = fds.n;
        fds_deinit(&fds);
        return n;
}

bool fds_have(pid_t pid, const char *what) {
        struct fds fds = fds_of(pid);
        bool have = strstr(fds.text, what) != NULL;
        fds_deinit(&fds);
        return have;
}

/* A real driver opens descriptors of its own in a process that uses it, and keeps some: growth is measured over many rounds there. */
void fds_assert_same(const struct fds *before, struct fds *after, const char *whose) {
        int64_t deadline = deadline_in(SETTLE_MS);
        unsigned pause_usec = 0;

        if (memory_is_real())
                return;
        while (before->n != after->n && now_ms() < deadline) {
                fds_deinit(after);
                wait_pause(&pause_usec);
                *after = fds_of(0);
        }
        ck_assert_msg(before->n == after->n, "descriptors of %s: %zu before\n%s%zu after\n%s", whose, before->n,
                      before->text, after->n, after->text);
}

void fds_wait_count(pid_t pid, size_t least, size_t most, const char *whose) {
        int64_t deadline = deadline_in(WAIT_MS);
        unsigned pause_usec = 0;
        struct fds fds = fds_of(pid);

        while ((fds.n < least || fds.n > most) && now_ms() < deadline) {
                fds_deinit(&fds);
                wait_pause(&pause_usec);
                fds = fds_of(pid);
        }
        ck_assert_msg(fds.n >= least && fds.n <= most, "descriptors of %s: %zu to %zu expected, %zu found\n%s", whose, least, most, fds.n,
                      fds.text);
        fds_deinit(&fds);
}
