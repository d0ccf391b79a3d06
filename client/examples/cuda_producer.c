/* SPDX-License-Identifier: Apache-2.0 */
/* Puts a pattern into memory on a GPU and holds it until it is told to stop.
 *
 *     cuda_producer NAME SIZE [GPU-UUID]
 *
 * Seals the buffer once it is filled, which tells consumers that it is complete, and prints one line. Ends on SIGINT or
 * SIGTERM; the memory goes when its last consumer does. The library finds the driver at run time and copies by it, so no CUDA
 * runtime is needed; a kernel would write to the pointer that gpuipc_buffer_map() gives. */
#include <err.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <gpuipc.h>

#define STEP ((size_t)4 << 20)

/* Byte i of the pattern: no two neighbouring pages are alike. */
static unsigned char pattern(size_t i) {
        return (unsigned char)(i * 31 + (i >> 12) * 7);
}

static void fill(gpuipc_buffer *buffer, size_t n) {
        unsigned char *step = malloc(STEP);
        gpuipc_error error;

        if (!step)
                err(1, NULL);
        for (size_t done = 0; done < n; done += STEP) {
                size_t some = n - done < STEP ? n - done : STEP;
                for (size_t i = 0; i < some; i++)
                        step[i] = pattern(done + i);
                if (gpuipc_buffer_write(buffer, (int64_t)done, step, some, &error) != 0)
                        errx(1, "%s", error.message);
        }
        free(step);
}

int main(int argc, char **argv) {
        gpuipc_allocate_options options = GPUIPC_ALLOCATE_OPTIONS_INIT;
        gpuipc_client *client;
        gpuipc_buffer *buffer;
        gpuipc_error error;
        long long size;
        int signal_number;
        sigset_t stop;

        if (argc < 3 || argc > 4 || (size = atoll(argv[2])) <= 0)
                errx(2, "usage: cuda_producer NAME SIZE [GPU-UUID]");

        /* Blocked from the start, so that a signal is never lost. */
        sigemptyset(&stop);
        sigaddset(&stop, SIGINT);
        sigaddset(&stop, SIGTERM);
        sigprocmask(SIG_BLOCK, &stop, NULL);

        options.name = argv[1];
        options.device = argc > 3 ? argv[3] : NULL; /* the daemon's first GPU */
        options.handle = "cuda-fd";
        options.mode = "0644"; /* everyone may open it read-only */
        options.label = "cuda_producer";
        if (gpuipc_connect(NULL, &client, &error) != 0 ||
            gpuipc_allocate(client, size, &options, &buffer, &error) != 0)
                errx(1, "%s", error.message);

        fill(buffer, (size_t)size);

        if (gpuipc_seal(client, gpuipc_buffer_id(buffer), &error) != 0)
                errx(1, "%s", error.message);
        printf("ready: %s, %lld bytes on %s, buffer %s\n", argv[1], size, gpuipc_buffer_device(buffer),
               gpuipc_buffer_id(buffer));
        fflush(stdout);
        sigwait(&stop, &signal_number);

        if (gpuipc_release(buffer, &error) != 0)
                warnx("%s", error.message);
        gpuipc_client_free(client);
        return 0;
}
