/* SPDX-License-Identifier: Apache-2.0 */
/* Capsules of DLPack, with an interpreter that only counts: what each end does to the owner, and to an exception that is under way. */
#include <check.h>
#include <stdbool.h>
#include <string.h>

#include "include/gpuipc.h"
#include "tests/support/suite.h"

struct capsule {
        void *pointer;
        const char *name;
        void (*destructor)(void *capsule);
};

static int owner, owners, locks, fetched;
static void *pending; /* an exception */
static bool refuse;
static struct capsule made;

static int gil_ensure(void) {
        return ++locks;
}
static void gil_release(int state) {
        ck_assert_int_eq(state, locks--);
}
static void err_fetch(void **type, void **value, void **traceback) {
        ck_assert_int_eq(locks, 1);
        *type = *value = *traceback = pending;
        pending = NULL;
        fetched++;
}
static void err_restore(void *type, void *value, void *traceback) {
        ck_assert_ptr_eq(type, value);
        ck_assert_ptr_eq(type, traceback);
        pending = type;
}
static void inc_ref(void *object) {
        ck_assert_ptr_eq(object, &owner);
        owners++;
}
static void dec_ref(void *object) {
        ck_assert_ptr_eq(object, &owner);
        ck_assert_int_eq(locks, 1);
        ck_assert_ptr_null(pending); /* what the owner's end runs sees none */
        owners--;
}
static void *capsule_new(void *pointer, const char *name, void (*destructor)(void *capsule)) {
        if (refuse)
                return NULL;
        made = (struct capsule){ pointer, name, destructor };
        return &made;
}
static int capsule_is_valid(void *capsule, const char *name) {
        return capsule == &made && strcmp(made.name, name) == 0;
}
static void *capsule_get(void *capsule, const char *name) {
        ck_assert_int_eq(capsule_is_valid(capsule, name), 1);
        return made.pointer;
}

static const gpuipc_python calls = { sizeof(calls), gil_ensure, gil_release, err_fetch, err_restore, inc_ref, dec_ref,
                                     capsule_new, capsule_is_valid, capsule_get };
static const int64_t shape[] = { 2, 3 }, strides[] = { 1, 2 };

static gpuipc_tensor tensor_of(int versioned) {
        return (gpuipc_tensor){ .struct_size = sizeof(gpuipc_tensor), .data = &owner, .shape = shape, .strides = strides,
                                .n_dimensions = 2, .device_type = 2, .device_id = 7, .type_code = 4, .type_bits = 16,
                                .versioned = (uint16_t)versioned, .flags = 1 };
}

static void begin(void) {
        owners = locks = fetched = 0;
        pending = NULL;
        refuse = false;
        ck_assert_int_eq(gpuipc_python_begin(&calls, NULL), GPUIPC_OK);
}

static void make(int versioned) {
        gpuipc_tensor tensor = tensor_of(versioned);
        gpuipc_error error;
        void *capsule;

        ck_assert_msg(gpuipc_python_capsule(&tensor, &owner, &capsule, &error) == GPUIPC_OK, "%s", error.message);
        ck_assert_ptr_eq(capsule, &made);
        ck_assert_str_eq(made.name, versioned ? "dltensor_versioned" : "dltensor");
        ck_assert_int_eq(owners, 1);
}

/* What a consumer finds in it, as dlpack.h lays it out. */
struct plain {
        void *data;
        int32_t device_type, device_id, n_dimensions;
        uint8_t code, bits;
        uint16_t lanes;
        int64_t *shape, *strides;
        uint64_t offset;
        void *context;
        void (*deleter)(void *self);
};
struct versioned {
        uint32_t major, minor;
        void *context;
        void (*deleter)(void *self);
        uint64_t flags;
        void *data;
        int32_t device_type, device_id, n_dimensions;
        uint8_t code, bits;
        uint16_t lanes;
        int64_t *shape, *strides;
        uint64_t offset;
};

static void end_consumed(int versioned) {
        made.name = "used";
        made.destructor(&made);
        ck_assert_int_eq(owners, 1);
        if (versioned)
                ((struct versioned *)made.pointer)->deleter(made.pointer);
        else
                ((struct plain *)made.pointer)->deleter(made.pointer);
}

