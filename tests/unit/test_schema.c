/* SPDX-License-Identifier: Apache-2.0 */
/* The interface files, the tables and the vectors say the same. */
#include <check.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/bytes.h"
#include "proto/cleanup.h"
#include "proto/schema.h"
#include "vectors.h"
#include "tests/support/suite.h"

static const struct schema *const types[] = { &schema_device, &schema_handle, &schema_buffer, &schema_lease,
                                              &schema_event, &schema_channel, &schema_participant };

/* ---- the tables as interface text, without blanks ---------------------------------------------------------- */

static void put_type(struct bytes *out, const struct field *field) {
        if (field->optional)
                bytes_append_char(out, '?');
        switch (field->type) {
        case FIELD_BOOL: bytes_append_str(out, "bool"); return;
        case FIELD_INT: bytes_append_str(out, "int"); return;
        case FIELD_STRING:
        case FIELD_CHARS: bytes_append_str(out, "string"); return;
        case FIELD_OBJECT: bytes_append_str(out, "object"); return;
        case FIELD_STRING_ARRAY: bytes_append_str(out, "[]string"); return;
        case FIELD_STRUCT: bytes_append_str(out, field->of->name); return;
        case FIELD_STRUCT_ARRAY:
                bytes_append_str(out, "[]");
                bytes_append_str(out, field->of->name);
                return;
        case FIELD_ENUM: break;
        }
        for (size_t i = 0; field->values[i] != NULL; i++) {
                bytes_append_char(out, i == 0 ? '(' : ',');
                bytes_append_str(out, field->values[i]);
        }
        bytes_append_char(out, ')');
}

static void put_fields(struct bytes *out, const struct schema *schema) {
        bytes_append_char(out, '(');
        for (size_t i = 0; i < schema->n_fields; i++) {
                if (i > 0)
                        bytes_append_char(out, ',');
                bytes_append_str(out, schema->fields[i].name);
                bytes_append_char(out, ':');
                put_type(out, &schema->fields[i]);
        }
        bytes_append_char(out, ')');
}

static bool is_in(const char *name, const char *interface) {
        const char *dot = strrchr(name, '.');

        return (size_t)(dot - name) == strlen(interface) && strncmp(name, interface, strlen(interface)) == 0;
}

static void put_interface(struct bytes *out, const char *interface, bool with_types) {
        bytes_append_str(out, "interface");
        bytes_append_str(out, interface);
        for (size_t i = 0; with_types && i < ELEMENTSOF(types); i++) {
                bytes_append_str(out, "type");
                bytes_append_str(out, types[i]->name);
                put_fields(out, types[i]);
        }
        for (int i = 0; i < N_METHODS; i++) {
                if (!is_in(method_schemas[i].name, interface))
                        continue;
                bytes_append_str(out, "method");
                bytes_append_str(out, strrchr(method_schemas[i].name, '.') + 1);
                put_fields(out, method_schemas[i].params);
                bytes_append_str(out, "->");
                put_fields(out, method_schemas[i].reply);
        }
        for (int i = 1; i < N_VERDICTS; i++) {
                const char *name = verdict_error_name((enum verdict)i);

                if (!is_in(name, interface))
                        continue;
                ck_assert_str_eq(strrchr(name, '.') + 1, error_schemas[i]->name);
                bytes_append_str(out, "error");
                bytes_append_str(out, error_schemas[i]->name);
                put_fields(out, error_schemas[i]);
        }
        bytes_append_char(out, '\0');
        ck_assert(!out->failed);
}

/* ---- the file without comments and blanks ------------------------------------------------------------------ */

static void strip(char *text) {
        char *to = text;

        for (const char *from = text; *from != '\0'; from++) {
                if (*from == '#')
                        from += strcspn(from, "\n");
                if (*from == '\0')
                        break;
                if (!isspace((unsigned char)*from))
                        *to++ = *from;
        }
        *to = '\0';
}

static void compare_file(const char *path, const char *interface, bool with_types) {
        struct bytes tables = { 0 };
        size_t n, same = 0;
        char *file = file_load(path, &n);

        put_interface(&tables, interface, with_types);
        strip(file);
        while (file[same] != '\0' && file[same] == tables.data[same])
                same++;
        if (file[same] != tables.data[same])
                ck_abort_msg("%s and the tables part after …%.*s\n  file:   %.60s\n  tables: %.60s", path,
                             (int)(same < 60 ? same : 60), file + same - (same < 60 ? same : 60), file + same,
                             tables.data + same);
        free(file);
        bytes_deinit(&tables);
}

START_TEST(tables_equal_the_broker_interface) {
        compare_file("proto/io.gpuipc.Broker.varlink", "io.gpuipc.Broker", true);
}
END_TEST

START_TEST(tables_equal_the_service_interface) {
        compare_file("proto/org.varlink.service.varlink", "org.varlink.service", false);
}
END_TEST

