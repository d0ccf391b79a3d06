/* SPDX-License-Identifier: Apache-2.0 */
/* Leases, buffers and devices as rows of a table. */
#ifndef CTL_ROWS_H
#define CTL_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "include/gpuipc.h"
#include "table.h"

/* What rows are filled with beside the object itself. */
struct rows {
        struct table table;
        int64_t now_usec;
        bool exact; /* sizes in bytes */
        /* Sums over the rows. */
        int64_t bytes;
        size_t n;
};

void rows_init_leases(struct rows *rows, bool exact);
void rows_init_buffers(struct rows *rows, bool exact);
void rows_init_channels(struct rows *rows, bool exact);
void rows_init_devices(struct rows *rows, bool exact);
static inline void rows_deinit(struct rows *rows) {
        table_deinit(&rows->table);
}
#define _cleanup_rows_ __attribute__((cleanup(rows_deinit)))

/* Callbacks for gpuipc_list() and gpuipc_list_buffers(); `data` is a struct rows. Keys are sizes. */
int rows_lease(const gpuipc_lease_info *lease, void *data);
int rows_buffer(const gpuipc_buffer_info *buffer, void *data);
void rows_device(struct rows *rows, const gpuipc_device_info *device);

/* A cell of a row that was begun: bytes as the rows show them; a number, "-" for a negative one; a device. */
void rows_size_put(struct rows *rows, int64_t bytes);
void rows_number_put(struct rows *rows, int64_t number);
void rows_device_put(struct rows *rows, const char *uuid);

/* "1 lease", "2 leases". */
const char *rows_plural(size_t n);

/* Prints the table on stdout, as wide as that is. An exit code. */
int rows_print(struct rows *rows);

/* What a table can show of a device or container that has a long name. `ret` has 16 bytes. */
void rows_short_device(char ret[16], const char *uuid);

#endif