START_TEST(what_is_in_it) {
        begin();
        make(0);
        const struct plain *plain = made.pointer;
        ck_assert_ptr_eq(plain->data, &owner);
        ck_assert_int_eq(plain->device_type, 2);
        ck_assert_int_eq(plain->device_id, 7);
        ck_assert_int_eq(plain->n_dimensions, 2);
        ck_assert_int_eq(plain->code, 4);
        ck_assert_int_eq(plain->bits, 16);
        ck_assert_int_eq(plain->lanes, 1);
        ck_assert_ptr_ne(plain->shape, shape);
        ck_assert_mem_eq(plain->shape, shape, sizeof(shape));
        ck_assert_mem_eq(plain->strides, strides, sizeof(strides));
        ck_assert_uint_eq(plain->offset, 0);
        made.destructor(&made);
        make(1);
        const struct versioned *versioned = made.pointer;
        ck_assert_uint_eq(versioned->major, 1);
        ck_assert_uint_eq(versioned->flags, 1);
        ck_assert_ptr_eq(versioned->data, &owner);
        ck_assert_mem_eq(versioned->strides, strides, sizeof(strides));
        made.destructor(&made);
        ck_assert_int_eq(owners, 0);
}
END_TEST

START_TEST(not_consumed) {
        begin();
        make(_i);
        made.destructor(&made);
        ck_assert_int_eq(owners, 0);
        ck_assert_int_eq(locks, 0);
}
END_TEST

START_TEST(consumed) {
        begin();
        make(_i);
        end_consumed(_i);
        ck_assert_int_eq(owners, 0);
        ck_assert_int_eq(locks, 0);
}
END_TEST

START_TEST(amid_an_exception) {
        begin();
        make(_i);
        pending = &owners;
        end_consumed(_i);
        ck_assert_ptr_eq(pending, &owners);
        ck_assert_int_eq(fetched, 1);
        ck_assert_int_eq(owners, 0);
}
END_TEST

/* After the interpreter's end the library's own is freed, which a sanitizer sees to, and nothing of Python's is called. */
START_TEST(after_the_end) {
        begin();
        make(_i);
        gpuipc_python_end();
        end_consumed(_i);
        ck_assert_int_eq(owners, 1);
        ck_assert_int_eq(fetched, 0);
}
END_TEST

START_TEST(what_cannot_be) {
        gpuipc_tensor tensor = tensor_of(1);
        gpuipc_python other = calls;
        gpuipc_error error;
        void *capsule = NULL;

        gpuipc_python_end();
        ck_assert_int_eq(gpuipc_python_capsule(&tensor, &owner, &capsule, &error), GPUIPC_ERROR_INVALID_PARAMETER);
        ck_assert_str_eq(error.subject, "calls");
        other.struct_size--;
        ck_assert_int_eq(gpuipc_python_begin(&other, NULL), GPUIPC_ERROR_INVALID_PARAMETER);
        ck_assert_int_eq(gpuipc_python_begin(NULL, NULL), GPUIPC_ERROR_INVALID_PARAMETER);
        begin();
        ck_assert_int_eq(gpuipc_python_capsule(NULL, &owner, &capsule, NULL), GPUIPC_ERROR_INVALID_PARAMETER);
        ck_assert_int_eq(gpuipc_python_capsule(&tensor, NULL, &capsule, NULL), GPUIPC_ERROR_INVALID_PARAMETER);
        ck_assert_int_eq(gpuipc_python_capsule(&tensor, &owner, NULL, NULL), GPUIPC_ERROR_INVALID_PARAMETER);
        tensor.n_dimensions = -1;
        ck_assert_int_eq(gpuipc_python_capsule(&tensor, &owner, &capsule, NULL), GPUIPC_ERROR_INVALID_PARAMETER);
        tensor = tensor_of(1);
        refuse = true;
        ck_assert_int_eq(gpuipc_python_capsule(&tensor, &owner, &capsule, &error), GPUIPC_ERROR_NO_MEMORY);
        ck_assert_int_eq(owners, 0);
        ck_assert_ptr_null(capsule);
}
END_TEST

START_TEST(without_dimensions) {
        gpuipc_tensor tensor = tensor_of(0);
        void *capsule;

        begin();
        tensor.n_dimensions = 0;
        tensor.shape = tensor.strides = NULL;
        ck_assert_int_eq(gpuipc_python_capsule(&tensor, &owner, &capsule, NULL), GPUIPC_OK);
        made.destructor(&made);
        ck_assert_int_eq(owners, 0);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("client_python");
        TCase *tcase = tcase_create("client_python");

        tcase_add_test(tcase, what_is_in_it);
        tcase_add_loop_test(tcase, not_consumed, 0, 2);
        tcase_add_loop_test(tcase, consumed, 0, 2);
        tcase_add_loop_test(tcase, amid_an_exception, 0, 2);
        tcase_add_loop_test(tcase, after_the_end, 0, 2);
        tcase_add_test(tcase, what_cannot_be);
        tcase_add_test(tcase, without_dimensions);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
