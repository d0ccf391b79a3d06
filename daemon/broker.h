/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon as one object: owns everything, ties the rooms together, starts and stops them. Loop thread. */
#ifndef DAEMON_BROKER_H
#define DAEMON_BROKER_H

#include "config.h"

struct broker;

/* To be called before the configuration is read: a SIGHUP that comes from then on waits until it can be carried out. */
void broker_hold_reloads(void);

/* Takes the configuration's contents (argc and argv are kept for reloads). Listens and is ready to run; the cause of a failure is in
 * the log. -errno. */
int broker_new(int argc, char *argv[], struct config *config_take, struct broker **ret);

/* Serves until told to stop. True when all work under way was finished in time; then broker_free() may follow, else only _exit(). */
bool broker_run(struct broker *broker);
void broker_free(struct broker *broker);

#endif
