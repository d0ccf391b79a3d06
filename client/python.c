/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of DLPack in Python's capsules, for the package gpuipc: their ends, which cannot be Python code. Any thread enters, with the
 * interpreter's lock or without, amid an exception, after the interpreter's end. Never links Python: it is handed what it calls. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "include/gpuipc.h"

/* As DLPack has it on the wire between libraries: dlpack.h of version 1.0, and what was before. */
struct dl_tensor {
        void *data;
        int32_t device_type, device_id;
        int32_t n_dimensions;
        uint8_t type_code, type_bits;
        uint16_t lanes;
        int64_t *shape, *strides;
        uint64_t byte_offset;
};

struct dl_plain {
        struct dl_tensor tensor;
        void *context;
        void (*deleter)(struct dl_plain *self);
};

struct dl_versioned {
        uint32_t major, minor;
        void *context;
        void (*deleter)(struct dl_versioned *self);
        uint64_t flags;
        struct dl_tensor tensor;
};

/* One tensor that was handed out, with what it points to. */
struct handed_out {
        union {
                struct dl_plain plain;
                struct dl_versioned versioned;
        } dl;
        void *owner; /* a reference */
        int64_t numbers[];
};

static gpuipc_python python;
static atomic_bool alive;

static const char *const names[] = { "dltensor", "dltensor_versioned" };

/* An exception may be under way, and what the owner's end runs must neither see nor lose it. */
static void owner_put(void *owner) {
        void *type, *value, *traceback;
        int state;

        if (!atomic_load(&alive))
                return;
        state = python.gil_ensure();
        python.err_fetch(&type, &value, &traceback);
        python.dec_ref(owner);
        python.err_restore(type, value, traceback);
        python.gil_release(state);
}

static void handed_out_free(struct handed_out *tensor) {
        owner_put(tensor->owner);
        free(tensor);
}

static void plain_delete(struct dl_plain *self) {
        handed_out_free(self->context);
}

static void versioned_delete(struct dl_versioned *self) {
        handed_out_free(self->context);
}

/* A capsule that was consumed has another name by now, and its consumer has the tensor. */
static void capsule_end(void *capsule) {
        if (python.capsule_is_valid(capsule, names[0]))
                plain_delete(python.capsule_get(capsule, names[0]));
        else if (python.capsule_is_valid(capsule, names[1]))
                versioned_delete(python.capsule_get(capsule, names[1]));
}

static void fill(struct dl_tensor *to, const gpuipc_tensor *from, int64_t *numbers) {
        size_t n = (size_t)from->n_dimensions;

        if (n > 0) {
                (void)memcpy(numbers, from->shape, n * sizeof(*numbers));
                (void)memcpy(numbers + n, from->strides, n * sizeof(*numbers));
        }
        *to = (struct dl_tensor){ .data = from->data, .device_type = from->device_type, .device_id = from->device_id,
                                  .n_dimensions = from->n_dimensions, .type_code = from->type_code, .type_bits = from->type_bits,
                                  .lanes = 1, .shape = numbers, .strides = numbers + n };
}

int gpuipc_python_begin(const gpuipc_python *calls, gpuipc_error *ret_error) {
        if (!calls || calls->struct_size != sizeof(*calls))
                return error_parameter(ret_error, "calls", "a gpuipc_python of this version of the library");
        if (!atomic_load(&alive))
                python = *calls;
        atomic_store(&alive, true);
        return GPUIPC_OK;
}

void gpuipc_python_end(void) {
        atomic_store(&alive, false);
}

int gpuipc_python_capsule(const gpuipc_tensor *tensor, void *owner, void **ret_capsule, gpuipc_error *ret_error) {
        struct handed_out *out;

        if (!tensor || tensor->struct_size != sizeof(*tensor) || tensor->n_dimensions < 0 || !owner || !ret_capsule)
                return error_parameter(ret_error, "tensor", "a gpuipc_tensor of this version of the library, with an owner");
        if (!atomic_load(&alive))
                return error_parameter(ret_error, "calls", "given by gpuipc_python_begin(), and the interpreter not at its end");
        out = calloc(1, sizeof(*out) + 2 * (size_t)tensor->n_dimensions * sizeof(out->numbers[0]));
        if (!out)
                return error_no_memory(ret_error);
        out->owner = owner;
        if (tensor->versioned) {
                out->dl.versioned = (struct dl_versioned){ .major = 1, .minor = 0, .context = out, .deleter = versioned_delete,
                                                           .flags = tensor->flags };
                fill(&out->dl.versioned.tensor, tensor, out->numbers);
        } else {
                out->dl.plain = (struct dl_plain){ .context = out, .deleter = plain_delete };
                fill(&out->dl.plain.tensor, tensor, out->numbers);
        }
        *ret_capsule = python.capsule_new(out, names[tensor->versioned ? 1 : 0], capsule_end);
        if (!*ret_capsule) {
                free(out);
                return error_no_memory(ret_error);
        }
        python.inc_ref(owner);
        return GPUIPC_OK;
}
