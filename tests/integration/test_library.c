/* SPDX-License-Identifier: Apache-2.0 */
/* A buffer's life through the library, against a real daemon and other processes: made, written, opened, sealed, freed,
 * kept, and what fork() does to it. Runs on any memory. */
#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "library.h"
#include "proto/cleanup.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/suite.h"

#define SIZE (300 * KIB + 5)

static struct gpuipcd *daemon_process;

static void setup(void) {
        daemon_process = gpuipcd_start(NULL);
}

/* Everything was given back, here and there. */
static void teardown(void) {
        library_expect_maps(0);
        gpuipcd_wait_idle(daemon_process);
        gpuipcd_stop(daemon_process);
}

/* ---- facts ------------------------------------------------------------------------------------------------ */

/* Only that of host memory says by itself what may be done with it. */
static void check_descriptor(const gpuipc_buffer *buffer, int access) {
        int fd = gpuipc_buffer_fd(buffer);

        ck_assert_int_eq(fd < 0, memory_is_classic());
        if (fd >= 0)
                ck_assert_int_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
        if (!memory_is_host())
                return;
        ck_assert_int_eq(fcntl(fd, F_GETFL) & O_ACCMODE, access);
        ck_assert_int_eq(lseek(fd, 0, SEEK_END), SIZE);
}

START_TEST(facts_of_a_buffer) {
        gpuipc_client *client = library_connect(daemon_process->socket);
        gpuipc_allocate_options options = GPUIPC_ALLOCATE_OPTIONS_INIT;
        gpuipc_buffer *buffer, *same;
        gpuipc_error error;

        options.name = "facts/of-a.buffer_1";
        options.meta = "{\"dtype\":\"float32\",\"shape\":[3,100,257]}";
        options.label = "a \"label\"\n\xc3\xa9";
        options.handle = memory_handle();
        library_expect(gpuipc_allocate(client, SIZE, &options, &buffer, &error), GPUIPC_OK, &error);
        ck_assert_int_eq(gpuipc_buffer_size(buffer), SIZE);
        ck_assert_int_ge(gpuipc_buffer_allocated(buffer), SIZE);
        ck_assert_int_eq(gpuipc_buffer_allocated(buffer) % memory_page(), 0);
        ck_assert_int_eq(gpuipc_buffer_offset(buffer), 0);
        ck_assert_str_eq(gpuipc_buffer_name(buffer), options.name);
        ck_assert_int_eq(strcmp(gpuipc_buffer_device(buffer), "host") == 0, memory_is_host());
        ck_assert_str_eq(gpuipc_buffer_handle(buffer), memory_handle());
        ck_assert_int_eq(gpuipc_buffer_access(buffer), GPUIPC_RW);
        ck_assert_int_eq(gpuipc_buffer_is_peer(buffer), 0);
        check_descriptor(buffer, O_RDWR);

        same = library_open(client, options.name, library_reading());
        ck_assert_str_eq(gpuipc_buffer_id(same), gpuipc_buffer_id(buffer));
        ck_assert_str_ne(gpuipc_buffer_lease(same), gpuipc_buffer_lease(buffer));
        ck_assert_str_eq(gpuipc_buffer_meta(same), options.meta);
        ck_assert_int_eq(gpuipc_buffer_access(same), library_reading());
        check_descriptor(same, O_RDONLY);
        library_release(same);
        library_release(buffer);
        gpuipc_client_free(client);
} END_TEST

struct seen {
        const char *lease;
        const char *label;
        int n;
};

static int see_label(const gpuipc_lease_info *lease, void *data) {
        struct seen *seen = data;

        if (strcmp(lease->id, seen->lease) != 0)
                return 0;
        seen->n++;
        ck_assert_str_eq(lease->label, seen->label);
        ck_assert_str_eq(lease->access, library_reading() == GPUIPC_RO ? "ro" : "rw");
        ck_assert_str_eq(lease->state, "active");
        ck_assert_int_eq(lease->pid, getpid());
        ck_assert_int_eq(lease->uid, getuid());
        return 0;
}