START_TEST(texts_are_the_files) {
        for (size_t i = 0; schema_interfaces[i] != NULL; i++) {
                char path[100], *file;
                size_t n;

                (void)snprintf(path, sizeof(path), "proto/%s.varlink", schema_interfaces[i]);
                file = file_load(path, &n);
                ck_assert_str_eq(schema_interface_text(schema_interfaces[i]), file);
                free(file);
        }
        ck_assert_ptr_null(schema_interface_text("io.gpuipc"));
        ck_assert_ptr_null(schema_interface_text(""));
}
END_TEST

/* ---- members and sizes ------------------------------------------------------------------------------------- */

static size_t member_size(const struct field *field) {
        switch (field->type) {
        case FIELD_BOOL: return sizeof(bool);
        case FIELD_INT: return sizeof(int64_t);
        case FIELD_ENUM: return sizeof(int);
        case FIELD_STRUCT: return field->optional ? sizeof(void *) : field->of->size;
        case FIELD_STRING_ARRAY: return sizeof(struct string_array);
        case FIELD_STRUCT_ARRAY: return sizeof(struct struct_array);
        case FIELD_CHARS: return (size_t)field->max;
        case FIELD_STRING:
        case FIELD_OBJECT: break;
        }
        return sizeof(const char *);
}

/* Members neither overlap nor leave the struct, and what may be absent can be told absent. */
static void check_layout(const struct schema *schema) {
        ck_assert_uint_le(schema->n_fields, 64);
        for (size_t i = 0; i < schema->n_fields; i++) {
                const struct field *a = &schema->fields[i];

                ck_assert_uint_le(a->offset + member_size(a), schema->size);
                ck_assert(!a->optional || a->type == FIELD_INT || a->type == FIELD_STRING ||
                          a->type == FIELD_OBJECT || a->type == FIELD_STRUCT);
                for (size_t j = 0; j < i; j++) {
                        const struct field *b = &schema->fields[j];

                        ck_assert_msg(a->offset >= b->offset + member_size(b) ||
                                              b->offset >= a->offset + member_size(a),
                                      "%s and %s overlap", a->name, b->name);
                }
        }
}

START_TEST(layouts_hold) {
        for (size_t i = 0; i < ELEMENTSOF(types); i++)
                check_layout(types[i]);
        for (int i = 0; i < N_METHODS; i++) {
                check_layout(method_schemas[i].params);
                check_layout(method_schemas[i].reply);
                ck_assert_uint_le(method_schemas[i].params->size, sizeof(union method_params));
                ck_assert_uint_le(method_schemas[i].reply->size, sizeof(union method_reply));
        }
        ck_assert_ptr_null(error_schemas[VERDICT_OK]);
        for (int i = 1; i < N_VERDICTS; i++)
                check_layout(error_schemas[i]);
}
END_TEST

/* ---- looking up -------------------------------------------------------------------------------------------- */

START_TEST(methods_are_found_by_name) {
        bool known;

        for (int i = 0; i < N_METHODS; i++) {
                known = false;
                ck_assert_int_eq(schema_method(method_schemas[i].name, &known), i);
                ck_assert(known);
        }
        ck_assert_int_eq(schema_method("io.gpuipc.Broker.Borrow", &known), N_METHODS);
        ck_assert(known);
        ck_assert_int_eq(schema_method("io.gpuipc.Broker.", &known), N_METHODS);
        ck_assert(known);
        ck_assert_int_eq(schema_method("io.gpuipc.Broker", &known), N_METHODS);
        ck_assert(!known);
        ck_assert_int_eq(schema_method("io.gpuipc.Broke.List", &known), N_METHODS);
        ck_assert(!known);
        ck_assert_int_eq(schema_method("io.gpuipc.Broker.x.List", NULL), N_METHODS);
        ck_assert_int_eq(schema_method("List", &known), N_METHODS);
        ck_assert(!known);
        ck_assert_int_eq(schema_method("", &known), N_METHODS);
        ck_assert(!known);
}
END_TEST

START_TEST(every_parameter_has_a_hint_and_a_limit) {
        for (int i = 0; i < N_METHODS; i++) {
                const struct schema *params = method_schemas[i].params;

                for (size_t j = 0; j < params->n_fields; j++) {
                        const struct field *field = &params->fields[j];

                        ck_assert_ptr_nonnull(schema_hint((enum method)i, field->name));
                        /* An interface's unknown name has an error of its own, whatever its length. */
                        ck_assert_msg(field->max > 0 || field->valid != NULL ||
                                              strcmp(field->name, "interface") == 0,
                                      "%s of %s is not limited", field->name, method_schemas[i].name);
                }
        }
        ck_assert_ptr_nonnull(strstr(schema_hint(METHOD_ALLOCATE, "size"), "9007199254740991"));
        ck_assert_ptr_null(schema_hint(METHOD_ALLOCATE, "colour"));
        ck_assert_ptr_null(schema_hint(N_METHODS, "size"));
}
END_TEST

