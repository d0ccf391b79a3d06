/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's two doors: the socket for everyone and the one for administrators. Loop thread. */
#ifndef DAEMON_DOORS_H
#define DAEMON_DOORS_H

#include "handed.h"
#include "listener.h"

struct doors {
        struct listener shared, admin;
};

void doors_init(struct doors *doors);

/* Takes the sockets among what the service manager handed over, else makes its own at the paths (admin_path NULL or "": none), and
 * begins to accept. The cause of a failure is in the log. 0 or -errno. */
int doors_open(struct doors *doors, struct hall *hall, struct handed *handed, const char *path,
               const char *admin_path);

/* Says where it serves. */
void doors_announce(const struct doors *doors);

/* Harmless twice. */
void doors_close(struct doors *doors);

#endif
