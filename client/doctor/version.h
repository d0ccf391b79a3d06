/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's version, as its kernel module and its library's file name tell it. */
#ifndef DOCTOR_VERSION_H
#define DOCTOR_VERSION_H

#include <stdbool.h>
#include <stddef.h>

/* "580.159.04" of the text of /proc/driver/nvidia/version; false: there is none in it. */
bool version_of_module(const char *text, char *ret, size_t n);

/* "580.159.04" of libcuda.so.580.159.04; NULL when the file is not called so. Points into `path`. */
const char *version_of_library(const char *path);

#endif
