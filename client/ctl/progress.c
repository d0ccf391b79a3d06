/* SPDX-License-Identifier: Apache-2.0 */
/* Draws one line over itself on stderr, at most ten times a second. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "print.h"
#include "progress.h"

#define FIRST_USEC 1000000
#define EVERY_USEC 100000

void progress_init(struct progress *progress, const char *what, int64_t total) {
        const char *terminal = getenv("TERM");

        *progress = (struct progress){ .what = what, .total = total, .started_usec = print_monotonic_usec() };
        progress->enabled = isatty(STDERR_FILENO) && terminal && strcmp(terminal, "dumb") != 0;
}

static void figures_put(struct bytes *out, const struct progress *progress, int64_t done) {
        char size[PRINT_MAX];

        print_size(size, done);
        bytes_append_str(out, size);
        if (progress->total < 0)
                return;
        bytes_append_str(out, " of ");
        print_size(size, progress->total);
        bytes_append_str(out, size);
}

/* What follows the bar: rate and time left. */
static void tail_put(struct bytes *out, const struct progress *progress, int64_t done, int64_t elapsed_usec) {
        int64_t rate = elapsed_usec > 0 ? (int64_t)((__int128)done * 1000000 / elapsed_usec) : 0;
        char text[PRINT_MAX], line[2 * PRINT_MAX];

        if (progress->total > 0) {
                (void)snprintf(line, sizeof(line), "%3d%%  ", (int)((__int128)done * 100 / progress->total));
                bytes_append_str(out, line);
        }
        print_size(text, rate);
        (void)snprintf(line, sizeof(line), "%8s/s", text);
        bytes_append_str(out, line);
        if (progress->total > 0 && rate > 0) {
                print_age(text, (progress->total - done) / rate * 1000000);
                (void)snprintf(line, sizeof(line), "  %s left", text);
                bytes_append_str(out, line);
        }
}

void progress_line(struct bytes *out, const struct progress *progress, int64_t done, int64_t elapsed_usec,
                   int width) {
        struct bytes name = { 0 }, figures = { 0 }, tail = { 0 };
        int room;

        print_escaped(&name, progress->what);
        bytes_append_char(&name, 0);
        figures_put(&figures, progress, done);
        tail_put(&tail, progress, done, elapsed_usec);
        if (name.failed || figures.failed || tail.failed)
                goto out;
        room = width - (int)figures.n - (int)tail.n - 4;
        if (room >= 8) { /* half for the name at most, the rest for the bar */
                size_t n = print_prefix(name.data, room / 2);

                bytes_append(out, name.data, n);
                bytes_append_str(out, "  ");
                room -= print_width(name.data, n) + 4;
        }
        bytes_append(out, figures.data, figures.n);
        bytes_append_str(out, "  ");
        if (room >= 6 && progress->total > 0) {
                bytes_append_char(out, '[');
                print_bar(out, done, progress->total, room > 42 ? 40 : room - 2);
                bytes_append_str(out, "]  ");
        }
        bytes_append(out, tail.data, tail.n);
out:
        bytes_deinit(&name);
        bytes_deinit(&figures);
        bytes_deinit(&tail);
}

void progress_update(struct progress *progress, int64_t done) {
        int64_t now;
        struct bytes line = { 0 };

        if (!progress->enabled)
                return;
        now = print_monotonic_usec();
        if (now - progress->started_usec < FIRST_USEC || now - progress->shown_usec < EVERY_USEC)
                return;
        progress->shown_usec = now;
        progress->shown = true;
        bytes_append_str(&line, "\r");
        progress_line(&line, progress, done, now - progress->started_usec, print_columns(STDERR_FILENO) - 1);
        bytes_append_str(&line, "\033[K");
        if (!line.failed)
                (void)fwrite(line.data, 1, line.n, stderr);
        (void)fflush(stderr);
        bytes_deinit(&line);
}

void progress_deinit(struct progress *progress) {
        if (progress->shown)
                (void)fputs("\r\033[K", stderr);
        progress->shown = false;
}
