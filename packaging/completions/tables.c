/* SPDX-License-Identifier: Apache-2.0 */
/* Prints, for `generate`, what the command and the daemon know of their own options: one row a line, its fields apart by tabs. Runs
 * when the completions are built; installed nowhere. */
#include <stdio.h>
#include <string.h>

#include "client/ctl/verbs.h"
#include "client/doctor_codes.h"
#include "daemon/config_keys.h"

/* option VERB LETTER NAME ARGUMENT HELP; VERB is "*" for every verb's, "-" for those without a verb. */
static void options_print(const char *verb, const struct option_row *rows) {
        for (; rows->id != OPTION_END; rows++)
                printf("option\t%s\t%.1s\t%s\t%s\t%s\n", verb, rows->letter ? &rows->letter : "", rows->name,
                       rows->argument ? rows->argument : "", rows->help);
}

static void command_print(void) {
        for (const struct verb *verb = verbs; verb->name; verb++) {
                printf("verb\t%s\t%s\t%s\n", verb->name, verb->synopsis, verb->help);
                options_print(verb->name, verb->options);
        }
        options_print("*", common_options);
        options_print("-", lone_options);
#define CODE(name, code, what) printf("code\t%s\t%s\n", code, what);
        DOCTOR_CODES(CODE)
}

/* key OPTION TYPE VALUES HELP */
static void daemon_print(void) {
        for (const struct config_key *key = config_keys; key->name; key++) {
                char option[CONFIG_OPTION_MAX], metavar[64];

                config_key_option(key, option);
                config_key_metavar(key, metavar);
                printf("key\t%s\t%s\t%s\n", option, metavar, key->help);
        }
}

int main(int argc, char *argv[]) {
        if (argc != 2 || (strcmp(argv[1], "gpuipcctl") != 0 && strcmp(argv[1], "gpuipcd") != 0)) {
                fputs("usage: tables gpuipcctl|gpuipcd\n", stderr);
                return 2;
        }
        if (strcmp(argv[1], "gpuipcctl") == 0)
                command_print();
        else
                daemon_print();
        return 0;
}
