/* SPDX-License-Identifier: Apache-2.0 */
/* A user of libgpuipc and of a GPU that does what it is told: a command a line on standard input, an answer a line on standard
 * output, "ok …" or "error NAME CODE TEXT". Its memory and its context go with its process. One thread. */
#include <dirent.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <cuda_runtime_api.h>
#include <gpuipc.h>

#include "agent.h"
#include "first_gpu.h"
#include "kernels.h"

#define KEYS_MAX 64
#define WORDS_MAX 12
#define MANY_MAX 4096
#define FENCES_MAX 16

struct held {
        char key[32];
        gpuipc_buffer *buffer;
        void *memory; /* NULL: not mapped */
};

static struct {
        gpuipc_client *client;
        struct held held[KEYS_MAX];
        gpuipc_buffer *many[MANY_MAX];
        int n_many;
        struct {
                char name[32];
                gpuipc_fence *fence;
        } fences[FENCES_MAX];
        void *stream;
        char gpu[FIRST_GPU_SIZE]; /* the daemon's first; "": it has none */
} agent;

/* ---- answers ---------------------------------------------------------------------------------------------- */

void agent_refused(const gpuipc_error *error) {
        printf("error %s %s %s\n", error->name, error->code ? error->code : "-", error->message);
}

void agent_failed(int result) {
        printf("error cuda.%d - %s\n", result, cudaGetErrorString((cudaError_t)result));
}

void agent_wrong(const char *what) {
        printf("error agent - %s\n", what);
}

