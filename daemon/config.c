/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration as a whole: defaults, files and command line in their order, and what is said about it. Loop thread, at
 * start and reload; reads files and the user database, so it may block. */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "config_keys.h"
#include "proto/bytes.h"
#include "proto/cleanup.h"

static void draft_deinit(struct config_draft *draft) {
        free(draft->users);
        free(draft->ranges);
        config_deinit(&draft->config);
}

void config_deinit(struct config *config) {
        free(config->socket_path);
        free(config->admin_socket_path);
        policy_deinit(&config->policy);
        *config = (struct config){0};
}

static int config_set_defaults(struct config_draft *draft, char **ret_message) {
        char why[CONFIG_WHY_MAX];

        for (const struct config_key *key = config_keys; key->name; key++) {
                int r = config_value_set(key, key->initial, draft, why);

                if (r < 0)
                        return config_fail(ret_message, r, "default of %s=: %s", key->name,
                                           r == -EINVAL ? why : strerrordesc_np(-r));
        }
        return 0;
}

/* One option of the command line, with its value when it has one. */
struct config_option {
        char name[CONFIG_OPTION_MAX];
        const char *value;            /* NULL: none */
        const struct config_key *key; /* NULL: none of the keys' twins */
};

static const struct config_key *config_option_key(const char *name) {
        char option[CONFIG_OPTION_MAX];

        for (const struct config_key *key = config_keys; key->name; key++) {
                config_key_option(key, option);
                if (strcmp(option, name) == 0)
                        return key;
        }
        return NULL;
}

/* Reads the option at argv[*i] and moves past it. 0 or -EINVAL with a message. */
static int config_option_next(int argc, char *argv[], int *i, struct config_option *ret, char **ret_message) {
        static const char *const plain[] = {"help", "version", "test-config"};
        const char *word = argv[(*i)++], *equals = strchr(word, '=');
        size_t n = equals ? (size_t)(equals - word) : strlen(word);
        struct config_option option = {.value = equals ? equals + 1 : NULL};
        bool is_plain = false;

        if (strcmp(word, "-h") == 0)
                word = "--help", n = strlen(word);
        if (word[0] != '-')
                return config_fail(ret_message, -EINVAL, "%.60s: gpuipcd takes options only; see gpuipcd --help", word);
        if (n > 2 && word[1] == '-' && n - 2 < sizeof(option.name))
                memcpy(option.name, word + 2, n - 2);
        for (size_t k = 0; k < ELEMENTSOF(plain); k++)
                is_plain |= strcmp(plain[k], option.name) == 0;
        option.key = config_option_key(option.name);
        if (!is_plain && !option.key && strcmp(option.name, "config") != 0)
                return config_fail(ret_message, -EINVAL, "%.*s: unknown option; see gpuipcd --help", n < 60 ? (int)n : 60, word);
        if (is_plain && option.value)
                return config_fail(ret_message, -EINVAL, "--%s: takes no value; leave out =%.60s", option.name, option.value);
        if (!is_plain && !option.value && *i == argc)
                return config_fail(ret_message, -EINVAL, "--%s: its value is missing; write --%s=VALUE", option.name, option.name);
        if (!is_plain && !option.value)
                option.value = argv[(*i)++];
        *ret = option;
        return 0;
}

/* First pass over the command line: what to do, which file to read, and whether every option is one. */
static int config_scan_options(int argc, char *argv[], enum config_action *ret_action, const char **ret_file,
                               char **ret_message) {
        enum config_action action = CONFIG_RUN;

        for (int i = 1; i < argc;) {
                struct config_option option;
                int r = config_option_next(argc, argv, &i, &option, ret_message);

                if (r < 0)
                        return r;
                if (strcmp(option.name, "config") == 0)
                        *ret_file = option.value;
                else if (strcmp(option.name, "help") == 0)
                        action = CONFIG_HELP;
                else if (strcmp(option.name, "version") == 0 && action != CONFIG_HELP)
                        action = CONFIG_VERSION;
                else if (strcmp(option.name, "test-config") == 0 && action == CONFIG_RUN)
                        action = CONFIG_TEST;
        }
        *ret_action = action;
        return 0;
}

/* Second pass: the keys' twins. A socket of one's own comes without the administrators' unless that is asked for too. */
static int config_apply_options(int argc, char *argv[], struct config_draft *draft, char **ret_message) {
        bool socket = false, admin_socket = false;
        char why[CONFIG_WHY_MAX];

        for (int i = 1; i < argc;) {
                struct config_option option;
                int r = config_option_next(argc, argv, &i, &option, ret_message);

                if (r < 0)
                        return r;
                if (!option.key)
                        continue;
                r = config_value_set(option.key, option.value, draft, why);
                if (r < 0)
                        return config_fail(ret_message, r, "--%s=%.120s: %s", option.name, option.value,
                                           r == -EINVAL ? why : strerrordesc_np(-r));
                socket |= strcmp(option.name, "socket") == 0;
                admin_socket |= strcmp(option.name, "admin-socket") == 0;
        }
        if (socket && !admin_socket)
                draft->config.admin_socket_path[0] = '\0';
        return 0;
}

