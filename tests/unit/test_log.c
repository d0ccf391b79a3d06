/* SPDX-License-Identifier: Apache-2.0 */
/* The log, with stderr in this test's hands: a file, a pipe that is full or broken, a journal's stream. poll() is wrapped, to
 * be wrong for once. */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/log_text.h"
#include "proto/bytes.h"
#include "proto/cleanup.h"
#include "tests/support/child.h"
#include "tests/support/fds.h"
#include "tests/support/suite.h"
#include "tests/support/wait.h"

#define EVERY 10000

static int stderr_copy = -1;
static _Atomic bool poll_lies; /* says that all is ready, as when another writer is faster */

int poll(struct pollfd *fds, nfds_t n, int timeout_ms) {
        struct timespec timeout = {.tv_sec = timeout_ms / 1000, .tv_nsec = timeout_ms % 1000 * 1000000};

        if (poll_lies)
                return 1;
        return ppoll(fds, n, timeout_ms < 0 ? NULL : &timeout, NULL);
}

static void stderr_is(int fd) {
        if (stderr_copy < 0)
                stderr_copy = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
        ck_assert_int_eq(dup2(fd, STDERR_FILENO), STDERR_FILENO);
}

static void stderr_back(void) {
        dup2(stderr_copy, STDERR_FILENO);
        fd_closep(&stderr_copy);
}

static void pipe_open(int fds[2], int flags) {
        ck_assert_int_eq(pipe2(fds, O_CLOEXEC | flags), 0);
}

static size_t count_threads(void) {
        DIR *tasks = opendir("/proc/self/task");
        size_t n = 0;

        ck_assert_ptr_nonnull(tasks);
        while (readdir(tasks))
                n++;
        closedir(tasks);
        return n - 2;
}

static void pipe_fill(int fd) {
        int flags = fcntl(fd, F_GETFL);

        fcntl(fd, F_SETFL, flags | O_NONBLOCK);
        while (write(fd, "#", 1) == 1)
                ;
        fcntl(fd, F_SETFL, flags);
}

static int file_open(void) {
        int fd = memfd_create("log", MFD_CLOEXEC);

        ck_assert_int_ge(fd, 0);
        return fd;
}

/* What has been written to the file; heap. */
static char *file_text(int fd) {
        struct stat st;
        char *text;

        ck_assert_int_eq(fstat(fd, &st), 0);
        text = calloc(1, (size_t)st.st_size + 1);
        ck_assert_int_eq(pread(fd, text, (size_t)st.st_size, 0), st.st_size);
        return text;
}

static size_t count(const char *text, const char *word) {
        size_t n = 0;

        for (; (text = strstr(text, word)); text += strlen(word))
                n++;
        return n;
}

static bool file_has(int fd, const char *what) {
        _cleanup_free_ char *text = file_text(fd);

        return strstr(text, what) != NULL;
}

/* Until so many lines are there: to stop the log leaves a second for what is queued, which may be too short for many. */
static void file_wait_lines(int fd, size_t n) {
        size_t found = 0;

        for (int64_t until = deadline_in(WAIT_MS); found < n && now_ms() < until;) {
                _cleanup_free_ char *text = file_text(fd);

                found = count(text, "\n");
        }
        ck_assert_uint_ge(found, n);
}

