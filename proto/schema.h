/* SPDX-License-Identifier: Apache-2.0 */
/* The interface as C: one struct per message, one table of fields per struct. The tables, the .varlink files and
 * the vectors are held equal by a test.
 *
 * Strings are borrowed: from the codec document they were decoded from, or from whoever fills a struct to encode
 * it. An optional string, object or struct not given is NULL; an optional integer not given is SCHEMA_UNSET. */
#ifndef PROTO_SCHEMA_H
#define PROTO_SCHEMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "verdict.h"

#define SCHEMA_UNSET INT64_MIN
#define SCHEMA_INT_MAX ((INT64_C(1) << 53) - 1) /* what JSON numbers carry exactly */

#define SCHEMA_NAME_MAX 128    /* bytes of a buffer's name: [A-Za-z0-9._/-] */
#define SCHEMA_LABEL_MAX 128   /* bytes of a lease's label, any UTF-8 but NUL */
#define SCHEMA_META_MAX 4096   /* bytes of a buffer's meta, as JSON text */
#define SCHEMA_ID_MAX 64       /* bytes of an id or a token sent by a client */

enum field_type {
        FIELD_BOOL,         /* bool */
        FIELD_INT,          /* int64_t */
        FIELD_STRING,       /* const char * */
        FIELD_ENUM,         /* int, an index into `values` */
        FIELD_OBJECT,       /* const char *, the JSON text of an object */
        FIELD_STRUCT,       /* embedded; a pointer to const when optional */
        FIELD_STRING_ARRAY, /* struct string_array */
        FIELD_STRUCT_ARRAY, /* struct struct_array */
        FIELD_CHARS,        /* char[max], NUL-ended, cut to fit: a string on the wire, in errors only */
};

struct schema;

struct field {
        const char *name;
        enum field_type type;
        bool optional;
        size_t offset;
        int64_t min, max;           /* FIELD_INT: range accepted; others: `max` bytes of text, 0 = no limit */
        const char *const *values;  /* FIELD_ENUM: names, NULL-ended */
        const struct schema *of;    /* FIELD_STRUCT, FIELD_STRUCT_ARRAY */
        bool (*valid)(const char *text); /* FIELD_STRING: a further check, may be NULL */
        const char *hint;           /* what a client should send instead, for people: "1 to 2^53-1 bytes" */
};

struct schema {
        const char *name; /* the type's name in the interface, or "Method" for parameters and replies */
        const struct field *fields;
        size_t n_fields;
        size_t size; /* of the C struct */
};

struct string_array {
        const char *const *items;
        size_t n;
};

struct struct_array {
        const void *items; /* n structs, `of->size` apart */
        size_t n;
};

/* ---- types ------------------------------------------------------------------------------------------------ */

enum device_kind { DEVICE_CUDA, DEVICE_HOST };
enum zeroed { ZEROED_DRIVER, ZEROED_WIPED, ZEROED_UNKNOWN };
enum buffer_state { BUFFER_LIVE, BUFFER_KEPT, BUFFER_DRAINING };
enum access { ACCESS_RW, ACCESS_RO };
enum channel_kind { CHANNEL_QUEUE, CHANNEL_BROADCAST };
enum channel_policy { CHANNEL_BLOCK, CHANNEL_DROP_OLDEST };
enum participant_role { PARTICIPANT_PRODUCER, PARTICIPANT_CONSUMER };
enum participant_state { PARTICIPANT_ATTACHED, PARTICIPANT_LEFT };
enum lease_state { LEASE_ACTIVE, LEASE_DETACHED, LEASE_DRAINING };

struct device_info {
        const char *uuid, *name;
        int kind;                                 /* enum device_kind */
        int64_t total_bytes, free_bytes;          /* optional */
        int64_t brokered_bytes, draining_bytes;
        struct string_array handles;
        int zeroed;                               /* enum zeroed */
        bool degraded;
        int64_t spare_bytes;                      /* optional */
};

struct handle_info {
        const char *kind;
        int64_t fd;      /* optional: index */
        const char *ipc; /* optional: base64 */
        int64_t offset, size;
        const char *device;
};

struct buffer_info {
        const char *id, *name;
        int64_t size, allocated;
        const char *device, *handle;
        int64_t owner_uid, owner_gid;
        const char *mode; /* "0600" */
        bool sealed, ro_enforced;
        int state; /* enum buffer_state */
        int64_t created_usec, leases, charged_uid;
        const char *meta; /* optional: JSON text */
        const struct channel_info *channel; /* optional */
};

struct channel_info {
        const char *id, *name;
        int kind, policy; /* enum channel_kind, enum channel_policy */
        int64_t slots, slot_bytes, meta_bytes, size, allocated, control_bytes;
        const char *device, *handle;
        int64_t owner_uid, owner_gid;
        const char *mode;
        int64_t participants, created_usec;
};

struct participant_info {
        int64_t number, generation;
        int role; /* enum participant_role */
        int64_t fd; /* optional: index of a pidfd */
        int64_t pid, uid;
        int state; /* enum participant_state */
};

struct lease_info {
        const char *id, *buffer, *name;
        int64_t size;
        const char *device;
        int access, state; /* enum access, enum lease_state */
        const char *session;
        int64_t pid, uid, gid;
        const char *command, *container, *label;
        int64_t since_usec;
};

struct event_info {
        int64_t sequence, time_usec;
        const char *kind;
        const struct buffer_info *buffer; /* optional */
        const struct lease_info *lease;   /* optional */
};

