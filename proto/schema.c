/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of types and methods: what every struct of schema.h looks like on the wire, and what each
 * parameter may be. Constant data; any thread. Errors are in schema_error.c. */
#include "schema.h"

#include <string.h>

#include "cleanup.h"
#include "ring_page.h"

extern const char interface_io_gpuipc_Broker[];
extern const char interface_org_varlink_service[];

#define BROKER "io.gpuipc.Broker"
#define SERVICE "org.varlink.service"

#define FIELD(owner, member, kind, ...)                                                                           \
        { .name = #member, .type = (kind), .offset = offsetof(struct owner, member), ##__VA_ARGS__ }
#define OPTIONAL .optional = true
#define SCHEMA(owner, title, list)                                                                                \
        { .name = (title), .fields = (list), .n_fields = ELEMENTSOF(list), .size = sizeof(struct owner) }

/* What parameters may be, and the same in words. */
#define RANGE_SIZE .min = 1, .max = SCHEMA_INT_MAX, .hint = "1 to 9007199254740991 (2^53-1) bytes"
#define RANGE_MS .min = 0, .max = SCHEMA_INT_MAX, .hint = "0 to 9007199254740991 (2^53-1) milliseconds"
#define RANGE_UID .min = 0, .max = UINT32_MAX, .hint = "a numeric user id, 0 to 4294967295"
#define RANGE_SEQUENCE .min = 0, .max = SCHEMA_INT_MAX, .hint = "the sequence number of an event, 0 or more"
#define IS_ID .max = SCHEMA_ID_MAX, .hint = "an id as the daemon gave it, at most 64 bytes"
#define IS_NAME                                                                                                   \
        .max = SCHEMA_NAME_MAX, .valid = schema_valid_name, .hint = "1 to 128 characters of A-Z a-z 0-9 . _ / -"
#define IS_MODE                                                                                                   \
        .valid = schema_valid_mode, .hint = "a mode of three or four octal digits with r and w bits only, such as \"0640\""
#define IS_ROLE .valid = valid_role, .hint = "\"producer\" or \"consumer\""
#define IS_LABEL .max = SCHEMA_LABEL_MAX, .hint = "at most 128 bytes of text"
#define IS_DEVICE .max = SCHEMA_NAME_MAX, .hint = "a device's uuid as GetStatus tells it, or \"host\""

static const char *const device_kinds[] = { "cuda", "host", NULL };
static const char *const zeroed_kinds[] = { "driver", "wiped", "unknown", NULL };
static const char *const buffer_states[] = { "live", "kept", "draining", NULL };
static const char *const access_kinds[] = { "rw", "ro", NULL };
static const char *const lease_states[] = { "active", "detached", "draining", NULL };
static const char *const channel_kinds[] = { "queue", "broadcast", NULL };
static const char *const channel_policies[] = { "block", "drop_oldest", NULL };
static const char *const participant_roles[] = { "producer", "consumer", NULL };
static const char *const participant_states[] = { "attached", "left", NULL };
static const char *const handle_kinds[] = { "auto", "cuda-fd", "cuda-ipc", "memfd", NULL };

static bool is_one_of(const char *text, const char *const *values) {
        for (; *values != NULL; values++)
                if (strcmp(text, *values) == 0)
                        return true;
        return false;
}

static bool valid_handle(const char *text) {
        return is_one_of(text, handle_kinds);
}

static bool valid_access(const char *text) {
        return is_one_of(text, access_kinds);
}

static bool valid_role(const char *text) {
        return is_one_of(text, participant_roles);
}

static bool valid_channel_kind(const char *text) {
        return is_one_of(text, channel_kinds);
}

static bool valid_channel_policy(const char *text) {
        return is_one_of(text, channel_policies);
}

bool schema_valid_name(const char *text) {
        static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._/-";
        size_t n = strspn(text, allowed);

        return n > 0 && n <= SCHEMA_NAME_MAX && text[n] == '\0';
}

bool schema_valid_mode(const char *text) {
        size_t n = strspn(text, "0246");

        return text[n] == '\0' && (n == 3 || (n == 4 && text[0] == '0'));
}

/* ---- types ------------------------------------------------------------------------------------------------ */

static const struct field device_fields[] = {
        FIELD(device_info, uuid, FIELD_STRING),
        FIELD(device_info, name, FIELD_STRING),
        FIELD(device_info, kind, FIELD_ENUM, .values = device_kinds),
        FIELD(device_info, total_bytes, FIELD_INT, OPTIONAL),
        FIELD(device_info, free_bytes, FIELD_INT, OPTIONAL),
        FIELD(device_info, brokered_bytes, FIELD_INT),
        FIELD(device_info, draining_bytes, FIELD_INT),
        FIELD(device_info, handles, FIELD_STRING_ARRAY),
        FIELD(device_info, zeroed, FIELD_ENUM, .values = zeroed_kinds),
        FIELD(device_info, degraded, FIELD_BOOL),
        FIELD(device_info, spare_bytes, FIELD_INT, OPTIONAL),
};
const struct schema schema_device = SCHEMA(device_info, "Device", device_fields);

static const struct field handle_fields[] = {
        FIELD(handle_info, kind, FIELD_STRING),
        FIELD(handle_info, fd, FIELD_INT, OPTIONAL),
        FIELD(handle_info, ipc, FIELD_STRING, OPTIONAL),
        FIELD(handle_info, offset, FIELD_INT),
        FIELD(handle_info, size, FIELD_INT),
        FIELD(handle_info, device, FIELD_STRING),
};
const struct schema schema_handle = SCHEMA(handle_info, "Handle", handle_fields);

static const struct field channel_fields[] = {
        FIELD(channel_info, id, FIELD_STRING),
        FIELD(channel_info, name, FIELD_STRING, OPTIONAL),
        FIELD(channel_info, kind, FIELD_ENUM, .values = channel_kinds),
        FIELD(channel_info, policy, FIELD_ENUM, .values = channel_policies),
        FIELD(channel_info, slots, FIELD_INT),
        FIELD(channel_info, slot_bytes, FIELD_INT),
        FIELD(channel_info, meta_bytes, FIELD_INT),
        FIELD(channel_info, size, FIELD_INT),
        FIELD(channel_info, allocated, FIELD_INT),
        FIELD(channel_info, control_bytes, FIELD_INT),
        FIELD(channel_info, device, FIELD_STRING),
        FIELD(channel_info, handle, FIELD_STRING),
        FIELD(channel_info, owner_uid, FIELD_INT),
        FIELD(channel_info, owner_gid, FIELD_INT),
        FIELD(channel_info, mode, FIELD_STRING),
        FIELD(channel_info, participants, FIELD_INT),
        FIELD(channel_info, created_usec, FIELD_INT),
};
const struct schema schema_channel = SCHEMA(channel_info, "Channel", channel_fields);

static const struct field participant_fields[] = {
        FIELD(participant_info, number, FIELD_INT),
        FIELD(participant_info, generation, FIELD_INT),
        FIELD(participant_info, role, FIELD_ENUM, .values = participant_roles),
        FIELD(participant_info, fd, FIELD_INT, OPTIONAL),
        FIELD(participant_info, pid, FIELD_INT),
        FIELD(participant_info, uid, FIELD_INT),
        FIELD(participant_info, state, FIELD_ENUM, .values = participant_states),
};
const struct schema schema_participant = SCHEMA(participant_info, "Participant", participant_fields);

static const struct field buffer_fields[] = {
        FIELD(buffer_info, id, FIELD_STRING),
        FIELD(buffer_info, name, FIELD_STRING, OPTIONAL),
        FIELD(buffer_info, size, FIELD_INT),
        FIELD(buffer_info, allocated, FIELD_INT),
        FIELD(buffer_info, device, FIELD_STRING),
        FIELD(buffer_info, handle, FIELD_STRING),
        FIELD(buffer_info, owner_uid, FIELD_INT),
        FIELD(buffer_info, owner_gid, FIELD_INT),
        FIELD(buffer_info, mode, FIELD_STRING),
        FIELD(buffer_info, sealed, FIELD_BOOL),
        FIELD(buffer_info, ro_enforced, FIELD_BOOL),
        FIELD(buffer_info, state, FIELD_ENUM, .values = buffer_states),
        FIELD(buffer_info, created_usec, FIELD_INT),
        FIELD(buffer_info, leases, FIELD_INT),
        FIELD(buffer_info, charged_uid, FIELD_INT),
        FIELD(buffer_info, meta, FIELD_OBJECT, OPTIONAL),
        FIELD(buffer_info, channel, FIELD_STRUCT, OPTIONAL, .of = &schema_channel),
};
const struct schema schema_buffer = SCHEMA(buffer_info, "Buffer", buffer_fields);

static const struct field lease_fields[] = {
        FIELD(lease_info, id, FIELD_STRING),
        FIELD(lease_info, buffer, FIELD_STRING),
        FIELD(lease_info, name, FIELD_STRING, OPTIONAL),
        FIELD(lease_info, size, FIELD_INT),
        FIELD(lease_info, device, FIELD_STRING),
        FIELD(lease_info, access, FIELD_ENUM, .values = access_kinds),
        FIELD(lease_info, state, FIELD_ENUM, .values = lease_states),
        FIELD(lease_info, session, FIELD_STRING),
        FIELD(lease_info, pid, FIELD_INT),
        FIELD(lease_info, uid, FIELD_INT),
        FIELD(lease_info, gid, FIELD_INT),
        FIELD(lease_info, command, FIELD_STRING, OPTIONAL),
        FIELD(lease_info, container, FIELD_STRING, OPTIONAL),
        FIELD(lease_info, label, FIELD_STRING, OPTIONAL),
        FIELD(lease_info, since_usec, FIELD_INT),
};
const struct schema schema_lease = SCHEMA(lease_info, "Lease", lease_fields);

static const struct field event_fields[] = {
        FIELD(event_info, sequence, FIELD_INT),
        FIELD(event_info, time_usec, FIELD_INT),
        FIELD(event_info, kind, FIELD_STRING),
        FIELD(event_info, buffer, FIELD_STRUCT, OPTIONAL, .of = &schema_buffer),
        FIELD(event_info, lease, FIELD_STRUCT, OPTIONAL, .of = &schema_lease),
};
const struct schema schema_event = SCHEMA(event_info, "Event", event_fields);

/* ---- methods ---------------------------------------------------------------------------------------------- */

static const struct schema empty = { .name = "Method", .size = sizeof(struct empty_params) };

static const struct field interface_fields[] = {
        FIELD(interface_params, interface, FIELD_STRING, .hint = "the full name of an interface"),
};
static const struct field allocate_fields[] = {
        FIELD(allocate_params, size, FIELD_INT, RANGE_SIZE),
        FIELD(allocate_params, device, FIELD_STRING, OPTIONAL, IS_DEVICE),
        FIELD(allocate_params, name, FIELD_STRING, OPTIONAL, IS_NAME),
        FIELD(allocate_params, handle, FIELD_STRING, OPTIONAL, .valid = valid_handle,
              .hint = "\"auto\", \"cuda-fd\", \"cuda-ipc\" or \"memfd\""),
        FIELD(allocate_params, mode, FIELD_STRING, OPTIONAL, IS_MODE),
        FIELD(allocate_params, meta, FIELD_OBJECT, OPTIONAL, .max = SCHEMA_META_MAX,
              .hint = "a JSON object of at most 4096 bytes"),
        FIELD(allocate_params, keep_ms, FIELD_INT, OPTIONAL, RANGE_MS),
        FIELD(allocate_params, wait_ms, FIELD_INT, OPTIONAL, RANGE_MS),
        FIELD(allocate_params, label, FIELD_STRING, OPTIONAL, IS_LABEL),
};
static const struct field open_fields[] = {
        FIELD(open_params, buffer, FIELD_STRING, OPTIONAL, IS_ID),
        FIELD(open_params, name, FIELD_STRING, OPTIONAL, IS_NAME),
        FIELD(open_params, owner, FIELD_INT, OPTIONAL, RANGE_UID),
        FIELD(open_params, access, FIELD_STRING, OPTIONAL, .valid = valid_access, .hint = "\"rw\" or \"ro\""),
        FIELD(open_params, wait_ms, FIELD_INT, OPTIONAL, RANGE_MS),
        FIELD(open_params, label, FIELD_STRING, OPTIONAL, IS_LABEL),
};
static const struct field channel_create_fields[] = {
        FIELD(channel_create_params, slots, FIELD_INT, .min = 1, .max = RING_SLOTS_MAX, .hint = "1 to 65536"),
        FIELD(channel_create_params, slot_bytes, FIELD_INT, RANGE_SIZE),
        FIELD(channel_create_params, role, FIELD_STRING, IS_ROLE),
        FIELD(channel_create_params, kind, FIELD_STRING, OPTIONAL, .valid = valid_channel_kind,
              .hint = "\"queue\" or \"broadcast\""),
        FIELD(channel_create_params, policy, FIELD_STRING, OPTIONAL, .valid = valid_channel_policy,
              .hint = "\"block\" or \"drop_oldest\""),
        FIELD(channel_create_params, meta_bytes, FIELD_INT, OPTIONAL, .min = 0, .max = RING_META_MAX, .hint = "0 to 1024 bytes"),
        FIELD(channel_create_params, device, FIELD_STRING, OPTIONAL, IS_DEVICE),
        FIELD(channel_create_params, name, FIELD_STRING, OPTIONAL, IS_NAME),
        FIELD(channel_create_params, mode, FIELD_STRING, OPTIONAL, IS_MODE),
        FIELD(channel_create_params, keep_ms, FIELD_INT, OPTIONAL, RANGE_MS),
        FIELD(channel_create_params, wait_ms, FIELD_INT, OPTIONAL, RANGE_MS),
        FIELD(channel_create_params, label, FIELD_STRING, OPTIONAL, IS_LABEL),
};
static const struct field channel_attach_fields[] = {
        FIELD(channel_attach_params, channel, FIELD_STRING, OPTIONAL, IS_ID),
        FIELD(channel_attach_params, name, FIELD_STRING, OPTIONAL, IS_NAME),
        FIELD(channel_attach_params, owner, FIELD_INT, OPTIONAL, RANGE_UID),
        FIELD(channel_attach_params, role, FIELD_STRING, IS_ROLE),
        FIELD(channel_attach_params, wait_ms, FIELD_INT, OPTIONAL, RANGE_MS),
        FIELD(channel_attach_params, label, FIELD_STRING, OPTIONAL, IS_LABEL),
};
static const struct field channel_id_fields[] = { FIELD(channel_params, channel, FIELD_STRING, IS_ID) };
static const struct field release_fields[] = { FIELD(release_params, lease, FIELD_STRING, IS_ID) };
static const struct field seal_fields[] = { FIELD(seal_params, buffer, FIELD_STRING, IS_ID) };
static const struct field free_fields[] = {
        FIELD(free_params, buffer, FIELD_STRING, OPTIONAL, IS_ID),
        FIELD(free_params, name, FIELD_STRING, OPTIONAL, IS_NAME),
};
static const struct field kick_fields[] = { FIELD(kick_params, session, FIELD_STRING, IS_ID) };
static const struct field list_fields[] = {
        FIELD(list_params, uid, FIELD_INT, OPTIONAL, RANGE_UID),
        FIELD(list_params, name, FIELD_STRING, OPTIONAL, IS_NAME),
};
static const struct field watch_fields[] = { FIELD(watch_params, since, FIELD_INT, OPTIONAL, RANGE_SEQUENCE) };

static const struct field resume_fields[] = {
        FIELD(resume_params, token, FIELD_STRING, .max = SCHEMA_ID_MAX, .hint = "the resume_token that GetStatus or Resume gave"),
        FIELD(resume_params, leases, FIELD_STRING_ARRAY, IS_ID),
        FIELD(resume_params, follow, FIELD_INT, OPTIONAL, .min = 0, .max = SCHEMA_INT_MAX,
              .hint = "how many leases further calls of Resume will list"),
};

static const struct field info_fields[] = {
        FIELD(info_reply, vendor, FIELD_STRING),           FIELD(info_reply, product, FIELD_STRING),
        FIELD(info_reply, version, FIELD_STRING),          FIELD(info_reply, url, FIELD_STRING),
        FIELD(info_reply, interfaces, FIELD_STRING_ARRAY),
};
static const struct field description_fields[] = { FIELD(description_reply, description, FIELD_STRING) };
static const struct field status_fields[] = {
        FIELD(status_reply, version, FIELD_STRING),
        FIELD(status_reply, backend, FIELD_STRING),
        FIELD(status_reply, uptime_usec, FIELD_INT),
        FIELD(status_reply, session, FIELD_STRING),
        FIELD(status_reply, resume_token, FIELD_STRING, OPTIONAL),
        FIELD(status_reply, features, FIELD_STRING_ARRAY),
        FIELD(status_reply, devices, FIELD_STRUCT_ARRAY, .of = &schema_device),
        FIELD(status_reply, buffers, FIELD_INT),
        FIELD(status_reply, leases, FIELD_INT),
        FIELD(status_reply, sessions, FIELD_INT),
        FIELD(status_reply, limits, FIELD_OBJECT),
        FIELD(status_reply, daemon_pid, FIELD_INT, OPTIONAL),
        FIELD(status_reply, shm_device, FIELD_INT, OPTIONAL),
        FIELD(status_reply, uid, FIELD_INT, OPTIONAL),
};
static const struct field grant_fields[] = {
        FIELD(grant_reply, buffer, FIELD_STRUCT, .of = &schema_buffer),
        FIELD(grant_reply, lease, FIELD_STRING),
        FIELD(grant_reply, handle, FIELD_STRUCT, .of = &schema_handle),
};
static const struct field channel_reply_fields[] = {
        FIELD(channel_reply, channel, FIELD_STRUCT, .of = &schema_channel),
        FIELD(channel_reply, lease, FIELD_STRING),
        FIELD(channel_reply, number, FIELD_INT),
        FIELD(channel_reply, generation, FIELD_INT),
        FIELD(channel_reply, data, FIELD_STRUCT, .of = &schema_handle),
        FIELD(channel_reply, fences, FIELD_STRUCT, OPTIONAL, .of = &schema_handle),
        FIELD(channel_reply, control, FIELD_STRUCT, .of = &schema_handle),
        FIELD(channel_reply, participants, FIELD_STRUCT_ARRAY, .of = &schema_participant),
};
static const struct field participants_fields[] = {
        FIELD(participants_reply, participants, FIELD_STRUCT_ARRAY, .of = &schema_participant),
        FIELD(participants_reply, control, FIELD_STRUCT, OPTIONAL, .of = &schema_handle),
};
static const struct field leases_fields[] = {
        FIELD(list_reply, leases, FIELD_STRUCT_ARRAY, .of = &schema_lease),
};
static const struct field buffers_fields[] = {
        FIELD(list_buffers_reply, buffers, FIELD_STRUCT_ARRAY, .of = &schema_buffer),
};
static const struct field event_reply_fields[] = {
        FIELD(watch_reply, event, FIELD_STRUCT, .of = &schema_event),
};
static const struct field resume_reply_fields[] = {
        FIELD(resume_reply, session, FIELD_STRING),
        FIELD(resume_reply, resume_token, FIELD_STRING, OPTIONAL),
        FIELD(resume_reply, leases, FIELD_STRUCT_ARRAY, .of = &schema_lease),
};

#define METHOD_SCHEMA(variable, owner, list) static const struct schema variable = SCHEMA(owner, "Method", list)
METHOD_SCHEMA(interface_schema, interface_params, interface_fields);
METHOD_SCHEMA(allocate_schema, allocate_params, allocate_fields);
METHOD_SCHEMA(open_schema, open_params, open_fields);
METHOD_SCHEMA(channel_create_schema, channel_create_params, channel_create_fields);
METHOD_SCHEMA(channel_attach_schema, channel_attach_params, channel_attach_fields);
METHOD_SCHEMA(channel_id_schema, channel_params, channel_id_fields);
METHOD_SCHEMA(release_schema, release_params, release_fields);
METHOD_SCHEMA(seal_schema, seal_params, seal_fields);
METHOD_SCHEMA(free_schema, free_params, free_fields);
METHOD_SCHEMA(kick_schema, kick_params, kick_fields);
METHOD_SCHEMA(list_schema, list_params, list_fields);
METHOD_SCHEMA(watch_schema, watch_params, watch_fields);
METHOD_SCHEMA(resume_schema, resume_params, resume_fields);
METHOD_SCHEMA(info_schema, info_reply, info_fields);
METHOD_SCHEMA(description_schema, description_reply, description_fields);
METHOD_SCHEMA(status_schema, status_reply, status_fields);
METHOD_SCHEMA(grant_schema, grant_reply, grant_fields);
METHOD_SCHEMA(channel_schema, channel_reply, channel_reply_fields);
METHOD_SCHEMA(participants_schema, participants_reply, participants_fields);
METHOD_SCHEMA(leases_schema, list_reply, leases_fields);
METHOD_SCHEMA(buffers_schema, list_buffers_reply, buffers_fields);
METHOD_SCHEMA(event_reply_schema, watch_reply, event_reply_fields);
METHOD_SCHEMA(resume_reply_schema, resume_reply, resume_reply_fields);

const struct method_schema method_schemas[N_METHODS] = {
        [METHOD_GET_INFO] = { SERVICE ".GetInfo", &empty, &info_schema },
        [METHOD_GET_INTERFACE_DESCRIPTION] = { SERVICE ".GetInterfaceDescription", &interface_schema,
                                               &description_schema },
        [METHOD_GET_STATUS] = { BROKER ".GetStatus", &empty, &status_schema },
        [METHOD_ALLOCATE] = { BROKER ".Allocate", &allocate_schema, &grant_schema },
        [METHOD_OPEN] = { BROKER ".Open", &open_schema, &grant_schema },
        [METHOD_CHANNEL_CREATE] = { BROKER ".ChannelCreate", &channel_create_schema, &channel_schema },
        [METHOD_CHANNEL_ATTACH] = { BROKER ".ChannelAttach", &channel_attach_schema, &channel_schema },
        [METHOD_CHANNEL_PARTICIPANTS] = { BROKER ".ChannelParticipants", &channel_id_schema, &participants_schema },
        [METHOD_RELEASE] = { BROKER ".Release", &release_schema, &empty },
        [METHOD_SEAL] = { BROKER ".Seal", &seal_schema, &empty },
        [METHOD_FREE] = { BROKER ".Free", &free_schema, &empty },
        [METHOD_KICK] = { BROKER ".Kick", &kick_schema, &empty },
        [METHOD_LIST] = { BROKER ".List", &list_schema, &leases_schema },
        [METHOD_LIST_BUFFERS] = { BROKER ".ListBuffers", &list_schema, &buffers_schema },
        [METHOD_WATCH] = { BROKER ".Watch", &watch_schema, &event_reply_schema },
        [METHOD_RESUME] = { BROKER ".Resume", &resume_schema, &resume_reply_schema },
};

/* ---- look-up ---------------------------------------------------------------------------------------------- */

const char *const schema_interfaces[] = { SERVICE, BROKER, NULL };

const char *schema_interface_text(const char *interface) {
        if (strcmp(interface, BROKER) == 0)
                return interface_io_gpuipc_Broker;
        if (strcmp(interface, SERVICE) == 0)
                return interface_org_varlink_service;
        return NULL;
}

static bool is_interface_known(const char *method) {
        const char *dot = strrchr(method, '.');
        size_t n = dot != NULL ? (size_t)(dot - method) : 0;

        for (const char *const *name = schema_interfaces; *name != NULL; name++)
                if (strlen(*name) == n && memcmp(*name, method, n) == 0)
                        return true;
        return false;
}

enum method schema_method(const char *name, bool *ret_interface_known) {
        enum method method = 0;

        while (method < N_METHODS && strcmp(method_schemas[method].name, name) != 0)
                method++;
        if (ret_interface_known != NULL)
                *ret_interface_known = method < N_METHODS || is_interface_known(name);
        return method;
}

const char *schema_hint(enum method method, const char *parameter) {
        const struct schema *params;

        if ((unsigned)method >= N_METHODS)
                return NULL;
        params = method_schemas[method].params;
        for (size_t i = 0; i < params->n_fields; i++)
                if (strcmp(params->fields[i].name, parameter) == 0)
                        return params->fields[i].hint;
        return NULL;
}
