/* SPDX-License-Identifier: Apache-2.0 */
/* JSON text to structs and back, by the tables of schema.h.
 *
 * Decoding is strict towards clients: unknown fields, duplicate keys, trailing bytes, invalid UTF-8, an embedded
 * or escaped NUL, nesting deeper than CODEC_DEPTH_MAX, and integers that are not exact up to 2^53-1 are refused.
 * The library decodes replies leniently: unknown fields are skipped, the rest holds. cJSON is used in codec.c
 * alone. */
#ifndef PROTO_CODEC_H
#define PROTO_CODEC_H

#include <stdbool.h>
#include <stddef.h>

#include "bytes.h"
#include "schema.h"

#define CODEC_DEPTH_MAX 16 /* objects and arrays inside one another, the message itself being 1 */

/* A parsed message; owns every string decoded from it. */
struct codec_doc;

void codec_doc_free(struct codec_doc *doc);
static inline void codec_doc_freep(struct codec_doc **doc) {
        codec_doc_free(*doc);
}

/* Parses one message of n bytes. 0, -EBADMSG when it is not strictly JSON or not an object, -ENOMEM. `text` is not
 * kept. `ret_why` (may be NULL) gets a static sentence on -EBADMSG. */
int codec_parse(const char *text, size_t n, struct codec_doc **ret, const char **ret_why);

/* The parts of a call. `method` is borrowed from doc. 0, -ENOMEM, -EBADMSG when a member is unknown or of the
 * wrong type, or `method` is missing. `upgrade` is refused when true: nothing here upgrades. */
struct codec_call {
        const char *method;
        bool more, oneway;
};
int codec_call(struct codec_doc *doc, struct codec_call *ret, const char **ret_why);

/* The call's parameters by a schema. 0; VERDICT_INVALID_PARAMETER with the field's name in `failure` (an unknown
 * field's own name, "parameters" when they are no object); -ENOMEM. What `ret` points to is spoilt on failure. */
int codec_call_params(struct codec_doc *doc, const struct schema *schema, void *ret, struct failure *failure);

/* The parts of a reply, leniently. `error` is NULL when it is none. 0, -ENOMEM, -EBADMSG when it is no
 * reply. */
struct codec_reply {
        const char *error;
        bool continues;
};
int codec_reply(struct codec_doc *doc, struct codec_reply *ret);

/* The reply's parameters by a schema, leniently. 0, -EBADMSG with the field's name in `ret_field` (may be
 * NULL), -ENOMEM. For an error reply give error_schemas[verdict] and a struct failure: the members that error
 * has are written, the others (`verdict` too) stay. What `ret` points to is spoilt on failure. */
int codec_reply_params(struct codec_doc *doc, const struct schema *schema, void *ret, const char **ret_field);

/* The text of the reply's or call's "parameters" as it was received; "{}" when absent. Borrowed from doc;
 * NULL when out of memory. */
const char *codec_params_text(struct codec_doc *doc);

/* Appends {"method":…,"parameters":…[,"more":true][,"oneway":true]} without the NUL. `text_params` (may be
 * NULL) is used verbatim in place of schema and params. */
struct codec_call_options {
        bool more, oneway;
};
void codec_put_call(struct bytes *out, const char *method, const struct schema *schema, const void *params,
                    const char *text_params, struct codec_call_options options);

/* Appends {"parameters":…[,"continues":true]}. */
void codec_put_reply(struct bytes *out, const struct schema *schema, const void *reply, bool continues);

/* Appends {"error":…,"parameters":…}. */
void codec_put_error(struct bytes *out, const struct failure *failure);

/* Appends one struct as a JSON object. Optional members not set are left out. */
void codec_put_struct(struct bytes *out, const struct schema *schema, const void *value);

/* Appends text as a JSON string, escaping as JSON demands; invalid UTF-8 becomes U+FFFD. */
void codec_put_string(struct bytes *out, const char *text);

/* How many bytes codec_put_struct() would append; SIZE_MAX when it would fail. */
size_t codec_measure(const struct schema *schema, const void *value);

#endif