static int config_read_files(const char *given, struct config_draft *draft, char **ret_message) {
        const char *path = given ? given : CONFIG_FILE;
        _cleanup_free_ char *directory = NULL;
        int r = config_file_read(path, !given, draft, ret_message);

        if (r < 0)
                return r;
        if (asprintf(&directory, "%s.d", path) < 0)
                return config_fail(ret_message, -ENOMEM, "out of memory");
        return config_directory_read(directory, draft, ret_message);
}

/* What no key can judge alone, and the one list of uids that the policy wants. */
static int config_complete(struct config_draft *draft, char **ret_message) {
        struct policy *policy = &draft->config.policy;
        size_t n = draft->n_users + draft->n_ranges;

        if (strcmp(draft->config.socket_path, draft->config.admin_socket_path) == 0)
                return config_fail(ret_message, -EINVAL, "Socket= and AdminSocket= are both %s; give each a path of its own",
                                   draft->config.socket_path);
        if (n > 0) {
                policy->allow_uids = calloc(n, sizeof(*policy->allow_uids));
                if (!policy->allow_uids)
                        return config_fail(ret_message, -ENOMEM, "out of memory");
        }
        for (size_t i = 0; i < n; i++)
                policy->allow_uids[i] = i < draft->n_users ? draft->users[i] : draft->ranges[i - draft->n_users];
        policy->n_allow_uids = n;
        policy->restricted = n > 0 || policy->n_allow_gids > 0;
        return 0;
}

int config_load(int argc, char *argv[], struct config *ret_config, enum config_action *ret_action, char **ret_message) {
        _cleanup_(draft_deinit) struct config_draft draft = {0};
        enum config_action action;
        const char *file = NULL;
        int r;

        r = config_scan_options(argc, argv, &action, &file, ret_message);
        if (r < 0)
                return r;
        r = config_set_defaults(&draft, ret_message);
        if (r < 0)
                return r;
        if (action == CONFIG_RUN || action == CONFIG_TEST) {
                r = config_read_files(file, &draft, ret_message);
                if (r < 0)
                        return r;
                r = config_apply_options(argc, argv, &draft, ret_message);
                if (r < 0)
                        return r;
        }
        r = config_complete(&draft, ret_message);
        if (r < 0)
                return r;
        *ret_config = draft.config;
        draft.config = (struct config){0};
        *ret_action = action;
        return 0;
}

static void print_option(FILE *stream, const char *option, const char *metavar, const char *help, const char *initial) {
        char left[96];
        int n = snprintf(left, sizeof(left), "--%s%s%s", option, *metavar ? "=" : "", metavar);

        if (n > 35)
                fprintf(stream, "  %s\n  %35s", left, "");
        else
                fprintf(stream, "  %-35s", left);
        fprintf(stream, " %s", help);
        if (*initial)
                fprintf(stream, " [%s]", initial);
        fputc('\n', stream);
}

void config_print_help(FILE *stream) {
        const char *section = "";

        fputs("Usage: gpuipcd [OPTION...]\n"
              "Broker of memory shared between processes. Each option but the first four is also a key of\n"
              CONFIG_FILE ", see gpuipcd.conf(5). Defaults are in brackets.\n\n",
              stream);
        print_option(stream, "help", "", "Show this and exit", "");
        print_option(stream, "version", "", "Show the version and exit", "");
        print_option(stream, "test-config", "", "Check the configuration and exit", "");
        print_option(stream, "config", "FILE", "Read FILE and FILE.d instead", CONFIG_FILE);
        for (const struct config_key *key = config_keys; key->name; key++) {
                char option[CONFIG_OPTION_MAX], metavar[64];

                if (strcmp(section, key->section) != 0)
                        fprintf(stream, "\n%s:\n", section = key->section);
                config_key_option(key, option);
                config_key_metavar(key, metavar);
                print_option(stream, option, metavar, key->help, key->initial);
        }
}

static bool config_member_equal(const struct config_key *key, const struct config *a, const struct config *b) {
        const void *left = (const char *)a + key->offset, *right = (const char *)b + key->offset;

        if (key->type == KEY_PATH)
                return strcmp(*(char *const *)left, *(char *const *)right) == 0;
        if (key->type == KEY_ENUM)
                return *(const int *)left == *(const int *)right;
        return *(const int64_t *)left == *(const int64_t *)right;
}

char *config_needs_restart(const struct config *old, const struct config *new) {
        _cleanup_(bytes_deinit) struct bytes text = {0};

        for (const struct config_key *key = config_keys; key->name; key++) {
                if (!key->restart || config_member_equal(key, old, new))
                        continue;
                bytes_append_str(&text, text.n ? ", " : "");
                bytes_append_str(&text, key->name);
        }
        if (text.n == 0)
                return NULL;
        bytes_append_char(&text, '\0');
        return text.failed ? NULL : take_ptr(text.data);
}

char *limits_json(const struct limits *limits) {
        _cleanup_(bytes_deinit) struct bytes text = {0};

        for (const struct limit_field *field = limit_fields; field->name; field++) {
                int64_t value = *(const int64_t *)((const char *)limits + field->offset);
                char item[96];

                snprintf(item, sizeof(item), "%s\"%s\":%" PRId64, text.n ? "," : "{", field->name, value);
                bytes_append_str(&text, item);
        }
        bytes_append_str(&text, text.n ? "}" : "{}");
        bytes_append_char(&text, '\0');
        return text.failed ? NULL : take_ptr(text.data);
}