int64_t agent_now_usec(void) {
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

gpuipc_client *agent_client(void) {
        return agent.client;
}

void *agent_stream(void) {
        return agent.stream;
}

/* ---- what is held ----------------------------------------------------------------------------------------- */

static struct held *find(const char *key) {
        for (int i = 0; i < KEYS_MAX; i++)
                if (agent.held[i].buffer && strcmp(agent.held[i].key, key) == 0)
                        return &agent.held[i];
        return NULL;
}

static void keep(const char *key, gpuipc_buffer *buffer) {
        for (int i = 0; i < KEYS_MAX; i++) {
                struct held *held = &agent.held[i];

                if (held->buffer)
                        continue;
                snprintf(held->key, sizeof(held->key), "%s", key);
                held->buffer = buffer;
                held->memory = NULL;
                printf("ok %s %s %s %" PRId64 " %" PRId64 "\n", gpuipc_buffer_id(buffer), gpuipc_buffer_device(buffer),
                       gpuipc_buffer_handle(buffer), gpuipc_buffer_allocated(buffer), gpuipc_buffer_offset(buffer));
                return;
        }
        (void)gpuipc_release(buffer, NULL);
        agent_wrong("too many keys");
}

/* The buffer's memory, with the GPU current that it is mapped for; NULL after an answer. */
static void *memory_of(const char *key, size_t *ret_bytes) {
        struct held *held = find(key);
        cudaError_t result;

        if (!held || !held->memory) {
                agent_wrong("not mapped");
                return NULL;
        }
        result = cudaSetDevice(gpuipc_buffer_cuda_device(held->buffer));
        if (result != cudaSuccess) {
                agent_failed(result);
                return NULL;
        }
        *ret_bytes = (size_t)gpuipc_buffer_size(held->buffer);
        return held->memory;
}

/* ---- commands --------------------------------------------------------------------------------------------- */

static const char *given(char *word) {
        return word && strcmp(word, "-") != 0 ? word : NULL;
}

/* connect SOCKET: the daemon's first GPU, where memory goes when no device is named */
static void do_connect(char **words) {
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_error error;

        options.socket_path = words[1];
        if (gpuipc_connect(&options, &agent.client, &error) != GPUIPC_OK ||
            first_gpu(agent.client, agent.gpu, &error) != GPUIPC_OK)
                agent_refused(&error);
        else
                printf("ok %s\n", agent.gpu);
}

/* A device's name, or the first GPU's. */
static const char *device_given(char *word) {
        return given(word) ? word : agent.gpu[0] ? agent.gpu : NULL;
}

/* device N: makes its context current */
static void do_device(char **words) {
        cudaError_t result = cudaSetDevice(atoi(words[1]));

        if (result == cudaSuccess)
                result = cudaFree(NULL);
        if (result != cudaSuccess)
                agent_failed(result);
        else
                printf("ok\n");
}

/* allocate KEY SIZE HANDLE [DEVICE [NAME [MODE [WAIT_MS]]]] */
static void do_allocate(char **words) {
        gpuipc_allocate_options options = GPUIPC_ALLOCATE_OPTIONS_INIT;
        gpuipc_buffer *buffer;
        gpuipc_error error;

        options.handle = given(words[3]);
        options.device = device_given(words[4]);
        options.name = given(words[5]);
        options.mode = given(words[6]);
        options.wait_ms = words[7] ? atoll(words[7]) : 0;
        if (gpuipc_allocate(agent.client, atoll(words[2]), &options, &buffer, &error) != GPUIPC_OK)
                agent_refused(&error);
        else
                keep(words[1], buffer);
}

static void open_options(gpuipc_open_options *ret, const char *access) {
        *ret = (gpuipc_open_options)GPUIPC_OPEN_OPTIONS_INIT;
        ret->owner = -2;
        ret->access = strcmp(access, "ro") == 0 ? GPUIPC_RO : GPUIPC_RW;
}

/* open KEY NAME rw|ro */
static void do_open(char **words) {
        gpuipc_open_options options;
        gpuipc_buffer *buffer;
        gpuipc_error error;

        open_options(&options, words[3]);
        if (gpuipc_open_name(agent.client, words[2], &options, &buffer, &error) != GPUIPC_OK)
                agent_refused(&error);
        else
                keep(words[1], buffer);
}

/* map KEY: whether over another GPU, and which */
static void do_map(char **words) {
        struct held *held = find(words[1]);
        gpuipc_error error;

        if (!held)
                agent_wrong("no such key");
        else if (gpuipc_buffer_map(held->buffer, &held->memory, &error) != GPUIPC_OK)
                agent_refused(&error);
        else
                printf("ok %d %d\n", gpuipc_buffer_is_peer(held->buffer), gpuipc_buffer_cuda_device(held->buffer));
}

/* release KEY */
static void do_release(char **words) {
        struct held *held = find(words[1]);
        gpuipc_error error;
        int r;

        if (!held) {
                agent_wrong("no such key");
                return;
        }
        r = gpuipc_release(held->buffer, &error);
        *held = (struct held){ .buffer = NULL };
        if (r != GPUIPC_OK)
                agent_refused(&error);
        else
                printf("ok\n");
}

/* fill KEY SEED */
static void do_fill(char **words) {
        size_t n;
        void *memory = memory_of(words[1], &n);
        int r;

        if (!memory)
                return;
        r = kernels_fill(memory, n, strtoull(words[2], NULL, 10));
        if (r != 0)
                agent_failed(r);
        else
                printf("ok\n");
}

/* differ KEY SEED [FIRST], nonzero KEY: how many words */
static void count(char **words, bool pattern) {
        uint64_t found = 0;
        size_t n;
        const void *memory = memory_of(words[1], &n);
        int r;

        if (!memory)
                return;
        r = pattern ? kernels_differ(memory, n, strtoull(words[2], NULL, 10), words[3] ? strtoull(words[3], NULL, 10) : 0, &found)
                    : kernels_nonzero(memory, n, &found);
        if (r != 0)
                agent_failed(r);
        else
                printf("ok %" PRIu64 "\n", found);
}

static void do_differ(char **words) {
        count(words, true);
}

static void do_nonzero(char **words) {
        count(words, false);
}

/* poke KEY */
static void do_poke(char **words) {
        size_t n;
        void *memory = memory_of(words[1], &n);
        int r;

        if (!memory)
                return;
        r = kernels_poke(memory);
        if (r != 0)
                agent_failed(r);
        else
                printf("ok\n");
}

/* rate KEY: bytes a second that this GPU reads */
static void do_rate(char **words) {
        double rate = 0;
        size_t n;
        const void *memory = memory_of(words[1], &n);
        int r;

        if (!memory)
                return;
        r = kernels_read_rate(memory, n, &rate);
        if (r != 0)
                agent_failed(r);
        else
                printf("ok %.0f\n", rate);
}

/* event make; event HEX */
static void do_event(char **words) {
        unsigned char handle[64] = { 0 };
        int r;

        if (strcmp(words[1], "make") == 0) {
                r = kernels_event_make(handle);
                if (r == 0) {
                        printf("ok ");
                        for (size_t i = 0; i < sizeof(handle); i++)
                                printf("%02x", handle[i]);
                        printf("\n");
                        return;
                }
        } else {
                for (size_t i = 0; i < sizeof(handle); i++)
                        if (sscanf(words[1] + 2 * i, "%2hhx", &handle[i]) != 1) {
                                agent_wrong("not 128 hexadecimal digits");
                                return;
                        }
                r = kernels_event_open(handle);
                if (r == 0) {
                        printf("ok\n");
                        return;
                }
        }
        agent_failed(r);
}

/* ---- many of them ----------------------------------------------------------------------------------------- */

static void raise_fd_limit(void) {
        struct rlimit limit;

        if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
                limit.rlim_cur = limit.rlim_max;
                (void)setrlimit(RLIMIT_NOFILE, &limit);
        }
}

