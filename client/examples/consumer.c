/* SPDX-License-Identifier: Apache-2.0 */
/* Opens shared memory by name, reads it and prints its size, its place and a checksum.
 *
 *     consumer NAME [WAIT_MS]
 *
 * Waits at most WAIT_MS (default 10000) for a producer to make it, and as long again for the producer to seal it, which
 * says that it is complete. In host memory it is read where it lies, and a mistaken write would fault: the mapping is read-only. On a GPU a
 * kernel could work on it where it lies; here it is copied to the host, to be looked at. Mapped while no context is current, it is for the
 * GPU that holds it or, when that one is hidden, for the first. */
#include <err.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <gpuipc.h>

#define STEP ((size_t)4 << 20)

/* ---- waiting for the producer ----------------------------------------------------------------------------- */

struct look {
        const char *id;
        int sealed;
};

static int look_at(const gpuipc_buffer_info *info, void *data) {
        struct look *look = data;
        if (strcmp(info->id, look->id) != 0)
                return 0;
        look->sealed = info->sealed;
        return 1; /* enough */
}

static int64_t now_ms(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* The watch was made before the buffer was looked at, so its sealing is seen by one or the other. */
static void wait_sealed(gpuipc_client *client, gpuipc_watch *watch, const gpuipc_buffer *buffer, int64_t wait_ms) {
        gpuipc_list_options options = GPUIPC_LIST_OPTIONS_INIT;
        struct look look = { .id = gpuipc_buffer_id(buffer) };
        int64_t deadline = now_ms() + wait_ms;
        gpuipc_error error;

        options.name = gpuipc_buffer_name(buffer);
        if (gpuipc_list_buffers(client, &options, look_at, &look, &error) != 0)
                errx(1, "%s", error.message);
        while (!look.sealed) {
                const gpuipc_event_info *event;
                int64_t left = deadline - now_ms();
                if (gpuipc_watch_next(watch, left > 0 ? (int)left : 0, &event, &error) != 0)
                        errx(1, "waiting for the producer to finish: %s", error.message);
                look.sealed = strcmp(event->kind, "sealed") == 0 && event->buffer &&
                              strcmp(event->buffer->id, look.id) == 0;
        }
}

/* ---- reading ---------------------------------------------------------------------------------------------- */

/* 64-bit FNV-1a. */
static uint64_t checksum(uint64_t sum, const unsigned char *bytes, size_t n) {
        for (size_t i = 0; i < n; i++)
                sum = (sum ^ bytes[i]) * UINT64_C(0x100000001b3);
        return sum;
}

/* `memory` is where it is mapped. */
static uint64_t read_all(gpuipc_buffer *buffer, const unsigned char *memory) {
        size_t n = (size_t)gpuipc_buffer_size(buffer);
        uint64_t sum = UINT64_C(0xcbf29ce484222325);
        unsigned char *step;
        gpuipc_error error;

        if (gpuipc_buffer_cuda_device(buffer) < 0) /* the host's */
                return checksum(sum, memory, n);
        step = malloc(STEP);
        if (!step)
                err(1, NULL);
        for (size_t done = 0; done < n; done += STEP) {
                size_t some = n - done < STEP ? n - done : STEP;
                if (gpuipc_buffer_read(buffer, (int64_t)done, step, some, &error) != 0)
                        errx(1, "%s", error.message);
                sum = checksum(sum, step, some);
        }
        free(step);
        return sum;
}

int main(int argc, char **argv) {
        gpuipc_open_options options = GPUIPC_OPEN_OPTIONS_INIT;
        gpuipc_client *client;
        gpuipc_buffer *buffer;
        gpuipc_watch *watch;
        gpuipc_error error;
        void *memory;

        if (argc < 2 || argc > 3)
                errx(2, "usage: consumer NAME [WAIT_MS]");

        options.access = GPUIPC_RO;
        options.wait_ms = argc > 2 ? atoi(argv[2]) : 10000;
        options.label = "consumer";
        /* options.owner stays as it is: this user's own buffer of that name or root's, nobody else's. */
        if (gpuipc_connect(NULL, &client, &error) != 0 ||
            gpuipc_watch_new(client, -1, &watch, &error) != 0 ||
            gpuipc_open_name(client, argv[1], &options, &buffer, &error) != 0 ||
            gpuipc_buffer_map(buffer, &memory, &error) != 0)
                errx(1, "%s", error.message);
        wait_sealed(client, watch, buffer, options.wait_ms);
        gpuipc_watch_free(watch);

        printf("%s: %" PRId64 " bytes on %s%s, checksum %016" PRIx64 "\n", argv[1], gpuipc_buffer_size(buffer),
               gpuipc_buffer_device(buffer), gpuipc_buffer_is_peer(buffer) ? " (read over peer access, which is slower)" : "",
               read_all(buffer, memory));

        if (gpuipc_release(buffer, &error) != 0)
                warnx("%s", error.message);
        gpuipc_client_free(client);
        return 0;
}