START_TEST(text_is_escaped) {
        static const struct {
                const char *text, *plain, *quoted;
        } cases[] = {
                {"abc", "abc", "abc"},
                {"", "", "\"\""},
                {"a b", "a b", "\"a b\""},
                {"a=b", "a=b", "\"a=b\""},
                {"say \"hi\"", "say \"hi\"", "\"say \\\"hi\\\"\""},
                {"a\nb\tc", "a\\nb\\tc", "\"a\\nb\\tc\""},
                {"a\\nb", "a\\\\nb", "\"a\\\\nb\""},
                {"\x1b[31m\x7f", "\\x1b[31m\\x7f", "\"\\x1b[31m\\x7f\""},
                {"\xff\xc3", "\\xff\\xc3", "\\xff\\xc3"},
                {"\xc2\x9b", "\\xc2\\x9b", "\\xc2\\x9b"},
                {"gr\xc3\xbc\xc3\x9f \xe2\x82\xac", "gr\xc3\xbc\xc3\x9f \xe2\x82\xac", "\"gr\xc3\xbc\xc3\x9f \xe2\x82\xac\""},
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                for (int quote = 0; quote < 2; quote++) {
                        _cleanup_(bytes_deinit) struct bytes bytes = {0};

                        log_escape(&bytes, cases[i].text, quote);
                        bytes_append_char(&bytes, '\0');
                        ck_assert_str_eq(bytes.data, quote ? cases[i].quoted : cases[i].plain);
                }
} END_TEST

START_TEST(a_line_is_printed) {
        const struct log_field fields[] = {{"SESSION", "s1"}, {"LABEL", "two words"}};
        _cleanup_free_ struct log_entry *entry =
                log_entry_new(LOG_NOTICE, 1796000523123456, MESSAGE_STARTED, "all is well\n", fields, 2);
        _cleanup_(bytes_deinit) struct bytes plain = {0}, journal = {0};

        log_entry_print(entry, false, &plain);
        bytes_append_char(&plain, '\0');
        ck_assert_str_eq(plain.data, "2026-11-30T01:02:03.123456Z notice all is well\\n session=s1 label=\"two words\"\n");
        log_entry_print(entry, true, &journal);
        bytes_append_char(&journal, '\0');
        ck_assert_str_eq(journal.data, "<5>all is well\\n session=s1 label=\"two words\"\n");
        ck_assert_str_eq(entry->message_id, MESSAGE_STARTED);
} END_TEST

START_TEST(long_text_is_cut) {
        _cleanup_free_ char *text = calloc(1, 100000);
        _cleanup_free_ struct log_entry *entry = NULL;
        _cleanup_(bytes_deinit) struct bytes line = {0};

        memset(text, 'm', 99999);
        entry = log_entry_new(LOG_INFO, 0, NULL, text, &(struct log_field){"A", text}, 1);
        log_entry_print(entry, true, &line);
        ck_assert_uint_eq(line.n, strlen("<6> a=\n") + 2 * LOG_TEXT_MAX);
} END_TEST

START_TEST(lines_reach_stderr_in_order) {
        _cleanup_fd_ int fd = file_open();
        _cleanup_free_ char *text = NULL;
        char *rest;

        check_fd_count_begin();
        stderr_is(fd);
        log_info("before %d", 1);
        ck_assert_int_eq(log_start(LOG_TARGET_STDERR, LOG_INFO), 0);
        ck_assert_int_eq(log_start(LOG_TARGET_STDERR, LOG_INFO), -EALREADY);
        for (int i = 0; i < 500; i++)
                log_line(LOG_WARNING, NULL, &(struct log_field){"N", "x y"}, 1, "line %d", i);
        file_wait_lines(fd, 501);
        log_debug("not wanted");
        log_set_level(LOG_DEBUG);
        log_debug("wanted");
        log_stop();
        log_info("after");
        stderr_back();
        check_fd_count_end();

        text = file_text(fd);
        ck_assert_uint_eq(count(text, "\n"), 503);
        ck_assert_ptr_nonnull(strstr(text, "Z info before 1\n"));
        rest = text;
        for (int i = 0; i < 500; i++) {
                char line[64];

                snprintf(line, sizeof(line), "Z warning line %d n=\"x y\"\n", i);
                rest = strstr(rest, line);
                ck_assert_ptr_nonnull(rest);
        }
        ck_assert_ptr_null(strstr(text, "not wanted"));
        ck_assert_ptr_nonnull(strstr(rest, "Z debug wanted\n"));
        ck_assert_ptr_nonnull(strstr(rest, "Z info after\n"));
        ck_assert_int_eq(text[10], 'T');
} END_TEST

START_TEST(levels_are_asked) {
        log_set_level(LOG_WARNING);
        ck_assert(log_wants(LOG_ERR));
        ck_assert(log_wants(LOG_WARNING));
        ck_assert(!log_wants(LOG_NOTICE));
} END_TEST

static void pipe_read_line(int fd, char *line, size_t max) {
        size_t n = 0;

        do {
                ck_assert(wait_readable(fd, WAIT_MS));
                ck_assert_uint_lt(n, max - 1);
                ck_assert_int_eq((int)read(fd, line + n, 1), 1);
        } while (line[n++] != '\n');
        line[n] = '\0';
}

/* Case 0: the pipe blocks; case 1: it does not. */
START_TEST(a_full_pipe_holds_up_nobody) {
        static char line[1 << 17]; /* the first comes behind all that filled the pipe */
        unsigned long n_lines = 0, n_dropped = 0;
        int64_t before_ms;
        int fds[2];

        pipe_open(fds, _i ? O_NONBLOCK : 0);
        pipe_fill(fds[1]);
        stderr_is(fds[1]);
        close(fds[1]);
        ck_assert_int_eq(log_start(LOG_TARGET_STDERR, LOG_INFO), 0);
        before_ms = now_ms();
        for (int i = 0; i < EVERY; i++)
                log_info("flood %d", i);
        ck_assert_int_lt(now_ms() - before_ms, slower_ms(2000));

        /* Once somebody reads, each line is there, or counted where it would have been. */
        while (n_lines + n_dropped < EVERY) {
                char expected[64];

                pipe_read_line(fds[0], line, sizeof(line));
                if (strstr(line, "were dropped: nobody took them in time count=")) {
                        n_dropped += strtoul(strrchr(line, '=') + 1, NULL, 10);
                        continue;
                }
                snprintf(expected, sizeof(expected), "Z info flood %lu\n", n_lines++ + n_dropped);
                ck_assert_ptr_nonnull(strstr(line, expected));
        }
        ck_assert_uint_ge(n_lines, 1024);
        ck_assert_uint_le(n_lines, 1025);
        log_info("news");
        pipe_read_line(fds[0], line, sizeof(line));
        ck_assert_ptr_nonnull(strstr(line, "Z info news\n"));
        log_stop();
        stderr_back();
        close(fds[0]);
} END_TEST

/* Case 0: the writer sees in time that nobody reads; case 1: it hangs in a write, and stays behind. */
START_TEST(stopping_before_a_full_pipe_ends) {
        int64_t before_ms;
        size_t n_threads;
        int fds[2];

        signal(SIGPIPE, SIG_IGN);
        pipe_open(fds, 0);
        pipe_fill(fds[1]);
        stderr_is(fds[1]);
        poll_lies = _i == 1;
        ck_assert_int_eq(log_start(LOG_TARGET_STDERR, LOG_INFO), 0);
        n_threads = count_threads(); /* a sanitizer may have one of its own */
        for (int i = 0; i < 100; i++)
                log_info("lost %d", i);
        before_ms = now_ms();
        log_stop();
        ck_assert_int_ge(now_ms() - before_ms, 500);
        ck_assert_int_lt(now_ms() - before_ms, slower_ms(5000));
        log_stop();
        if (_i == 1) {
                ck_assert_int_eq(log_start(LOG_TARGET_STDERR, LOG_INFO), -EBUSY);
                log_info("goes nowhere, and at once");
                close(fds[0]); /* lets the writer end */
                wait_for(count_threads() == n_threads - 1);
                stderr_back();
                close(fds[1]);
                return;
        }
        stderr_back();
        ck_assert_int_eq(log_start(LOG_TARGET_STDERR, LOG_INFO), 0);
        log_stop();
        close(fds[0]);
        close(fds[1]);
} END_TEST

START_TEST(a_reader_that_left_harms_nobody) {
        _cleanup_fd_ int fd = file_open();
        _cleanup_free_ char *text = NULL;
        int fds[2];

        signal(SIGPIPE, SIG_DFL);
        pipe_open(fds, 0);
        close(fds[0]);
        stderr_is(fds[1]);
        close(fds[1]);
        ck_assert_int_eq(log_start(LOG_TARGET_STDERR, LOG_INFO), 0);
        for (int i = 0; i < 2000; i++)
                log_info("to nobody %d", i);
        stderr_is(fd);
        wait_for((log_info("to somebody"), file_has(fd, "info to somebody\n"))); /* dropped as long as the queue is full */
        log_stop();
        ck_assert_int_eq(log_start(LOG_TARGET_STDERR, LOG_INFO), 0);
        log_info("once more");
        log_stop();
        stderr_back();
        text = file_text(fd);
        ck_assert_ptr_nonnull(strstr(text, "info once more\n"));
} END_TEST

static void *talker(void *arg) {
        for (int i = 0; i < 200; i++)
                log_info("talker %d line %d", *(int *)arg, i);
        return NULL;
}

START_TEST(threads_may_talk_at_once) {
        _cleanup_fd_ int fd = file_open();
        _cleanup_free_ char *text = NULL;
        pthread_t threads[4];
        int numbers[4];

        stderr_is(fd);
        ck_assert_int_eq(log_start(LOG_TARGET_STDERR, LOG_INFO), 0);
        for (int i = 0; i < 4; i++) {
                numbers[i] = i;
                ck_assert_int_eq(pthread_create(&threads[i], NULL, talker, &numbers[i]), 0);
        }
        for (int i = 0; i < 4; i++)
                pthread_join(threads[i], NULL);
        file_wait_lines(fd, 800);
        log_stop();
        stderr_back();
        text = file_text(fd);
        for (int i = 0; i < 4; i++) {
                char line[32];

                snprintf(line, sizeof(line), "talker %d line 199\n", i);
                ck_assert_ptr_nonnull(strstr(text, line));
        }
        ck_assert_uint_eq(count(text, "\n"), 800);
} END_TEST

START_TEST(on_a_journal_stream_the_journal_stamps) {
        _cleanup_fd_ int fd = file_open();
        _cleanup_free_ char *text = NULL;
        char stream[64];
        struct stat st;

        ck_assert_int_eq(fstat(fd, &st), 0);
        snprintf(stream, sizeof(stream), "%lu:%lu", (unsigned long)st.st_dev, (unsigned long)st.st_ino);
        setenv("JOURNAL_STREAM", stream, 1);
        stderr_is(fd);
        ck_assert_int_eq(log_start(LOG_TARGET_STDERR, LOG_INFO), 0);
        log_error("broken");
        log_stop();
        stderr_back();
        text = file_text(fd);
        ck_assert_str_eq(text, "<3>broken\n");
} END_TEST

/* ---- the journal ------------------------------------------------------------------------------------------ */

/* The datagram must hold this line. */
static bool has_line(const char *datagram, size_t n, const char *line) {
        size_t length = strlen(line);

        for (size_t i = 0; i + length < n; i++)
                if ((i == 0 || datagram[i - 1] == '\n') && memcmp(datagram + i, line, length) == 0 && datagram[i + length] == '\n')
                        return true;
        return false;
}

static int journal_listen(void) {
        struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "/run/systemd/journal/socket"};
        int fd;

        if (mount("none", "/", "none", MS_REC | MS_PRIVATE, NULL) < 0 || mount("none", "/run", "tmpfs", 0, NULL) < 0)
                return -1;
        if (mkdir("/run/systemd", 0755) < 0 || mkdir("/run/systemd/journal", 0755) < 0)
                return -1;
        if (log_start(LOG_TARGET_JOURNAL, LOG_INFO) != -ENOENT)
                return -1;
        fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        return bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ? -1 : fd;
}