static int count_fds(void) {
        DIR *directory = opendir("/proc/self/fd");
        int n = 0;

        while (directory && readdir(directory))
                n++;
        if (directory)
                closedir(directory);
        return n;
}

static long address_space_kb(void) {
        FILE *file = fopen("/proc/self/status", "re");
        char line[256];
        long kb = -1;

        while (file && fgets(line, sizeof(line), file))
                if (sscanf(line, "VmSize: %ld", &kb) == 1)
                        break;
        if (file)
                fclose(file);
        return kb;
}

/* many N SIZE HANDLE: allocated and mapped, all held at once; usec of both */
static void do_many(char **words) {
        gpuipc_allocate_options options = GPUIPC_ALLOCATE_OPTIONS_INIT;
        int64_t allocating = 0, mapping = 0;
        gpuipc_error error;

        raise_fd_limit();
        options.handle = given(words[3]);
        options.device = device_given(NULL);
        while (agent.n_many < atoi(words[1]) && agent.n_many < MANY_MAX) {
                int64_t started = agent_now_usec(), between;
                gpuipc_buffer *buffer;
                void *memory;

                if (gpuipc_allocate(agent.client, atoll(words[2]), &options, &buffer, &error) != GPUIPC_OK) {
                        agent_refused(&error);
                        return;
                }
                agent.many[agent.n_many++] = buffer;
                between = agent_now_usec();
                if (gpuipc_buffer_map(buffer, &memory, &error) != GPUIPC_OK) {
                        agent_refused(&error);
                        return;
                }
                allocating += between - started;
                mapping += agent_now_usec() - between;
        }
        printf("ok %d %" PRId64 " %" PRId64 "\n", agent.n_many, allocating, mapping);
}

/* few: releases them */
static void do_few(char **words) {
        int64_t started = agent_now_usec();
        gpuipc_error error;

        (void)words;
        while (agent.n_many > 0)
                if (gpuipc_release(agent.many[--agent.n_many], &error) != GPUIPC_OK) {
                        agent_refused(&error);
                        return;
                }
        printf("ok %" PRId64 "\n", agent_now_usec() - started);
}

