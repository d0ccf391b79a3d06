/* SPDX-License-Identifier: Apache-2.0 */
/* top: looks again and again. On a terminal a page of its own, which says so while the daemon is away; elsewhere, and with
 * --json, plain text that waits for it as long as the library does. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "connect.h"
#include "look.h"
#include "print.h"
#include "proto/cleanup.h"
#include "rawjson.h"
#include "report.h"
#include "screen.h"

#define ANSWER_MS 5000 /* a daemon that takes longer is told of; the page goes on */

struct top {
        int restart_ms; /* as in gpuipc_connect_options */
        const struct arguments *arguments;
        gpuipc_client *client; /* NULL: none just now */
        gpuipc_watch *watch;   /* NULL: none just now; rates are missing then */
        struct look_style style;
        struct look_rates rates;
        int64_t delay_ms, count; /* count -1: for ever */
        struct bytes page;       /* the last picture */
};

static void top_disconnect(struct top *top) {
        watch_freep(&top->watch);
        client_freep(&top->client);
        look_rates_clear(&top->rates);
}

static void top_deinit(struct top *top) {
        top_disconnect(top);
        bytes_deinit(&top->page);
}

/* A gpuipc_status. A daemon that grants no watch is looked at without rates. */
static int top_connect(struct top *top, gpuipc_error *ret_error) {
        int r;

        if (top->client)
                return GPUIPC_OK;
        r = ctl_connect_quietly(top->arguments, ANSWER_MS, top->restart_ms, &top->client, ret_error);
        if (r == GPUIPC_OK && !arguments_has(top->arguments, OPTION_JSON))
                (void)gpuipc_watch_new(top->client, -1, &top->watch, NULL);
        return r;
}

static void events_drain(struct top *top) {
        const gpuipc_event_info *event;
        int r = GPUIPC_OK;

        while (top->watch && (r = gpuipc_watch_next(top->watch, 0, &event, NULL)) == GPUIPC_OK)
                look_count(&top->rates, event);
        if (r != GPUIPC_OK && r != GPUIPC_ERROR_TIMED_OUT) {
                watch_freep(&top->watch);
                look_rates_clear(&top->rates);
        }
}

static int status_collect(const char *parameters, void *data) {
        bytes_append_str(data, "{\"status\":");
        bytes_append_str(data, parameters);
        return 0;
}

/* An exit code. */
static int look_json(struct top *top) {
        struct bytes out = { 0 };
        gpuipc_error error;
        int r = EXIT_DONE;

        if (gpuipc_call_json(top->client, "io.gpuipc.Broker.GetStatus", NULL, 0, status_collect, &out, &error) !=
            GPUIPC_OK)
                r = report_error(&error);
        bytes_append_str(&out, ",\"leases\":");
        if (r == EXIT_DONE)
                r = rawjson_collect(top->client, "io.gpuipc.Broker.List", NULL, "leases", &out);
        bytes_append_str(&out, ",\"buffers\":");
        if (r == EXIT_DONE)
                r = rawjson_collect(top->client, "io.gpuipc.Broker.ListBuffers", NULL, "buffers", &out);
        bytes_append_str(&out, ",\"channels\":");
        if (r == EXIT_DONE && channels_json(top->client, &top->rates.channels, &out, &error) != GPUIPC_OK)
                r = report_error(&error);
        bytes_append_char(&out, '}');
        if (r == EXIT_DONE)
                r = rawjson_print(&out);
        bytes_deinit(&out);
        return r;
}

/* A picture to top->page. A gpuipc_status. */
static int look_text(struct top *top, gpuipc_error *ret_error) {
        struct bytes page = { 0 };
        int r = top_connect(top, ret_error);

        if (r == GPUIPC_OK) {
                events_drain(top);
                r = look_take(top->client, &top->style, &top->rates, &page, ret_error);
        }
        if (r != GPUIPC_OK || page.failed) {
                bytes_deinit(&page);
                return r;
        }
        bytes_deinit(&top->page);
        top->page = page;
        return GPUIPC_OK;
}

/* ---- without a screen ------------------------------------------------------------------------------------- */

static void plain_wait(struct top *top) {
        struct pollfd poll_fd = { top->watch ? gpuipc_watch_fd(top->watch) : -1, POLLIN, 0 };
        int64_t until = print_monotonic_usec() + top->delay_ms * 1000, left = top->delay_ms;

        while (left > 0) {
                poll_fd.fd = top->watch ? gpuipc_watch_fd(top->watch) : -1;
                if (poll(&poll_fd, 1, left > 60000 ? 60000 : (int)left) > 0)
                        events_drain(top);
                left = (until - print_monotonic_usec()) / 1000;
        }
}