START_TEST(label_of_a_lease) {
        gpuipc_client *client = library_connect(daemon_process->socket);
        gpuipc_open_options options = GPUIPC_OPEN_OPTIONS_INIT;
        gpuipc_buffer *buffer = library_allocate(client, SIZE, NULL, 0), *opened;
        struct seen seen = { .label = "\x01 control \x7f, quote \", \xe2\x82\xac" };
        gpuipc_error error;

        options.access = library_reading();
        options.label = seen.label;
        library_expect(gpuipc_open_id(client, gpuipc_buffer_id(buffer), &options, &opened, &error), GPUIPC_OK, &error);
        seen.lease = gpuipc_buffer_lease(opened);
        library_expect(gpuipc_list(client, NULL, see_label, &seen, &error), GPUIPC_OK, &error);
        ck_assert_int_eq(seen.n, 1);
        library_release(opened);
        library_release(buffer);
        gpuipc_client_free(client);
} END_TEST

START_TEST(two_opens_are_two_leases_and_one_mapping) {
        if (memory_is_classic()) {
                printf("SKIP two_opens_are_two_leases_and_one_mapping: a classic handle cannot be lent read-only\n");
                fflush(stdout);
                return;
        }

        gpuipc_client *client = library_connect(daemon_process->socket);
        gpuipc_buffer *buffer = library_allocate(client, SIZE, "twice", 0), *first, *second;
        void *memory = library_map(buffer);

        first = library_open(client, "twice", GPUIPC_RW);
        second = library_open(client, "twice", GPUIPC_RO);
        ck_assert_ptr_eq(library_map(first), memory);
        ck_assert_ptr_eq(library_map(first), memory);
        ck_assert_ptr_ne(library_map(second), memory);
        library_expect_maps(2);
        ck_assert_int_eq(library_count_leases(client, "twice"), 3);
        memory_set(memory, 7, 0x5a);
        ck_assert_int_eq(memory_get(library_map(second), 7), 0x5a);
        library_release(buffer);
        library_expect_maps(2);
        memory_set(library_map(first), 8, 1);
        library_release(first);
        library_expect_maps(1);
        ck_assert_int_eq(memory_get(library_map(second), 8), 1);
        library_release(second);
        gpuipc_client_free(client);
} END_TEST

/* ---- other processes -------------------------------------------------------------------------------------- */

static int fault_status(volatile unsigned char *memory) {
        int status = 0;
        pid_t pid = fork();

        if (pid == 0) {
                (void)signal(SIGSEGV, SIG_DFL);
                (void)signal(SIGBUS, SIG_DFL);
                memory[0] = 1;
                _exit(0);
        }
        return pid > 0 && waitpid(pid, &status, 0) == pid ? status : -1;
}

/* On a GPU it is the kernel that writes which faults, and the process's context with it: tried elsewhere. */
static bool write_faults(volatile unsigned char *memory) {
        int status = memory_is_host() ? fault_status(memory) : 0;

        if (!memory_is_host() || (WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV))
                return true;
        return getenv("GPUIPC_SANITIZER") && WIFEXITED(status) && WEXITSTATUS(status) != 0;
}

/* Reads 1, 2, 3…, finds it cannot write, and says so; then opens for writing and leaves a mark. */
static int consume(int talk_fd, void *data) {
        gpuipc_client *client;
        gpuipc_buffer *buffer;
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_open_options open_options = GPUIPC_OPEN_OPTIONS_INIT;
        unsigned char found[SIZE];
        void *memory;

        options.socket_path = data;
        open_options.access = library_reading();
        if (talk_hear(talk_fd, 'g') != 0)
                return 8;
        if (gpuipc_connect(&options, &client, NULL) != 0 ||
            gpuipc_open_name(client, "shared", &open_options, &buffer, NULL) != 0 || gpuipc_buffer_map(buffer, &memory, NULL) != 0)
                return 1;
        memory_read(memory, 0, found, SIZE);
        for (int64_t i = 0; i < SIZE; i++)
                if (found[i] != (unsigned char)(i * 7))
                        return 2;
        if (!write_faults(memory))
                return 3;
        if (gpuipc_release(buffer, NULL) != 0)
                return 4;
        if (gpuipc_open_name(client, "shared", NULL, &buffer, NULL) != 0 || gpuipc_buffer_map(buffer, &memory, NULL) != 0)
                return 5;
        memory_set(memory, SIZE - 1, 99);
        if (talk_say(talk_fd, 'w') != 0 || talk_hear(talk_fd, 'e') != 0)
                return 6;
        if (gpuipc_release(buffer, NULL) != 0)
                return 7;
        gpuipc_client_free(client);
        return 0;
}