/* cycle N NAME: opened, mapped, released; the usec it took and this process's address space (kB) and descriptors */
static void do_cycle(char **words) {
        int64_t started = agent_now_usec();
        gpuipc_open_options options;
        gpuipc_error error;

        open_options(&options, "rw");
        for (int i = 0; i < atoi(words[1]); i++) {
                gpuipc_buffer *buffer;
                void *memory;

                if (gpuipc_open_name(agent.client, words[2], &options, &buffer, &error) != GPUIPC_OK) {
                        agent_refused(&error);
                        return;
                }
                if (gpuipc_buffer_map(buffer, &memory, &error) != GPUIPC_OK ||
                    gpuipc_release(buffer, &error) != GPUIPC_OK) {
                        agent_refused(&error);
                        return;
                }
        }
        printf("ok %" PRId64 " %ld %d\n", agent_now_usec() - started, address_space_kb(), count_fds());
}

/* ---- fences ----------------------------------------------------------------------------------------------- */

static gpuipc_fence *fence_of(const char *name) {
        for (int i = 0; i < FENCES_MAX; i++)
                if (agent.fences[i].fence && strcmp(agent.fences[i].name, name) == 0)
                        return agent.fences[i].fence;
        return NULL;
}

/* fence NAME KEY OFFSET: whether it is synchronous, and the usec that it took */
static void do_fence(char **words) {
        struct held *held = find(words[2]);
        int64_t started = agent_now_usec();
        gpuipc_fence *fence;
        gpuipc_error error;

        for (int i = 0; held && i < FENCES_MAX; i++) {
                if (agent.fences[i].fence)
                        continue;
                if (gpuipc_fence_new(held->buffer, atoll(words[3]), &fence, &error) != GPUIPC_OK) {
                        agent_refused(&error);
                        return;
                }
                agent.fences[i].fence = fence;
                snprintf(agent.fences[i].name, sizeof(agent.fences[i].name), "%s", words[1]);
                printf("ok %d %" PRId64 "\n", gpuipc_fence_is_synchronous(fence), agent_now_usec() - started);
                return;
        }
        agent_wrong("no such key, or too many fences");
}

/* unfence: frees all */
static void do_unfence(char **words) {
        (void)words;
        for (int i = 0; i < FENCES_MAX; i++) {
                gpuipc_fence_free(agent.fences[i].fence);
                agent.fences[i].fence = NULL;
        }
        printf("ok\n");
}

/* stream: makes this agent's, on the current GPU */
static void do_stream(char **words) {
        int r = kernels_stream_make(&agent.stream);

        (void)words;
        if (r != 0)
                agent_failed(r);
        else
                printf("ok\n");
}

/* signal NAME VALUE; query NAME; await NAME VALUE MS: by the processor. The usec it took, and the value. */
static void do_signal(char **words) {
        gpuipc_fence *fence = fence_of(words[1]);
        int64_t started = agent_now_usec();
        gpuipc_error error;

        if (gpuipc_fence_signal(fence, strtoull(words[2], NULL, 10), &error) != GPUIPC_OK)
                agent_refused(&error);
        else
                printf("ok %" PRId64 "\n", agent_now_usec() - started);
}

static void do_query(char **words) {
        gpuipc_fence *fence = fence_of(words[1]);
        int64_t started = agent_now_usec();
        uint64_t value = 0;
        gpuipc_error error;

        if (gpuipc_fence_query(fence, &value, &error) != GPUIPC_OK)
                agent_refused(&error);
        else
                printf("ok %" PRId64 " %" PRIu64 "\n", agent_now_usec() - started, value);
}

static void do_await(char **words) {
        gpuipc_fence *fence = fence_of(words[1]);
        int64_t started = agent_now_usec();
        gpuipc_error error;

        if (gpuipc_fence_wait(fence, strtoull(words[2], NULL, 10), atoi(words[3]), &error) != GPUIPC_OK)
                agent_refused(&error);
        else
                printf("ok %" PRId64 "\n", agent_now_usec() - started);
}

