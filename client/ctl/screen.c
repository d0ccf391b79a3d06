/* SPDX-License-Identifier: Apache-2.0 */
/* Plain ANSI sequences; every frame goes out in one write, so that nothing flickers. */
#include "screen.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "print.h"
#include "proto/cleanup.h"

static const int signal_numbers[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGTSTP };

bool screen_possible(void) {
        const char *terminal = getenv("TERM");

        return isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && terminal && strcmp(terminal, "dumb") != 0;
}

static void say(const char *text, size_t n) {
        while (n > 0) {
                ssize_t wrote = write(STDOUT_FILENO, text, n);

                if (wrote < 0 && errno != EINTR && errno != EAGAIN)
                        return; /* the terminal is gone, which its hang-up tells */
                if (wrote > 0) {
                        text += wrote;
                        n -= (size_t)wrote;
                }
        }
}

static void page_enter(struct screen *screen) {
        static const char sequence[] = "\033[?1049h\033[?25l\033[H\033[2J";
        struct termios raw = screen->before;

        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        raw.c_cc[VMIN] = 0;
        raw.c_cc[VTIME] = 0;
        (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &raw);
        say(sequence, sizeof(sequence) - 1);
}

static void page_leave(struct screen *screen) {
        static const char sequence[] = "\033[0m\033[?25h\033[?1049l";

        say(sequence, sizeof(sequence) - 1);
        (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &screen->before);
}

int screen_open(struct screen *screen) {
        sigset_t set;

        if (tcgetattr(STDIN_FILENO, &screen->before) != 0)
                return -errno;
        (void)sigemptyset(&set);
        for (size_t i = 0; i < ELEMENTSOF(signal_numbers); i++)
                (void)sigaddset(&set, signal_numbers[i]);
        if (sigprocmask(SIG_BLOCK, &set, NULL) != 0)
                return -errno;
        screen->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
        if (screen->signals < 0)
                return -errno;
        page_enter(screen);
        screen->open = true;
        return 0;
}

void screen_deinit(struct screen *screen) {
        if (screen->open)
                page_leave(screen);
        screen->open = false;
        fd_closep(&screen->signals);
}

void screen_size(int *ret_columns, int *ret_lines) {
        struct winsize size;
        bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;

        *ret_lines = known && size.ws_row > 0 ? size.ws_row : 24;
        *ret_columns = known && size.ws_col > 0 ? size.ws_col : 80;
}

/* The first `max` lines of text, without the last one's end: that would scroll the page. */
static size_t text_fit(const struct bytes *text, int max) {
        size_t n = 0;

        for (int lines = 0; n < text->n; n++)
                if (text->data[n] == '\n' && ++lines == max)
                        break;
        return n > 0 && n == text->n && text->data[n - 1] == '\n' ? n - 1 : n;
}

void screen_draw(struct screen *screen, const struct bytes *text) {
        struct bytes out = { 0 };
        int columns, lines;
        size_t n, last = 0;

        screen_size(&columns, &lines);
        n = text_fit(text, lines);
        for (size_t i = 0; i < n; i++)
                if (text->data[i] == '\n')
                        last = i + 1;
        /* Each line is cleared before it is written: at the right edge, clearing would take its last character. */
        bytes_append_str(&out, last == 0 ? "\033[H\033[J" : "\033[H\033[K");
        for (size_t i = 0; i < n; i++) {
                bytes_append_char(&out, text->data[i]);
                if (text->data[i] == '\n')
                        bytes_append_str(&out, i + 1 == last ? "\033[J" : "\033[K");
        }
        if (!out.failed && screen->open)
                say(out.data, out.n);
        bytes_deinit(&out);
}

/* Ctrl-Z: the shell gets its page back, and we ours later. */
static void suspend(struct screen *screen) {
        page_leave(screen);
        (void)raise(SIGSTOP);
        page_enter(screen);
}

static int signal_take(struct screen *screen) {
        struct signalfd_siginfo info;

        if (read(screen->signals, &info, sizeof(info)) != (ssize_t)sizeof(info))
                return SCREEN_REDRAW;
        if (info.ssi_signo == SIGTSTP)
                suspend(screen);
        return info.ssi_signo == SIGTSTP || info.ssi_signo == SIGWINCH ? SCREEN_REDRAW : SCREEN_LEAVE;
}

static int key_take(void) {
        char keys[16];
        ssize_t n = read(STDIN_FILENO, keys, sizeof(keys));

        if (n < 0 && (errno == EINTR || errno == EAGAIN))
                return SCREEN_REDRAW;
        if (n <= 0)
                return SCREEN_LEAVE;
        return keys[0] == '\033' || keys[0] < 0 ? SCREEN_REDRAW
                                                : keys[0]; /* arrows and the like mean nothing here */
}

int screen_wait(struct screen *screen, int fd, int timeout_ms) {
        struct pollfd poll_fds[] = { { screen->signals, POLLIN, 0 },
                                     { STDIN_FILENO, POLLIN, 0 },
                                     { fd, POLLIN, 0 } };

        if (poll(poll_fds, ELEMENTSOF(poll_fds), timeout_ms) <= 0)
                return SCREEN_TIMEOUT;
        if (poll_fds[0].revents)
                return signal_take(screen);
        if (poll_fds[1].revents)
                return key_take();
        return SCREEN_READY;
}
