/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers, times and foreign text as people read them. Pure but for the clock, the locale and the terminal's size. */
#include <langinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>
#include <wctype.h>

#include "parse.h"
#include "print.h"

void print_size(char ret[PRINT_MAX], int64_t bytes) {
        static const char units[] = "KMGTPE";
        int64_t tenths, unit = 1024;
        size_t i = 0;

        if (bytes < 1024) {
                if (bytes < 0)
                        (void)snprintf(ret, PRINT_MAX, "-");
                else
                        (void)snprintf(ret, PRINT_MAX, "%d B", (int)bytes);
                return;
        }
        while (i < 5 && bytes / unit >= 1024) {
                unit *= 1024;
                i++;
        }
        tenths = (int64_t)(((__int128)bytes * 10 + unit / 2) / unit);
        if (tenths >= 10235 && i < 5) { /* would round to 1024 */
                tenths = 10;
                i++;
        }
        if (tenths % 10 == 0 || tenths >= 1000)
                (void)snprintf(ret, PRINT_MAX, "%lld %ciB", (long long)((tenths + 5) / 10), units[i]);
        else
                (void)snprintf(ret, PRINT_MAX, "%lld.%lld %ciB", (long long)(tenths / 10),
                               (long long)(tenths % 10), units[i]);
}

void print_bytes(char ret[PRINT_MAX], int64_t bytes, bool exact) {
        if (exact && bytes >= 0)
                (void)snprintf(ret, PRINT_MAX, "%lld", (long long)bytes);
        else
                print_size(ret, bytes);
}

void print_age(char ret[PRINT_MAX], int64_t usec) {
        long long s = (long long)(usec / 1000000);

        if (usec < 0)
                (void)snprintf(ret, PRINT_MAX, "-");
        else if (s < 60)
                (void)snprintf(ret, PRINT_MAX, "%llds", s);
        else if (s < 3600)
                (void)snprintf(ret, PRINT_MAX, "%lldm%02llds", s / 60, s % 60);
        else if (s < 86400)
                (void)snprintf(ret, PRINT_MAX, "%lldh%02lldm", s / 3600, s / 60 % 60);
        else
                (void)snprintf(ret, PRINT_MAX, "%lldd%02lldh", s / 86400, s / 3600 % 24);
}

void print_duration(char ret[PRINT_MAX], int64_t ms) {
        static const struct {
                const char *name;
                int64_t ms;
        } units[] = { { "d", 86400000 }, { "h", 3600000 }, { "m", 60000 }, { "s", 1000 }, { "ms", 1 } };
        size_t n = 0;

        (void)snprintf(ret, PRINT_MAX, ms < 0 ? "-" : "0s");
        for (size_t i = 0; ms > 0 && i < sizeof(units) / sizeof(units[0]); i++) {
                if (ms < units[i].ms)
                        continue;
                n += (size_t)snprintf(ret + n, PRINT_MAX - n, "%lld%s", (long long)(ms / units[i].ms),
                                      units[i].name);
                ms %= units[i].ms;
        }
}

void print_clock(char ret[PRINT_MAX], int64_t usec_since_epoch) {
        time_t seconds = (time_t)(usec_since_epoch / 1000000);
        struct tm local;

        if (usec_since_epoch < 0 || !localtime_r(&seconds, &local)) {
                (void)snprintf(ret, PRINT_MAX, "-");
                return;
        }
        (void)snprintf(ret, PRINT_MAX, "%02d:%02d:%02d.%06d", local.tm_hour, local.tm_min, local.tm_sec,
                       (int)(usec_since_epoch % 1000000));
}

static int64_t clock_usec(clockid_t clock) {
        struct timespec now;

        (void)clock_gettime(clock, &now);
        return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int64_t print_now_usec(void) {
        return clock_usec(CLOCK_REALTIME);
}

int64_t print_monotonic_usec(void) {
        return clock_usec(CLOCK_MONOTONIC);
}

/* The character that starts `text` (n > 0 bytes) and its length; -1 and 1 when it is not UTF-8. */
static int32_t decode(const char *text, size_t n, size_t *ret_length) {
        static const int32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
        unsigned char first = (unsigned char)text[0];
        size_t length = first < 0x80   ? 1
                        : first < 0xc0 ? 0
                        : first < 0xe0 ? 2
                        : first < 0xf0 ? 3
                        : first < 0xf8 ? 4
                                       : 0;
        int32_t c = first;

        *ret_length = 1;
        if (length == 1)
                return c;
        if (length == 0 || length > n)
                return -1;
        c &= 0x7f >> length;
        for (size_t i = 1; i < length; i++) {
                if (((unsigned char)text[i] & 0xc0) != 0x80)
                        return -1;
                c = c << 6 | (text[i] & 0x3f);
        }
        if (c < least[length] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
                return -1;
        *ret_length = length;
        return c;
}

bool print_utf8(void) {
        return strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

const char *print_ellipsis(void) {
        return print_utf8() ? "…" : "~";
}

/* Characters that reorder or hide what stands around them. */
static bool deceives(int32_t c) {
        return c == 0x61c || (c >= 0x200b && c <= 0x200f) || (c >= 0x2028 && c <= 0x202e) ||
               (c >= 0x2060 && c <= 0x206f) || c == 0xfeff;
}

static bool shown_as_is(int32_t c) {
        if (c < 0x80)
                return c >= 0x20 && c < 0x7f && c != '\\';
        return print_utf8() && !deceives(c) && iswprint((wint_t)c) && wcwidth((wchar_t)c) >= 0;
}

static void escape_byte(struct bytes *out, char c) {
        char text[8];

        if (c == '\n' || c == '\t' || c == '\r' || c == '\\')
                (void)snprintf(text, sizeof(text), "\\%c",
                               c == '\n'   ? 'n'
                               : c == '\t' ? 't'
                               : c == '\r' ? 'r'
                                           : c);
        else
                (void)snprintf(text, sizeof(text), "\\x%02x", (unsigned char)c);
        bytes_append_str(out, text);
}

void print_escaped(struct bytes *out, const char *text) {
        size_t n = strlen(text), length;

        for (; n > 0; text += length, n -= length) {
                if (shown_as_is(decode(text, n, &length))) {
                        bytes_append(out, text, length);
                        continue;
                }
                for (size_t i = 0; i < length; i++)
                        escape_byte(out, text[i]);
        }
}

static int width_at(const char *text, size_t n, size_t *ret_length) {
        int32_t c = decode(text, n, ret_length);
        int width = c < 0 ? 1 : wcwidth((wchar_t)c);

        return width < 0 ? 1 : width;
}

int print_width(const char *text, size_t n) {
        int width = 0;
        size_t length;

        for (; n > 0; text += length, n -= length)
                width += width_at(text, n, &length);
        return width;
}

size_t print_prefix(const char *text, int columns) {
        size_t n = strlen(text), at = 0, length;

        while (at < n) {
                int width = width_at(text + at, n - at, &length);

                if (width > columns)
                        break;
                columns -= width;
                at += length;
        }
        return at;
}

int print_columns(int fd) {
        const char *variable = getenv("COLUMNS");
        struct winsize size;
        int64_t columns;

        if (variable && parse_number(variable, &columns) == 0 && columns > 0 && columns < 100000)
                return (int)columns;
        if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
                return size.ws_col;
        return isatty(fd) ? 80 : 0;
}

void print_bar(struct bytes *out, int64_t part, int64_t whole, int width) {
        int64_t filled = whole > 0 ? (int64_t)((__int128)part * width / whole) : 0;

        for (int i = 0; i < width; i++)
                bytes_append_char(out, i < filled ? '#' : '-');
}