/* queue wait|signal NAME VALUE [default]: in the stream */
static void do_queue(char **words) {
        void *stream = words[4] ? NULL : agent.stream;
        uint64_t value = strtoull(words[3], NULL, 10);
        gpuipc_fence *fence = fence_of(words[2]);
        gpuipc_error error;
        int r = strcmp(words[1], "wait") == 0 ? gpuipc_fence_wait_stream(fence, stream, value, 0, &error)
                                              : gpuipc_fence_signal_stream(fence, stream, value, &error);

        if (r != GPUIPC_OK)
                agent_refused(&error);
        else
                printf("ok\n");
}

/* busy [default], settle [default]: whether the stream has something to do; usec until it has not */
static void do_busy(char **words) {
        int busy, r = kernels_stream_busy(words[1] ? NULL : agent.stream, &busy);

        if (r != 0)
                agent_failed(r);
        else
                printf("ok %d\n", busy);
}

static void do_settle(char **words) {
        int64_t started = agent_now_usec();
        int r = kernels_stream_settle(words[1] ? NULL : agent.stream);

        if (r != 0)
                agent_failed(r);
        else
                printf("ok %" PRId64 "\n", agent_now_usec() - started);
}

/* delay USEC: a kernel in the stream that takes so long */
static void do_delay(char **words) {
        int r = kernels_stream_delay(agent.stream, strtoull(words[1], NULL, 10));

        if (r != 0)
                agent_failed(r);
        else
                printf("ok\n");
}

/* One item: the slot is written once `consumed` says that it was read, or read once `produced` says that it was written. */
static int one_item(bool producing, char *slot, size_t bytes, uint64_t i, uint64_t wait_for, uint64_t delay_usec) {
        gpuipc_fence *hear = fence_of(producing ? "consumed" : "produced"), *say = fence_of(producing ? "produced" : "consumed");
        gpuipc_error error;
        int r;

        if (wait_for > 0 && gpuipc_fence_wait_stream(hear, agent.stream, wait_for, 0, &error) != GPUIPC_OK) {
                agent_refused(&error);
                return -1;
        }
        r = delay_usec > 0 ? kernels_stream_delay(agent.stream, delay_usec) : 0;
        if (r == 0)
                r = producing ? kernels_slot_fill(agent.stream, slot, bytes, i) : kernels_slot_check(agent.stream, slot, bytes, i);
        if (r != 0) {
                agent_failed(r);
                return -1;
        }
        if (gpuipc_fence_signal_stream(say, agent.stream, i, &error) == GPUIPC_OK)
                return 0;
        agent_refused(&error);
        return -1;
}

/* produce|consume KEY N SLOTS BYTES fenced|loose USEC: N items through slots that follow the first 4096 bytes of the buffer, in order by
 * the fences `produced` and `consumed`, or (loose) without looking at them, each USEC late. Words that were not the item's, and the usec of
 * all. */
static void do_items(char **words) {
        bool producing = strcmp(words[0], "produce") == 0, fenced = strcmp(words[5], "fenced") == 0;
        uint64_t n = strtoull(words[2], NULL, 10), slots = strtoull(words[3], NULL, 10), delay_usec = strtoull(words[6], NULL, 10), bad = 0;
        size_t bytes = strtoull(words[4], NULL, 10), n_memory;
        char *memory = memory_of(words[1], &n_memory);
        int64_t started = agent_now_usec();
        int r;

        if (!memory)
                return;
        if (n_memory < 4096 + slots * bytes) {
                agent_wrong("the buffer is too small");
                return;
        }
        r = kernels_slots_begin();
        for (uint64_t i = 1; r == 0 && i <= n; i++)
                if (one_item(producing, memory + 4096 + (i - 1) % slots * bytes, bytes, i,
                             !fenced ? 0 : !producing ? i : i > slots ? i - slots : 0, delay_usec) != 0)
                        return;
        if (r == 0)
                r = kernels_stream_settle(agent.stream);
        if (r == 0)
                r = kernels_slots_end(&bad);
        if (r != 0)
                agent_failed(r);
        else
                printf("ok %" PRIu64 " %" PRId64 "\n", bad, agent_now_usec() - started);
}

static int by_size(const void *a, const void *b) {
        int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

        return x < y ? -1 : x > y;
}

