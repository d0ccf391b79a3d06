/* SPDX-License-Identifier: Apache-2.0 */
/* Puts something into shared memory and holds it until it is told to stop.
 *
 *     producer NAME SIZE         SIZE bytes of a pattern
 *     producer NAME FILE         the bytes of a file
 *
 * Seals the buffer once it is filled, which tells consumers that it is complete, and prints one line. Ends on SIGINT or
 * SIGTERM; the memory goes when its last consumer does. */
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

/* Byte i of the pattern: no two neighbouring pages are alike. */
static unsigned char pattern(size_t i) {
        return (unsigned char)(i * 31 + (i >> 12) * 7);
}

static void read_file(int fd, unsigned char *to, size_t n) {
        while (n > 0) {
                ssize_t r = read(fd, to, n);
                if (r < 0 && errno == EINTR)
                        continue;
                if (r < 0)
                        err(1, "read");
                if (r == 0)
                        errx(1, "the file became shorter while it was read");
                to += r;
                n -= (size_t)r;
        }
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
        void *memory;
        long long size;
        int fd = -1, signal_number;
        sigset_t stop;

        if (argc != 3)
                errx(2, "usage: producer NAME SIZE|FILE");

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
        options.mode = "0644"; /* everyone may open it read-only */
        options.label = "producer";
        if (gpuipc_connect(NULL, &client, &error) != 0 ||
            gpuipc_allocate(client, size, &options, &buffer, &error) != 0 ||
            gpuipc_buffer_map(buffer, &memory, &error) != 0)
                errx(1, "%s", error.message);

        if (fd >= 0)
                read_file(fd, memory, (size_t)size);
        else
                for (size_t i = 0; i < (size_t)size; i++)
                        ((unsigned char *)memory)[i] = pattern(i);

        if (gpuipc_seal(client, gpuipc_buffer_id(buffer), &error) != 0)
                errx(1, "%s", error.message);
        printf("ready: %s, %lld bytes, buffer %s\n", argv[1], size, gpuipc_buffer_id(buffer));
        fflush(stdout);
        sigwait(&stop, &signal_number);

        if (gpuipc_release(buffer, &error) != 0)
                warnx("%s", error.message);
        gpuipc_client_free(client);
        if (fd >= 0)
                close(fd);
        return 0;
}
