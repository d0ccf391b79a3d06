/* SPDX-License-Identifier: Apache-2.0 */
/* Copies in and out of a buffer, whatever it lies on. The thread that owns the buffer enters. Never touches a byte outside it. */
#include "buffer.h"
#include "error.h"

static int copy_check(const gpuipc_buffer *buffer, const struct map_copy *copy, gpuipc_error *ret_error) {
        if (!copy->memory && copy->n > 0)
                return error_parameter(ret_error, copy->to_buffer ? "from" : "to", "memory of n bytes");
        if (copy->to_buffer && buffer->access == GPUIPC_RO)
                return error_parameter(ret_error, "buffer", "one opened rw: this one was opened ro");
        if (copy->offset < 0 || copy->offset > buffer->size)
                return error_parameter(ret_error, "offset", "a byte of the buffer, from 0 to gpuipc_buffer_size()");
        if (copy->n > (uint64_t)(buffer->size - copy->offset))
                return error_parameter(ret_error, "n", "no more bytes than the buffer has from offset on");
        return GPUIPC_OK;
}

static int buffer_copy(gpuipc_buffer *buffer, const struct map_copy *copy, gpuipc_error *ret_error) {
        void *pointer;
        int r;

        if (!buffer)
                return error_parameter(ret_error, "buffer", "one made by gpuipc_allocate() or gpuipc_open_…()");
        r = copy_check(buffer, copy, ret_error);
        if (r == GPUIPC_OK)
                r = gpuipc_buffer_map(buffer, &pointer, ret_error);
        if (r == GPUIPC_OK && copy->n > 0)
                r = mapping_copy(buffer->mapping, copy, ret_error);
        return r;
}

int gpuipc_buffer_read(gpuipc_buffer *buffer, int64_t offset, void *to, size_t n, gpuipc_error *ret_error) {
        return buffer_copy(buffer, &(struct map_copy){ .offset = offset, .memory = to, .n = n }, ret_error);
}

int gpuipc_buffer_write(gpuipc_buffer *buffer, int64_t offset, const void *from, size_t n, gpuipc_error *ret_error) {
        struct map_copy copy = { .offset = offset, .memory = (void *)(uintptr_t)from, .n = n, .to_buffer = true };

        return buffer_copy(buffer, &copy, ret_error);
}
