/* SPDX-License-Identifier: Apache-2.0 */
/* Configuration files: lines into sections, keys and values. Loop thread, at start and reload. Knows no key. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "config_keys.h"
#include "proto/bytes.h"
#include "proto/cleanup.h"

struct config_reader {
        const char *path;
        FILE *file;
        unsigned line;
        char section[32];
        struct bytes text; /* the line at hand, continuations joined */
};

static void reader_deinit(struct config_reader *reader) {
        if (reader->file)
                fclose(reader->file);
        bytes_deinit(&reader->text);
}

int config_fail(char **ret_message, int error, const char *format, ...) {
        va_list ap;
        int n;

        va_start(ap, format);
        n = vasprintf(ret_message, format, ap);
        va_end(ap);
        if (n < 0) {
                *ret_message = NULL;
                return -ENOMEM;
        }
        for (char *p = *ret_message; *p; p++)
                if (iscntrl((unsigned char)*p))
                        *p = '?';
        return error;
}

static char *config_trim(char *text) {
        char *end;

        text += strspn(text, " \t\r\n");
        end = text + strlen(text);
        while (end > text && strchr(" \t\r\n", end[-1]))
                *--end = '\0';
        return text;
}

static bool is_comment(const char *text) {
        return *text == '#' || *text == ';';
}

/* The next line that says something; ends in NUL. 1, 0 at the end, or -errno with a message. */
static int reader_next(struct config_reader *reader, unsigned *ret_line, char **ret_text, char **ret_message) {
        _cleanup_free_ char *line = NULL;
        bool joined = false;
        size_t room = 0;
        ssize_t n;

        reader->text.n = 0;
        while ((n = getline(&line, &room, reader->file)) >= 0) {
                reader->line++;
                if (strlen(line) != (size_t)n)
                        return config_fail(ret_message, -EINVAL, "%s:%u: a NUL byte; this is not a text file", reader->path,
                                           reader->line);
                char *text = config_trim(line);
                size_t length = strlen(text);
                if (is_comment(text) || (!*text && !joined))
                        continue;
                if (!joined)
                        *ret_line = reader->line;
                joined = length > 0 && text[length - 1] == '\\';
                if (joined)
                        text[length - 1] = ' ';
                bytes_append(&reader->text, text, length);
                if (!joined)
                        break;
        }
        if (ferror(reader->file))
                return config_fail(ret_message, -errno, "%s: cannot read: %s", reader->path, strerrordesc_np(errno));
        if (n < 0 && reader->text.n == 0)
                return 0;
        bytes_append_char(&reader->text, '\0');
        if (reader->text.failed)
                return config_fail(ret_message, -ENOMEM, "%s: out of memory", reader->path);
        *ret_text = config_trim(reader->text.data);
        return 1;
}

static int reader_section(struct config_reader *reader, unsigned line, char *text, char **ret_message) {
        size_t n = strlen(text);

        if (text[n - 1] != ']' && strchr(text, ']'))
                return config_fail(ret_message, -EINVAL, "%s:%u: %.60s: something follows the section's ]; put it on a line of its own",
                                   reader->path, line, text);
        if (text[n - 1] != ']')
                return config_fail(ret_message, -EINVAL, "%s:%u: %.60s: the section's ] is missing", reader->path, line, text);
        text[n - 1] = '\0';
        for (const struct config_key *key = config_keys; key->name; key++)
                if (strcmp(key->section, text + 1) == 0) {
                        snprintf(reader->section, sizeof(reader->section), "%s", key->section);
                        return 0;
                }
        return config_fail(ret_message, -EINVAL, "%s:%u: [%.60s]: unknown section; there are [Daemon], [Access] and [Limits]",
                           reader->path, line, text + 1);
}

/* The key of a name in the section at hand; NULL with a hint for people. */
static const struct config_key *reader_key(struct config_reader *reader, const char *name, char ret_hint[CONFIG_WHY_MAX]) {
        snprintf(ret_hint, CONFIG_WHY_MAX, "unknown key; gpuipcd.conf(5) lists the keys of [%s]", reader->section);
        for (const struct config_key *key = config_keys; key->name; key++) {
                bool same = strcmp(key->name, name) == 0;

                if (same && strcmp(key->section, reader->section) == 0)
                        return key;
                if (same)
                        snprintf(ret_hint, CONFIG_WHY_MAX, "not a key of [%s]; put it under [%s]", reader->section, key->section);
                else if (strcasecmp(key->name, name) == 0)
                        snprintf(ret_hint, CONFIG_WHY_MAX, "unknown key; it is spelled %s= and stands under [%s]", key->name,
                                 key->section);
        }
        return NULL;
}

