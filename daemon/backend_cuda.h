/* SPDX-License-Identifier: Apache-2.0 */
/* NVIDIA GPUs as a backend. Nothing of CUDA itself is needed to include this. */
#ifndef DAEMON_BACKEND_CUDA_H
#define DAEMON_BACKEND_CUDA_H

#include "backend.h"

extern const struct backend backend_cuda;

#define BACKEND_CUDA_PROBE_MS 30000 /* a machine of many GPUs without persistence mode takes its time */

/* Before the probe; the defaults are those of the configuration. */
void backend_cuda_set(enum wipe_choice wipe, uint64_t probe_ms);

/* What the probe has to say to people: why there are no GPUs, or what is amiss with some; "" when nothing is. Static. */
const char *backend_cuda_words(void);

/* Ends what the backend runs by itself. False: the driver hangs in some thread, so the process must not wait for its end;
 * it may be tried again. Harmless without a probe. */
bool backend_cuda_end(void);

#endif
