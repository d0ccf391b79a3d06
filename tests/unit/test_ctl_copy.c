/* SPDX-License-Identifier: Apache-2.0 */
/* What put reads and what get writes: files, holes, streams, and what is left when it fails. */
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/ctl/sink.h"
#include "client/ctl/source.h"
#include "client/ctl/verbs.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"

#define MEMORY_BYTES ((size_t)1 << 20)

static char folder[64];
static char said[4096]; /* on stderr, since the test began */
static int saved_stderr, quiet;

static void setup(void) {
        (void)snprintf(folder, sizeof(folder), "%s", "/tmp/test-ctl-copy-XXXXXX");
        ck_assert_ptr_nonnull(mkdtemp(folder));
        ck_assert_int_eq(chdir(folder), 0);
        ck_assert_int_eq(setenv("TMPDIR", folder, 1), 0);
        saved_stderr = dup(STDERR_FILENO);
        quiet = memfd_create("stderr", MFD_CLOEXEC);
        ck_assert(saved_stderr >= 0 && quiet >= 0 && dup2(quiet, STDERR_FILENO) >= 0);
}

static void teardown(void) {
        char command[128];

        (void)dup2(saved_stderr, STDERR_FILENO);
        (void)close(saved_stderr);
        (void)close(quiet);
        (void)snprintf(command, sizeof(command), "rm -rf %s", folder);
        ck_assert_int_eq(system(command), 0);
}

static void assert_said(const char *part) {
        ssize_t n = pread(quiet, said, sizeof(said) - 1, 0);

        ck_assert_int_ge(n, 0);
        said[n] = 0;
        ck_assert_msg(strstr(said, part), "\"%s\" is not in: %s", part, said);
}

static void assert_silent(void) {
        ck_assert_int_eq(lseek(quiet, 0, SEEK_END), 0);
}

static void file_write(const char *path, const char *text, off_t at) {
        int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(pwrite(fd, text, strlen(text), at), (ssize_t)strlen(text));
        (void)close(fd);
}

static void assert_file(const char *path, const char *text) {
        char found[256] = "";
        int fd = open(path, O_RDONLY | O_CLOEXEC);

        ck_assert_int_ge(fd, 0);
        ck_assert_int_ge(read(fd, found, sizeof(found) - 1), 0);
        (void)close(fd);
        ck_assert_str_eq(found, text);
}

static size_t n_files(void) {
        DIR *directory = opendir(folder);
        size_t n = 0;

        ck_assert_ptr_nonnull(directory);
        for (struct dirent *entry = readdir(directory); entry; entry = readdir(directory))
                n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
        (void)closedir(directory);
        return n;
}

static char *memory_new(void) {
        char *memory = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

        ck_assert_ptr_ne(memory, MAP_FAILED);
        return memory;
}

/* ---- reading ------------------------------------------------------------------------------------------------- */

START_TEST(a_file_is_read) {
        struct stop stop;
        struct source source;
        char *memory = memory_new();

        check_fd_count_begin();
        ck_assert_int_eq(stop_init(&stop), 0);
        file_write("f", "hello", 0);
        ck_assert_int_eq(source_open("f", -1, &source), EXIT_DONE);
        ck_assert_int_eq(source.size, 5);
        ck_assert_int_eq(source_read(&source, memory, &stop), EXIT_DONE);
        ck_assert_mem_eq(memory, "hello\0", 6);
        assert_silent();
        source_deinit(&source);
        stop_deinit(&stop);
        check_fd_count_end();
        ck_assert_int_eq(munmap(memory, MEMORY_BYTES), 0);
}
END_TEST

START_TEST(holes_are_not_read) {
        struct stop stop;
        struct source source;
        char *memory = memory_new();

        ck_assert_int_eq(stop_init(&stop), 0);
        file_write("f", "a", 200000);
        file_write("f", "b", 600000);
        ck_assert_int_eq(truncate("f", 1000000), 0);
        ck_assert_int_eq(source_open("f", -1, &source), EXIT_DONE);
        memory[0] = memory[300000] = memory[999999] = 'x'; /* a hole is left as it is: new memory is zero */
        ck_assert_int_eq(source_read(&source, memory, &stop), EXIT_DONE);
        assert_silent();
        ck_assert_int_eq(memory[0], 'x');
        ck_assert_int_eq(memory[300000], 'x');
        ck_assert_int_eq(memory[999999], 'x');
        ck_assert_int_eq(memory[200000], 'a');
        ck_assert_int_eq(memory[600000], 'b');
        source_deinit(&source);
        stop_deinit(&stop);
}
END_TEST

