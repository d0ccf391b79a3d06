/* SPDX-License-Identifier: Apache-2.0 */
/* Finds versions in text. Any thread. Opens nothing. */
#include "version.h"

#include <stdio.h>
#include <string.h>

static bool is_version(const char *word, size_t n) {
        return n > 0 && strspn(word, "0123456789.") >= n && memchr(word, '.', n) && word[0] != '.' && word[n - 1] != '.';
}

/* The line is "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue ..." or, of the open module, "NVRM version: NVIDIA UNIX
 * Open Kernel Module for x86_64  580.159.04  Release Build ...". A word of digits and dots alone is the version; the compiler's stands
 * in another line. */
bool version_of_module(const char *text, char *ret, size_t n) {
        static const char title[] = "NVRM version:";
        const char *at = strstr(text, title), *end;

        if (!at)
                return false;
        end = at + strcspn(at, "\n");
        for (at += strlen(title); at < end; at += strcspn(at, " \t\n")) {
                size_t length;

                at += strspn(at, " \t");
                length = strcspn(at, " \t\n");
                if (is_version(at, length) && length < n) {
                        (void)snprintf(ret, n, "%.*s", (int)length, at);
                        return true;
                }
        }
        return false;
}

const char *version_of_library(const char *path) {
        const char *at = strstr(path, "libcuda.so.");

        if (!at)
                return NULL;
        at += strlen("libcuda.so.");
        return is_version(at, strlen(at)) ? at : NULL;
}
