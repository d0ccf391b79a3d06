/* SPDX-License-Identifier: Apache-2.0 */
/* Every configuration key by file and by option: values that are taken, values that are refused, and in what words. */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "config_files.h"
#include "daemon/backend.h"
#include "daemon/config_keys.h"
#include "daemon/memory.h"
#include "proto/cleanup.h"
#include "tests/support/suite.h"

enum { TEXT, INT, BOOL, INT64 };

#define DAY_MS INT64_C(86400000)
#define COUNT "give a whole number from "
#define SIZE "; give bytes (such as 512M or 16G) or infinity"
#define TIME ", such as 500ms, 30s, 5min or 1h"

static const struct row {
        const char *section, *key, *option;
        int type;
        size_t offset;
        int64_t initial;
        struct {
                const char *text;
                int64_t value;
        } good[7];
        struct {
                const char *text, *why;
        } bad[6];
} rows[] = {
#define AT(type, member) type, offsetof(struct config, member)
        {"Daemon", "Backend", "backend", AT(INT, backend), BACKEND_AUTO,
         {{"auto", BACKEND_AUTO}, {"host", BACKEND_HOST}, {"cuda", BACKEND_CUDA}},
         {{"gpu", "no such choice; give one of auto|host|cuda"}, {"HOST", "no such choice; give one of auto|host|cuda"}}},
        {"Daemon", "Wipe", "wipe", AT(INT, wipe), WIPE_AUTO,
         {{"auto", WIPE_AUTO}, {"always", WIPE_ALWAYS}, {"never", WIPE_NEVER}},
         {{"yes", "no such choice; give one of auto|always|never"}}},
        {"Daemon", "Store", "store", AT(INT, store), STORE_AUTO,
         {{"auto", STORE_AUTO}, {"yes", STORE_YES}, {"no", STORE_NO}},
         {{"maybe", "no such choice; give one of auto|yes|no"}}},
        {"Daemon", "LogLevel", "log-level", AT(INT, log_level), LOG_NOTICE,
         {{"emerg", LOG_EMERG}, {"err", LOG_ERR}, {"warning", LOG_WARNING}, {"debug", LOG_DEBUG}},
         {{"7", "no such choice; give one of emerg|alert|crit|err|warning|notice|info|debug"}}},
        {"Daemon", "LogTarget", "log-target", AT(INT, log_target), LOG_TARGET_AUTO,
         {{"auto", LOG_TARGET_AUTO}, {"stderr", LOG_TARGET_STDERR}, {"journal", LOG_TARGET_JOURNAL}},
         {{"syslog", "no such choice; give one of auto|stderr|journal"}}},
        {"Daemon", "DrainSec", "drain-sec", AT(INT64, drain_ms), 10000,
         {{"500ms", 500}, {"0", 0}, {"3", 3000}, {"1h", 3600000}},
         {{"1h 1s", "out of range; give a time from 0s to 1h" TIME}, {"soon", "not a time; give a time from 0s to 1h" TIME}}},
        {"Access", "Isolation", "isolation", AT(INT, policy.isolation), ISOLATION_UID,
         {{"uid", ISOLATION_UID}, {"container", ISOLATION_CONTAINER}},
         {{"pod", "no such choice; give one of uid|container"}}},
        {"Access", "TrustRelease", "trust-release", AT(BOOL, policy.trust_release), true,
         {{"no", false}, {"YES", true}, {"false", false}, {"1", true}, {"off", false}, {"on", true}},
         {{"maybe", "neither yes nor no; give yes or no"}}},
        {"Access", "UnenforcedReadOnly", "unenforced-read-only", AT(BOOL, policy.refuse_unenforced_read_only), false,
         {{"refuse", true}, {"allow", false}},
         {{"yes", "no such choice; give one of allow|refuse"}}},
#define COUNT_ROW(key, option, member, initial, least, most)                                                            \
        {"Limits", key, option, AT(INT64, limits.member), initial,                                                      \
         {{least, 0}, {most, 0}, {"77", 77}},                                                                           \
         {{"abc", "not a number; " COUNT least " to " most}, {"-1", "not a number; " COUNT least " to " most},          \
          {"5x", "not a number; " COUNT least " to " most}, {most "0", "out of range; " COUNT least " to " most},       \
          {"99999999999999999999", "out of range; " COUNT least " to " most}}}
        COUNT_ROW("ClientsMax", "clients-max", clients, 4096, "1", "1000000"),
        COUNT_ROW("ClientsPerUser", "clients-per-user", clients_per_uid, 1024, "1", "1000000"),
        COUNT_ROW("LeasesPerSession", "leases-per-session", leases_per_session, 16384, "1", "1000000"),
        COUNT_ROW("LeasesPerUser", "leases-per-user", leases_per_uid, 131072, "1", "1000000"),
        COUNT_ROW("BuffersMax", "buffers-max", buffers, 65536, "1", "1000000"),
        COUNT_ROW("NamesPerUser", "names-per-user", names_per_uid, 4096, "0", "1000000"),
        COUNT_ROW("WaitsPerSession", "waits-per-session", waits_per_session, 4, "0", "1000000"),
        COUNT_ROW("WaitsPerUser", "waits-per-user", waits_per_uid, 256, "0", "1000000"),
        COUNT_ROW("EventsMax", "events-max", events, 4096, "1", "1000000"),
#define OPEN_FILES "; give 0 or a whole number from 128 to 1073741824"
        {"Limits", "DescriptorsMax", "descriptors-max", AT(INT64, limits.descriptors), 0,
         {{"0", 0}, {"128", 128}, {"1073741824", 1 << 30}},
         {{"1", "out of range" OPEN_FILES}, {"127", "out of range" OPEN_FILES}, {"1073741825", "out of range" OPEN_FILES},
          {"many", "not a number" OPEN_FILES}}},
        COUNT_ROW("StoreMax", "store-max", stored_descriptors, 2048, "16", "25000"),
        COUNT_ROW("StoredPerUser", "stored-per-user", stored_per_uid, 1024, "1", "25000"),
        {"Limits", "ResumeSec", "resume-sec", AT(INT64, limits.resume_ms), 30000,
         {{"0", 0}, {"1h", 3600000}, {"5s", 5000}}, {{"61min", "out of range; give a time from 0s to 1h" TIME}}},
#define SIZE_ROW(key, option, member, initial)                                                                          \
        {"Limits", key, option, AT(INT64, limits.member), initial,                                                      \
         {{"0", 0}, {"4096", 4096}, {"3K", 3072}, {"2G", INT64_C(2) << 30}, {"1T", INT64_C(1) << 40},                   \
          {"infinity", SCHEMA_INT_MAX}},                                                                                \
         {{"1.5G", "not a size" SIZE}, {"lots", "not a size" SIZE}, {"9007199254740992", "out of range" SIZE},          \
          {"9000000000T", "out of range" SIZE}, {"50%", "not a size" SIZE}}}
        SIZE_ROW("BytesPerUser", "bytes-per-user", bytes_per_uid, SCHEMA_INT_MAX),
        SIZE_ROW("BytesPerSession", "bytes-per-session", bytes_per_session, SCHEMA_INT_MAX),
        SIZE_ROW("KeepFreeBytes", "keep-free-bytes", keep_free_bytes, 0),
        SIZE_ROW("SpareMax", "spare-max", spare_bytes, INT64_C(1) << 30),
#define SHARE ", 1% to 100% of the memory the daemon may use, or infinity"
        {"Limits", "HostBytes", "host-bytes", AT(INT64, limits.host_bytes), -50,
         {{"0", 0}, {"5M", 5 << 20}, {"25%", -25}, {"100%", -100}, {"infinity", SCHEMA_INT_MAX}},
         {{"101%", "not a size; give bytes (such as 512M or 16G)" SHARE}, {"0%", "not a size; give bytes (such as 512M or 16G)" SHARE},
          {"half", "not a size; give bytes (such as 512M or 16G)" SHARE}}},
        {"Limits", "MessageBytesMax", "message-bytes-max", AT(INT64, limits.message_bytes), 65536,
         {{"4K", 4096}, {"65536", 65536}, {"10000", 10000}},
         {{"65K", "out of range; give bytes from 4K to 64K, such as 64K"}, {"x", "not a size; give bytes from 4K to 64K, such as 64K"}}},
        {"Limits", "UnreadBytesMax", "unread-bytes-max", AT(INT64, limits.unread_bytes), 131072,
         {{"128K", 131072}, {"1G", INT64_C(1) << 30}},
         {{"127K", "out of range; give bytes from 128K to 1G, such as 128K"}}},
        {"Limits", "UnreadSec", "unread-sec", AT(INT64, limits.unread_ms), 30000,
         {{"100ms", 100}, {"1d", DAY_MS}}, {{"99ms", "out of range; give a time from 100ms to 1d" TIME}}},
        {"Limits", "WaitSecMax", "wait-sec-max", AT(INT64, limits.wait_ms), 3600000,
         {{"0", 0}, {"5min", 300000}, {"1h 30min", 5400000}, {"2sec", 2000}, {"30d", 30 * DAY_MS}},
         {{"31d", "out of range; give a time from 0s to 30d" TIME}, {"5 parsecs", "not a time; give a time from 0s to 30d" TIME},
          {"1h 30", "not a time; give a time from 0s to 30d" TIME}, {"2 s", "not a time; give a time from 0s to 30d" TIME},
          {"99999999999999999d", "out of range; give a time from 0s to 30d" TIME}}},
        {"Limits", "KeepSecMax", "keep-sec-max", AT(INT64, limits.keep_ms), DAY_MS,
         {{"0", 0}, {"3650d", 3650 * DAY_MS}}, {{"3651d", "out of range; give a time from 0s to 3650d" TIME}}},
        {"Daemon", "Socket", "socket", AT(TEXT, socket_path), 0, {{"/a/b.sock", 0}, {"relative", 0}},
         {{"@abstract", "not a path; give a path in the file system: who may reach the socket depends on it"}}},
        {"Daemon", "AdminSocket", "admin-socket", AT(TEXT, admin_socket_path), 0, {{"/a/b.sock", 0}},
         {{"/0123456789/0123456789/0123456789/0123456789/0123456789/0123456789/0123456789/0123456789/0123456789/01234567",
           "108 bytes long; the path of a socket of the daemon has at most 103"}}},
};

