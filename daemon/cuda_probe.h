/* SPDX-License-Identifier: Apache-2.0 */
/* Which GPUs there are and what they can, asked once, by a thread that may be left behind. */
#ifndef DAEMON_CUDA_PROBE_H
#define DAEMON_CUDA_PROBE_H

#include "cuda_device.h"

struct cuda_machine {
        struct cuda_api api;
        struct cuda_nvml *nvml; /* NULL: there is none */
        struct backend_device **devices;
        size_t n_devices;
};

/* Waits at most `ms`. 0 with at least one device; -ENOENT: no driver library; -ENODEV: no GPU that can be used; -ETIMEDOUT: the driver
 * does not answer, and a thread is left in it; another -errno. `ret_words` says why, or with success what is amiss. */
int cuda_probe(enum wipe_choice wipe, uint64_t ms, struct cuda_machine **ret, char *ret_words, size_t n_words);

/* No device may be in use. The libraries stay loaded. False: a thread hangs in one of them, and what it uses is left to it. */
bool cuda_machine_free(struct cuda_machine *machine);

#endif
