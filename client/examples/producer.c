/* SPDX-License-Identifier: Apache-2.0 */
/* Puts something into shared memory, of the host or of a GPU, and holds it until it is told to stop.
 *
 *     producer NAME SIZE [DEVICE]         SIZE bytes of a pattern
 *     producer NAME FILE [DEVICE]         the bytes of a file
 *
 * DEVICE is "host" or a GPU's UUID; without one it is the daemon's choice. Seals the buffer once it is filled, which tells consumers that
 * it is complete, and prints one line. Ends on SIGINT or SIGTERM; the memory goes when its last consumer does. The library finds the GPU's
 * driver at run time and copies by it, so no CUDA runtime is needed; a kernel would write to the pointer of gpuipc_buffer_map(). */
#include <ctype.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gpuipc.h>

#define STEP ((size_t)4 << 20)

/* Byte i of the pattern: no two neighbouring pages are alike. */
static unsigned char pattern(size_t i) {
        return (unsigned char)(i * 31 + (i >> 12) * 7);
}

/* As much as there is room for, or the end: how many bytes. */
static size_t read_some(int fd, unsigned char *to, size_t n) {
        size_t done = 0;

        while (done < n) {
                ssize_t r = read(fd, to + done, n - done);
                if (r < 0 && errno == EINTR)
                        continue;
                if (r < 0)
                        err(1, "read");
                if (r == 0)
                        break;
                done += (size_t)r;
        }
        return done;
}

/* In steps, so that it does for memory of a GPU too; in host memory one could as well write where gpuipc_buffer_map() says. `fd` -1: a
 * pattern. */
static void fill(gpuipc_buffer *buffer, size_t n, int fd) {
        unsigned char *step = malloc(STEP);
        gpuipc_error error;

        if (!step)
                err(1, NULL);
        for (size_t done = 0; done < n; done += STEP) {
                size_t some = n - done < STEP ? n - done : STEP;
                if (fd >= 0 && read_some(fd, step, some) < some)
                        errx(1, "the file became shorter while it was read");
                for (size_t i = 0; fd < 0 && i < some; i++)
                        step[i] = pattern(done + i);
                if (gpuipc_buffer_write(buffer, (int64_t)done, step, some, &error) != 0)
                        errx(1, "%s", error.message);
        }
        free(step);
}

/* A size in bytes, or -1 when the text is none. */
static long long parse_size(const char *text) {
        char *end;
        long long size;

        if (!isdigit((unsigned char)text[0]))
                return -1;
        errno = 0;
        size = strtoll(text, &end, 10);
        return errno || *end ? -1 : size;
}

int main(int argc, char **argv) {
        gpuipc_allocate_options options = GPUIPC_ALLOCATE_OPTIONS_INIT;
        gpuipc_client *client;
        gpuipc_buffer *buffer;
        gpuipc_error error;
        long long size;
        int fd = -1, signal_number;
        sigset_t stop;

        if (argc < 3 || argc > 4)
                errx(2, "usage: producer NAME SIZE|FILE [DEVICE]");

        /* Blocked from the start, so that a signal is never lost. */
        sigemptyset(&stop);
        sigaddset(&stop, SIGINT);
        sigaddset(&stop, SIGTERM);
        sigprocmask(SIG_BLOCK, &stop, NULL);

        size = parse_size(argv[2]);
        if (size < 0) {
                struct stat facts;
                fd = open(argv[2], O_RDONLY | O_CLOEXEC);
                if (fd < 0 || fstat(fd, &facts) < 0)
                        err(1, "%s", argv[2]);
                size = facts.st_size;
        }

        options.name = argv[1];
        options.device = argc > 3 ? argv[3] : NULL;
        options.mode = "0644"; /* everyone may open it read-only */
        options.label = "producer";
        if (gpuipc_connect(NULL, &client, &error) != 0 ||
            gpuipc_allocate(client, size, &options, &buffer, &error) != 0)
                errx(1, "%s", error.message);

        fill(buffer, (size_t)size, fd);

        if (gpuipc_seal(client, gpuipc_buffer_id(buffer), &error) != 0)
                errx(1, "%s", error.message);
        printf("ready: %s, %lld bytes on %s, buffer %s\n", argv[1], size, gpuipc_buffer_device(buffer), gpuipc_buffer_id(buffer));
        fflush(stdout);
        sigwait(&stop, &signal_number);

        if (gpuipc_release(buffer, &error) != 0)
                warnx("%s", error.message);
        gpuipc_client_free(client);
        if (fd >= 0)
                close(fd);
        return 0;
}