START_TEST(a_file_that_changes_is_told) {
        struct stop stop;
        struct source source;
        char *memory = memory_new();

        ck_assert_int_eq(stop_init(&stop), 0);
        file_write("f", "hello", 0);
        ck_assert_int_eq(source_open("f", -1, &source), EXIT_DONE);
        ck_assert_int_eq(truncate("f", 3), 0);
        ck_assert_int_eq(source_read(&source, memory, &stop), EXIT_REFUSED);
        assert_said("f shrank while it was read: 3 of 5 bytes are left");
        source_deinit(&source);

        file_write("f", "hello", 0);
        ck_assert_int_eq(source_open("f", -1, &source), EXIT_DONE);
        file_write("f", " world", 5);
        ck_assert_int_eq(source_read(&source, memory, &stop), EXIT_DONE);
        assert_said("f grew while it was read; the buffer has its first 5 bytes");
        ck_assert_mem_eq(memory, "hello\0", 6);
        source_deinit(&source);

        ck_assert_int_eq(source_open("f", -1, &source), EXIT_DONE);
        source.changed.tv_sec--;
        ck_assert_int_eq(source_read(&source, memory, &stop), EXIT_DONE);
        assert_said("f changed while it was read");
        source_deinit(&source);
        stop_deinit(&stop);
}
END_TEST

START_TEST(a_shrunk_hole_is_no_hole) {
        struct stop stop;
        struct source source;
        char *memory = memory_new();

        ck_assert_int_eq(stop_init(&stop), 0);
        ck_assert_int_eq(close(open("f", O_CREAT | O_WRONLY | O_CLOEXEC, 0600)), 0);
        ck_assert_int_eq(truncate("f", 500000), 0);
        ck_assert_int_eq(source_open("f", -1, &source), EXIT_DONE);
        ck_assert_int_eq(truncate("f", 400000), 0);
        ck_assert_int_eq(source_read(&source, memory, &stop), EXIT_REFUSED);
        assert_said("f shrank while it was read: 400000 of 500000 bytes are left");
        source_deinit(&source);
        stop_deinit(&stop);
}
END_TEST

START_TEST(what_cannot_be_a_buffer_is_refused) {
        struct source source;

        check_fd_count_begin();
        file_write("empty", "", 0);
        ck_assert_int_eq(source_open("empty", -1, &source), EXIT_REFUSED);
        assert_said("empty is empty, and a buffer has at least one byte");
        ck_assert_int_eq(source_open("none", -1, &source), EXIT_REFUSED);
        assert_said("none: No such file or directory");
        ck_assert_int_eq(source_open(".", -1, &source), EXIT_REFUSED);
        assert_said(". is a directory");
        file_write("f", "hello", 0);
        ck_assert_int_eq(source_open("f", 6, &source), EXIT_REFUSED);
        assert_said("f has 5 bytes, not 6 as --size says");
        check_fd_count_end();
}
END_TEST

static void pipe_fill(const char *text) {
        int fds[2];

        ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
        ck_assert_int_eq(write(fds[1], text, strlen(text)), (ssize_t)strlen(text));
        ck_assert_int_ge(dup2(fds[0], STDIN_FILENO), 0);
        (void)close(fds[0]);
        (void)close(fds[1]);
}

static int stream_read(const char *text, int64_t size, char *memory) {
        struct stop stop;
        struct source source;
        int r;

        pipe_fill(text);
        ck_assert_int_eq(stop_init(&stop), 0);
        r = source_open("-", size, &source);
        if (r == EXIT_DONE) {
                r = source_read(&source, memory, &stop);
                source_deinit(&source);
        }
        stop_deinit(&stop);
        return r;
}

START_TEST(streams_are_read) {
        char *memory = memory_new();

        check_fd_count_begin();
        ck_assert_int_eq(stream_read("hello", 5, memory), EXIT_DONE);
        ck_assert_mem_eq(memory, "hello\0", 6);
        ck_assert_int_eq(stream_read("HELLO", -1, memory), EXIT_DONE);
        ck_assert_mem_eq(memory, "HELLO\0", 6);
        assert_silent();
        ck_assert_int_eq(stream_read("hello", 6, memory), EXIT_REFUSED);
        assert_said("standard input ended after 5 of the 6 bytes that --size says");
        ck_assert_int_eq(stream_read("hello", 4, memory), EXIT_REFUSED);
        assert_said("standard input has more than the 4 bytes that --size says");
        ck_assert_int_eq(stream_read("", -1, memory), EXIT_REFUSED);
        assert_said("standard input is empty");
        ck_assert_uint_eq(n_files(), 0);
        check_fd_count_end();
}
END_TEST

START_TEST(a_stream_with_nowhere_to_spool_is_told) {
        struct source source;

        ck_assert_int_eq(setenv("TMPDIR", "/nowhere", 1), 0);
        pipe_fill("hello");
        ck_assert_int_eq(source_open("-", -1, &source), EXIT_REFUSED);
        assert_said("cannot be spooled in /nowhere (No such file or directory): give --size");
}
END_TEST

