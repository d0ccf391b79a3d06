/* SPDX-License-Identifier: Apache-2.0 */
/* Sums by label, and their form in the text format of Prometheus. */
#include "tally.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void tally_deinit(struct tally *tally) {
        for (size_t i = 0; i < tally->n; i++)
                free(tally->entries[i].labels);
        free(tally->entries);
        *tally = (struct tally){ 0 };
}

static struct tally_entry *entry_find(const struct tally *tally, const char *labels) {
        for (size_t i = 0; i < tally->n; i++)
                if (strcmp(tally->entries[i].labels, labels) == 0)
                        return &tally->entries[i];
        return NULL;
}

static struct tally_entry *entry_add(struct tally *tally, const char *labels) {
        char *text = strdup(labels);

        if (text && tally->n == tally->capacity) {
                size_t capacity = tally->capacity ? tally->capacity * 2 : 16;
                struct tally_entry *entries = reallocarray(tally->entries, capacity, sizeof(*entries));

                if (entries) {
                        tally->entries = entries;
                        tally->capacity = capacity;
                }
        }
        if (!text || tally->n == tally->capacity) {
                tally->failed = true;
                free(text);
                return NULL;
        }
        tally->entries[tally->n] = (struct tally_entry){ text, 0 };
        return &tally->entries[tally->n++];
}

void tally_add(struct tally *tally, const char *labels, int64_t value) {
        struct tally_entry *entry = entry_find(tally, labels);

        if (!entry)
                entry = entry_add(tally, labels);
        if (entry)
                entry->value += value;
}

void tally_label(struct bytes *labels, const char *key, const char *value) {
        if (labels->n > 0)
                bytes_append_char(labels, ',');
        bytes_append_str(labels, key);
        bytes_append_str(labels, "=\"");
        for (; value && *value; value++) {
                if (*value == '\\' || *value == '"' || *value == '\n')
                        bytes_append_char(labels, '\\');
                bytes_append_char(labels, *value == '\n' ? 'n' : *value);
        }
        bytes_append_char(labels, '"');
}

void tally_print(struct bytes *out, const struct tally *tally, const char *name, const char *help) {
        char value[32];

        out->failed |= tally->failed;
        if (tally->n == 0)
                return;
        bytes_append_str(out, "# HELP ");
        bytes_append_str(out, name);
        bytes_append_char(out, ' ');
        bytes_append_str(out, help);
        bytes_append_str(out, "\n# TYPE ");
        bytes_append_str(out, name);
        bytes_append_str(out, " gauge\n");
        for (size_t i = 0; i < tally->n; i++) {
                bytes_append_str(out, name);
                if (tally->entries[i].labels[0]) {
                        bytes_append_char(out, '{');
                        bytes_append_str(out, tally->entries[i].labels);
                        bytes_append_char(out, '}');
                }
                (void)snprintf(value, sizeof(value), " %" PRId64 "\n", tally->entries[i].value);
                bytes_append_str(out, value);
        }
}
