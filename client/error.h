/* SPDX-License-Identifier: Apache-2.0 */
/* Filling a gpuipc_error. Each returns the status, so that a caller can return it in one line; a NULL `ret_error` is
 * allowed. */
#ifndef CLIENT_ERROR_H
#define CLIENT_ERROR_H

#include "include/gpuipc.h"
#include "proto/schema.h"
#include "proto/verdict.h"

/* One of the library's own errors. `subject` may be NULL, `system_errno` 0. */
int error_set(gpuipc_error *ret_error, gpuipc_status status, int system_errno, const char *subject,
              const char *format, ...) __attribute__((format(printf, 5, 6)));

int error_no_memory(gpuipc_error *ret_error);

/* A parameter that the library itself turns down; `want` says what it should be. */
int error_parameter(gpuipc_error *ret_error, const char *parameter, const char *want);

/* The daemon's answer makes no sense; `format` ends the sentence "The daemon's answer makes no sense: …". */
int error_protocol(gpuipc_error *ret_error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The daemon turned the call down. `method` (or N_METHODS) finds the hint for a parameter. */
int error_failure(gpuipc_error *ret_error, enum method method, const struct failure *failure);

/* The daemon turned the call down with an error this library does not know. */
int error_unknown(gpuipc_error *ret_error, const char *name);

/* connect() failed. */
int error_connect(gpuipc_error *ret_error, int system_errno, const char *path);

#endif
