/* SPDX-License-Identifier: Apache-2.0 */
/* Sets up the fake driver by a script of this test's own, forks owners of memory, and answers as a daemon would. */
#include "cuda_gpus.h"

#include <check.h>
#include <dlfcn.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/wait.h"

static char directory[128];
static void *driver;

/* ---- the machine ------------------------------------------------------------------------------------------ */

void gpus_script(const char *script) {
        char path[160], fresh[168];
        FILE *file;

        (void)snprintf(path, sizeof(path), "%s/script", directory);
        (void)snprintf(fresh, sizeof(fresh), "%s.new", path);
        file = fopen(fresh, "we");
        ck_assert_msg(file != NULL, "%s: %m", fresh);
        ck_assert_int_ge(fprintf(file, "state %s/state\n%s\n", directory, script ? script : ""), 0);
        ck_assert_int_eq(fclose(file), 0);
        ck_assert_int_eq(rename(fresh, path), 0);
        ck_assert_int_eq(setenv("GPUIPC_FAKE_CUDA", path, 1), 0);
}

void gpus_start(const char *script) {
        const char *build = getenv("GPUIPC_BUILD"), *scratch = getenv("TMPDIR");
        char path[512];

        (void)snprintf(directory, sizeof(directory), "%s/cuda.XXXXXX", scratch ? scratch : "/tmp");
        ck_assert_ptr_nonnull(mkdtemp(directory));
        gpus_script(script);
        (void)unsetenv("CUDA_VISIBLE_DEVICES");
        /* Whoever asks for the name afterwards is given what is loaded under it. */
        (void)snprintf(path, sizeof(path), "%s/fake/libcuda.so.1", build ? build : "build");
        driver = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        ck_assert_msg(driver != NULL, "%s", dlerror());
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) {
        (void)st, (void)type, (void)ftw;
        return remove(path);
}

void gpus_stop(void) {
        ck_assert_int_eq(nftw(directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
}

void *gpus_function(const char *name) {
        void *function = dlsym(driver, name);
        ck_assert_msg(function != NULL, "%s", name);
        return function;
}

/* A line is "PID PROGRAM ENTRY DEVICE RESULT". */
static size_t count_calls(const char *entry, const char *result) {
        char path[160], line[256], name[64], outcome[16];
        size_t n = 0;
        FILE *log;

        (void)snprintf(path, sizeof(path), "%s/state/calls", directory);
        log = fopen(path, "re");
        while (log && fgets(line, sizeof(line), log))
                n += sscanf(line, "%*s %*s %63s %*s %15s", name, outcome) == 2 &&
                     (!entry || strcmp(name, entry) == 0) && (!result || strcmp(outcome, result) == 0);
        if (log)
                (void)fclose(log);
        return n;
}

size_t gpus_calls(const char *entry, int result) {
        char text[16];

        (void)snprintf(text, sizeof(text), "%d", result);
        return count_calls(entry, result < 0 ? NULL : text);
}

size_t gpus_all_calls(void) {
        return count_calls(NULL, NULL);
}

size_t gpus_waits(const char *entry) {
        return count_calls(entry, "waits");
}

size_t gpus_entries(size_t since, char ret_names[GPUS_ENTRIES_MAX][64]) {
        char path[160], line[256], name[64];
        size_t n = 0, at = 0;
        FILE *log;

        (void)snprintf(path, sizeof(path), "%s/state/calls", directory);
        log = fopen(path, "re");
        ck_assert_ptr_nonnull(log);
        while (fgets(line, sizeof(line), log)) {
                size_t i = 0;
                if (at++ < since || sscanf(line, "%*s %*s %63s", name) != 1)
                        continue;
                while (i < n && strcmp(ret_names[i], name) != 0)
                        i++;
                ck_assert_uint_lt(n, GPUS_ENTRIES_MAX);
                if (i == n)
                        (void)memcpy(ret_names[n++], name, sizeof(name));
        }
        (void)fclose(log);
        return n;
}

size_t address_ranges(void) {
        FILE *maps = fopen("/proc/self/maps", "re");
        char line[512];
        size_t n = 0;

        ck_assert_ptr_nonnull(maps);
        while (fgets(line, sizeof(line), maps)) {
                unsigned long long from, to;
                n += strstr(line, directory) && sscanf(line, "%llx-%llx", &from, &to) == 2 &&
                     to - from >= (unsigned long long)(2 * MIB);
        }
        (void)fclose(maps);
        return n;
}

/* ---- somebody else's memory ------------------------------------------------------------------------------- */

unsigned char owner_byte(size_t i) {
        return (unsigned char)(i * 7 + (i >> 8) * 3 + 1);
}

struct order {
        const char *kind;
        int device;
        int64_t size;
};

/* In the owner no check may be used: what fails is its exit status. */
static int send_memory(int talk_fd, int fd, const void *bytes, size_t n) {
        char control[CMSG_SPACE(sizeof(int))] = { 0 };
        struct iovec part = { .iov_base = (void *)(uintptr_t)bytes, .iov_len = n };
        struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };

        if (fd >= 0) {
                message.msg_control = control;
                message.msg_controllen = sizeof(control);
                struct cmsghdr *header = CMSG_FIRSTHDR(&message);
                *header = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int)) };
                (void)memcpy(CMSG_DATA(header), &fd, sizeof(fd));
        }
        return sendmsg(talk_fd, &message, MSG_NOSIGNAL) == (ssize_t)n ? 0 : -1;
}

