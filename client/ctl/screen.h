/* SPDX-License-Identifier: Apache-2.0 */
/* The terminal as a screen: another page, single keys, no cursor; given back as it was however the process leaves. */
#ifndef CTL_SCREEN_H
#define CTL_SCREEN_H

#include <stdbool.h>
#include <termios.h>

#include "proto/bytes.h"

struct screen {
        bool open;
        struct termios before;
        int signals; /* a signalfd */
};

enum screen_event {
        SCREEN_TIMEOUT = 0,
        SCREEN_READY = -1,  /* the other descriptor */
        SCREEN_LEAVE = -2,  /* a signal to leave, or the terminal is gone */
        SCREEN_REDRAW = -3, /* another size, or back from being stopped */
        /* else: a key */
};

/* Whether standard input and output are a terminal that can do this. */
bool screen_possible(void);

/* 0 or -errno. From here on signals are the screen's. */
int screen_open(struct screen *screen);
void screen_deinit(struct screen *screen);
#define _cleanup_screen_ __attribute__((cleanup(screen_deinit)))

/* Shows lines of text from the top; what lies below is cleared. */
void screen_draw(struct screen *screen, const struct bytes *text);

/* Waits for a key, a signal or `fd` (-1: none). */
int screen_wait(struct screen *screen, int fd, int timeout_ms);

void screen_size(int *ret_columns, int *ret_lines);

#endif