START_TEST(second_process_reads_and_writes) {
        /* Before this process uses the driver, which no child of it could then. */
        struct child child = child_start(NULL, consume, daemon_process->socket);
        gpuipc_client *client = library_connect(daemon_process->socket);
        gpuipc_buffer *buffer = library_allocate(client, SIZE, "shared", 0);
        void *memory = library_map(buffer);
        unsigned char bytes[SIZE];

        memory_read(memory, 0, bytes, SIZE);
        for (int64_t i = 0; i < SIZE; i++)
                ck_assert_int_eq(bytes[i], 0);
        for (int64_t i = 0; i < SIZE; i++)
                bytes[i] = (unsigned char)(i * 7);
        memory_write(memory, 0, bytes, SIZE);
        child_say(&child, 'g');
        child_hear(&child, 'w');
        ck_assert_int_eq(memory_get(memory, SIZE - 1), 99);
        ck_assert_int_eq(library_count_leases(client, "shared"), 2);
        child_say(&child, 'e');
        child_expect_exit(&child, 0);
        wait_for(library_count_leases(client, "shared") == 1);
        library_release(buffer);
        gpuipc_client_free(client);
} END_TEST

/* Makes a buffer that is to be kept, and leaves without a word. */
static int produce_and_exit(int talk_fd, void *data) {
        gpuipc_allocate_options options = GPUIPC_ALLOCATE_OPTIONS_INIT;
        gpuipc_connect_options connect_options = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_client *client;
        gpuipc_buffer *buffer;
        void *memory;

        (void)talk_fd;
        connect_options.socket_path = data;
        options.name = "kept";
        options.handle = memory_handle();
        options.keep_ms = 60000;
        if (gpuipc_connect(&connect_options, &client, NULL) != 0 || gpuipc_allocate(client, SIZE, &options, &buffer, NULL) != 0 ||
            gpuipc_buffer_map(buffer, &memory, NULL) != 0)
                return 1;
        memory_write(memory, 0, "left for later", 15);
        return 0;
}

struct kept {
        int n;
        char state[16];
};

static int see_state(const gpuipc_buffer_info *buffer, void *data) {
        struct kept *kept = data;

        kept->n++;
        snprintf(kept->state, sizeof(kept->state), "%s", buffer->state);
        return 0;
}

static struct kept look(gpuipc_client *client) {
        struct kept kept = { 0 };
        gpuipc_error error;

        library_expect(gpuipc_list_buffers(client, NULL, see_state, &kept, &error), GPUIPC_OK, &error);
        return kept;
}

START_TEST(producer_leaves_before_its_consumer_comes) {
        gpuipc_client *client = library_connect(daemon_process->socket);
        struct child child = child_start(NULL, produce_and_exit, daemon_process->socket);
        gpuipc_buffer *buffer;
        gpuipc_error error;
        char found[15];

        child_expect_exit(&child, 0);
        wait_for(strcmp(look(client).state, "kept") == 0);
        buffer = library_open(client, "kept", library_reading());
        memory_read(library_map(buffer), 0, found, sizeof(found));
        ck_assert_str_eq(found, "left for later");
        ck_assert_str_eq(look(client).state, "live");
        library_release(buffer);
        /* The time runs once, and runs on, for those who come one after the other. */
        ck_assert_str_eq(look(client).state, "kept");
        library_expect(gpuipc_free(client, NULL, "kept", &error), GPUIPC_OK, &error);
        wait_for(look(client).n == 0);
        gpuipc_client_free(client);
} END_TEST

START_TEST(keep_ends_by_time) {
        gpuipc_client *client = library_connect(daemon_process->socket);

        library_release(library_allocate(client, SIZE, "short", 20));
        wait_for(look(client).n == 0);
        ck_assert_int_eq(library_try_open(client, "short", GPUIPC_RO, 0), GPUIPC_ERROR_NO_SUCH_BUFFER);
        gpuipc_client_free(client);
} END_TEST

/* ---- seal, free, kick ------------------------------------------------------------------------------------- */

static void read_sealed(gpuipc_client *client, unsigned char expected) {
        gpuipc_buffer *reader = library_open(client, "sealed", GPUIPC_RO);

        ck_assert_int_eq(memory_get(library_map(reader), 3), expected);
        library_release(reader);
}