/* ---- methods: parameters ---------------------------------------------------------------------------------- */

struct empty_params {
        char unused;
};

struct interface_params {
        const char *interface;
};

struct allocate_params {
        int64_t size;
        const char *device, *name, *handle, *mode, *meta;
        int64_t keep_ms, wait_ms;
        const char *label;
};

struct open_params {
        const char *buffer, *name;
        int64_t owner;
        const char *access;
        int64_t wait_ms;
        const char *label;
};

struct channel_create_params {
        int64_t slots, slot_bytes;
        const char *role, *kind, *policy;
        int64_t meta_bytes;
        const char *device, *name, *mode;
        int64_t keep_ms, wait_ms;
        const char *label;
};

struct channel_attach_params {
        const char *channel, *name;
        int64_t owner;
        const char *role;
        int64_t wait_ms;
        const char *label;
};

struct channel_params {
        const char *channel;
};

struct release_params {
        const char *lease;
};

struct seal_params {
        const char *buffer;
};

struct free_params {
        const char *buffer, *name;
};

struct kick_params {
        const char *session;
};

struct list_params {
        int64_t uid;
        const char *name;
};

struct watch_params {
        int64_t since;
};

struct resume_params {
        const char *token;
        struct string_array leases;
        int64_t follow; /* optional */
};

/* ---- methods: replies ------------------------------------------------------------------------------------- */

struct info_reply {
        const char *vendor, *product, *version, *url;
        struct string_array interfaces;
};

struct description_reply {
        const char *description;
};

struct status_reply {
        const char *version, *backend;
        int64_t uptime_usec;
        const char *session, *resume_token;
        struct string_array features;
        struct struct_array devices; /* struct device_info */
        int64_t buffers, leases, sessions;
        const char *limits; /* JSON text */
        int64_t daemon_pid, shm_device, uid;
};

struct grant_reply { /* Allocate and Open */
        struct buffer_info buffer;
        const char *lease;
        struct handle_info handle;
};

struct channel_reply { /* ChannelCreate and ChannelAttach */
        struct channel_info channel;
        const char *lease;
        int64_t number, generation;
        struct handle_info data;
        const struct handle_info *fences; /* optional */
        struct handle_info control;
        struct struct_array participants; /* struct participant_info */
};

struct participants_reply {
        struct struct_array participants; /* struct participant_info */
        const struct handle_info *control; /* optional */
};

struct list_reply {
        struct struct_array leases; /* struct lease_info */
};

struct list_buffers_reply {
        struct struct_array buffers; /* struct buffer_info */
};

struct watch_reply {
        struct event_info event;
};

struct resume_reply {
        const char *session, *resume_token;
        struct struct_array leases; /* struct lease_info */
};

extern const struct schema schema_device, schema_handle, schema_buffer, schema_lease, schema_event, schema_channel,
        schema_participant;

/* One row a method: its full name, parameters and reply. */
enum method {
        METHOD_GET_INFO,
        METHOD_GET_INTERFACE_DESCRIPTION,
        METHOD_GET_STATUS,
        METHOD_ALLOCATE,
        METHOD_OPEN,
        METHOD_CHANNEL_CREATE,
        METHOD_CHANNEL_ATTACH,
        METHOD_CHANNEL_PARTICIPANTS,
        METHOD_RELEASE,
        METHOD_SEAL,
        METHOD_FREE,
        METHOD_KICK,
        METHOD_LIST,
        METHOD_LIST_BUFFERS,
        METHOD_WATCH,
        METHOD_RESUME,
        N_METHODS,
};

struct method_schema {
        const char *name;      /* "io.gpuipc.Broker.Allocate" */
        const struct schema *params, *reply;
};

extern const struct method_schema method_schemas[N_METHODS];

/* The parameters of each error, over struct failure. NULL entry: none such. */
extern const struct schema *const error_schemas[N_VERDICTS];

/* The method of a full name, or N_METHODS. `ret_interface_known` (may be NULL) tells an unknown method of an
 * interface offered here from an unknown interface. */
enum method schema_method(const char *name, bool *ret_interface_known);

/* The union big enough for any method's parameters, or reply. */
union method_params {
        struct empty_params empty;
        struct interface_params interface;
        struct allocate_params allocate;
        struct open_params open;
        struct channel_create_params channel_create;
        struct channel_attach_params channel_attach;
        struct channel_params channel;
        struct release_params release;
        struct seal_params seal;
        struct free_params free;
        struct kick_params kick;
        struct list_params list;
        struct watch_params watch;
        struct resume_params resume;
};

union method_reply {
        struct info_reply info;
        struct description_reply description;
        struct status_reply status;
        struct grant_reply grant;
        struct channel_reply channel;
        struct participants_reply participants;
        struct list_reply list;
        struct list_buffers_reply list_buffers;
        struct watch_reply watch;
        struct resume_reply resume;
};

/* Interface texts, exactly the .varlink files; NULL when `interface` is not offered. */
const char *schema_interface_text(const char *interface);
extern const char *const schema_interfaces[]; /* names, NULL-ended */

/* "[A-Za-z0-9._/-]{1,128}" */
bool schema_valid_name(const char *text);

/* A Unix mode of three or four octal digits without x, s and t bits: "0640". */
bool schema_valid_mode(const char *text);

/* What a client should send in a parameter, for people ("1 to 2^53-1 bytes"); NULL when unknown. */
const char *schema_hint(enum method method, const char *parameter);

#endif
