/* SPDX-License-Identifier: Apache-2.0 */
/* Values of configuration keys: paths, words, numbers, sizes and times. Loop thread, at start and reload. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "config_keys.h"
#include "listener.h"
#include "memory.h"
#include "proto/cleanup.h"

static void *config_member(const struct config_key *key, struct config_draft *draft) {
        return (char *)&draft->config + key->offset;
}

/* What is more than fits is over every key's range, and told so. */
static int64_t config_times(int64_t value, int64_t unit) {
        return __builtin_mul_overflow(value, unit, &value) ? INT64_MAX : value;
}

static int64_t config_plus(int64_t value, int64_t more) {
        return __builtin_add_overflow(value, more, &value) ? INT64_MAX : value;
}

bool config_digits(const char **text, int64_t *ret) {
        int64_t value = 0;
        const char *p = *text;

        for (; *p >= '0' && *p <= '9'; p++)
                value = config_plus(config_times(value, 10), *p - '0');
        if (p == *text)
                return false;
        *text = p;
        *ret = value;
        return true;
}

static int config_set_path(const struct config_key *key, const char *text, struct config_draft *draft, char *why) {
        char **member = config_member(key, draft), *copy;
        size_t n = strlen(text);

        if (strcmp(text, "none") == 0 && strcmp(key->name, "AdminSocket") == 0)
                text = "";
        if (*text == '@')
                return config_wrong(why, "not a path; give a path in the file system: who may reach the socket depends on it");
        if (n > LISTENER_PATH_MAX)
                return config_wrong(why, "%zu bytes long; the path of a socket of the daemon has at most %zu", n, LISTENER_PATH_MAX);
        copy = strdup(text);
        if (!copy)
                return -ENOMEM;
        free(*member);
        *member = copy;
        return 0;
}

static int config_set_word(const struct config_key *key, const char *text, struct config_draft *draft, char *why) {
        char words[96];
        size_t i = 0;

        for (; key->values[i]; i++)
                if (strcmp(key->values[i], text) == 0)
                        break;
        if (!key->values[i]) {
                config_key_metavar(key, words);
                return config_wrong(why, "no such choice; give one of %s", words);
        }
        if (key->type == KEY_BOOL)
                *(bool *)config_member(key, draft) = i == 1;
        else
                *(int *)config_member(key, draft) = (int)i;
        return 0;
}

static int config_set_bool(const struct config_key *key, const char *text, struct config_draft *draft, char *why) {
        static const char *const words[] = {"no", "yes", "false", "true", "off", "on", "0", "1"};

        if (key->values)
                return config_set_word(key, text, draft, why);
        for (size_t i = 0; i < ELEMENTSOF(words); i++)
                if (strcasecmp(words[i], text) == 0) {
                        *(bool *)config_member(key, draft) = i % 2 == 1;
                        return 0;
                }
        return config_wrong(why, "neither yes nor no; give yes or no");
}

static int config_set_count(const struct config_key *key, const char *text, struct config_draft *draft, char *why) {
        const char *p = text;
        int64_t value;
        bool number = config_digits(&p, &value) && !*p;

        if (number && value >= key->min && value <= key->max && (value == 0 || value >= key->above_zero)) {
                *(int64_t *)config_member(key, draft) = value;
                return 0;
        }
        return config_wrong(why, "%s; give %sa whole number from %" PRId64 " to %" PRId64, number ? "out of range" : "not a number",
                            key->above_zero > 0 ? "0 or " : "", key->above_zero > 0 ? key->above_zero : key->min, key->max);
}

/* "16G", "infinity", and with KEY_SHARE "50%". False: not understood. */
static bool config_parse_size(const struct config_key *key, const char *text, int64_t *ret) {
        static const char suffixes[] = "KMGT";
        const char *p = text, *suffix;
        int64_t value;

        if (strcmp(text, "infinity") == 0) {
                *ret = SCHEMA_INT_MAX;
                return true;
        }
        if (!config_digits(&p, &value))
                return false;
        if (key->type == KEY_SHARE && strcmp(p, "%") == 0 && value >= 1 && value <= 100) {
                int64_t usable = memory_usable_bytes(), page = sysconf(_SC_PAGESIZE);

                *ret = usable == SCHEMA_UNSET ? 0 : (int64_t)((__int128)usable * value / 100) / page * page;
                return true;
        }
        if (*p && (suffix = strchr(suffixes, *p))) {
                value = config_times(value, INT64_C(1) << (10 * (suffix - suffixes + 1)));
                p++;
        }
        *ret = value;
        return !*p;
}

