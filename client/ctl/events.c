/* SPDX-License-Identifier: Apache-2.0 */
/* Prints events as they come. A gap in the stream is told on stderr, never passed over in silence. */
#include "events.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "connect.h"
#include "print.h"
#include "proto/cleanup.h"
#include "rawjson.h"
#include "report.h"

#define SOON_USEC 100000 /* a connection that ends this soon was no use */
#define BREAKS_MAX 5     /* in a row */

/* Whether to go on with `oldest`. Lower numbers are those of another life of a daemon that remembers none before it. */
static bool lost_tell(int64_t since, int64_t oldest) {
        if (oldest == since + 1)
                return false;
        if (oldest <= since) {
                report_note("the daemon was restarted and numbers its events anew; going on with %" PRId64, oldest);
                return true;
        }
        report_note("events after %" PRId64 " are no longer remembered; going on with %" PRId64, since, oldest);
        return true;
}

int events_watch(gpuipc_client *client, int64_t since, gpuipc_watch **ret_watch) {
        gpuipc_error error;
        int r = gpuipc_watch_new(client, since, ret_watch, &error);

        while (r == GPUIPC_ERROR_EVENTS_LOST && lost_tell(since, error.oldest)) {
                since = error.oldest - 1;
                r = gpuipc_watch_new(client, since, ret_watch, &error);
        }
        return r == GPUIPC_OK ? EXIT_DONE : report_error(&error);
}

/* ---- lines ------------------------------------------------------------------------------------------------ */

static void text_put(struct bytes *out, const char *before, const char *text) {
        if (!text || !text[0])
                return;
        bytes_append_str(out, before);
        print_escaped(out, text);
}

static void number_put(struct bytes *out, const char *before, int64_t number) {
        char text[PRINT_MAX];

        if (number < 0)
                return;
        (void)snprintf(text, sizeof(text), "%" PRId64, number);
        bytes_append_str(out, before);
        bytes_append_str(out, text);
}

static void buffer_put(struct bytes *out, const gpuipc_buffer_info *buffer) {
        char size[PRINT_MAX];

        print_size(size, buffer->size);
        text_put(out, "  ", buffer->id);
        text_put(out, " ", buffer->name);
        text_put(out, " ", size);
        text_put(out, " on ", buffer->device);
        number_put(out, " owner ", buffer->owner_uid);
        text_put(out, " mode ", buffer->mode);
        number_put(out, " leases ", buffer->leases);
}

static void lease_put(struct bytes *out, const gpuipc_lease_info *lease, bool with_buffer) {
        if (with_buffer) {
                text_put(out, "  ", lease->buffer);
                text_put(out, " ", lease->name);
        }
        text_put(out, "  lease ", lease->id);
        text_put(out, " ", lease->access);
        number_put(out, " pid ", lease->pid);
        number_put(out, " uid ", lease->uid);
        text_put(out, " ", lease->command);
        text_put(out, " in ", lease->container);
        text_put(out, " ", lease->label);
}

static int line_print(const gpuipc_event_info *event) {
        struct bytes out = { 0 };
        char clock[PRINT_MAX], head[2 * PRINT_MAX];

        print_clock(clock, event->time_usec);
        (void)snprintf(head, sizeof(head), "%s %6" PRId64 " ", clock, event->sequence);
        bytes_append_str(&out, head);
        print_escaped(&out, event->kind ? event->kind : "-");
        while (!out.failed && out.n < strlen(head) + 8)
                bytes_append_char(&out, ' ');
        if (event->buffer)
                buffer_put(&out, event->buffer);
        if (event->lease)
                lease_put(&out, event->lease, !event->buffer);
        bytes_append_char(&out, '\n');
        if (!out.failed)
                (void)fwrite(out.data, 1, out.n, stdout);
        bytes_deinit(&out);
        return out.failed ? report_failure("out of memory") : report_flush();
}

struct filter {
        int64_t uid; /* -1: any */
        const char *name;
};

static bool filter_passes(const struct filter *filter, const gpuipc_event_info *event) {
        const char *name = event->buffer ? event->buffer->name : event->lease ? event->lease->name : NULL;
        bool uid = filter->uid < 0 || (event->lease && event->lease->uid == filter->uid) ||
                   (event->buffer && event->buffer->owner_uid == filter->uid);

        return uid && (!filter->name || (name && strcmp(name, filter->name) == 0));
}

int events_print(const struct arguments *arguments, gpuipc_client *client, gpuipc_watch *watch_take) {
        _cleanup_watch_ gpuipc_watch *watch = watch_take;
        struct filter filter = { -1, arguments->values[OPTION_NAME] };
        const gpuipc_event_info *event;
        gpuipc_error error;
        int64_t last = -1;
        int r = arguments_uid(arguments, OPTION_UID, &filter.uid);

        while (r == EXIT_DONE) {
                int status = gpuipc_watch_next(watch, -1, &event, &error);

                if (status == GPUIPC_OK) {
                        last = event->sequence;
                        r = filter_passes(&filter, event) ? line_print(event) : EXIT_DONE;
                } else if (status == GPUIPC_ERROR_EVENTS_LOST && lost_tell(last, error.oldest)) {
                        last = error.oldest - 1;
                        watch_freep(&watch);
                        r = events_watch(client, last, &watch);
                } else if (status == GPUIPC_ERROR_CLOSED) {
                        (void)report_failure("the daemon ended the stream of events: it went away, or was not "
                                             "read fast enough");
                        return EXIT_NO_DAEMON;
                } else {
                        r = report_error(&error);
                }
        }
        return r;
}

/* ---- JSON ------------------------------------------------------------------------------------------------- */

struct stream {
        int64_t last; /* event printed; -1: none */
        int r;
};

static int event_print_raw(const char *parameters, void *data) {
        struct rawjson_slice event, sequence;
        struct stream *stream = data;

        if (!rawjson_member(parameters, "event", &event))
                return 0;
        if (rawjson_member(event.text, "sequence", &sequence))
                stream->last = strtoll(sequence.text, NULL, 10);
        (void)fwrite(event.text, 1, event.n, stdout);
        (void)putchar('\n');
        stream->r = report_flush();
        return stream->r;
}

static int events_call(gpuipc_client *client, struct stream *stream, gpuipc_error *ret_error) {
        char parameters[64];

        (void)snprintf(parameters, sizeof(parameters), "{\"since\":%" PRId64 "}", stream->last);
        return gpuipc_call_json(client, "io.gpuipc.Broker.Watch", stream->last < 0 ? NULL : parameters, 1, event_print_raw,
                                stream, ret_error);
}

int events_print_json(gpuipc_client *client, int64_t since) {
        struct stream stream = { since, EXIT_DONE };
        gpuipc_error error;
        int n_breaks = 0;

        for (;;) {
                int64_t begun = print_monotonic_usec();
                int status = events_call(client, &stream, &error);

                if (status == GPUIPC_OK)
                        return stream.r;
                if (status == GPUIPC_ERROR_EVENTS_LOST && lost_tell(stream.last, error.oldest)) {
                        stream.last = error.oldest - 1;
                        continue;
                }
                /* A daemon that was restarted is asked again, one that breaks off each time is not. */
                n_breaks = print_monotonic_usec() - begun < SOON_USEC ? n_breaks + 1 : 1;
                if (status != GPUIPC_ERROR_DISCONNECTED || n_breaks > BREAKS_MAX)
                        return report_error(&error);
        }
}