START_TEST(names_are_checked) {
        char longest[SCHEMA_NAME_MAX + 2];

        memset(longest, 'n', sizeof(longest) - 1);
        longest[SCHEMA_NAME_MAX + 1] = '\0';
        ck_assert(!schema_valid_name(longest));
        longest[SCHEMA_NAME_MAX] = '\0';
        ck_assert(schema_valid_name(longest));
        ck_assert(schema_valid_name("a"));
        ck_assert(schema_valid_name("models/llama-3.1_8B/AZaz09"));
        ck_assert(!schema_valid_name(""));
        for (int c = 1; c < 256; c++) {
                char text[4] = { 'a', (char)c, 'b', '\0' };
                bool allowed = (c < 128 && isalnum(c)) || strchr("._/-", c) != NULL;

                ck_assert_msg(schema_valid_name(text) == allowed, "character %d", c);
        }
}
END_TEST

START_TEST(modes_are_checked) {
        static const char *const good[] = { "0600", "600", "0000", "000", "0666", "0640", "0444", "0220" };
        static const char *const bad[] = { "",     "0",    "60",   "06",    "00600", "0700", "0610", "0601",
                                           "4600", "2600", "6600", "0o600", "0800",  " 600", "600 ", "rw-r--r--" };

        for (size_t i = 0; i < ELEMENTSOF(good); i++)
                ck_assert_msg(schema_valid_mode(good[i]), "\"%s\"", good[i]);
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                ck_assert_msg(!schema_valid_mode(bad[i]), "\"%s\"", bad[i]);
}
END_TEST

/* ---- vectors ----------------------------------------------------------------------------------------------- */

static size_t count_vectors(const struct vectors *vectors, const char *kind, const char *of) {
        size_t n = 0;

        for (size_t i = 0; i < vectors->n; i++) {
                const struct vector *vector = &vectors->items[i];

                n += strcmp(vector->kind, kind) == 0 && strcmp(vector->of, of) == 0 &&
                     strcmp(vector->form, "canonical") == 0;
        }
        return n;
}

/* Of the vectors of one kind and method, one has the member and, where it may be absent, one has not. */
static void check_members(const struct vectors *vectors, const char *kind, const char *of,
                          const struct schema *schema) {
        for (size_t j = 0; j < schema->n_fields; j++) {
                size_t n_with = 0, n_without = 0;
                char key[64];

                (void)snprintf(key, sizeof(key), "\"%s\":", schema->fields[j].name);
                for (size_t i = 0; i < vectors->n; i++) {
                        const struct vector *vector = &vectors->items[i];

                        if (strcmp(vector->kind, kind) != 0 || strcmp(vector->outcome, "ok") != 0 ||
                            (of != NULL && strcmp(vector->of, of) != 0))
                                continue;
                        n_with += strstr(vector->data, key) != NULL;
                        n_without += strstr(vector->data, key) == NULL;
                }
                ck_assert_msg(n_with > 0, "no %s of %s has \"%s\"", kind, of, schema->fields[j].name);
                ck_assert_msg(n_without > 0 || !schema->fields[j].optional, "no %s of %s is without \"%s\"", kind,
                              of, schema->fields[j].name);
        }
}

START_TEST(vectors_show_every_method_and_error) {
        struct vectors vectors = vectors_load();

        for (int i = 0; i < N_METHODS; i++) {
                const struct method_schema *method = &method_schemas[i];

                ck_assert_msg(count_vectors(&vectors, "call", method->name) > 0, "no call of %s", method->name);
                ck_assert_msg(count_vectors(&vectors, "reply", method->name) > 0, "no reply of %s", method->name);
                check_members(&vectors, "call", method->name, method->params);
                check_members(&vectors, "reply", method->name, method->reply);
        }
        for (size_t i = 0; i < ELEMENTSOF(types); i++)
                check_members(&vectors, "reply", NULL, types[i]);
        for (int i = 1; i < N_VERDICTS; i++) {
                const char *name = verdict_error_name((enum verdict)i);

                ck_assert_msg(count_vectors(&vectors, "error", name) > 0, "no error %s", name);
        }
        vectors_deinit(&vectors);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("schema");
        TCase *tcase = tcase_create("schema");

        suite_add_tcase(suite, tcase);
        tcase_add_test(tcase, tables_equal_the_broker_interface);
        tcase_add_test(tcase, tables_equal_the_service_interface);
        tcase_add_test(tcase, texts_are_the_files);
        tcase_add_test(tcase, layouts_hold);
        tcase_add_test(tcase, methods_are_found_by_name);
        tcase_add_test(tcase, every_parameter_has_a_hint_and_a_limit);
        tcase_add_test(tcase, names_are_checked);
        tcase_add_test(tcase, modes_are_checked);
        tcase_add_test(tcase, vectors_show_every_method_and_error);
        return suite_run(suite);
}
