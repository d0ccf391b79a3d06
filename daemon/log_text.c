/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of the log as text. Any thread; keeps nothing. */
#include "log_text.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "proto/utf8.h"

const char *log_level_name(int level) {
        static const char *const names[] = {"emerg", "alert", "crit", "error", "warning", "notice", "info", "debug"};

        return names[level & LOG_PRIMASK];
}

static char *entry_put(char *end, const char *text, size_t n) {
        memcpy(end, text, n);
        end[n] = '\0';
        return end + n + 1;
}

struct log_entry *log_entry_new(int level, int64_t time_usec, const char *message_id, const char *message,
                                const struct log_field *fields, size_t n_fields) {
        size_t n = strnlen(message, LOG_TEXT_MAX) + 1;
        struct log_entry *entry;
        char *end;

        for (size_t i = 0; i < n_fields; i++)
                n += strlen(fields[i].key) + strnlen(fields[i].value, LOG_TEXT_MAX) + 2;
        entry = malloc(sizeof(*entry) + n);
        if (!entry)
                return NULL;
        *entry = (struct log_entry){.level = level & LOG_PRIMASK, .time_usec = time_usec, .n_fields = n_fields};
        snprintf(entry->message_id, sizeof(entry->message_id), "%s", message_id ? message_id : "");
        end = entry_put(entry->text, message, strnlen(message, LOG_TEXT_MAX));
        for (size_t i = 0; i < n_fields; i++) {
                end = entry_put(end, fields[i].key, strlen(fields[i].key));
                end = entry_put(end, fields[i].value, strnlen(fields[i].value, LOG_TEXT_MAX));
        }
        return entry;
}

static bool log_needs_quotes(const char *text) {
        if (!*text)
                return true;
        for (; *text; text++)
                if ((unsigned char)*text <= ' ' || strchr("\"=\\", *text))
                        return true;
        return false;
}

static void escape_byte(struct bytes *bytes, unsigned char c) {
        char text[8];

        snprintf(text, sizeof(text), "\\x%02x", c);
        bytes_append_str(bytes, text);
}

/* U+0080 to U+009F: terminals may take them for commands. */
static bool is_c1(const char *text, size_t n) {
        return n == 2 && (unsigned char)text[0] == 0xC2 && (unsigned char)text[1] < 0xA0;
}

void log_escape(struct bytes *bytes, const char *text, bool quote) {
        size_t left = strlen(text), n;
        bool quoted = quote && log_needs_quotes(text);

        if (quoted)
                bytes_append_char(bytes, '"');
        for (; left > 0; text += n, left -= n) {
                unsigned char c = (unsigned char)*text;

                n = utf8_length(text, left);
                if (c == '\n' || c == '\t' || c == '\\' || (quoted && c == '"')) {
                        bytes_append_char(bytes, '\\');
                        bytes_append_char(bytes, c == '\n' ? 'n' : c == '\t' ? 't' : (char)c);
                } else if (n == 0 || (n == 1 && iscntrl(c)) || is_c1(text, n)) {
                        n = n ? n : 1;
                        for (size_t i = 0; i < n; i++)
                                escape_byte(bytes, (unsigned char)text[i]);
                } else {
                        bytes_append(bytes, text, n);
                }
        }
        if (quoted)
                bytes_append_char(bytes, '"');
}

static void log_print_head(const struct log_entry *entry, bool journal, struct bytes *bytes) {
        time_t seconds = (time_t)(entry->time_usec / 1000000);
        char head[64], stamp[32] = "";
        struct tm tm;

        if (journal) {
                snprintf(head, sizeof(head), "<%d>", entry->level);
        } else {
                if (gmtime_r(&seconds, &tm))
                        strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%S", &tm);
                snprintf(head, sizeof(head), "%s.%06" PRId64 "Z %s ", stamp, entry->time_usec % 1000000,
                         log_level_name(entry->level));
        }
        bytes_append_str(bytes, head);
}

void log_entry_print(const struct log_entry *entry, bool journal, struct bytes *bytes) {
        const char *text = entry->text;

        log_print_head(entry, journal, bytes);
        log_escape(bytes, text, false);
        for (size_t i = 0; i < entry->n_fields; i++) {
                text = log_entry_next(text);
                bytes_append_char(bytes, ' ');
                for (; *text; text++)
                        bytes_append_char(bytes, (char)tolower((unsigned char)*text));
                bytes_append_char(bytes, '=');
                text = log_entry_next(text);
                log_escape(bytes, text, true);
        }
        bytes_append_char(bytes, '\n');
}