START_TEST(redirected_files_begin_where_they_stand) {
        struct stop stop;
        struct source source;
        char *memory = memory_new();
        int fd;

        file_write("f", "hello world", 0);
        fd = open("f", O_RDONLY | O_CLOEXEC);
        ck_assert(fd >= 0 && lseek(fd, 6, SEEK_SET) == 6 && dup2(fd, STDIN_FILENO) >= 0);
        (void)close(fd);
        ck_assert_int_eq(stop_init(&stop), 0);
        ck_assert_int_eq(source_open("-", -1, &source), EXIT_DONE);
        ck_assert_int_eq(source_read(&source, memory, &stop), EXIT_DONE);
        ck_assert_mem_eq(memory, "world\0", 6);
        source_deinit(&source);
        stop_deinit(&stop);
}
END_TEST

START_TEST(a_signal_ends_reading) {
        struct stop stop;
        struct source source;
        char *memory = memory_new();
        int fds[2];

        ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
        ck_assert_int_ge(dup2(fds[0], STDIN_FILENO), 0);
        ck_assert_int_eq(stop_init(&stop), 0);
        ck_assert_int_eq(source_open("-", 5, &source), EXIT_DONE);
        ck_assert_int_eq(kill(getpid(), SIGTERM), 0);
        ck_assert_int_eq(source_read(&source, memory, &stop), EXIT_REFUSED);
        assert_said("interrupted");
        source_deinit(&source);
        stop_deinit(&stop);
}
END_TEST

START_TEST(ignored_signals_stay_ignored) {
        struct stop stop;

        ck_assert(signal(SIGHUP, SIG_IGN) != SIG_ERR);
        ck_assert_int_eq(stop_init(&stop), 0);
        ck_assert_int_eq(kill(getpid(), SIGHUP), 0);
        ck_assert(!stop_wait(&stop, 0));
        ck_assert_int_eq(kill(getpid(), SIGINT), 0);
        ck_assert(stop_wait(&stop, 0));
        stop_deinit(&stop);
}
END_TEST

/* ---- writing ------------------------------------------------------------------------------------------------- */

START_TEST(a_file_appears_as_a_whole) {
        struct sink sink;
        struct stat st;

        check_fd_count_begin();
        (void)umask(027);
        ck_assert_int_eq(sink_open("f", 5, &sink), EXIT_DONE);
        ck_assert_int_eq(sink_put(&sink, "hello", 5, -1, 0), EXIT_DONE);
        ck_assert_int_ne(stat("f", &st), 0);
        ck_assert_int_eq(sink_commit(&sink), EXIT_DONE);
        sink_deinit(&sink);
        assert_file("f", "hello");
        ck_assert_int_eq(stat("f", &st), 0);
        ck_assert_uint_eq(st.st_mode & 07777, 0640);
        ck_assert_uint_eq(n_files(), 1);
        check_fd_count_end();
}
END_TEST

START_TEST(a_descriptor_is_sent) {
        struct sink sink = { .name = "f" };
        int from = memfd_create("buffer", MFD_CLOEXEC);

        ck_assert_int_ge(from, 0);
        ck_assert_int_eq(write(from, "--hello--", 9), 9);
        ck_assert_int_eq(sink_open("f", 5, &sink), EXIT_DONE);
        ck_assert_int_eq(sink_put(&sink, "-----", 5, from, 2), EXIT_DONE); /* the memory is not looked at */
        ck_assert_int_eq(sink_commit(&sink), EXIT_DONE);
        sink_deinit(&sink);
        assert_file("f", "hello");
        ck_assert_int_eq(sink_open("f", 5, &sink), EXIT_DONE);
        ck_assert_int_eq(sink_put(&sink, "-----", 5, from, 6), EXIT_REFUSED);
        assert_said("f: Input/output error");
        sink_deinit(&sink);
        assert_file("f", "hello");

        sink = (struct sink){ .fd = open("f", O_WRONLY | O_APPEND | O_CLOEXEC), .name = "f" };
        ck_assert_int_eq(sink_put(&sink, "HELLO", 5, from, 2), EXIT_DONE); /* sendfile() does not append */
        ck_assert_int_eq(sink_commit(&sink), EXIT_DONE);
        sink_deinit(&sink);
        assert_file("f", "helloHELLO");
        (void)close(from);
}
END_TEST

START_TEST(a_failure_leaves_what_was) {
        struct sink sink;

        check_fd_count_begin();
        file_write("f", "before", 0);
        ck_assert_int_eq(sink_open("f", 5, &sink), EXIT_DONE);
        ck_assert_int_eq(sink_put(&sink, "hello", 5, -1, 0), EXIT_DONE);
        sink_deinit(&sink);
        assert_file("f", "before");
        ck_assert_uint_eq(n_files(), 1);
        ck_assert_int_eq(sink_open("none/f", 5, &sink), EXIT_REFUSED);
        assert_said("none/f: no file can be made beside it");
        check_fd_count_end();
}
END_TEST

