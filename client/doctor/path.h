/* SPDX-License-Identifier: Apache-2.0 */
/* Where a path ends, who may use it, and whether it is a mount of its own. */
#ifndef DOCTOR_PATH_H
#define DOCTOR_PATH_H

#include <stdbool.h>
#include <stddef.h>

#define PATH_WORDS_SIZE 256

/* Copies the deepest part of `path` that is there, the path itself included. "/" at least. */
void path_deepest(const char *path, char *ret, size_t n);

/* Copies the first directory on the way to `path` that may not be searched; false: none. */
bool path_closed(const char *path, char *ret, size_t n);

/* "root:gpuipc-admin, mode 0660"; numbers where there are no names. False: it cannot be told. */
bool path_owner_words(const char *path, char words[PATH_WORDS_SIZE]);

/* Whether something was mounted right at this path. */
bool path_is_mount(const char *path);

/* Whether it or a directory on the way to it, "/" aside, is one. True also where the kernel does not tell. */
bool path_below_mount(const char *path);

/* Whether it was removed where it comes from, and lives on only by its mount. */
bool path_is_removed(const char *path);

/* "uid 1000, gid 1000, groups 27 44". */
void path_own_words(char words[PATH_WORDS_SIZE]);

#endif
