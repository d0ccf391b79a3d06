/* SPDX-License-Identifier: Apache-2.0 */
/* Memory behind a classic handle of 64 bytes: opened once, closed once, and why it cannot be. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/base64.h"
#include "cuda_gpus.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"

static struct desk desk_of(const struct owner *owner, int64_t size) {
        return (struct desk){ .kind = "cuda-ipc", .ipc = owner->ipc, .fd = -1, .size = size };
}

static void check_bytes(const void *pointer, size_t offset, size_t n) {
        const unsigned char *bytes = pointer;
        size_t i = 0;

        while (i < n && bytes[i] == owner_byte(offset + i))
                i++;
        ck_assert_msg(i == n, "byte %zu", offset + i);
}

static void check_message(const gpuipc_error *error, const char *code, const char *words) {
        size_t n = strlen(error->message);

        ck_assert_msg(n > 6 && strncmp(error->message + n - 5, code, 4) == 0, "%s: %s", code, error->message);
        ck_assert_msg(strstr(error->message, words) != NULL, "'%s' is not in: %s", words, error->message);
}

/* The owner retains its own primary context, and keeps it. */
static void check_nothing_left(void) {
        ck_assert_uint_eq(address_ranges(), 0);
        ck_assert_uint_eq(gpus_calls("cuIpcOpenMemHandle_v2", 0), gpus_calls("cuIpcCloseMemHandle", 0));
        ck_assert_uint_eq(gpus_calls("cuDevicePrimaryCtxRetain", 0), gpus_calls("cuDevicePrimaryCtxRelease_v2", 0) + 1);
        ck_assert_uint_eq(gpus_calls("cuCtxPushCurrent_v2", 0), gpus_calls("cuCtxPopCurrent_v2", 0));
        ck_assert_uint_eq(gpus_calls("cuCtxSynchronize", -1), 0);
}