START_TEST(a_replaced_file_keeps_its_mode_and_links) {
        struct sink sink;
        struct stat st;

        ck_assert_int_eq(mkdir("d", 0700), 0);
        file_write("d/f", "before and longer", 0);
        ck_assert_int_eq(chmod("d/f", 0604), 0);
        ck_assert_int_eq(symlink("d/f", "link"), 0);
        ck_assert_int_eq(sink_open("link", 5, &sink), EXIT_DONE);
        ck_assert_int_eq(sink_put(&sink, "hello", 5, -1, 0), EXIT_DONE);
        ck_assert_int_eq(sink_commit(&sink), EXIT_DONE);
        sink_deinit(&sink);
        assert_file("d/f", "hello");
        ck_assert_int_eq(lstat("link", &st), 0);
        ck_assert(S_ISLNK(st.st_mode));
        ck_assert_int_eq(stat("d/f", &st), 0);
        ck_assert_uint_eq(st.st_mode & 07777, 0604);
}
END_TEST

START_TEST(devices_are_written_in_place) {
        struct sink sink;

        ck_assert_int_eq(sink_open("/dev/full", 5, &sink), EXIT_DONE);
        ck_assert_int_eq(sink_put(&sink, "hello", 5, -1, 0), EXIT_REFUSED);
        assert_said("/dev/full: No space left on device");
        sink_deinit(&sink);
        ck_assert_int_eq(sink_open("/dev/null", 5, &sink), EXIT_DONE);
        ck_assert_int_eq(sink_put(&sink, "hello", 5, -1, 0), EXIT_DONE);
        ck_assert_int_eq(sink_commit(&sink), EXIT_DONE);
        sink_deinit(&sink);
}
END_TEST

START_TEST(a_deadly_signal_takes_the_half_file_away) {
        int status;
        pid_t pid = fork();

        ck_assert_int_ge(pid, 0);
        if (pid == 0) {
                struct sink sink;

                if (sink_open("f", 5, &sink) != EXIT_DONE || sink_put(&sink, "hel", 3, -1, 0) != EXIT_DONE ||
                    n_files() != 1)
                        _exit(1);
                (void)raise(SIGTERM);
                _exit(2);
        }
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
        ck_assert_uint_eq(n_files(), 0);
}
END_TEST

static void *pipe_drain(void *data) {
        char chunk[4096];
        size_t n = 0;

        for (ssize_t got; (got = read(*(int *)data, chunk, sizeof(chunk))) > 0;)
                n += (size_t)got;
        return (void *)n;
}

START_TEST(a_pipe_that_does_not_block_is_waited_for) {
        char *memory = memory_new();
        pthread_t thread;
        void *n;
        int fds[2];

        ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
        ck_assert_int_eq(fcntl(fds[1], F_SETFL, O_NONBLOCK), 0);
        ck_assert_int_eq(pthread_create(&thread, NULL, pipe_drain, &fds[0]), 0);
        ck_assert_int_eq(sink_write(fds[1], memory, (int64_t)MEMORY_BYTES, NULL, 0), 0);
        (void)close(fds[1]);
        ck_assert_int_eq(pthread_join(thread, &n), 0);
        ck_assert_uint_eq((size_t)n, MEMORY_BYTES);
        (void)close(fds[0]);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("ctl_copy");
        TCase *tcase = tcase_create("ctl_copy");

        suite_add_tcase(suite, tcase);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, a_file_is_read);
        tcase_add_test(tcase, holes_are_not_read);
        tcase_add_test(tcase, a_file_that_changes_is_told);
        tcase_add_test(tcase, a_shrunk_hole_is_no_hole);
        tcase_add_test(tcase, what_cannot_be_a_buffer_is_refused);
        tcase_add_test(tcase, streams_are_read);
        tcase_add_test(tcase, a_stream_with_nowhere_to_spool_is_told);
        tcase_add_test(tcase, redirected_files_begin_where_they_stand);
        tcase_add_test(tcase, a_signal_ends_reading);
        tcase_add_test(tcase, ignored_signals_stay_ignored);
        tcase_add_test(tcase, a_file_appears_as_a_whole);
        tcase_add_test(tcase, a_descriptor_is_sent);
        tcase_add_test(tcase, a_failure_leaves_what_was);
        tcase_add_test(tcase, a_replaced_file_keeps_its_mode_and_links);
        tcase_add_test(tcase, devices_are_written_in_place);
        tcase_add_test(tcase, a_deadly_signal_takes_the_half_file_away);
        tcase_add_test(tcase, a_pipe_that_does_not_block_is_waited_for);
        return suite_run(suite);
}