START_TEST(sealed_buffer_takes_no_more_writers) {
        gpuipc_client *client = library_connect(daemon_process->socket);
        gpuipc_buffer *buffer = library_allocate(client, SIZE, "sealed", 0);
        void *memory = library_map(buffer);
        gpuipc_error error;

        library_expect(gpuipc_seal(client, gpuipc_buffer_id(buffer), &error), GPUIPC_OK, &error);
        library_expect(gpuipc_seal(client, gpuipc_buffer_id(buffer), &error), GPUIPC_ERROR_ALREADY_SEALED, &error);
        ck_assert_int_eq(library_try_open(client, "sealed", GPUIPC_RW, 0), GPUIPC_ERROR_ALREADY_SEALED);
        memory_set(memory, 3, 33); /* the mapping made before goes on writing */
        if (!memory_is_classic())
                read_sealed(client, 33);
        if (memory_is_host())
                ck_assert_ptr_eq(mmap(NULL, (size_t)SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, gpuipc_buffer_fd(buffer), 0), MAP_FAILED);
        library_release(buffer);
        gpuipc_client_free(client);
} END_TEST

START_TEST(freed_buffer_is_its_holders_alone) {
        gpuipc_client *client = library_connect(daemon_process->socket);
        gpuipc_buffer *buffer = library_allocate(client, SIZE, "freed", 3600000), *next;
        void *memory = library_map(buffer);
        gpuipc_error error;

        library_expect(gpuipc_free(client, NULL, "freed", &error), GPUIPC_OK, &error);
        library_expect(gpuipc_free(client, NULL, "freed", &error), GPUIPC_ERROR_NO_SUCH_BUFFER, &error);
        ck_assert_int_eq(library_try_open(client, "freed", GPUIPC_RO, 0), GPUIPC_ERROR_NO_SUCH_BUFFER);
        memory_set(memory, 0, 1);
        next = library_allocate(client, SIZE, "freed", 0);
        ck_assert_str_ne(gpuipc_buffer_id(next), gpuipc_buffer_id(buffer));
        library_release(next);
        library_release(buffer);
        wait_for(look(client).n == 0); /* nothing is kept */
        gpuipc_client_free(client);
} END_TEST

START_TEST(kicked_session_is_told) {
        gpuipc_client *client = library_connect(daemon_process->socket), *other = library_connect(daemon_process->socket);
        gpuipc_buffer *buffer = library_allocate(other, SIZE, NULL, 0);
        _cleanup_free_ char *session = library_session(other);
        gpuipc_error error;

        library_expect(gpuipc_kick(client, "s999", &error), GPUIPC_ERROR_NO_SUCH_SESSION, &error);
        memory_set(library_map(buffer), 0, 1);
        library_expect(gpuipc_kick(client, session, &error), GPUIPC_OK, &error);
        /* This process lives and has it mapped. */
        wait_for(strcmp(look(client).state, "draining") == 0);
        memory_set(library_map(buffer), 0, 2);
        library_expect(gpuipc_release(buffer, &error), GPUIPC_ERROR_LEASE_LOST, &error);
        gpuipc_client_free(other);
        gpuipc_client_free(client);
        gpuipcd_kill(daemon_process); /* the lease drains until this process ends */
        library_expect_maps(0);
} END_TEST

/* ---- refusals --------------------------------------------------------------------------------------------- */

START_TEST(refusals_say_what_and_how_much) {
        gpuipc_client *client = library_connect(daemon_process->socket);
        gpuipc_allocate_options options = GPUIPC_ALLOCATE_OPTIONS_INIT;
        gpuipc_buffer *buffer = library_allocate(client, SIZE, "taken", 0), *none = NULL;
        gpuipc_error error;

        options.name = "taken";
        library_expect(gpuipc_allocate(client, 1, &options, &none, &error), GPUIPC_ERROR_NAME_TAKEN, &error);
        ck_assert_str_eq(error.subject, "taken");
        options.name = "with space";
        library_expect(gpuipc_allocate(client, 1, &options, &none, &error), GPUIPC_ERROR_INVALID_PARAMETER, &error);
        ck_assert_str_eq(error.subject, "name");
        library_expect(gpuipc_allocate(client, 0, NULL, &none, &error), GPUIPC_ERROR_INVALID_PARAMETER, &error);
        ck_assert_str_eq(error.subject, "size");
        library_expect(gpuipc_allocate(client, INT64_C(1) << 52, NULL, &none, &error), GPUIPC_ERROR_OUT_OF_MEMORY, &error);
        ck_assert_int_eq(error.asked, INT64_C(1) << 52);
        ck_assert_int_ge(error.free_bytes, 0);
        options = (gpuipc_allocate_options)GPUIPC_ALLOCATE_OPTIONS_INIT;
        options.device = "GPU-none";
        library_expect(gpuipc_allocate(client, 1, &options, &none, &error), GPUIPC_ERROR_NO_SUCH_DEVICE, &error);
        ck_assert_str_eq(error.subject, "GPU-none");
        options.device = NULL;
        options.handle = memory_is_host() ? "cuda-ipc" : "memfd";
        library_expect(gpuipc_allocate(client, 1, &options, &none, &error), GPUIPC_ERROR_HANDLE_UNSUPPORTED, &error);
        ck_assert_ptr_null(none);
        library_release(buffer);
        gpuipc_client_free(client);
} END_TEST

