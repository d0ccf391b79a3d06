/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for a seal: the event stream is opened first, the list asked then, so that a seal in between is not missed. */
#include "sealed.h"

#include <string.h>

#include "connect.h"
#include "print.h"
#include "report.h"

struct seal_search {
        const char *id;
        int sealed;
};

static int seal_match(const gpuipc_buffer_info *buffer, void *data) {
        struct seal_search *search = data;

        if (strcmp(buffer->id, search->id) != 0)
                return 0;
        search->sealed = buffer->sealed;
        return 1;
}

static int64_t now_ms(void) {
        return print_monotonic_usec() / 1000;
}

static bool is_about(const gpuipc_event_info *event, const char *id) {
        return event->buffer && event->buffer->id && strcmp(event->buffer->id, id) == 0;
}

/* A gpuipc_status. */
static int seal_await(gpuipc_watch *watch, const char *id, int64_t deadline_ms, gpuipc_error *ret_error) {
        for (;;) {
                const gpuipc_event_info *event;
                int64_t left = deadline_ms - now_ms();
                int r = gpuipc_watch_next(watch,
                                          left < 0         ? 0
                                          : left > 3600000 ? 3600000
                                                           : (int)left,
                                          &event, ret_error);

                if (r == GPUIPC_OK && is_about(event, id) && event->buffer->sealed)
                        return GPUIPC_OK;
                if (r != GPUIPC_OK && (r != GPUIPC_ERROR_TIMED_OUT || left <= 0))
                        return r;
        }
}

int sealed_wait(const struct arguments *arguments, gpuipc_client *client, const gpuipc_buffer *buffer) {
        _cleanup_watch_ gpuipc_watch *watch = NULL;
        struct seal_search search = { gpuipc_buffer_id(buffer), 0 };
        gpuipc_list_options options = GPUIPC_LIST_OPTIONS_INIT;
        gpuipc_error error;
        int64_t wait_ms = 0;
        int r;

        if (arguments_duration(arguments, OPTION_WAIT, &wait_ms) != EXIT_DONE)
                return EXIT_BAD_USAGE;
        options.name = gpuipc_buffer_name(buffer);
        r = gpuipc_watch_new(client, -1, &watch, &error);
        if (r == GPUIPC_OK)
                r = gpuipc_list_buffers(client, &options, seal_match, &search, &error);
        if (r == GPUIPC_OK && !search.sealed)
                r = seal_await(watch, search.id, now_ms() + wait_ms, &error);
        if (r == GPUIPC_ERROR_TIMED_OUT)
                return report_failure("%s is not sealed%s", search.id,
                                      wait_ms > 0 ? "; it was waited for in vain"
                                                  : "; --wait DURATION waits for it");
        return r == GPUIPC_OK ? EXIT_DONE : report_error(&error);
}
