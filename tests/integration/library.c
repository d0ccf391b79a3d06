/* SPDX-License-Identifier: Apache-2.0 */
/* The library's calls with the checks that every test makes of them. The test's own thread. */
#include "library.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

gpuipc_client *library_connect(const char *socket_path) {
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_client *client;
        gpuipc_error error;

        options.socket_path = socket_path;
        ck_assert_msg(gpuipc_connect(&options, &client, &error) == GPUIPC_OK, "%s", error.message);
        return client;
}

gpuipc_buffer *library_allocate(gpuipc_client *client, int64_t size, const char *name, int64_t keep_ms) {
        gpuipc_allocate_options options = GPUIPC_ALLOCATE_OPTIONS_INIT;
        gpuipc_buffer *buffer;
        gpuipc_error error;

        options.name = name;
        options.handle = memory_handle();
        options.keep_ms = keep_ms;
        ck_assert_msg(gpuipc_allocate(client, size, &options, &buffer, &error) == GPUIPC_OK, "%s", error.message);
        return buffer;
}

gpuipc_buffer *library_open(gpuipc_client *client, const char *name, gpuipc_access access) {
        gpuipc_open_options options = GPUIPC_OPEN_OPTIONS_INIT;
        gpuipc_buffer *buffer;
        gpuipc_error error;

        options.access = access;
        ck_assert_msg(gpuipc_open_name(client, name, &options, &buffer, &error) == GPUIPC_OK, "%s", error.message);
        return buffer;
}

gpuipc_status library_try_open(gpuipc_client *client, const char *name, gpuipc_access access, int64_t wait_ms) {
        gpuipc_open_options options = GPUIPC_OPEN_OPTIONS_INIT;
        gpuipc_buffer *buffer;
        int status;

        options.access = access;
        options.wait_ms = wait_ms;
        status = gpuipc_open_name(client, name, &options, &buffer, NULL);
        if (status == GPUIPC_OK)
                (void)gpuipc_release(buffer, NULL);
        return (gpuipc_status)status;
}

unsigned char *library_map(gpuipc_buffer *buffer) {
        gpuipc_error error;
        void *memory;

        ck_assert_msg(gpuipc_buffer_map(buffer, &memory, &error) == GPUIPC_OK, "%s", error.message);
        return memory;
}

void library_release(gpuipc_buffer *buffer) {
        gpuipc_error error;

        ck_assert_msg(gpuipc_release(buffer, &error) == GPUIPC_OK, "%s", error.message);
}

void library_expect(int status, gpuipc_status expected, const gpuipc_error *error) {
        ck_assert_msg(status == (int)expected, "%s instead of %s: %s", gpuipc_status_name((gpuipc_status)status),
                      gpuipc_status_name(expected), status == GPUIPC_OK ? "" : error->message);
        if (status == GPUIPC_OK)
                return;
        ck_assert_int_eq(error->status, expected);
        ck_assert_uint_gt(strlen(error->message), 0);
        ck_assert_ptr_nonnull(error->name);
}

static int count_lease(const gpuipc_lease_info *lease, void *data) {
        (void)lease;
        ++*(int *)data;
        return 0;
}

static int count_buffer(const gpuipc_buffer_info *buffer, void *data) {
        (void)buffer;
        ++*(int *)data;
        return 0;
}

int library_count_leases(gpuipc_client *client, const char *name) {
        gpuipc_list_options options = GPUIPC_LIST_OPTIONS_INIT;
        gpuipc_error error;
        int n = 0;

        options.name = name;
        ck_assert_msg(gpuipc_list(client, &options, count_lease, &n, &error) == GPUIPC_OK, "%s", error.message);
        return n;
}

int library_count_buffers(gpuipc_client *client, const char *name) {
        gpuipc_list_options options = GPUIPC_LIST_OPTIONS_INIT;
        gpuipc_error error;
        int n = 0;

        options.name = name;
        ck_assert_msg(gpuipc_list_buffers(client, &options, count_buffer, &n, &error) == GPUIPC_OK, "%s", error.message);
        return n;
}

static void take_session(const gpuipc_status_info *status, void *data) {
        *(char **)data = strdup(status->session);
}

char *library_session(gpuipc_client *client) {
        gpuipc_error error;
        char *session = NULL;

        ck_assert_msg(gpuipc_get_status(client, take_session, &session, &error) == GPUIPC_OK, "%s", error.message);
        ck_assert_ptr_nonnull(session);
        return session;
}

gpuipc_access library_reading(void) {
        return memory_is_classic() ? GPUIPC_RW : GPUIPC_RO;
}

static int count_maps(void) {
        FILE *file = fopen("/proc/self/maps", "re");
        char line[512];
        int n = 0;

        ck_assert_ptr_nonnull(file);
        while (fgets(line, sizeof(line), file))
                n += strstr(line, "memfd:gpuipc") != NULL;
        fclose(file);
        return n;
}

void library_expect_maps(int n) {
        if (memory_is_host())
                ck_assert_int_eq(count_maps(), n);
}
