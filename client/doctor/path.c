/* SPDX-License-Identifier: Apache-2.0 */
/* Looking at a path without touching it. Any thread. Never follows anything but symbolic links. */
#include "path.h"

#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Cuts the last component off; "/" stays. */
static void cut(char *path) {
        char *slash = strrchr(path, '/');

        if (!slash || slash == path)
                (void)strcpy(path, slash ? "/" : ".");
        else
                *slash = 0;
}

void path_deepest(const char *path, char *ret, size_t n) {
        struct stat st;

        (void)snprintf(ret, n, "%s", path);
        while (stat(ret, &st) < 0 && strcmp(ret, "/") != 0 && strcmp(ret, ".") != 0)
                cut(ret);
}

bool path_closed(const char *path, char *ret, size_t n) {
        for (const char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
                size_t length = slash == path ? 1 : (size_t)(slash - path);

                if (length >= n)
                        return false;
                memcpy(ret, path, length);
                ret[length] = 0;
                if (faccessat(AT_FDCWD, ret, X_OK, AT_EACCESS) < 0)
                        return true;
        }
        return false;
}

bool path_owner_words(const char *path, char words[PATH_WORDS_SIZE]) {
        const struct passwd *user;
        const struct group *group;
        char uid[16], gid[16];
        struct stat st;

        if (stat(path, &st) < 0)
                return false;
        user = getpwuid(st.st_uid);
        group = getgrgid(st.st_gid);
        (void)snprintf(uid, sizeof(uid), "%u", (unsigned)st.st_uid);
        (void)snprintf(gid, sizeof(gid), "%u", (unsigned)st.st_gid);
        (void)snprintf(words, PATH_WORDS_SIZE, "%.80s:%.80s, mode %04o", user ? user->pw_name : uid,
                       group ? group->gr_name : gid, (unsigned)st.st_mode & 07777);
        return true;
}

bool path_is_mount(const char *path) {
        struct statx sx;

        return statx(AT_FDCWD, path, 0, STATX_TYPE, &sx) == 0 && sx.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT &&
               sx.stx_attributes & STATX_ATTR_MOUNT_ROOT;
}

bool path_below_mount(const char *path) {
        char part[PATH_MAX];
        struct statx sx;

        if (statx(AT_FDCWD, "/", 0, STATX_TYPE, &sx) < 0 || !(sx.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT))
                return true;
        (void)snprintf(part, sizeof(part), "%s", path);
        for (; strcmp(part, "/") != 0 && strcmp(part, ".") != 0; cut(part))
                if (path_is_mount(part))
                        return true;
        return false;
}

bool path_is_removed(const char *path) {
        struct stat st;

        return stat(path, &st) == 0 && st.st_nlink == 0;
}

void path_own_words(char words[PATH_WORDS_SIZE]) {
        gid_t groups[64];
        int n = getgroups(sizeof(groups) / sizeof(groups[0]), groups);
        int at = snprintf(words, PATH_WORDS_SIZE, "uid %u, gid %u", (unsigned)geteuid(), (unsigned)getegid());

        for (int i = 0; i < n && at < PATH_WORDS_SIZE - 24; i++)
                at += snprintf(words + at, PATH_WORDS_SIZE - (size_t)at, "%s %u", i == 0 ? ", groups" : "",
                               (unsigned)groups[i]);
}