/* ---- fork ------------------------------------------------------------------------------------------------- */

struct forked {
        gpuipc_client *client;
        gpuipc_buffer *buffer;
        const char *socket;
};

/* The parent's objects are refused, its mapping is there; a connection of one's own works. */
static int in_the_child(int talk_fd, void *data) {
        struct forked *forked = data;
        gpuipc_connect_options options = GPUIPC_CONNECT_OPTIONS_INIT;
        gpuipc_client *client;
        gpuipc_buffer *buffer;
        gpuipc_error error;
        void *memory;

        (void)talk_fd;
        if (gpuipc_allocate(forked->client, 1, NULL, &buffer, &error) != GPUIPC_ERROR_FORKED || !error.message[0])
                return 1;
        if (gpuipc_buffer_map(forked->buffer, &memory, NULL) != GPUIPC_ERROR_FORKED)
                return 2;
        if (gpuipc_release(forked->buffer, NULL) != GPUIPC_ERROR_FORKED)
                return 3;
        gpuipc_client_free(forked->client);
        options.socket_path = forked->socket;
        if (gpuipc_connect(&options, &client, NULL) != 0 || gpuipc_open_name(client, "forked", NULL, &buffer, NULL) != 0)
                return 4;
        /* A driver that was used before the fork is no longer the child's to use. */
        if (gpuipc_buffer_map(buffer, &memory, NULL) != (memory_is_host() ? GPUIPC_OK : GPUIPC_ERROR_FORKED))
                return 6;
        if (memory_is_host())
                memory_set(memory, 1, 2);
        if (gpuipc_release(buffer, NULL) != 0)
                return 5;
        gpuipc_client_free(client);
        return 0;
}

START_TEST(child_of_a_client) {
        struct forked forked = { .client = library_connect(daemon_process->socket), .socket = daemon_process->socket };
        struct child child;
        void *memory;

        forked.buffer = library_allocate(forked.client, SIZE, "forked", 0);
        memory = library_map(forked.buffer);
        memory_set(memory, 0, 1);
        child = child_start(NULL, in_the_child, &forked);
        child_expect_exit(&child, 0);
        ck_assert_int_eq(memory_get(memory, 1), memory_is_host() ? 2 : 0);
        ck_assert_int_eq(memory_get(memory, 0), 1);
        /* The parent's lease and connection are whole. */
        ck_assert_int_eq(library_count_leases(forked.client, "forked"), 1);
        library_release(forked.buffer);
        gpuipc_client_free(forked.client);
} END_TEST

int main(void) {
        Suite *suite = suite_create("library");
        TCase *tcase = tcase_create("life"), *unkept = tcase_create("kick");

        tcase_set_timeout(tcase, 30);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, facts_of_a_buffer);
        tcase_add_test(tcase, label_of_a_lease);
        tcase_add_test(tcase, two_opens_are_two_leases_and_one_mapping);
        tcase_add_test(tcase, second_process_reads_and_writes);
        tcase_add_test(tcase, producer_leaves_before_its_consumer_comes);
        tcase_add_test(tcase, keep_ends_by_time);
        tcase_add_test(tcase, sealed_buffer_takes_no_more_writers);
        tcase_add_test(tcase, freed_buffer_is_its_holders_alone);
        tcase_add_test(tcase, refusals_say_what_and_how_much);
        tcase_add_test(tcase, child_of_a_client);
        suite_add_tcase(suite, tcase);
        tcase_set_timeout(unkept, 30);
        tcase_add_checked_fixture(unkept, setup, NULL);
        tcase_add_test(unkept, kicked_session_is_told);
        suite_add_tcase(suite, unkept);
        return suite_run(suite);
}
