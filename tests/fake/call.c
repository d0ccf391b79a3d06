/* SPDX-License-Identifier: Apache-2.0 */
/* Faults and the log. Any thread; holds no lock while a call is made to wait. */
#include "call.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "books.h"
#include "script.h"

#define POLL_NS 1000000

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t passable = PTHREAD_COND_INITIALIZER;
static int n_blocking; /* calls that wait and let no other pass */

static const char *program_name(void) {
        static _Thread_local char path[256];
        ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);

        path[n > 0 ? n : 0] = '\0';
        const char *slash = strrchr(path, '/');
        return n <= 0 ? "?" : slash ? slash + 1 : path;
}

static void log_line(const struct script *script, const struct call *call, const char *result) {
        char line[256], device[16] = "-";

        if (!script->log)
                return;
        int fd = books_open_log(script);
        if (fd < 0)
                return;
        if (call->device >= 0)
                snprintf(device, sizeof(device), "%d", call->device);
        int n = snprintf(line, sizeof(line), "%d %.64s %s %s %s\n", getpid(), program_name(), call->entry, device, result);
        if (write(fd, line, (size_t)n) < 0)
                fprintf(stderr, "fake cuda: cannot write the log: %s\n", strerror(errno));
        close(fd);
}

static bool rule_matches(const struct rule *rule, const struct call *call) {
        return (rule->device < 0 || rule->device == call->device) && fnmatch(rule->entry, call->entry, 0) == 0 &&
               (!rule->exe[0] || strcmp(rule->exe, program_name()) == 0);
}

/* The fault that this call meets. Every line that matches counts the call, also behind the one that is met. */
static const struct rule *rule_find(const struct script *script, const struct call *call) {
        const struct rule *met = NULL;

        for (const struct rule *rule = script->rules; rule; rule = rule->next) {
                if (!rule_matches(rule, call))
                        continue;
                unsigned long n = ++*rule->count;
                if (!met && (!rule->nth || n == rule->nth) && n >= rule->from)
                        met = rule;
        }
        return met;
}

static void pause_ns(long ns) {
        struct timespec left = { .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };
        while (nanosleep(&left, &left) < 0 && errno == EINTR)
                ;
}

static void rule_wait(const struct rule *rule) {
        if (rule->delay_ms)
                pause_ns((long)rule->delay_ms * 1000000);
        while ((rule->hang_while && access(rule->hang_while, F_OK) == 0) ||
               (rule->hang_until && access(rule->hang_until, F_OK) != 0))
                pause_ns(POLL_NS);
}

static void block(int by) {
        pthread_mutex_lock(&mutex);
        n_blocking += by;
        pthread_cond_broadcast(&passable);
        pthread_mutex_unlock(&mutex);
}

static void wait_until_passable(void) {
        pthread_mutex_lock(&mutex);
        while (n_blocking > 0)
                pthread_cond_wait(&passable, &mutex);
        pthread_mutex_unlock(&mutex);
}

int call_begin(struct call *call, const char *entry, int device) {
        const struct script *script = script_get();

        *call = (struct call){ .entry = entry, .device = device };
        if (!entry_known(entry))
                fake_die("%s is missing in entries.c", entry);
        wait_until_passable();
        const struct rule *rule = rule_find(script, call);
        if (!rule)
                return 0;
        if (rule->delay_ms || rule->hang_while || rule->hang_until) {
                log_line(script, call, "waits");
                if (rule->global)
                        block(1);
                rule_wait(rule);
                if (rule->global)
                        block(-1);
        }
        return rule->fails ? rule->code : 0;
}

int call_end(const struct call *call, int result) {
        char text[16];

        snprintf(text, sizeof(text), "%d", result);
        log_line(script_get(), call, text);
        return result;
}

void call_note(const char *what, int device) {
        log_line(script_get(), &(struct call){ .entry = what, .device = device }, "0");
}
