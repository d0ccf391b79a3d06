/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the driver itself sees to it that new memory reads zero, found without a context. */
#ifndef DAEMON_CUDA_ZEROED_H
#define DAEMON_CUDA_ZEROED_H

#include "cuda_api.h"
#include "cuda_nvml.h"

#define CUDA_PARAMS_FILE "/proc/driver/nvidia/params"
#define CUDA_PARAMS_VARIABLE "GPUIPC_NVIDIA_PARAMS" /* another file, where /proc does not show that one */

/* NULL when the driver's scrubbing of freed memory is in force on this device; else why one cannot count on it, a static string. In
 * doubt it is not. May block. */
const char *cuda_zeroed_doubt(const struct cuda_api *api, CUdevice device, const struct cuda_gauge *gauge, const char *params_file);

/* The part of it that reads the driver's parameters. */
const char *cuda_params_doubt(const char *params_file);

#endif