static int64_t share_of(int64_t percent) {
        return (int64_t)((__int128)memory_usable_bytes() * percent / 100) / 4096 * 4096;
}

static void expect_value(const struct row *row, const struct config *config, const char *text, int64_t value) {
        const void *member = (const char *)config + row->offset;
        int64_t got = 0;

        if (row->type == TEXT) {
                ck_assert_str_eq(*(char *const *)member, text);
                return;
        }
        if (row->type == INT)
                got = *(const int *)member;
        else if (row->type == BOOL)
                got = *(const bool *)member;
        else
                got = *(const int64_t *)member;
        if (value == 0 && *text >= '1' && *text <= '9')
                value = strtoll(text, NULL, 10);
        if (value < 0)
                value = share_of(-value);
        ck_assert_msg(got == value, "%s=%s: %" PRId64 ", %" PRId64 " expected", row->key, text, got, value);
}

static void write_key(const struct row *row, const char *value) {
        char text[512];

        snprintf(text, sizeof(text), "[%s]\n  %s =  %s \n", row->section, row->key, value);
        config_write("gpuipcd.conf", text);
}

START_TEST(values_are_taken) {
        const struct row *row = &rows[_i];

        for (size_t i = 0; row->good[i].text; i++) {
                const char *text = row->good[i].text;
                char option[64], joined[256];

                write_key(row, text);
                struct config config = config_good(NULL, NULL, NULL);
                expect_value(row, &config, text, row->good[i].value);
                config_deinit(&config);

                config_write("gpuipcd.conf", "");
                snprintf(option, sizeof(option), "--%s", row->option);
                snprintf(joined, sizeof(joined), "--%s=%s", row->option, text);
                config = config_good(joined, NULL, NULL);
                expect_value(row, &config, text, row->good[i].value);
                config_deinit(&config);
                config = config_good(option, text, NULL);
                expect_value(row, &config, text, row->good[i].value);
                config_deinit(&config);
        }
} END_TEST

