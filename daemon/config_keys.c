/* SPDX-License-Identifier: Apache-2.0 */
/* Every key there is, once: file, command line, --help and reload are read off this table. */
#include "config_keys.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define SOCKET_DEFAULT "/run/gpuipcd/gpuipcd.sock"
#define ADMIN_SOCKET_DEFAULT "/run/gpuipcd-admin/admin.sock"

#define MS_SECOND INT64_C(1000)
#define MS_HOUR (3600 * MS_SECOND)
#define MS_DAY (24 * MS_HOUR)
#define MILLION 1000000
#define KIB INT64_C(1024)
#define GIB (KIB * KIB * KIB)

static const char *const backends[] = {"auto", "host", "cuda", NULL};
static const char *const wipes[] = {"auto", "always", "never", NULL};
static const char *const stores[] = {"auto", "yes", "no", NULL};
static const char *const levels[] = {"emerg", "alert", "crit", "err", "warning", "notice", "info", "debug", NULL};
static const char *const targets[] = {"auto", "stderr", "journal", NULL};
static const char *const isolations[] = {"uid", "container", NULL};
static const char *const allow_refuse[] = {"allow", "refuse", NULL};

#define DAEMON(key_name, key_type, member, key_initial, key_help, ...)                                                  \
        {.section = "Daemon", .name = key_name, .type = key_type, .offset = offsetof(struct config, member),            \
         .initial = key_initial, .help = key_help, __VA_ARGS__}
#define ACCESS(key_name, key_type, key_initial, key_help, ...)                                                          \
        {.section = "Access", .name = key_name, .type = key_type, .initial = key_initial, .help = key_help, __VA_ARGS__}
#define LIMIT(key_name, key_type, member, key_min, key_max, key_initial, key_help, ...)                                 \
        {.section = "Limits", .name = key_name, .type = key_type, .offset = offsetof(struct config, limits.member),     \
         .min = key_min, .max = key_max, .initial = key_initial, .help = key_help, __VA_ARGS__}

