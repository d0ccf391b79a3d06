/* SPDX-License-Identifier: Apache-2.0 */
/* demo_verify NAME[=SHA256]...: maps each buffer read-only and prints the SHA-256 of its bytes, computed over the mapping
 * itself. Then, for each line on standard input, it reads the mappings anew and prints the sums again; at the end of input
 * it lets go. Ends with 1 when a sum is not the one given or anything fails. */
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <openssl/evp.h>

#include "gpuipc.h"

#define HEX_SIZE (2 * EVP_MAX_MD_SIZE + 1)

struct mapped {
        gpuipc_buffer *buffer;
        const char *name, *expected; /* NULL: any sum will do */
        void *bytes;
        size_t size;
};

static void digest(const void *data, size_t n, char *ret_hex) {
        unsigned char sum[EVP_MAX_MD_SIZE];
        unsigned length;
        if (!EVP_Digest(data, n, sum, &length, EVP_sha256(), NULL))
                errx(1, "SHA-256 is not available");
        for (unsigned i = 0; i < length; i++)
                sprintf(ret_hex + 2 * i, "%02x", sum[i]);
}

/* Whether all is as expected. */
static int verify(const char *when, const struct mapped *maps, int n) {
        char hex[HEX_SIZE];
        int good = 1;
        for (int i = 0; i < n; i++) {
                digest(maps[i].bytes, maps[i].size, hex);
                int same = !maps[i].expected || strcmp(hex, maps[i].expected) == 0;
                printf("%s %s %s%s\n", when, maps[i].name, hex, same ? "" : " DIFFERS");
                good &= same;
        }
        fflush(stdout);
        return good;
}

static void map(gpuipc_client *client, char *argument, struct mapped *ret) {
        gpuipc_open_options options = GPUIPC_OPEN_OPTIONS_INIT;
        gpuipc_error error;

        options.access = GPUIPC_RO;
        options.label = "demo_verify";
        ret->name = strsep(&argument, "=");
        ret->expected = argument;
        if (gpuipc_open_name(client, ret->name, &options, &ret->buffer, &error) != 0 ||
            gpuipc_buffer_map(ret->buffer, &ret->bytes, &error) != 0)
                errx(1, "%s: %s", ret->name, error.message);
        ret->size = (size_t)gpuipc_buffer_size(ret->buffer);
        printf("mapped %s: %zu bytes at %p in process %d\n", ret->name, ret->size, ret->bytes, (int)getpid());
}

int main(int argc, char *argv[]) {
        gpuipc_client *client;
        gpuipc_error error;
        char line[256];
        int n = argc - 1;

        if (n < 1)
                errx(2, "usage: demo_verify NAME[=SHA256]...");
        struct mapped *maps = calloc((size_t)n, sizeof(*maps));
        if (!maps)
                err(1, NULL);
        if (gpuipc_connect(NULL, &client, &error) != 0)
                errx(1, "%s", error.message);
        for (int i = 0; i < n; i++)
                map(client, argv[i + 1], &maps[i]);

        int good = verify("first", maps, n);
        while (fgets(line, sizeof(line), stdin))
                good &= verify("again", maps, n);

        for (int i = 0; i < n; i++)
                if (gpuipc_release(maps[i].buffer, &error) != 0) {
                        warnx("%s: %s", maps[i].name, error.message);
                        good = 0;
                }
        gpuipc_client_free(client);
        free(maps);
        return good ? 0 : 1;
}