static int reader_assign(struct config_reader *reader, unsigned line, char *text, struct config_draft *draft,
                         char **ret_message) {
        char *equals = strchr(text, '='), *name, *value, why[CONFIG_WHY_MAX];
        const struct config_key *key;
        int r;

        if (!equals)
                return config_fail(ret_message, -EINVAL, "%s:%u: %.60s: neither Key=value nor [Section]; put # before a comment",
                                   reader->path, line, text);
        *equals = '\0';
        name = config_trim(text);
        value = config_trim(equals + 1);
        if (!*reader->section)
                return config_fail(ret_message, -EINVAL, "%s:%u: %.60s=: before any section; put [Daemon], [Access] or [Limits] "
                                   "on a line above", reader->path, line, name);
        key = reader_key(reader, name, why);
        if (!key)
                return config_fail(ret_message, -EINVAL, "%s:%u: [%s] %.60s=%.60s: %s", reader->path, line, reader->section, name,
                                   value, why);
        r = config_value_set(key, value, draft, why);
        if (r == -EINVAL)
                return config_fail(ret_message, r, "%s:%u: [%s] %s=%.120s: %s", reader->path, line, key->section, key->name,
                                   value, why);
        if (r < 0)
                return config_fail(ret_message, r, "%s:%u: %s", reader->path, line, strerrordesc_np(-r));
        return 0;
}

/* Files, and /dev/null, which masks one. Anything else may have nothing to read yet, and a reload must not wait for it. */
static bool is_file(int fd) {
        struct stat st;

        return fstat(fd, &st) < 0 || S_ISREG(st.st_mode) || S_ISDIR(st.st_mode) ||
               (S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3));
}

/* 0, -errno, or -ENOTSUP for what is no file. A pipe without a writer is not waited for. */
static int config_file_open(const char *path, FILE **ret) {
        _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

        if (fd < 0)
                return errno == ENXIO ? -ENOTSUP : -errno; /* a socket */
        if (!is_file(fd))
                return -ENOTSUP;
        *ret = fdopen(fd, "r");
        if (!*ret)
                return -errno;
        (void)take_fd(&fd);
        return 0;
}

int config_file_read(const char *path, bool may_be_missing, struct config_draft *draft, char **ret_message) {
        _cleanup_(reader_deinit) struct config_reader reader = {.path = path};
        unsigned line = 0;
        char *text = NULL;
        int r = config_file_open(path, &reader.file);

        if (r == -ENOENT && may_be_missing)
                return 0;
        if (r == -ENOTSUP)
                return config_fail(ret_message, -EINVAL, "%s: neither a file nor /dev/null; a reload could not read it again", path);
        if (r < 0)
                return config_fail(ret_message, r, "%s: cannot open: %s", path, strerrordesc_np(-r));
        while ((r = reader_next(&reader, &line, &text, ret_message)) > 0) {
                if (*text == '[')
                        r = reader_section(&reader, line, text, ret_message);
                else
                        r = reader_assign(&reader, line, text, draft, ret_message);
                if (r < 0)
                        return r;
        }
        return r;
}

static int is_drop_in(const struct dirent *entry) {
        size_t n = strlen(entry->d_name);

        return entry->d_name[0] != '.' && n > 5 && strcmp(entry->d_name + n - 5, ".conf") == 0;
}

static int by_name(const struct dirent **a, const struct dirent **b) {
        return strcmp((*a)->d_name, (*b)->d_name);
}

int config_directory_read(const char *path, struct config_draft *draft, char **ret_message) {
        _cleanup_free_ struct dirent **entries = NULL;
        int n = scandir(path, &entries, is_drop_in, by_name), r = 0;

        if (n < 0 && (errno == ENOENT || errno == ENOTDIR))
                return 0;
        if (n < 0)
                return config_fail(ret_message, -errno, "%s: cannot open: %s", path, strerrordesc_np(errno));
        for (int i = 0; i < n; i++) {
                _cleanup_free_ char *file = NULL;

                if (r == 0 && asprintf(&file, "%s/%s", path, entries[i]->d_name) < 0)
                        r = config_fail(ret_message, -ENOMEM, "%s: out of memory", path);
                if (r == 0)
                        r = config_file_read(file, false, draft, ret_message);
                free(entries[i]);
        }
        return r;
}