static int own_descriptor(int talk_fd, const struct order *order) {
        CUmemAllocationProp properties = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                           .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                           .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = order->device } };
        CUmemGenericAllocationHandle handle;
        unsigned char *bytes = malloc((size_t)order->size);
        int fd = -1;

        if (!bytes || DRIVER(cuInit)(0) || DRIVER(cuMemCreate)(&handle, (size_t)order->size, &properties, 0) ||
            DRIVER(cuMemExportToShareableHandle)(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ||
            DRIVER(cuMemRelease)(handle))
                return 1;
        for (size_t i = 0; i < (size_t)order->size; i++)
                bytes[i] = owner_byte(i);
        if (pwrite(fd, bytes, (size_t)order->size, 0) != order->size || send_memory(talk_fd, fd, "m", 1) < 0)
                return 1;
        free(bytes);
        return 0;
}

static int own_classic(int talk_fd, const struct order *order) {
        CUipcMemHandle handle;
        CUdeviceptr pointer;
        CUcontext context;

        if (DRIVER(cuInit)(0) || DRIVER(cuDevicePrimaryCtxRetain)(&context, order->device) ||
            DRIVER(cuCtxSetCurrent)(context) || DRIVER(cuMemAlloc)(&pointer, (size_t)order->size) ||
            DRIVER(cuIpcGetMemHandle)(&handle, pointer))
                return 1;
        for (size_t i = 0; i < (size_t)order->size; i++)
                ((unsigned char *)(uintptr_t)pointer)[i] = owner_byte(i);
        return send_memory(talk_fd, -1, &handle, sizeof(handle)) < 0;
}

static int own(int talk_fd, void *data) {
        const struct order *order = data;
        int r = strcmp(order->kind, "cuda-ipc") == 0 ? own_classic(talk_fd, order) : own_descriptor(talk_fd, order);

        return r != 0 ? r : talk_hear(talk_fd, 'e') != 0;
}

void owner_encode(const void *data, size_t n, char *ret_text) {
        const unsigned char *bytes = data;
        static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

        for (size_t i = 0; i < n; i += 3) {
                uint32_t bits = (uint32_t)bytes[i] << 16 | (i + 1 < n ? (uint32_t)bytes[i + 1] << 8 : 0) |
                                (i + 2 < n ? bytes[i + 2] : 0);
                *ret_text++ = digits[bits >> 18];
                *ret_text++ = digits[bits >> 12 & 63];
                *ret_text++ = i + 1 < n ? digits[bits >> 6 & 63] : '=';
                *ret_text++ = i + 2 < n ? digits[bits & 63] : '=';
        }
        *ret_text = '\0';
}

struct owner owner_start(const char *kind, int device, int64_t size) {
        struct order order = { .kind = kind, .device = device, .size = size };
        struct owner owner = { .fd = -1 };
        char control[CMSG_SPACE(sizeof(int))];
        unsigned char bytes[sizeof(CUipcMemHandle)];
        struct iovec part = { .iov_base = bytes, .iov_len = sizeof(bytes) };
        struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };

        owner.child = child_start(NULL, own, &order);
        ssize_t n = recvmsg(owner.child.talk_fd, &message, MSG_CMSG_CLOEXEC);
        ck_assert_msg(n > 0, "the owner of %s has nothing to give", kind);
        if (n == (ssize_t)sizeof(bytes))
                owner_encode(bytes, sizeof(bytes), owner.ipc);
        if (CMSG_FIRSTHDR(&message))
                (void)memcpy(&owner.fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(owner.fd));
        return owner;
}