START_TEST(same_bytes) {
        unsigned char handle[GPUIPC_IPC_HANDLE_SIZE];
        gpuipc_buffer *buffers[3];
        gpuipc_error error;
        void *pointers[3];
        CUcontext context;
        char text[96];

        gpus_start(NULL);
        struct owner owner = owner_start("cuda-ipc", 0, 4 * MIB);
        struct desk desk = desk_of(&owner, 3 * MIB);
        ck_assert_int_eq(DRIVER(cuInit)(0), 0);
        check_fd_count_begin();
        desk_open(&desk);
        for (int i = 0; i < 3; i++)
                buffers[i] = desk_map(&desk, GPUIPC_RW, &pointers[i]);
        ck_assert_ptr_eq(pointers[0], pointers[1]);
        ck_assert_ptr_eq(pointers[0], pointers[2]);
        check_bytes(pointers[0], 0, (size_t)desk.size);
        ck_assert_uint_eq(gpus_calls("cuIpcOpenMemHandle_v2", -1), 1);
        ck_assert_int_eq(gpuipc_buffer_fd(buffers[0]), -1);
        ck_assert_int_eq(gpuipc_buffer_ipc_handle(buffers[0], handle, &error), GPUIPC_OK);
        owner_encode(handle, sizeof(handle), text);
        ck_assert_str_eq(text, owner.ipc);
        ck_assert_int_eq(gpuipc_buffer_ipc_handle(buffers[0], NULL, &error), GPUIPC_ERROR_INVALID_PARAMETER);
        ck_assert_str_eq(error.subject, "ret_handle");
        ck_assert_int_eq(gpuipc_buffer_is_peer(buffers[0]), 0);
        ck_assert_int_eq(gpuipc_buffer_cuda_device(buffers[0]), 0);
        ck_assert_int_eq(DRIVER(cuCtxGetCurrent)(&context), 0);
        ck_assert_ptr_null(context);
        for (int i = 0; i < 3; i++) {
                ck_assert_uint_eq(gpus_calls("cuIpcCloseMemHandle", -1), 0);
                ck_assert_int_eq(gpuipc_release(buffers[i], NULL), GPUIPC_OK);
        }
        check_nothing_left();
        desk_close(&desk);
        check_fd_count_end();
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

START_TEST(from_an_offset) {
        static const int64_t parts[][2] = { { 512, 1000 }, { 2 * MIB, 2 * MIB }, { 4 * MIB - 1, 1 } };
        gpuipc_error error;
        void *pointer;

        gpus_start(NULL);
        struct owner owner = owner_start("cuda-ipc", 0, 4 * MIB);
        struct desk desk = desk_of(&owner, 1);
        desk_open(&desk);
        for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
                desk.offset = parts[i][0];
                desk.size = parts[i][1];
                gpuipc_buffer *buffer = desk_map(&desk, GPUIPC_RW, &pointer);
                check_bytes(pointer, (size_t)desk.offset, (size_t)desk.size);
                ck_assert_int_eq(gpuipc_release(buffer, NULL), GPUIPC_OK);
        }
        desk.size = 2;
        ck_assert_int_eq(desk_fail(&desk, GPUIPC_RW, &error), GPUIPC_ERROR_MAP);
        ck_assert_msg(strstr(error.message, "smaller than the daemon says") != NULL, "%s", error.message);
        check_nothing_left();
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

START_TEST(one_id_for_two) {
        gpuipc_buffer *buffers[2];
        void *pointers[2];

        gpus_start(NULL);
        struct owner owners[2] = { owner_start("cuda-ipc", 0, 2 * MIB), owner_start("cuda-ipc", 0, 2 * MIB) };
        struct desk desk = desk_of(&owners[0], 2 * MIB);
        desk_open(&desk);
        for (int i = 0; i < 2; i++) {
                desk.ipc = owners[i].ipc;
                buffers[i] = desk_map(&desk, GPUIPC_RW, &pointers[i]);
        }
        ck_assert_ptr_ne(pointers[0], pointers[1]);
        *(unsigned char *)pointers[1] ^= 0xff;
        check_bytes(pointers[0], 0, (size_t)desk.size);
        for (int i = 0; i < 2; i++)
                ck_assert_int_eq(gpuipc_release(buffers[i], NULL), GPUIPC_OK);
        ck_assert_uint_eq(gpus_calls("cuIpcCloseMemHandle", 0), 2);
        ck_assert_uint_eq(address_ranges(), 0);
        desk_close(&desk);
        for (int i = 0; i < 2; i++)
                owner_stop(&owners[i]);
        gpus_stop();
}
END_TEST

/* The owner's physical number is 0; with _i it is hidden. */
START_TEST(over_peer_access) {
        gpuipc_error error;
        CUcontext mine, now;
        void *pointer;

        gpus_start(NULL);
        struct owner owner = owner_start("cuda-ipc", 0, 2 * MIB);
        struct desk desk = desk_of(&owner, 2 * MIB);
        if (_i)
                ck_assert_int_eq(setenv("CUDA_VISIBLE_DEVICES", "1", 1), 0);
        desk_open(&desk);
        ck_assert_int_eq(DRIVER(cuInit)(0), 0);
        ck_assert_int_eq(DRIVER(cuCtxCreate)(&mine, NULL, 0, _i ? 0 : 1), 0);
        gpuipc_buffer *buffer = desk_map(&desk, GPUIPC_RW, &pointer);
        check_bytes(pointer, 0, (size_t)desk.size);
        ck_assert_int_eq(gpuipc_buffer_is_peer(buffer), 1);
        ck_assert_int_eq(DRIVER(cuCtxGetCurrent)(&now), 0);
        ck_assert_ptr_eq(now, mine);
        /* Released under no context, it is closed where it was opened. */
        ck_assert_int_eq(DRIVER(cuCtxPopCurrent)(&now), 0);
        ck_assert_int_eq(gpuipc_release(buffer, NULL), GPUIPC_OK);
        ck_assert_int_eq(DRIVER(cuCtxGetCurrent)(&now), 0);
        ck_assert_ptr_null(now);
        ck_assert_uint_eq(gpus_calls("cuIpcCloseMemHandle", 0), 1);
        ck_assert_uint_eq(address_ranges(), 0);
        /* No way there. */
        gpus_script("device peer=no\ndevice");
        ck_assert_int_eq(DRIVER(cuCtxPushCurrent)(mine), 0);
        if (!_i) {
                ck_assert_int_eq(desk_fail(&desk, GPUIPC_RW, &error), GPUIPC_ERROR_HANDLE_UNSUPPORTED);
                check_message(&error, "G008", GPUS_UUID("0"));
                check_message(&error, "G008", GPUS_UUID("1"));
        }
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

/* The driver closes what was opened in a context along with it; nothing else may be closed in its place. */
/* Maps what the owner has, in a context that is gone then. */
static gpuipc_buffer *map_and_lose(struct owner *owner, struct desk *desk, void **ret_pointer) {
        gpuipc_buffer *buffer;
        CUcontext mine;

        gpus_start(NULL);
        *owner = owner_start("cuda-ipc", 0, 2 * MIB);
        *desk = desk_of(owner, 2 * MIB);
        desk_open(desk);
        ck_assert_int_eq(DRIVER(cuInit)(0), 0);
        ck_assert_int_eq(DRIVER(cuCtxCreate)(&mine, NULL, 0, 0), 0);
        buffer = desk_map(desk, GPUIPC_RW, ret_pointer);
        ck_assert_int_eq(DRIVER(cuCtxDestroy)(mine), 0);
        return buffer;
}

START_TEST(context_goes_first) {
        struct owner owner;
        struct desk desk;
        void *pointer;

        gpuipc_buffer *buffer = map_and_lose(&owner, &desk, &pointer);
        ck_assert_int_eq(gpuipc_release(buffer, NULL), GPUIPC_OK);
        ck_assert_uint_eq(gpus_calls("cuIpcCloseMemHandle", -1), 0);
        ck_assert_uint_eq(gpus_calls("cuCtxPushCurrent_v2", -1), 0);
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

/* Who comes later has nothing of what ended with another's context, and keeps what is at its address by now. */
START_TEST(opened_anew_after_its_context) {
        void *before, *after;
        struct owner owner;
        struct desk desk;

        gpuipc_buffer *first = map_and_lose(&owner, &desk, &before);
        gpuipc_buffer *second = desk_map(&desk, GPUIPC_RW, &after);
        ck_assert_uint_eq(gpus_calls("cuIpcOpenMemHandle_v2", -1), 2);
        check_bytes(after, 0, (size_t)desk.size);
        ck_assert_int_eq(gpuipc_release(first, NULL), GPUIPC_OK);
        ck_assert_uint_eq(gpus_calls("cuIpcCloseMemHandle", -1), 0);
        check_bytes(after, 0, (size_t)desk.size);
        ck_assert_int_eq(gpuipc_release(second, NULL), GPUIPC_OK);
        ck_assert_uint_eq(gpus_calls("cuIpcCloseMemHandle", 0), 1);
        ck_assert_uint_eq(address_ranges(), 0);
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

/* ---- why not ---------------------------------------------------------------------------------------------- */

START_TEST(same_pid_number) {
        struct owner none = { .fd = -1 };
        CUipcMemHandle handle;
        gpuipc_error error;
        CUdeviceptr memory;
        CUcontext mine;
        char words[64];

        gpus_start(NULL);
        /* To the driver a handle of one's own is a handle of anyone with this pid number. */
        ck_assert_int_eq(DRIVER(cuInit)(0), 0);
        ck_assert_int_eq(DRIVER(cuCtxCreate)(&mine, NULL, 0, 0), 0);
        ck_assert_int_eq(DRIVER(cuMemAlloc)(&memory, 2 * MIB), 0);
        ck_assert_int_eq(DRIVER(cuIpcGetMemHandle)(&handle, memory), 0);
        owner_encode(&handle, sizeof(handle), none.ipc);
        struct desk desk = desk_of(&none, 2 * MIB);
        desk_open(&desk);
        ck_assert_int_eq(desk_fail(&desk, GPUIPC_RW, &error), GPUIPC_ERROR_MAP);
        (void)snprintf(words, sizeof(words), "its pid number, %d, is also the daemon's", (int)getpid());
        check_message(&error, "G009", words);
        check_message(&error, "G009", "CUDA_ERROR_INVALID_CONTEXT (201)");
        check_message(&error, "G009", "cuda-fd");
        desk_close(&desk);
        gpus_stop();
}
END_TEST

START_TEST(owner_is_gone) {
        gpuipc_buffer *buffer;
        gpuipc_error error;
        void *pointer;

        gpus_start(NULL);
        struct owner owner = owner_start("cuda-ipc", 0, 2 * MIB);
        struct desk desk = desk_of(&owner, 2 * MIB);
        desk_open(&desk);
        buffer = desk_map(&desk, GPUIPC_RW, &pointer);
        child_kill(&owner.child);
        /* What is mapped stays. */
        check_bytes(pointer, 0, (size_t)desk.size);
        ck_assert_int_eq(gpuipc_release(buffer, NULL), GPUIPC_OK);
        ck_assert_int_eq(desk_fail(&desk, GPUIPC_RW, &error), GPUIPC_ERROR_MAP);
        check_message(&error, "G010", "open the buffer anew");
        check_nothing_left();
        desk_close(&desk);
        gpus_stop();
}
END_TEST

START_TEST(no_handle) {
        char text[128];
        gpuipc_error error;

        gpus_start(NULL);
        struct owner owner = owner_start("cuda-ipc", 0, 2 * MIB);
        struct desk desk = desk_of(&owner, 2 * MIB);
        desk_open(&desk);
        ck_assert_int_eq(desk_fail(&desk, GPUIPC_RO, &error), GPUIPC_ERROR_HANDLE_UNSUPPORTED);
        check_message(&error, "G014", "read-only");
        static const char *const bad[] = { "", "AAAA", "=", "nonsense!" };
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
                desk.ipc = bad[i];
                ck_assert_int_eq(desk_fail(&desk, GPUIPC_RW, &error), GPUIPC_ERROR_MAP);
                ck_assert_msg(strstr(error.message, "not 64 bytes in base64") != NULL, "%s", error.message);
        }
        /* As long as one, and none that anybody gave out. */
        (void)snprintf(text, sizeof(text), "%s", owner.ipc);
        for (int i = 0; i < 84; i++)
                text[i] = 'A';
        desk.ipc = text;
        ck_assert_int_eq(desk_fail(&desk, GPUIPC_RW, &error), GPUIPC_ERROR_MAP);
        check_message(&error, "G010", "cuIpcOpenMemHandle()");
        desk.ipc = NULL;
        ck_assert_int_eq(desk_fail(&desk, GPUIPC_RW, &error), GPUIPC_ERROR_MAP);
        ck_assert_msg(strstr(error.message, "no bytes") != NULL, "%s", error.message);
        check_nothing_left();
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

static const struct {
        const char *entry;
        int status;
} entries[] = {
        { "cuDevicePrimaryCtxRetain", GPUIPC_ERROR_MAP },
        { "cuCtxPushCurrent_v2", GPUIPC_ERROR_MAP },
        { "cuIpcOpenMemHandle_v2", GPUIPC_ERROR_MAP },
        { "cuMemGetAddressRange_v2", GPUIPC_ERROR_MAP },
};

START_TEST(refused_at) {
        gpuipc_error error;
        char rule[96];
        void *pointer;

        gpus_start(NULL);
        struct owner owner = owner_start("cuda-ipc", 0, 2 * MIB);
        struct desk desk = desk_of(&owner, 2 * MIB);
        desk_open(&desk);
        (void)snprintf(rule, sizeof(rule), "on %s nth=1 fail=999", entries[_i].entry);
        gpus_script(rule);
        ck_assert_int_eq(desk_fail(&desk, GPUIPC_RW, &error), entries[_i].status);
        check_message(&error, "G015", "CUDA_ERROR_UNKNOWN (999)");
        check_nothing_left();
        gpuipc_buffer *buffer = desk_map(&desk, GPUIPC_RW, &pointer);
        check_bytes(pointer, 0, (size_t)desk.size);
        ck_assert_int_eq(gpuipc_release(buffer, NULL), GPUIPC_OK);
        check_nothing_left();
        desk_close(&desk);
        owner_stop(&owner);
        gpus_stop();
}
END_TEST

/* ---- the text --------------------------------------------------------------------------------------------- */

START_TEST(base64) {
        static const struct {
                const char *text, *bytes;
        } good[] = { { "", "" }, { "Zg==", "f" }, { "Zm8=", "fo" }, { "Zm9v", "foo" }, { "Zm9vYg==", "foob" },
                     { "+/+/", "\xfb\xff\xbf" } };
        static const char *const bad[] = { "Zg", "Zg=", "Zh==", "Zm9=", "Z===", "Zm9vYmFy", "Zm9v\n", "====", "Zg==Zg==", "Zm 9" };
        char bytes[16];

        for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
                size_t n = strlen(good[i].bytes);
                ck_assert_int_eq(base64_decode(good[i].text, bytes, n), 0);
                ck_assert_mem_eq(bytes, good[i].bytes, n);
        }
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
                for (size_t n = 0; n < 4; n++)
                        ck_assert_msg(base64_decode(bad[i], bytes, n) != 0, "'%s' is not %zu bytes", bad[i], n);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("client_cuda_ipc");
        TCase *tcase = tcase_create("cuda-ipc");

        tcase_set_timeout(tcase, 30);
        tcase_add_test(tcase, same_bytes);
        tcase_add_test(tcase, from_an_offset);
        tcase_add_test(tcase, one_id_for_two);
        tcase_add_loop_test(tcase, over_peer_access, 0, 2);
        tcase_add_test(tcase, context_goes_first);
        tcase_add_test(tcase, opened_anew_after_its_context);
        tcase_add_test(tcase, same_pid_number);
        tcase_add_test(tcase, owner_is_gone);
        tcase_add_test(tcase, no_handle);
        tcase_add_loop_test(tcase, refused_at, 0, (int)(sizeof(entries) / sizeof(entries[0])));
        tcase_add_test(tcase, base64);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
