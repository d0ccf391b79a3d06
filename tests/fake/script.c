/* SPDX-License-Identifier: Apache-2.0 */
/* The script in force: read anew when its file changed. Any thread, under a lock of its own; never fails a call, but ends the
 * process when the script is wrong, so that no test passes by a fault that was misspelt. */
#include "script.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TRIES 3

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct script *current;
static struct stat seen;

void fake_die(const char *format, ...) {
        va_list arguments;
        char text[512];

        va_start(arguments, format);
        vsnprintf(text, sizeof(text), format, arguments);
        va_end(arguments);
        fprintf(stderr, "fake cuda: %s\n", text);
        abort();
}

void *script_memory(size_t n) {
        for (int i = 0; i < TRIES; i++) {
                void *memory = calloc(1, n);
                if (memory)
                        return memory;
        }
        fake_die("no memory for the script");
}

char *script_copy(const char *text) {
        size_t n = strlen(text) + 1;
        return memcpy(script_memory(n), text, n);
}

static void lock(void) {
        pthread_mutex_lock(&mutex);
}

static void unlock(void) {
        pthread_mutex_unlock(&mutex);
}

/* A fork in the middle of a read must not leave the child a lock that nobody will open. */
__attribute__((constructor)) static void guard_fork(void) {
        pthread_atfork(lock, unlock, unlock);
}

static bool same_file(const struct stat *a, const struct stat *b) {
        return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_size == b->st_size &&
               a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static char *read_whole(const char *path, struct stat *ret_stat) {
        int fd = -1;
        for (int i = 0; i < TRIES && fd < 0; i++)
                fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
                return NULL;
        char *text = NULL;
        if (fstat(fd, ret_stat) == 0) {
                text = script_memory((size_t)ret_stat->st_size + 1);
                ssize_t n = read(fd, text, (size_t)ret_stat->st_size);
                text[n > 0 ? n : 0] = '\0';
        }
        close(fd);
        return text;
}

static void use(struct script *script, const char *default_state) {
        if (!script->state[0])
                snprintf(script->state, sizeof(script->state), "%s", default_state);
        script->previous = current;
        current = script;
}

/* A file that is gone, as at the end of a test, leaves the last script in force. */
static void read_file(const char *path) {
        struct stat now;
        char state[PATH_MAX];

        if (current && (stat(path, &now) < 0 || same_file(&now, &seen)))
                return;
        char *text = read_whole(path, &now);
        if (!text) {
                if (current)
                        return;
                fake_die("GPUIPC_FAKE_CUDA=%s: cannot read it", path);
        }
        snprintf(state, sizeof(state), "%.*s.state", PATH_MAX - 10, path);
        use(script_parse(text, path, current), state);
        free(text);
        seen = now;
}

static void read_statements(const char *statements) {
        char state[PATH_MAX], *text = script_copy(statements);
        const char *directory = getenv("TMPDIR");

        for (char *at = text; (at = strchr(at, ';'));)
                *at = '\n';
        snprintf(state, sizeof(state), "%.*s/gpuipc-fake-cuda", PATH_MAX - 20, directory && *directory ? directory : "/tmp");
        use(script_parse(text, "GPUIPC_FAKE_CUDA", NULL), state);
        free(text);
}

const struct script *script_get(void) {
        const char *source = getenv("GPUIPC_FAKE_CUDA");

        lock();
        if (source && (*source == '/' || *source == '.'))
                read_file(source);
        else if (!current)
                read_statements(source ? source : "");
        const struct script *script = current;
        unlock();
        return script;
}
