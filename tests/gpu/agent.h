/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the agent share. */
#ifndef GPU_AGENT_H
#define GPU_AGENT_H

#include <stdint.h>

#include <gpuipc.h>

struct agent_command {
        const char *name; /* NULL ends a table */
        int n_words;      /* at least, its own included */
        void (*run)(char **words);
};

extern const struct agent_command agent_channel_commands[];

gpuipc_client *agent_client(void);
void *agent_stream(void);
int64_t agent_now_usec(void);

/* The answers to a command that failed: by the library, by CUDA, by the agent itself. */
void agent_refused(const gpuipc_error *error);
void agent_failed(int result);
void agent_wrong(const char *what);

#endif
