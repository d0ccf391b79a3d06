/* SPDX-License-Identifier: Apache-2.0 */
/* Splits the command line by the table of verbs. Options may stand before and after the verb and its operands; what
 * follows "--" is a command where the verb takes one, operands elsewhere. */
#include <errno.h>
#include <string.h>

#include "arguments.h"
#include "parse.h"
#include "report.h"

struct splitter {
        struct arguments *out;
        char **argv;
        int argc, i;
};

static const struct option_row *row_find(const struct option_row *rows, const char *name, size_t n, char letter) {
        for (; rows->id != OPTION_END; rows++)
                if (letter ? rows->letter == letter : strlen(rows->name) == n && memcmp(rows->name, name, n) == 0)
                        return rows;
        return NULL;
}

static const struct option_row *option_find(const struct verb *verb, const char *name, size_t n, char letter) {
        const struct option_row *row = row_find(verb ? verb->options : lone_options, name, n, letter);

        return row ? row : row_find(common_options, name, n, letter);
}

/* `inline_value` is what followed "=" or a letter; NULL: nothing did. */
static int option_take(struct splitter *in, const struct option_row *row, const char *inline_value) {
        struct arguments *out = in->out;

        if (row->id == OPTION_HELP)
                out->help = true;
        if (!row->argument) {
                out->values[row->id] = "";
                return EXIT_DONE;
        }
        if (!inline_value) {
                if (in->i >= in->argc)
                        return report_usage(out->verb, "--%s needs a value: --%s %s", row->name, row->name,
                                            row->argument);
                inline_value = in->argv[in->i++];
        }
        out->values[row->id] = inline_value;
        return EXIT_DONE;
}

static int split_long(struct splitter *in, const char *text) {
        const char *equals = strchr(text, '=');
        size_t n = equals ? (size_t)(equals - text) : strlen(text);
        const struct option_row *row = option_find(in->out->verb, text, n, 0);

        if (!row && !in->out->verb)
                return report_usage(NULL, "unknown option --%.*s; a verb's own options follow the verb", (int)n,
                                    text);
        if (!row)
                return report_usage(in->out->verb, "unknown option --%.*s", (int)n, text);
        if (equals && !row->argument)
                return report_usage(in->out->verb, "--%s takes no value", row->name);
        return option_take(in, row, equals ? equals + 1 : NULL);
}

static int split_letters(struct splitter *in, const char *text) {
        for (; *text; text++) {
                const struct option_row *row = option_find(in->out->verb, NULL, 0, *text);

                if (!row)
                        return report_usage(in->out->verb, "unknown option -%c", *text);
                if (row->argument)
                        return option_take(in, row, text[1] ? text + 1 : NULL);
                (void)option_take(in, row, NULL);
        }
        return EXIT_DONE;
}

static int split_operand(struct splitter *in, const char *text) {
        struct arguments *out = in->out;

        if (!out->verb) {
                out->verb = verb_find(text);
                return out->verb ? EXIT_DONE : report_usage(NULL, "there is no verb \"%s\"", text);
        }
        if (out->n_operands >= out->verb->max_operands) {
                if (out->verb->takes_command)
                        return report_usage(out->verb, "\"%s\" is one too many; put -- before a command", text);
                return report_usage(out->verb, "\"%s\" is one too many", text);
        }
        out->operands[out->n_operands++] = text;
        return EXIT_DONE;
}

/* Options of the wrong verb, too few operands. */
static int check(const struct arguments *out) {
        const struct verb *verb = out->verb;

        if (!verb || out->help || out->n_operands >= verb->min_operands)
                return EXIT_DONE;
        if (out->n_operands == 0)
                return report_usage(verb, "%s needs %s", verb->name, verb->synopsis);
        return report_usage(verb, "%s needs more than \"%s\": %s", verb->name, out->operands[0], verb->synopsis);
}

int arguments_parse(struct arguments *ret, int argc, char **argv) {
        struct arguments out = { 0 };
        struct splitter in = { &out, argv, argc, 1 };
        bool operands_only = false;

        while (in.i < argc) {
                const char *text = argv[in.i++];
                int r;

                if (!operands_only && strcmp(text, "--") == 0) {
                        operands_only = true;
                        if (!out.verb || !out.verb->takes_command)
                                continue;
                        if (in.i >= argc)
                                return report_usage(out.verb, "no command follows --");
                        out.command = argv + in.i;
                        break;
                }
                if (operands_only || text[0] != '-' || text[1] == 0)
                        r = split_operand(&in, text);
                else if (text[1] == '-')
                        r = split_long(&in, text + 2);
                else
                        r = split_letters(&in, text + 1);
                if (r != EXIT_DONE)
                        return r;
        }
        if (check(&out) != EXIT_DONE)
                return EXIT_BAD_USAGE;
        *ret = out;
        return EXIT_DONE;
}

static const char *option_name(const struct arguments *arguments, enum option_id id) {
        for (const struct option_row *row = arguments->verb->options; row->id != OPTION_END; row++)
                if (row->id == id)
                        return row->name;
        return "?";
}

int arguments_size(const struct arguments *arguments, enum option_id id, int64_t *ret) {
        const char *text = arguments->values[id];

        if (!text || parse_size(text, ret) == 0)
                return EXIT_DONE;
        return report_usage(arguments->verb,
                            "--%s \"%s\": " PARSE_SIZE_HINT,
                            option_name(arguments, id), text);
}

int arguments_duration(const struct arguments *arguments, enum option_id id, int64_t *ret_ms) {
        const char *text = arguments->values[id];

        if (!text || parse_duration(text, ret_ms) == 0)
                return EXIT_DONE;
        return report_usage(arguments->verb, "--%s \"%s\": give a time such as 500ms, 30s, 5m, 1h30m or 2d",
                            option_name(arguments, id), text);
}

int arguments_number(const struct arguments *arguments, enum option_id id, int64_t min, int64_t *ret) {
        const char *text = arguments->values[id];
        int64_t number;

        if (!text)
                return EXIT_DONE;
        if (parse_number(text, &number) != 0 || number < min)
                return report_usage(arguments->verb, "--%s \"%s\": give a whole number from %lld",
                                    option_name(arguments, id), text, (long long)min);
        *ret = number;
        return EXIT_DONE;
}

int arguments_uid(const struct arguments *arguments, enum option_id id, int64_t *ret) {
        const char *text = arguments->values[id];

        if (!text || parse_uid(text, ret) == 0)
                return EXIT_DONE;
        return report_usage(arguments->verb, "--%s \"%s\": there is no such user; give a user's name or a uid",
                            option_name(arguments, id), text);
}
