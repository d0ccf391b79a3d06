/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of text: collects cells, works out widths, prints. Touches no terminal. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "print.h"
#include "table.h"

struct layout {
        int widths[TABLE_COLUMNS_MAX]; /* -1: left out */
        int gap;
};

void table_init(struct table *table, const struct table_column *columns, size_t n_columns) {
        *table = (struct table){ .columns = columns, .n_columns = n_columns };
}

void table_deinit(struct table *table) {
        for (size_t i = 0; i < table->n_rows; i++)
                for (size_t j = 0; j < table->n_columns; j++)
                        free(table->rows[i].cells[j]);
        free(table->rows);
        table->rows = NULL;
        table->n_rows = table->capacity = 0;
}

void table_row(struct table *table, int64_t key) {
        if (table->n_rows == table->capacity) {
                size_t capacity = table->capacity ? table->capacity * 2 : 32;
                struct table_row *rows = reallocarray(table->rows, capacity, sizeof(*rows));

                if (!rows) {
                        table->failed = true;
                        return;
                }
                table->rows = rows;
                table->capacity = capacity;
        }
        table->rows[table->n_rows] = (struct table_row){ .key = key, .index = table->n_rows };
        table->n_rows++;
        table->n_cells = 0;
}

/* Takes text, which may be NULL after a failed allocation. */
static void cell_put(struct table *table, char *text_take) {
        if (!text_take || table->failed || table->n_rows == 0 || table->n_cells >= table->n_columns) {
                table->failed = true;
                free(text_take);
                return;
        }
        table->rows[table->n_rows - 1].cells[table->n_cells++] = text_take;
}

void table_text(struct table *table, const char *text) {
        struct bytes out = { 0 };

        print_escaped(&out, text && text[0] ? text : "-");
        bytes_append_char(&out, 0);
        if (out.failed)
                bytes_deinit(&out);
        cell_put(table, out.failed ? NULL : out.data);
}

void table_format(struct table *table, const char *format, ...) {
        char *text = NULL;
        va_list list;

        va_start(list, format);
        if (vasprintf(&text, format, list) < 0)
                text = NULL;
        va_end(list);
        cell_put(table, text);
}

static int row_compare(const void *a, const void *b) {
        const struct table_row *left = a, *right = b;

        if (left->key != right->key)
                return left->key < right->key ? 1 : -1;
        return left->index < right->index ? -1 : 1;
}

void table_sort(struct table *table) {
        if (table->n_rows > 1)
                qsort(table->rows, table->n_rows, sizeof(*table->rows), row_compare);
}

static const char *cell(const struct table *table, size_t row, size_t column) {
        const char *text = table->rows[row].cells[column];

        return text ? text : "-";
}

static bool is_empty(const struct table *table, size_t column, size_t n_rows) {
        for (size_t i = 0; i < n_rows; i++)
                if (strcmp(cell(table, i, column), "-") != 0)
                        return false;
        return true;
}

static int natural_width(const struct table *table, size_t column, size_t n_rows) {
        int width = (int)strlen(table->columns[column].heading);

        for (size_t i = 0; i < n_rows; i++) {
                const char *text = cell(table, i, column);
                int cell_width = print_width(text, strlen(text));

                width = cell_width > width ? cell_width : width;
        }
        return width;
}

static int layout_total(const struct table *table, const struct layout *layout) {
        int total = -layout->gap;

        for (size_t i = 0; i < table->n_columns; i++)
                if (layout->widths[i] >= 0)
                        total += layout->widths[i] + layout->gap;
        return total;
}

/* Takes columns off the widest shrinkable ones, evenly, until all fits. Whether it does. */
static bool layout_shrink(const struct table *table, struct layout *layout, int width) {
        for (int total = layout_total(table, layout); total > width; total--) {
                int widest = -1;

                for (size_t i = 0; i < table->n_columns; i++) {
                        int min = table->columns[i].min_width;

                        if (min > 0 && layout->widths[i] > min &&
                            (widest < 0 || layout->widths[i] > layout->widths[widest]))
                                widest = (int)i;
                }
                if (widest < 0)
                        return false;
                layout->widths[widest]--;
        }
        return true;
}

/* The column to leave out next; -1 when there is none. */
static int layout_victim(const struct table *table, const struct layout *layout) {
        int victim = -1;

        for (size_t i = 0; i < table->n_columns; i++) {
                int rank = table->columns[i].leave_out;

                if (layout->widths[i] >= 0 && rank > 0 && (victim < 0 || rank > table->columns[victim].leave_out))
                        victim = (int)i;
        }
        return victim;
}

static void layout_fit(const struct table *table, struct layout *layout, int width, size_t n_rows) {
        struct layout full = *layout;

        if (width <= 0 || layout_total(table, layout) <= width)
                return;
        full.gap = 1;
        for (size_t i = 0; i < table->n_columns && n_rows > 0; i++)
                if (layout_total(table, &full) > width && table->columns[i].leave_out > 0 &&
                    is_empty(table, i, n_rows))
                        full.widths[i] = -1;
        for (;;) {
                int victim;

                *layout = full;
                if (layout_shrink(table, layout, width))
                        return;
                victim = layout_victim(table, &full);
                if (victim < 0)
                        return;
                full.widths[victim] = -1;
        }
}

static void pad(struct bytes *out, int n) {
        while (n-- > 0)
                bytes_append_char(out, ' ');
}

static void cell_print(struct bytes *out, const char *text, int width, bool right, bool last) {
        int own = print_width(text, strlen(text));

        if (own > width) {
                size_t n = print_prefix(text, width - 1);

                bytes_append(out, text, n);
                bytes_append_str(out, print_ellipsis());
                pad(out, last ? 0 : width - 1 - print_width(text, n));
                return;
        }
        if (right)
                pad(out, width - own);
        bytes_append_str(out, text);
        if (!right && !last)
                pad(out, width - own);
}

/* row SIZE_MAX: the headings. */
static void row_print(struct bytes *out, const struct table *table, const struct layout *layout, size_t row) {
        size_t last = 0;

        for (size_t i = 0; i < table->n_columns; i++)
                if (layout->widths[i] >= 0)
                        last = i;
        for (size_t i = 0; i <= last; i++) {
                const struct table_column *column = &table->columns[i];

                if (layout->widths[i] < 0)
                        continue;
                cell_print(out, row == SIZE_MAX ? column->heading : cell(table, row, i), layout->widths[i],
                           column->right, i == last);
                pad(out, i == last ? 0 : layout->gap);
        }
        bytes_append_char(out, '\n');
}

void table_print(struct bytes *out, const struct table *table, int width, size_t max_rows) {
        size_t n_rows = table->n_rows < max_rows ? table->n_rows : max_rows;
        struct layout layout = { .gap = 2 };

        for (size_t i = 0; i < table->n_columns; i++)
                layout.widths[i] = natural_width(table, i, n_rows);
        layout_fit(table, &layout, width, n_rows);
        row_print(out, table, &layout, SIZE_MAX);
        for (size_t i = 0; i < n_rows; i++)
                row_print(out, table, &layout, i);
        if (table->failed)
                out->failed = true;
}