static void config_print_size(int64_t bytes, char ret[32]) {
        static const char suffixes[] = "KMGT";
        size_t i = 0;

        for (bytes /= 1024; bytes > 0 && bytes % 1024 == 0 && suffixes[i + 1]; i++)
                bytes /= 1024;
        snprintf(ret, 32, "%" PRId64 "%c", bytes, suffixes[i]);
}

static int config_set_size(const struct config_key *key, const char *text, struct config_draft *draft, char *why) {
        const char *percent = key->type == KEY_SHARE ? ", 1% to 100% of the memory the daemon may use," : "";
        char least[32], most[32];
        int64_t value;
        bool size = config_parse_size(key, text, &value);

        if (size && value >= key->min && value <= key->max) {
                *(int64_t *)config_member(key, draft) = value;
                return 0;
        }
        if (key->max == SCHEMA_INT_MAX)
                return config_wrong(why, "%s; give bytes (such as 512M or 16G)%s or infinity",
                                    size ? "out of range" : "not a size", percent);
        config_print_size(key->min, least);
        config_print_size(key->max, most);
        return config_wrong(why, "%s; give bytes from %s to %s, such as %s", size ? "out of range" : "not a size", least, most,
                            key->initial);
}

/* "30s", "1h 30min", "500ms"; a plain number is seconds. */
static bool config_parse_duration(const char *text, int64_t *ret_ms) {
        static const struct {
                const char *unit;
                int64_t ms;
        } units[] = {{"ms", 1}, {"s", 1000}, {"sec", 1000}, {"min", 60000}, {"h", 3600000}, {"d", 86400000}};
        int64_t sum = 0, value;

        for (bool first = true;; first = false) {
                size_t n, i = 0;

                if (!config_digits(&text, &value))
                        return false;
                n = strspn(text, "abcdefghijklmnopqrstuvwxyz");
                while (i < ELEMENTSOF(units) && (strlen(units[i].unit) != n || strncmp(units[i].unit, text, n) != 0))
                        i++;
                if (i == ELEMENTSOF(units) && !(first && !*text))
                        return false;
                sum = config_plus(sum, config_times(value, i < ELEMENTSOF(units) ? units[i].ms : 1000));
                text += n + strspn(text + n, " \t");
                if (!*text)
                        break;
        }
        *ret_ms = sum;
        return true;
}

static void config_print_duration(int64_t ms, char ret[32]) {
        if (ms % 86400000 == 0 && ms > 0)
                snprintf(ret, 32, "%" PRId64 "d", ms / 86400000);
        else if (ms % 3600000 == 0 && ms > 0)
                snprintf(ret, 32, "%" PRId64 "h", ms / 3600000);
        else if (ms % 1000 == 0)
                snprintf(ret, 32, "%" PRId64 "s", ms / 1000);
        else
                snprintf(ret, 32, "%" PRId64 "ms", ms);
}

static int config_set_duration(const struct config_key *key, const char *text, struct config_draft *draft, char *why) {
        char least[32], most[32];
        int64_t value;
        bool duration = config_parse_duration(text, &value);

        if (duration && value >= key->min && value <= key->max) {
                *(int64_t *)config_member(key, draft) = value;
                return 0;
        }
        config_print_duration(key->min, least);
        config_print_duration(key->max, most);
        return config_wrong(why, "%s; give a time from %s to %s, such as 500ms, 30s, 5min or 1h",
                            duration ? "out of range" : "not a time", least, most);
}

int config_value_set(const struct config_key *key, const char *text, struct config_draft *draft, char ret_why[CONFIG_WHY_MAX]) {
        bool list = key->type >= KEY_USERS;

        if (!*text && !list && strcmp(key->name, "AdminSocket") != 0)
                text = key->initial;
        switch (key->type) {
        case KEY_PATH:
                return config_set_path(key, text, draft, ret_why);
        case KEY_ENUM:
                return config_set_word(key, text, draft, ret_why);
        case KEY_BOOL:
                return config_set_bool(key, text, draft, ret_why);
        case KEY_COUNT:
                return config_set_count(key, text, draft, ret_why);
        case KEY_SIZE:
        case KEY_SHARE:
                return config_set_size(key, text, draft, ret_why);
        case KEY_DURATION:
                return config_set_duration(key, text, draft, ret_why);
        default:
                return config_list_set(key, text, draft, ret_why);
        }
}
