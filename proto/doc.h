/* SPDX-License-Identifier: Apache-2.0 */
/* A parsed message from within: what codec.c makes and decode.c reads. A value is named by the index of its span;
 * 0 is the message itself. */
#ifndef PROTO_DOC_H
#define PROTO_DOC_H

#include <stdbool.h>
#include <stddef.h>

#include "arena.h"
#include "strict.h"

struct codec_doc {
        struct spans spans;
        size_t params; /* the value of "parameters", 0 when absent or null */
        const char *params_text;
        struct arena arena; /* of what is decoded from it */
        char text[];
};

static inline const struct span *doc_span(const struct codec_doc *doc, size_t value) {
        return &doc->spans.items[value];
}

/* What a value is, by its first character: '{' '[' '"' 't' 'f' 'n', or a number's. */
static inline char doc_kind(const struct codec_doc *doc, size_t value) {
        return doc->text[doc_span(doc, value)->start];
}

static inline bool doc_is_null(const struct codec_doc *doc, size_t value) {
        return doc_kind(doc, value) == 'n';
}

/* Whether a member has this key. */
static inline bool doc_key_is(const struct codec_doc *doc, size_t value, const char *name) {
        const struct span *span = doc_span(doc, value);

        return strict_equal(doc->text + span->key, span->n_key, span->key_escaped, name);
}

/* Walks the values in an object or array. */
#define doc_for_each(doc, value, container)                                                                       \
        for (size_t value = (container) + 1; value < doc_span(doc, container)->next;                              \
             value = doc_span(doc, value)->next)

/* A value's text as it was received; a string's characters; the characters of a member's key. NUL-ended, living as
 * long as doc; NULL when out of memory. */
const char *doc_raw(struct codec_doc *doc, size_t value);
const char *doc_string(struct codec_doc *doc, size_t value);
const char *doc_key(struct codec_doc *doc, size_t value);

#endif
