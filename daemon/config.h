/* SPDX-License-Identifier: Apache-2.0 */
/* Configuration: one table of keys serves the file, its drop-ins, the command line, --help and reload.
 *
 *     /etc/gpuipcd/gpuipcd.conf, then what ends in .conf in /etc/gpuipcd/gpuipcd.conf.d in order of name, then the command
 *     line.
 *
 * INI as systemd's: [Sections], Key=value, # and ; comments, an empty list value clears the list. An unknown section or
 * key, or a value out of range, is an error that names file, line, key and remedy. */
#ifndef DAEMON_CONFIG_H
#define DAEMON_CONFIG_H

#include <stdbool.h>
#include <stdio.h>

#include "limits.h"
#include "log.h"
#include "policy.h"

#define CONFIG_FILE "/etc/gpuipcd/gpuipcd.conf"

enum store_choice { STORE_AUTO, STORE_YES, STORE_NO };
enum backend_choice { BACKEND_AUTO, BACKEND_HOST, BACKEND_CUDA };

struct config {
        /* [Daemon] */
        char *socket_path;       /* Socket=, --socket */
        char *admin_socket_path; /* AdminSocket=, --admin-socket; "" : none */
        int backend;             /* Backend=auto|host|cuda */
        int log_level;           /* LogLevel=emerg…debug, a syslog level */
        int log_target;          /* LogTarget=auto|stderr|journal */
        int wipe;                /* Wipe=auto|always|never: enum wipe_choice */
        int store;               /* Store=auto|yes|no: enum store_choice */
        int64_t drain_ms;        /* DrainSec=: how long a stop waits for work under way */
        /* [Access] → policy: AllowUsers= AllowGroups= AllowUidRanges= ReservedNames= Isolation= TrustRelease=
         * UnenforcedReadOnly= */
        struct policy policy;
        /* [Limits] → one key per member of struct limits: ClientsMax=, ClientsPerUser=, … */
        struct limits limits;
};

void config_deinit(struct config *config);

/* What the command line asks for besides keys. */
enum config_action { CONFIG_RUN, CONFIG_HELP, CONFIG_VERSION, CONFIG_TEST };

/* Reads files and command line into a fresh struct. 0 or -EINVAL with a message of one line for people in *ret_message
 * (heap), or another -errno likewise. Options besides the keys' twins: --config FILE (no default file and its drop-ins
 * beside it are read instead), --test-config, --help, --version. A missing default file is fine; a missing --config FILE is not. */
int config_load(int argc, char *argv[], struct config *ret_config, enum config_action *ret_action, char **ret_message);

void config_print_help(FILE *stream);

/* For a reload: names the keys that differ between the two but only take effect at a restart (sockets, backend), as one
 * comma-separated heap string; NULL when there are none. */
char *config_needs_restart(const struct config *old, const struct config *new);

/* The limits as the JSON object of GetStatus; heap. NULL: out of memory. */
char *limits_json(const struct limits *limits);

#endif