const struct config_key config_keys[] = {
        DAEMON("Socket", KEY_PATH, socket_path, SOCKET_DEFAULT, "Socket for everyone", .restart = true),
        DAEMON("AdminSocket", KEY_PATH, admin_socket_path, ADMIN_SOCKET_DEFAULT, "Socket for administrators",
               .restart = true),
        DAEMON("Backend", KEY_ENUM, backend, "auto", "Memory to broker", .values = backends, .restart = true),
        DAEMON("Wipe", KEY_ENUM, wipe, "auto", "Whether to clear new GPU memory", .values = wipes, .restart = true),
        DAEMON("Store", KEY_ENUM, store, "auto", "Keep buffers over a restart", .values = stores, .restart = true),
        DAEMON("LogLevel", KEY_ENUM, log_level, "notice", "Least severe lines to log", .values = levels),
        DAEMON("LogTarget", KEY_ENUM, log_target, "auto", "Where to log", .values = targets, .restart = true),
        DAEMON("DrainSec", KEY_DURATION, drain_ms, "10s", "Time a stop gives work under way", .max = MS_HOUR),

        ACCESS("AllowUsers", KEY_USERS, "", "Users let in"),
        ACCESS("AllowGroups", KEY_GROUPS, "", "Groups let in"),
        ACCESS("AllowUidRanges", KEY_RANGES, "", "Ranges of uids let in"),
        ACCESS("ReservedNames", KEY_RESERVED, "", "Prefixes kept for one user"),
        ACCESS("Isolation", KEY_ENUM, "uid", "What makes an owner", .values = isolations,
               .offset = offsetof(struct config, policy.isolation)),
        ACCESS("TrustRelease", KEY_BOOL, "yes", "Believe a Release",
               .offset = offsetof(struct config, policy.trust_release)),
        ACCESS("UnenforcedReadOnly", KEY_BOOL, "allow", "Lend ro what cannot be kept so", .values = allow_refuse,
               .offset = offsetof(struct config, policy.refuse_unenforced_read_only)),

        LIMIT("ClientsMax", KEY_COUNT, clients, 1, MILLION, "4096", "Sessions"),
        LIMIT("ClientsPerUser", KEY_COUNT, clients_per_uid, 1, MILLION, "1024", "Sessions of one user"),
        LIMIT("LeasesPerSession", KEY_COUNT, leases_per_session, 1, MILLION, "16384", "Leases of one session"),
        LIMIT("LeasesPerUser", KEY_COUNT, leases_per_uid, 1, MILLION, "131072", "Leases of one user"),
        LIMIT("BytesPerUser", KEY_SIZE, bytes_per_uid, 0, SCHEMA_INT_MAX, "infinity", "Memory charged to one user"),
        LIMIT("BytesPerSession", KEY_SIZE, bytes_per_session, 0, SCHEMA_INT_MAX, "infinity", "Memory one session made"),
        LIMIT("KeepFreeBytes", KEY_SIZE, keep_free_bytes, 0, SCHEMA_INT_MAX, "0", "Memory left free per device"),
        LIMIT("SpareMax", KEY_SIZE, spare_bytes, 0, SCHEMA_INT_MAX, "1G", "Largest buffer made ahead; 0: none"),
        LIMIT("HostBytes", KEY_SHARE, host_bytes, 0, SCHEMA_INT_MAX, "50%", "Memory of device host"),
        LIMIT("BuffersMax", KEY_COUNT, buffers, 1, MILLION, "65536", "Buffers"),
        LIMIT("NamesPerUser", KEY_COUNT, names_per_uid, 0, MILLION, "4096", "Names of one user"),
        LIMIT("WaitsPerSession", KEY_COUNT, waits_per_session, 0, MILLION, "4", "Calls of one session that wait"),
        LIMIT("WaitsPerUser", KEY_COUNT, waits_per_uid, 0, MILLION, "256", "Calls of one user that wait"),
        LIMIT("WaitSecMax", KEY_DURATION, wait_ms, 0, 30 * MS_DAY, "1h", "Longest wait"),
        LIMIT("KeepSecMax", KEY_DURATION, keep_ms, 0, 3650 * MS_DAY, "1d", "Longest keep"),
        LIMIT("MessageBytesMax", KEY_SIZE, message_bytes, 4 * KIB, 64 * KIB, "64K", "Longest message of a client"),
        LIMIT("EventsMax", KEY_COUNT, events, 1, MILLION, "4096", "Events remembered for watch"),
        LIMIT("UnreadBytesMax", KEY_SIZE, unread_bytes, 128 * KIB, GIB, "128K", "Unread output that pauses a client"),
        LIMIT("UnreadSec", KEY_DURATION, unread_ms, 100, MS_DAY, "30s", "Unread time that drops a client"),
        LIMIT("StoreMax", KEY_COUNT, stored_descriptors, 16, 25000, "2048", "Descriptors in the manager's store", .restart = true),
        LIMIT("StoredPerUser", KEY_COUNT, stored_per_uid, 1, 25000, "1024", "Of these, one user's"),
        LIMIT("ResumeSec", KEY_DURATION, resume_ms, 0, MS_HOUR, "30s", "Time to come back after a restart"),
        LIMIT("DescriptorsMax", KEY_COUNT, descriptors, 0, INT64_C(1) << 30, "0", "Open files; 0: the hard limit",
              .above_zero = LIMITS_DESCRIPTORS_LEAST),
        {.name = NULL},
};

void config_key_option(const struct config_key *key, char ret_option[CONFIG_OPTION_MAX]) {
        size_t n = 0;

        for (const char *p = key->name; *p && n + 2 < CONFIG_OPTION_MAX; p++) {
                if (isupper((unsigned char)*p) && p != key->name)
                        ret_option[n++] = '-';
                ret_option[n++] = (char)tolower((unsigned char)*p);
        }
        ret_option[n] = '\0';
}

void config_key_metavar(const struct config_key *key, char ret_text[64]) {
        static const char *const plain[] = {
                [KEY_PATH] = "PATH",        [KEY_ENUM] = "",           [KEY_BOOL] = "yes|no",
                [KEY_COUNT] = "N",          [KEY_SIZE] = "BYTES",      [KEY_SHARE] = "BYTES|PERCENT%",
                [KEY_DURATION] = "TIME",    [KEY_USERS] = "USER...",   [KEY_GROUPS] = "GROUP...",
                [KEY_RANGES] = "UID-UID...", [KEY_RESERVED] = "PREFIX:USER...",
        };
        size_t n = 0;

        snprintf(ret_text, 64, "%s", plain[key->type]);
        for (size_t i = 0; key->values && key->values[i] && n < 64; i++)
                n += (size_t)snprintf(ret_text + n, 64 - n, "%s%s", i ? "|" : "", key->values[i]);
}
