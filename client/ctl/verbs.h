/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs of gpuipcctl: one table, from which the help, the parsing of options and the completions come. */
#ifndef CTL_VERBS_H
#define CTL_VERBS_H

#include <stdbool.h>
#include <stdint.h>

/* What gpuipcctl answers to the shell. `hold NAME -- COMMAND` answers what the command did. */
enum exit_code {
        EXIT_DONE = 0,
        EXIT_REFUSED = 1, /* refused by the daemon, or failed here */
        EXIT_BAD_USAGE = 2,
        EXIT_NO_DAEMON = 3, /* nobody answers at the socket, or the connection ended */
};

enum option_id {
        OPTION_END, /* ends a verb's rows */
        OPTION_BUFFERS,
        OPTION_BYTES,
        OPTION_CHANNELS,
        OPTION_COUNT,
        OPTION_DELAY,
        OPTION_DETACH,
        OPTION_DEVICE,
        OPTION_DURATION,
        OPTION_HANDLE,
        OPTION_HELP,
        OPTION_ID,
        OPTION_JSON,
        OPTION_KEEP,
        OPTION_LABEL,
        OPTION_META,
        OPTION_MODE,
        OPTION_NAME,
        OPTION_NO_COLOR,
        OPTION_OWNER,
        OPTION_RW,
        OPTION_SEAL,
        OPTION_SEALED,
        OPTION_SINCE,
        OPTION_SIZE,
        OPTION_SOCKET,
        OPTION_UID,
        OPTION_VERSION,
        OPTION_WAIT,
        OPTION_WATCH,
        N_OPTIONS,
};

struct option_row {
        enum option_id id;
        char letter;          /* 0: none */
        const char *name;     /* without the dashes */
        const char *argument; /* what the help calls its value; NULL: it takes none */
        const char *help;
};

struct arguments;

struct verb {
        const char *name;
        const char *synopsis; /* what follows the name and the options; "" when nothing does */
        const char *help;     /* one line */
        const char *details;  /* a paragraph for --help; NULL: none */
        const struct option_row *options;
        int min_operands, max_operands;
        bool takes_command;                            /* what follows "--" is a command to run */
        int (*run)(const struct arguments *arguments); /* answers an exit code */
};

extern const struct verb verbs[]; /* ended by a verb without a name */
extern const struct option_row common_options[]; /* of every verb */
extern const struct option_row lone_options[];   /* without a verb */

/* NULL when there is none of that name. */
const struct verb *verb_find(const char *name);

int verb_alloc(const struct arguments *arguments);
int verb_bench(const struct arguments *arguments);
int verb_devices(const struct arguments *arguments);
int verb_doctor(const struct arguments *arguments);
int verb_free(const struct arguments *arguments);
int verb_get(const struct arguments *arguments);
int verb_help(const struct arguments *arguments);
int verb_hold(const struct arguments *arguments);
int verb_kick(const struct arguments *arguments);
int verb_list(const struct arguments *arguments);
int verb_metrics(const struct arguments *arguments);
int verb_put(const struct arguments *arguments);
int verb_status(const struct arguments *arguments);
int verb_top(const struct arguments *arguments);
int verb_version(const struct arguments *arguments);
int verb_watch(const struct arguments *arguments);

#endif
