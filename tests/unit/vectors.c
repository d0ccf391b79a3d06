/* SPDX-License-Identifier: Apache-2.0 */
/* Reads proto/vectors and its expect.tsv. */
#include "vectors.h"

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *file_load(const char *path, size_t *ret_n) {
        FILE *file = fopen(path, "re");
        char *data;
        long n;

        ck_assert_msg(file != NULL, "%s cannot be opened; tests run at the top of the tree", path);
        ck_assert_int_eq(fseek(file, 0, SEEK_END), 0);
        n = ftell(file);
        ck_assert_int_ge(n, 0);
        rewind(file);
        data = malloc((size_t)n + 1);
        ck_assert_ptr_nonnull(data);
        ck_assert_uint_eq(fread(data, 1, (size_t)n, file), (size_t)n);
        data[n] = '\0';
        (void)fclose(file);
        *ret_n = (size_t)n;
        return data;
}

static void vector_read(struct vector *vector, char *line) {
        const char **columns[] = { &vector->file,    &vector->kind, &vector->of,
                                   &vector->outcome, &vector->form, &vector->daemon };
        char *at = line, path[300];

        vector->line = line;
        for (size_t i = 0; i < 6; i++) {
                ck_assert_msg(at != NULL, "expect.tsv: fewer than six columns: %s", line);
                *columns[i] = strsep(&at, "\t");
        }
        ck_assert_msg(at == NULL, "expect.tsv: more than six columns: %s", line);
        ck_assert_int_lt(snprintf(path, sizeof(path), VECTORS_PATH "/%s", vector->file), (int)sizeof(path));
        vector->data = file_load(path, &vector->n);
}

static int is_vector(const struct dirent *entry) {
        return strstr(entry->d_name, ".json") != NULL;
}

static void check_folder(const struct vectors *vectors) {
        struct dirent **entries;
        int n = scandir(VECTORS_PATH, &entries, is_vector, alphasort);

        ck_assert_int_ge(n, 0);
        for (int i = 0; i < n; i++) {
                size_t n_lines = 0;

                for (size_t j = 0; j < vectors->n; j++)
                        n_lines += strcmp(vectors->items[j].file, entries[i]->d_name) == 0;
                ck_assert_msg(n_lines == 1, "%s has %zu lines in expect.tsv", entries[i]->d_name, n_lines);
                free(entries[i]);
        }
        free(entries);
        ck_assert_uint_eq((size_t)n, vectors->n);
}

struct vectors vectors_load(void) {
        struct vectors vectors = { 0 };
        size_t n;
        char *list = file_load(VECTORS_PATH "/expect.tsv", &n), *at = list, *line;

        while ((line = strsep(&at, "\n")) != NULL) {
                if (*line == '#' || *line == '\0')
                        continue;
                vectors.items = reallocarray(vectors.items, vectors.n + 1, sizeof(*vectors.items));
                ck_assert_ptr_nonnull(vectors.items);
                vector_read(&vectors.items[vectors.n++], strdup(line));
        }
        free(list);
        check_folder(&vectors);
        return vectors;
}

void vectors_deinit(struct vectors *vectors) {
        for (size_t i = 0; i < vectors->n; i++) {
                free(vectors->items[i].line);
                free(vectors->items[i].data);
        }
        free(vectors->items);
        *vectors = (struct vectors){ 0 };
}
