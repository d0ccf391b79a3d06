/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a channel as JSON for scripts. Never asks the daemon. */
#include "channel_json.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "proto/codec.h"

static void __attribute__((format(printf, 2, 3))) put(struct bytes *out, const char *format, ...) {
        char text[512];
        va_list arguments;
        int n;

        va_start(arguments, format);
        n = vsnprintf(text, sizeof(text), format, arguments);
        va_end(arguments);
        if (n < 0 || (size_t)n >= sizeof(text))
                out->failed = true;
        else
                bytes_append_str(out, text);
}

static void text_put(struct bytes *out, const char *name, const char *text) {
        put(out, "\"%s\":", name);
        if (text)
                codec_put_string(out, text);
        else
                bytes_append_str(out, "null");
        bytes_append_char(out, ',');
}

static void rate_put(struct bytes *out, const char *name, double rate) {
        if (rate < 0)
                put(out, "\"%s\":null,", name);
        else
                put(out, "\"%s\":%.1f,", name, rate);
}

static const char *bool_text(bool value) {
        return value ? "true" : "false";
}

static void member_put(struct bytes *out, const gpuipc_channel_member *member) {
        put(out, "{\"number\":%d,\"role\":\"%s\",\"alive\":%s,", (int)member->number,
            member->role == GPUIPC_CHANNEL_PRODUCER ? "producer" : "consumer", bool_text(member->alive));
        if (member->pid >= 0)
                put(out, "\"pid\":%" PRId64 ",", member->pid);
        else
                bytes_append_str(out, "\"pid\":null,");
        put(out, "\"items\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"drops\":%" PRIu64 ",\"broken\":%" PRIu64 ",\"lag\":%" PRIu64 "}",
            member->items, member->bytes, member->drops, member->broken, member->lag);
}

static void figures_put(struct bytes *out, const struct channel_seen *seen, const struct channel_seen *before) {
        struct channel_sums sums = channels_sums(seen, before);

        put(out, "{\"items\":%" PRIu64 ",\"depth\":%" PRIu64 ",\"closed\":%s,", seen->stats.begun, seen->stats.depth,
            bool_text(seen->stats.closed));
        rate_put(out, "items_per_second", sums.items_rate);
        rate_put(out, "bytes_per_second", sums.bytes_rate);
        put(out, "\"producers\":%" PRId64 ",\"consumers\":%" PRId64 ",\"drops\":%" PRIu64 ",\"broken\":%" PRIu64 ",\"members\":[",
            sums.producers, sums.consumers, sums.drops, sums.broken);
        for (int i = 0; i < seen->stats.n_members; i++) {
                if (i > 0)
                        bytes_append_char(out, ',');
                member_put(out, &seen->stats.members[i]);
        }
        bytes_append_str(out, "]}");
}

void channel_json_put(struct bytes *out, const struct channel_seen *seen, const struct channel_seen *before) {
        const gpuipc_channel_info *facts = &seen->facts;

        bytes_append_char(out, '{');
        text_put(out, "id", seen->id);
        text_put(out, "name", seen->name);
        text_put(out, "device", seen->device);
        text_put(out, "kind", facts->kind == GPUIPC_CHANNEL_BROADCAST ? "broadcast" : "queue");
        text_put(out, "policy", facts->policy == GPUIPC_CHANNEL_DROP_OLDEST ? "drop_oldest" : "block");
        put(out, "\"slots\":%" PRId64 ",\"slot_bytes\":%" PRId64 ",\"figures\":", facts->slots, facts->slot_bytes);
        if (seen->looked)
                figures_put(out, seen, before);
        else
                bytes_append_str(out, "null");
        bytes_append_char(out, '}');
}