void owner_stop(struct owner *owner) {
        child_say(&owner->child, 'e');
        child_expect_exit(&owner->child, 0);
        if (owner->fd >= 0)
                (void)close(owner->fd);
}

/* ---- a daemon that grants it ------------------------------------------------------------------------------ */

static void desk_answer(struct fake *fake, int peer, const char *call, void *data) {
        struct desk *desk = data;
        const char *id = desk->id ? desk->id : "b1", *kind = desk->kind ? desk->kind : "cuda-fd";
        const char *uuid = desk->uuid ? desk->uuid : GPUS_UUID("0");
        char *text = NULL;

        if (strstr(call, ".Allocate\"")) {
                (void)snprintf(desk->asked, sizeof(desk->asked), "%s", call);
        } else if (!strstr(call, ".Open\"")) {
                fake_send(fake, peer, strstr(call, ".GetStatus\"") ? fake_status : "{\"parameters\":{}}");
                return;
        }
        ck_assert_int_ge(
                asprintf(&text,
                         "{\"parameters\":{\"buffer\":{\"id\":\"%s\",\"size\":%lld,\"allocated\":%lld,\"device\":\"%s\",\"handle\":"
                         "\"%s\",\"owner_uid\":0,\"owner_gid\":0,\"mode\":\"0600\",\"sealed\":false,\"ro_enforced\":false,\"state\":"
                         "\"live\",\"created_usec\":%lld,\"leases\":1,\"charged_uid\":0},\"lease\":\"l1\",\"handle\":{\"kind\":\"%s\""
                         "%s%s%s%s,\"offset\":%lld,\"size\":%lld,\"device\":\"%s\"}}}",
                         id, (long long)desk->size, (long long)(desk->allocated ? desk->allocated : desk->size), uuid, kind,
                         (long long)desk->created_usec, kind, desk->fd >= 0 ? ",\"fd\":0" : "", desk->ipc ? ",\"ipc\":\"" : "",
                         desk->ipc ? desk->ipc : "", desk->ipc ? "\"" : "", (long long)desk->offset, (long long)desk->size,
                         uuid), 0);
        fake_send_fds(fake, peer, text, &desk->fd, desk->fd >= 0);
        free(text);
}

void desk_open(struct desk *desk) {
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_error error;

        desk->fake = fake_start(desk_answer, desk);
        options.socket_path = desk->fake->path;
        ck_assert_msg(gpuipc_connect(&options, &desk->client, &error) == GPUIPC_OK, "%s", error.message);
        wait_for(fake_open_peers(desk->fake) == 1); /* its descriptors are this process's */
}

void desk_close(struct desk *desk) {
        gpuipc_client_free(desk->client);
        fake_stop(desk->fake);
}

static int open_and_map(struct desk *desk, gpuipc_access access, gpuipc_buffer **ret_buffer, void **ret_pointer,
                        gpuipc_error *ret_error) {
        gpuipc_open_options options = GPUIPC_OPEN_OPTIONS_INIT;

        options.access = access;
        ck_assert_msg(gpuipc_open_id(desk->client, "b1", &options, ret_buffer, ret_error) == GPUIPC_OK, "%s", ret_error->message);
        return gpuipc_buffer_map(*ret_buffer, ret_pointer, ret_error);
}

gpuipc_buffer *desk_map(struct desk *desk, gpuipc_access access, void **ret_pointer) {
        gpuipc_buffer *buffer;
        gpuipc_error error;

        ck_assert_msg(open_and_map(desk, access, &buffer, ret_pointer, &error) == GPUIPC_OK, "%s", error.message);
        return buffer;
}

int desk_fail(struct desk *desk, gpuipc_access access, gpuipc_error *ret_error) {
        gpuipc_buffer *buffer;
        void *pointer;
        int r = open_and_map(desk, access, &buffer, &pointer, ret_error);

        ck_assert_int_eq(gpuipc_buffer_is_peer(buffer), 0);
        ck_assert_int_eq(gpuipc_release(buffer, NULL), GPUIPC_OK);
        return r;
}
