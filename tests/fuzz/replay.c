/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzzer's function over files, each once, where libFuzzer is not linked: the corpus as a test. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/cleanup.h"

#define SECONDS_PER_INPUT 20

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
__attribute__((weak)) int LLVMFuzzerInitialize(int *argc, char ***argv);

static int replay_file(const char *path, size_t *n_inputs) {
        FILE *file = fopen(path, "re");
        struct stat facts;
        if (!file || fstat(fileno(file), &facts) < 0) {
                perror(path);
                return 1;
        }
        /* Exactly as large as the input, so that sanitizers see a read past its end. */
        _cleanup_free_ uint8_t *data = malloc(facts.st_size > 0 ? (size_t)facts.st_size : 1);
        size_t n = data ? fread(data, 1, (size_t)facts.st_size, file) : 0;
        fclose(file);
        if (!data || n != (size_t)facts.st_size) {
                fprintf(stderr, "%s: cannot be read\n", path);
                return 1;
        }
        fprintf(stderr, "%s (%zu bytes)\n", path, n);
        alarm(SECONDS_PER_INPUT);
        LLVMFuzzerTestOneInput(data, n);
        alarm(0);
        (*n_inputs)++;
        return 0;
}

static int not_hidden(const struct dirent *entry) {
        return entry->d_name[0] != '.';
}

static int replay_path(const char *path, size_t *n_inputs) {
        struct stat facts;
        if (stat(path, &facts) < 0) {
                perror(path);
                return 1;
        }
        if (!S_ISDIR(facts.st_mode))
                return replay_file(path, n_inputs);
        struct dirent **entries = NULL;
        int n = scandir(path, &entries, not_hidden, alphasort), failed = n <= 0;
        for (int i = 0; i < n; i++) {
                _cleanup_free_ char *inner = NULL;
                if (asprintf(&inner, "%s/%s", path, entries[i]->d_name) < 0 || replay_path(inner, n_inputs) != 0)
                        failed = 1;
                free(entries[i]);
        }
        free(entries);
        return failed;
}

int main(int argc, char **argv) {
        size_t n_inputs = 0, n_failed = 0;
        if (LLVMFuzzerInitialize)
                LLVMFuzzerInitialize(&argc, &argv);
        for (int i = 1; i < argc; i++)
                n_failed += (size_t)replay_path(argv[i], &n_inputs);
        /* As Check counts, for the runner. */
        size_t n = n_inputs + n_failed;
        printf("%zu%%: Checks: %zu, Failures: %zu, Errors: 0\n", n ? 100 * n_inputs / n : 0, n, n_failed);
        return n_failed || !n ? 1 : 0;
}