START_TEST(values_are_refused) {
        const struct row *row = &rows[_i];

        for (size_t i = 0; row->bad[i].text; i++) {
                const char *text = row->bad[i].text;
                char option[64], joined[256], expected[512];

                write_key(row, text);
                snprintf(expected, sizeof(expected), "ROOT/gpuipcd.conf:2: [%s] %s=%s: %s", row->section, row->key, text,
                         row->bad[i].why);
                ck_assert_str_eq(config_bad(NULL, NULL, NULL), expected);

                config_write("gpuipcd.conf", "");
                snprintf(option, sizeof(option), "--%s", row->option);
                snprintf(joined, sizeof(joined), "--%s=%s", row->option, text);
                snprintf(expected, sizeof(expected), "%s: %s", joined, row->bad[i].why);
                ck_assert_str_eq(config_bad(joined, NULL, NULL), expected);
                ck_assert_str_eq(config_bad(option, text, NULL), expected);
        }
} END_TEST

START_TEST(defaults_and_back_to_them) {
        const struct row *row = &rows[_i];
        struct config config = config_good(NULL, NULL, NULL);
        char text[256];

        if (row->type != TEXT)
                expect_value(row, &config, "", row->initial);
        config_deinit(&config);
        if (row->type == TEXT)
                return;
        snprintf(text, sizeof(text), "[%s]\n%s=%s\n%s=\n", row->section, row->key, row->good[1].text, row->key);
        config_write("gpuipcd.conf", text);
        config = config_good(NULL, NULL, NULL);
        expect_value(row, &config, "", row->initial);
        config_deinit(&config);
} END_TEST

