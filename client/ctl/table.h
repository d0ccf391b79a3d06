/* SPDX-License-Identifier: Apache-2.0 */
/* A table of text that fits the width it is given: columns are first drawn closer together, then those without any
 * value are left out, then the shrinkable ones shortened, then the least important ones left out. */
#ifndef CTL_TABLE_H
#define CTL_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/bytes.h"

#define TABLE_COLUMNS_MAX 16

struct table_column {
        const char *heading;
        bool right;    /* aligned to the right */
        int min_width; /* may be shortened down to this; 0: never */
        int leave_out; /* the highest goes first; 0: never */
};

struct table_row {
        int64_t key; /* to sort by */
        size_t index;
        char *cells[TABLE_COLUMNS_MAX];
};

struct table {
        const struct table_column *columns;
        size_t n_columns;
        struct table_row *rows;
        size_t n_rows, capacity;
        size_t n_cells; /* set in the row begun last */
        bool failed;    /* out of memory */
};

void table_init(struct table *table, const struct table_column *columns, size_t n_columns);
void table_deinit(struct table *table);

/* Begins a row; then one call for each cell, from the left. NULL and "" show as "-". table_text() escapes. */
void table_row(struct table *table, int64_t key);
void table_text(struct table *table, const char *text);
void table_format(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The greatest key first; equal ones stay in order. */
void table_sort(struct table *table);

/* Appends headings and the first `max_rows` rows, a line each. `width` 0: as wide as it is. */
void table_print(struct bytes *out, const struct table *table, int width, size_t max_rows);

#endif
