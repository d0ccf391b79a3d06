/* SPDX-License-Identifier: Apache-2.0 */
/* The log: a queue that any thread adds to, and a thread of its own that writes it out. Adding takes a lock for pointer work
 * only; whatever may block (a full pipe, a busy journal) blocks that thread alone. */
#include "log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#define SD_JOURNAL_SUPPRESS_LOCATION
#include <systemd/sd-journal.h>

#include "clock.h"
#include "log_text.h"
#include "proto/bytes.h"
#include "proto/cleanup.h"

#define QUEUE_MAX 1024
#define FIELDS_MAX 32
#define WRITE_MAX 4096 /* a pipe that polls writable takes so much at once */
#define STOP_USEC 1000000
#define HANG_SEC 2 /* of the writer after that time: it hangs in a write, and has not merely had no processor */

/* One process has one log. */
static struct {
        _Atomic int level;
        _Atomic uint64_t deadline_usec; /* monotonic; past it the writer gives up; 0: none */
        bool journal;                   /* set while no writer runs: to the journal, not to stderr */
        pthread_t thread;

        pthread_mutex_t lock; /* what follows */
        pthread_cond_t added, over;
        struct log_entry *first, **end;
        size_t n;
        uint64_t n_dropped; /* since the last entry that was taken in */
        bool running, stopping, ended, lost;
} state = {
        .level = LOG_INFO,
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .added = PTHREAD_COND_INITIALIZER,
        .over = PTHREAD_COND_INITIALIZER,
        .end = &state.first,
};

static void entry_freep(struct log_entry **entry) {
        free(*entry);
}

/* Whether stderr is a stream of the journal, as the service manager tells. */
static bool stderr_is_journal(void) {
        const char *text = getenv("JOURNAL_STREAM");
        unsigned long long device, inode;
        struct stat st;

        return text && sscanf(text, "%llu:%llu", &device, &inode) == 2 && fstat(STDERR_FILENO, &st) == 0 &&
               st.st_dev == device && st.st_ino == inode;
}

/* Waits until stderr takes more. False: it is too late. */
static bool log_await(uint64_t until_usec) {
        struct pollfd pfd = {.fd = STDERR_FILENO, .events = POLLOUT};

        for (;;) {
                uint64_t deadline_usec = until_usec ? until_usec : state.deadline_usec;
                bool late = deadline_usec != 0 && clock_monotonic_usec() >= deadline_usec;

                if (poll(&pfd, 1, late ? 0 : 50) > 0)
                        return true;
                if (late)
                        return false;
        }
}

static void log_write(const struct bytes *bytes, uint64_t until_usec) {
        size_t done = 0;

        while (done < bytes->n && log_await(until_usec)) {
                size_t left = bytes->n - done;
                ssize_t n = write(STDERR_FILENO, bytes->data + done, left < WRITE_MAX ? left : WRITE_MAX);

                if (n < 0 && errno == EAGAIN)
                        (void)poll(NULL, 0, 10);
                else if (n < 0 && errno != EINTR)
                        return; /* nobody reads any more, and there is nobody to tell */
                else if (n > 0)
                        done += (size_t)n;
        }
}

static void log_to_stderr(const struct log_entry *entry, uint64_t until_usec) {
        _cleanup_(bytes_deinit) struct bytes bytes = {0};

        log_entry_print(entry, stderr_is_journal(), &bytes);
        if (!bytes.failed)
                log_write(&bytes, until_usec);
}

static void field_append(struct bytes *bytes, size_t *ret_end, const char *prefix, const char *key, const char *value) {
        bytes_append_str(bytes, prefix);
        bytes_append_str(bytes, key);
        bytes_append_char(bytes, '=');
        log_escape(bytes, value, false);
        *ret_end = bytes->n;
}

static void log_to_journal(const struct log_entry *entry) {
        _cleanup_(bytes_deinit) struct bytes bytes = {0};
        struct iovec fields[FIELDS_MAX + 4];
        const char *text = entry->text;
        size_t ends[FIELDS_MAX + 4], n = 0, start = 0;

        field_append(&bytes, &ends[n++], "", "PRIORITY", (char[]){(char)('0' + entry->level), '\0'});
        field_append(&bytes, &ends[n++], "", "SYSLOG_IDENTIFIER", "gpuipcd");
        field_append(&bytes, &ends[n++], "", "MESSAGE", text);
        if (*entry->message_id)
                field_append(&bytes, &ends[n++], "", "MESSAGE_ID", entry->message_id);
        for (size_t i = 0; i < entry->n_fields; i++) {
                const char *key = log_entry_next(text);

                text = log_entry_next(key);
                field_append(&bytes, &ends[n++], "GPUIPC_", key, text);
        }
        if (bytes.failed)
                return;
        for (size_t i = 0; i < n; start = ends[i++])
                fields[i] = (struct iovec){bytes.data + start, ends[i] - start};
        (void)sd_journal_sendv(fields, (int)n);
}

static void log_emit(const struct log_entry *entry) {
        if (state.journal)
                log_to_journal(entry);
        else
                log_to_stderr(entry, 0);
}