/* ping N, pong N: to and fro by two fences, all given to the stream at once; the usec of all. ping N each: one after the other, each
 * waited for: the median and the 99th of a hundred. */
static void do_ping(char **words) {
        bool ping = strcmp(words[0], "ping") == 0, each = words[2] != NULL;
        gpuipc_fence *say = fence_of(ping ? "produced" : "consumed"), *hear = fence_of(ping ? "consumed" : "produced");
        int64_t n = atoll(words[1]), started = agent_now_usec(), *times = calloc((size_t)n, sizeof(*times));
        gpuipc_error error = { .name = "agent", .message = "no memory" };
        int r = times ? 0 : -1;

        for (int64_t i = 0; r == 0 && i < n; i++) {
                int64_t since = agent_now_usec();
                uint64_t value = (uint64_t)i + 1;

                if (ping)
                        r = gpuipc_fence_signal_stream(say, agent.stream, value, &error);
                if (r == 0)
                        r = gpuipc_fence_wait_stream(hear, agent.stream, value, 0, &error);
                if (r == 0 && !ping)
                        r = gpuipc_fence_signal_stream(say, agent.stream, value, &error);
                if (r == 0 && each && kernels_stream_settle(agent.stream) != 0)
                        r = -1;
                times[i] = agent_now_usec() - since;
        }
        if (r == 0 && kernels_stream_settle(agent.stream) != 0)
                r = -1;
        if (r != 0)
                agent_refused(&error);
        else if (!each)
                printf("ok %" PRId64 "\n", agent_now_usec() - started);
        else {
                qsort(times, (size_t)n, sizeof(*times), by_size);
                printf("ok %" PRId64 " %" PRId64 "\n", times[n / 2], times[n * 99 / 100]);
        }
        free(times);
}

/* ---- the loop --------------------------------------------------------------------------------------------- */

static const struct agent_command commands[] = {
        { "connect", 2, do_connect }, { "device", 2, do_device },   { "allocate", 4, do_allocate }, { "open", 4, do_open },
        { "map", 2, do_map },         { "release", 2, do_release }, { "fill", 3, do_fill },         { "differ", 3, do_differ },
        { "nonzero", 2, do_nonzero }, { "poke", 2, do_poke },       { "rate", 2, do_rate },         { "event", 2, do_event },
        { "many", 4, do_many },       { "few", 1, do_few },         { "cycle", 3, do_cycle },       { "fence", 4, do_fence },
        { "unfence", 1, do_unfence }, { "stream", 1, do_stream },   { "signal", 3, do_signal },     { "query", 2, do_query },
        { "await", 4, do_await },     { "queue", 4, do_queue },     { "busy", 1, do_busy },         { "settle", 1, do_settle },
        { "produce", 7, do_items },   { "consume", 7, do_items },   { "ping", 2, do_ping },         { "pong", 2, do_ping },
        { "delay", 2, do_delay },     { NULL, 0, NULL },
};

/* Whether the command is one of these. */
static bool run_one_of(const struct agent_command *command, char **words, int n_words) {
        while (command->name && strcmp(command->name, words[0]) != 0)
                command++;
        if (!command->name)
                return false;
        if (n_words < command->n_words)
                agent_wrong("too few words");
        else
                command->run(words);
        return true;
}

static void run(char **words, int n_words) {
        if (!run_one_of(commands, words, n_words) && !run_one_of(agent_channel_commands, words, n_words))
                agent_wrong("no such command");
}

int main(void) {
        char line[1024];

        setvbuf(stdout, NULL, _IOLBF, 0);
        printf("ok ready\n");
        while (fgets(line, sizeof(line), stdin)) {
                char *words[WORDS_MAX + 1] = { NULL }, *rest = line;
                int n = 0;

                while (n < WORDS_MAX && (words[n] = strtok_r(rest, " \n", &rest)))
                        n++;
                if (n > 0)
                        run(words, n);
        }
        return 0;
}
