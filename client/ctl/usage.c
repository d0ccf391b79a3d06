/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the table of verbs as help. */
#include "usage.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "print.h"

static int text_width(FILE *to) {
        int width = print_columns(fileno(to));

        return width < 40 || width > 100 ? 80 : width;
}

/* Writes text broken at spaces, with lines after the first indented; the first begins at column `at`. */
static void wrap(FILE *to, const char *text, int at, int indent, int width) {
        while (*text) {
                size_t n = strcspn(text, " ");
                int columns = print_width(text, n);

                if (at > indent && at + 1 + columns > width) {
                        (void)fprintf(to, "\n%*s", indent, "");
                        at = indent;
                } else if (at > indent) {
                        (void)fputc(' ', to);
                        at++;
                }
                (void)fwrite(text, 1, n, to);
                at += columns;
                text += n + strspn(text + n, " ");
        }
        (void)fputc('\n', to);
}

static void row_print(FILE *to, const char *left, const char *text, int column) {
        int at = 2 + print_width(left, strlen(left));

        (void)fprintf(to, "  %s", left);
        if (at + 2 > column) {
                (void)fputc('\n', to);
                at = 0;
        }
        (void)fprintf(to, "%*s", column - at, "");
        wrap(to, text, column, column, text_width(to));
}

static void options_print(FILE *to, const struct option_row *rows) {
        char left[64];

        for (; rows->id != OPTION_END; rows++) {
                (void)snprintf(left, sizeof(left), "%c%c%c --%s%s%s", rows->letter ? '-' : ' ',
                               rows->letter ? rows->letter : ' ', rows->letter ? ',' : ' ', rows->name,
                               rows->argument ? " " : "", rows->argument ? rows->argument : "");
                row_print(to, left, rows->help, 28);
        }
}

void usage_verb(FILE *to, const struct verb *verb) {
        (void)fprintf(to, "Usage: gpuipcctl %s [OPTION ...]%s%s\n\n", verb->name, verb->synopsis[0] ? " " : "",
                      verb->synopsis);
        (void)fprintf(to, "%s:", verb->name);
        wrap(to, verb->help, (int)strlen(verb->name) + 1, 0, text_width(to));
        if (verb->details) {
                (void)fputc('\n', to);
                wrap(to, verb->details, 0, 0, text_width(to));
        }
        (void)fputs("\nOptions:\n", to);
        options_print(to, verb->options);
        options_print(to, common_options);
}

void usage_overview(FILE *to) {
        char left[64];

        (void)fputs("Usage: gpuipcctl [--socket PATH] VERB [OPTION ...] [OPERAND ...]\n\n"
                    "Looks at, makes and holds memory shared between processes by gpuipcd.\n\nVerbs:\n",
                    to);
        for (const struct verb *verb = verbs; verb->name; verb++) {
                (void)snprintf(left, sizeof(left), "%s %s", verb->name, verb->synopsis);
                row_print(to, left, verb->help, 28);
        }
        (void)fputs("\nOptions of every verb:\n", to);
        options_print(to, common_options);
        (void)fputs("\nOption without a verb:\n", to);
        options_print(to, lone_options);
        (void)fputs("\nExit status: 0 done, 1 refused or failed, 2 wrong usage, 3 no daemon.\n"
                    "More: gpuipcctl VERB --help, gpuipcctl(1)\n",
                    to);
}