START_TEST(zero_is_refused_where_one_is_least) {
        static const char *const keys[] = {"ClientsMax", "ClientsPerUser", "LeasesPerSession", "BuffersMax", "EventsMax"};
        char text[64], expected[128];

        snprintf(text, sizeof(text), "[Limits]\n%s=0\n", keys[_i]);
        config_write("gpuipcd.conf", text);
        snprintf(expected, sizeof(expected), "ROOT/gpuipcd.conf:2: [Limits] %s=0: out of range; " COUNT "1 to 1000000", keys[_i]);
        ck_assert_str_eq(config_bad(NULL, NULL, NULL), expected);
} END_TEST

START_TEST(default_sockets) {
        struct config config = config_good(NULL, NULL, NULL);

        ck_assert_str_eq(config.socket_path, "/run/gpuipcd/gpuipcd.sock");
        ck_assert_str_eq(config.admin_socket_path, "/run/gpuipcd-admin/admin.sock");
        config_deinit(&config);
} END_TEST

/* The lists have tests of their own. */
START_TEST(every_key_has_a_row) {
        for (const struct config_key *key = config_keys; key->name; key++) {
                char option[CONFIG_OPTION_MAX];
                bool found = key->type >= KEY_USERS;

                config_key_option(key, option);
                for (size_t i = 0; i < ELEMENTSOF(rows) && !found; i++)
                        found = strcmp(rows[i].key, key->name) == 0 && strcmp(rows[i].section, key->section) == 0 &&
                                strcmp(rows[i].option, option) == 0;
                ck_assert_msg(found, "[%s] %s= --%s is not tested", key->section, key->name, option);
        }
} END_TEST

int main(void) {
        Suite *suite = suite_create("config");
        TCase *tcase = tcase_create("config");

        tcase_add_checked_fixture(tcase, config_setup, config_teardown);
        tcase_add_loop_test(tcase, values_are_taken, 0, ELEMENTSOF(rows));
        tcase_add_loop_test(tcase, values_are_refused, 0, ELEMENTSOF(rows));
        tcase_add_loop_test(tcase, defaults_and_back_to_them, 0, ELEMENTSOF(rows));
        tcase_add_loop_test(tcase, zero_is_refused_where_one_is_least, 0, 5);
        tcase_add_test(tcase, default_sockets);
        tcase_add_test(tcase, every_key_has_a_row);
        suite_add_tcase(suite, tcase);
        return suite_run(suite);
}
