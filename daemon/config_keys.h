/* SPDX-License-Identifier: Apache-2.0 */
/* The table of configuration keys, and how the text of each becomes a value. */
#ifndef DAEMON_CONFIG_KEYS_H
#define DAEMON_CONFIG_KEYS_H

#include "config.h"

enum key_type {
        KEY_PATH,     /* char * */
        KEY_ENUM,     /* int, an index into `values` */
        KEY_BOOL,     /* bool; `values`, when given, are the words for false and true */
        KEY_COUNT,    /* int64_t */
        KEY_SIZE,     /* int64_t, bytes */
        KEY_SHARE,    /* int64_t, bytes; also a percentage of the memory this process may use */
        KEY_DURATION, /* int64_t, milliseconds */
        KEY_USERS,    /* lists: kept in the draft */
        KEY_GROUPS,
        KEY_RANGES,
        KEY_RESERVED,
};

struct config_key {
        const char *section, *name;
        enum key_type type;
        size_t offset; /* in struct config; not for lists */
        int64_t min, max;
        int64_t above_zero; /* KEY_COUNT whose 0 means something else: the least that may be given beside it */
        const char *const *values; /* KEY_ENUM, KEY_BOOL: NULL-ended */
        const char *initial;       /* the default, as one would write it */
        const char *help;
        bool restart; /* a reload does not apply it */
};

extern const struct config_key config_keys[]; /* ends with a NULL name; keys of one section together */

/* A configuration being read. The lists that become one are apart, so that each can be cleared alone. */
struct config_draft {
        struct config config;
        struct uid_range *users, *ranges;
        size_t n_users, n_ranges;
};

#define CONFIG_WHY_MAX 256

/* Reads one value into the draft; an empty one means the default, and empties a list. 0; -EINVAL with what is wrong and what to
 * give instead; -ENOMEM. */
int config_value_set(const struct config_key *key, const char *text, struct config_draft *draft, char ret_why[CONFIG_WHY_MAX]);

/* For config_value_set(): one of the lists. */
int config_list_set(const struct config_key *key, const char *text, struct config_draft *draft, char ret_why[CONFIG_WHY_MAX]);

/* Digits at the start of text; moves *text past them. False: there are none. Too many are INT64_MAX. */
bool config_digits(const char **text, int64_t *ret);

#define config_wrong(why, ...) (snprintf(why, CONFIG_WHY_MAX, __VA_ARGS__), -EINVAL)

/* The key's option without the dashes: "clients-max". */
#define CONFIG_OPTION_MAX 32
void config_key_option(const struct config_key *key, char ret_option[CONFIG_OPTION_MAX]);

/* What --help shows for the value: "N", "BYTES", "auto|host|cuda". */
void config_key_metavar(const struct config_key *key, char ret_text[64]);

/* Reads a file into the draft. 0 or -errno with a message (heap). */
int config_file_read(const char *path, bool may_be_missing, struct config_draft *draft, char **ret_message);

/* Reads a directory's files that end in .conf, in order of name, hidden ones not; a missing directory is fine. */
int config_directory_read(const char *path, struct config_draft *draft, char **ret_message);

/* Makes a message, of one line whatever the values in it, and returns `error`, or -ENOMEM. */
int config_fail(char **ret_message, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