static int plain_run(struct top *top) {
        bool json = arguments_has(top->arguments, OPTION_JSON);
        gpuipc_error error;

        top->style.columns = print_columns(STDOUT_FILENO);
        if (top_connect(top, &error) != GPUIPC_OK)
                return report_error(&error);
        for (int64_t i = 0; top->count < 0 || i < top->count; i++) {
                int r;

                if (i > 0)
                        plain_wait(top);
                if (json) {
                        r = look_json(top);
                } else {
                        if (look_text(top, &error) != GPUIPC_OK)
                                return report_error(&error);
                        (void)printf("%s%.*s", i > 0 ? "\n" : "", (int)top->page.n, top->page.data);
                        r = report_flush();
                }
                if (r != EXIT_DONE)
                        return r;
        }
        return EXIT_DONE;
}

/* ---- on a screen ------------------------------------------------------------------------------------------ */

static void screen_look(struct top *top, struct screen *screen) {
        struct bytes text = { 0 };
        gpuipc_error error;
        int r;

        screen_size(&top->style.columns, &top->style.lines);
        r = look_text(top, &error);
        if (r == GPUIPC_OK) {
                screen_draw(screen, &top->page);
                return;
        }
        bytes_append_str(&text, top->style.color ? "\033[7m" : "");
        print_escaped(&text, error.message);
        bytes_append_char(&text, 0);
        if (!text.failed)
                text.n = print_prefix(text.data, top->style.columns + (top->style.color ? 4 : 0));
        bytes_append_str(&text, top->style.color ? "\033[0m\n" : "\n");
        bytes_append(&text, top->page.data, top->page.n);
        screen_draw(screen, &text);
        bytes_deinit(&text);
        if (r != GPUIPC_ERROR_TIMED_OUT)
                top_disconnect(top);
}

/* What a key or signal means. Whether to go on. */
static bool screen_obey(struct top *top, int event, bool *ret_look) {
        *ret_look = true;
        if (event == SCREEN_LEAVE || event == 'q' || event == 'Q')
                return false;
        if (event == SCREEN_READY)
                events_drain(top);
        if (event == 'b' || event == 'c' || event == 'l')
                top->style.view = event == 'b' ? LOOK_BUFFERS : event == 'c' ? LOOK_CHANNELS : LOOK_LEASES;
        *ret_look = event == SCREEN_REDRAW || event == ' ' || event == 'b' || event == 'c' || event == 'l';
        return true;
}

static int screen_run(struct top *top) {
        _cleanup_screen_ struct screen screen = { .signals = -1 };
        int r = screen_open(&screen);

        if (r < 0)
                return report_errno("terminal", -r);
        for (int64_t looks = 1;; looks++) {
                int64_t until = print_monotonic_usec() + top->delay_ms * 1000, left = top->delay_ms;
                bool look = false;

                screen_look(top, &screen);
                if (looks == top->count)
                        break;
                while (left > 0 && !look) {
                        int fd = top->watch ? gpuipc_watch_fd(top->watch) : -1;

                        if (!screen_obey(top, screen_wait(&screen, fd, left > 60000 ? 60000 : (int)left), &look))
                                return EXIT_DONE;
                        left = (until - print_monotonic_usec()) / 1000;
                }
        }
        screen_deinit(&screen);
        (void)fwrite(top->page.data, 1, top->page.n, stdout); /* the last picture stays */
        return report_flush();
}

int verb_top(const struct arguments *arguments) {
        _cleanup_(top_deinit) struct top top = { .arguments = arguments, .delay_ms = 1000, .count = -1 };
        const char *no_color = getenv("NO_COLOR");
        gpuipc_error error;

        if (arguments_duration(arguments, OPTION_DELAY, &top.delay_ms) != EXIT_DONE ||
            arguments_number(arguments, OPTION_COUNT, 1, &top.count) != EXIT_DONE)
                return EXIT_BAD_USAGE;
        if (top.delay_ms < 100)
                return report_usage(arguments->verb, "--delay is at least 0.1 (seconds)");
        if (arguments_has(arguments, OPTION_BUFFERS) && arguments_has(arguments, OPTION_CHANNELS))
                return report_usage(arguments->verb, "--buffers and --channels: one of them");
        top.style.view = arguments_has(arguments, OPTION_BUFFERS)    ? LOOK_BUFFERS
                         : arguments_has(arguments, OPTION_CHANNELS) ? LOOK_CHANNELS
                                                                     : LOOK_LEASES;
        top.style.exact = arguments_has(arguments, OPTION_BYTES);
        if (arguments_has(arguments, OPTION_JSON) || !screen_possible())
                return plain_run(&top);
        top.style.color = !arguments_has(arguments, OPTION_NO_COLOR) && !(no_color && no_color[0]);
        /* A daemon that is not there at the start is an error, not a page. */
        top.restart_ms = -1; /* a screen says that the daemon is away, and hears keys meanwhile */
        if (top_connect(&top, &error) != GPUIPC_OK)
                return report_error(&error);
        return screen_run(&top);
}