static int journal_child(int talk_fd, void *data) {
        static const char *const lines[] = {"PRIORITY=4", "SYSLOG_IDENTIFIER=gpuipcd", "MESSAGE=two\\nlines 7",
                                            "MESSAGE_ID=" MESSAGE_REFUSED, "GPUIPC_SESSION=s1", "GPUIPC_COMMAND=a b\\x1b"};
        const struct log_field fields[] = {{"SESSION", "s1"}, {"COMMAND", "a b\x1b"}};
        int fd = journal_listen();
        char datagram[4096];
        ssize_t n;

        (void)talk_fd, (void)data;
        if (fd < 0)
                return 1;
        if (log_start(LOG_TARGET_JOURNAL, LOG_INFO) < 0)
                return 2;
        log_line(LOG_WARNING, MESSAGE_REFUSED, fields, 2, "two\nlines %d", 7);
        log_stop();
        n = recv(fd, datagram, sizeof(datagram), MSG_DONTWAIT);
        if (n < 0)
                return 3;
        for (size_t i = 0; i < ELEMENTSOF(lines); i++)
                if (!has_line(datagram, (size_t)n, lines[i]))
                        return 10 + (int)i;
        return memmem(datagram, (size_t)n, "CODE_FILE", 9) ? 4 : 0;
}

START_TEST(fields_reach_the_journal) {
        struct child child;

        if (child_needs_root("fields_reach_the_journal"))
                return;
        child = child_start(&(struct child_options){.namespaces = CLONE_NEWNS}, journal_child, NULL);
        child_expect_exit(&child, 0);
} END_TEST

int main(void) {
        Suite *suite = suite_create("log");
        TCase *tcase = tcase_create("log");

        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, text_is_escaped);
        tcase_add_test(tcase, a_line_is_printed);
        tcase_add_test(tcase, long_text_is_cut);
        tcase_add_test(tcase, lines_reach_stderr_in_order);
        tcase_add_test(tcase, levels_are_asked);
        tcase_add_loop_test(tcase, a_full_pipe_holds_up_nobody, 0, 2);
        tcase_add_loop_test(tcase, stopping_before_a_full_pipe_ends, 0, 2);
        tcase_add_test(tcase, a_reader_that_left_harms_nobody);
        tcase_add_test(tcase, threads_may_talk_at_once);
        tcase_add_test(tcase, on_a_journal_stream_the_journal_stamps);
        tcase_add_test(tcase, fields_reach_the_journal);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