static void log_emit_dropped(uint64_t n_dropped) {
        char count[24], text[80];

        snprintf(count, sizeof(count), "%llu", (unsigned long long)n_dropped);
        snprintf(text, sizeof(text), "%s lines of the log were dropped: nobody took them in time", count);
        _cleanup_(entry_freep) struct log_entry *entry =
                log_entry_new(LOG_WARNING, clock_real_usec(), MESSAGE_LOG_LOST, text, &(struct log_field){"COUNT", count}, 1);
        if (entry)
                log_emit(entry);
}

/* The next entry, or NULL with the lines dropped since the last one; both NULL and 0: the log is being stopped. */
static struct log_entry *log_next(uint64_t *ret_n_dropped) {
        struct log_entry *entry;

        pthread_mutex_lock(&state.lock);
        while (!state.first && !state.stopping && state.n_dropped == 0)
                pthread_cond_wait(&state.added, &state.lock);
        entry = state.first;
        if (entry) {
                state.first = entry->next;
                if (!state.first)
                        state.end = &state.first;
                state.n--;
                *ret_n_dropped = entry->n_dropped;
        } else {
                *ret_n_dropped = state.n_dropped;
                state.n_dropped = 0;
        }
        pthread_mutex_unlock(&state.lock);
        return entry;
}

static void *log_main(void *arg) {
        (void)arg;
        for (;;) {
                uint64_t n_dropped = 0;
                _cleanup_(entry_freep) struct log_entry *entry = log_next(&n_dropped);

                if (!entry && n_dropped == 0)
                        break;
                if (n_dropped > 0)
                        log_emit_dropped(n_dropped);
                if (entry)
                        log_emit(entry);
        }
        pthread_mutex_lock(&state.lock);
        state.ended = true;
        pthread_cond_signal(&state.over);
        pthread_mutex_unlock(&state.lock);
        return NULL;
}

int log_start(enum log_target target, int level) {
        sigset_t all, old;
        int r;

        if (target == LOG_TARGET_JOURNAL && access(LOG_JOURNAL_SOCKET, W_OK) < 0)
                return -errno;
        if (state.running)
                return -EALREADY;
        if (state.lost)
                return -EBUSY;
        log_set_level(level);
        state.journal = target == LOG_TARGET_JOURNAL ||
                        (target == LOG_TARGET_AUTO && stderr_is_journal() && access(LOG_JOURNAL_SOCKET, W_OK) == 0);
        state.deadline_usec = 0;
        state.stopping = state.ended = false;

        /* Signals are the loop's, and a broken pipe is none of theirs. */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        r = pthread_create(&state.thread, NULL, log_main, NULL);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        if (r != 0)
                return -r;
        pthread_mutex_lock(&state.lock);
        state.running = true;
        pthread_mutex_unlock(&state.lock);
        return 0;
}

void log_stop(void) {
        struct timespec until;
        bool lost;
        int r = 0;

        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += HANG_SEC;
        pthread_mutex_lock(&state.lock);
        bool running = state.running;
        state.running = false;
        state.stopping = true;
        pthread_cond_signal(&state.added);
        pthread_mutex_unlock(&state.lock);
        if (!running)
                return;
        state.deadline_usec = clock_monotonic_usec() + STOP_USEC * 9 / 10;
        pthread_mutex_lock(&state.lock);
        while (!state.ended && r != ETIMEDOUT)
                r = pthread_cond_clockwait(&state.over, &state.lock, CLOCK_MONOTONIC, &until);
        lost = state.lost = !state.ended;
        pthread_mutex_unlock(&state.lock);
        if (lost) /* It hangs in a write. It and what it holds end with the process; nothing can be logged any more. */
                pthread_detach(state.thread);
        else
                pthread_join(state.thread, NULL);
}

void log_set_level(int level) {
        state.level = level;
}

bool log_wants(int level) {
        return (level & LOG_PRIMASK) <= state.level;
}

/* Takes the entry in, or counts it. False: there is no thread; the entry is still the caller's. */
static bool log_queue(struct log_entry *entry_take) {
        _cleanup_(entry_freep) struct log_entry *spare = NULL;

        pthread_mutex_lock(&state.lock);
        bool direct = !state.running && !state.lost;
        if (!direct && (state.lost || !entry_take || state.n >= QUEUE_MAX)) {
                state.n_dropped++;
                spare = entry_take;
        } else if (!direct) {
                entry_take->n_dropped = state.n_dropped;
                state.n_dropped = 0;
                *state.end = entry_take;
                state.end = &entry_take->next;
                state.n++;
        }
        if (!direct)
                pthread_cond_signal(&state.added);
        pthread_mutex_unlock(&state.lock);
        return !direct;
}

void log_line(int level, const char *message_id, const struct log_field *fields, size_t n_fields, const char *format, ...) {
        char message[LOG_TEXT_MAX];
        struct log_entry *entry;
        va_list ap;

        if (!log_wants(level))
                return;
        va_start(ap, format);
        vsnprintf(message, sizeof(message), format, ap);
        va_end(ap);
        entry = log_entry_new(level, clock_real_usec(), message_id, message, fields,
                              n_fields < FIELDS_MAX ? n_fields : FIELDS_MAX);
        if (log_queue(entry) || !entry)
                return;
        log_to_stderr(entry, clock_monotonic_usec() + STOP_USEC);
        free(entry);
}
