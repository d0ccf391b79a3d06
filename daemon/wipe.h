/* SPDX-License-Identifier: Apache-2.0 */
/* Clearing GPU memory that the daemon has only a descriptor of. That needs a context, so a process of its own does it: the daemon's
 * program again, with an option that --help does not show, and the descriptor as number 3. */
#ifndef DAEMON_WIPE_H
#define DAEMON_WIPE_H

#include <stdint.h>

#include "backend.h"

#define WIPE_OPTION "--wipe-memory"

/* The program to run; "/proc/self/exe" but in tests. */
extern const char *wipe_program;

/* How long the helper may take before it is killed. */
extern int wipe_deadline_ms;

/* Clears `bytes` of the device's memory behind `fd` (borrowed) and sees that they are clear. 0, or -errno with the reason in words.
 * Pool thread; blocks until the helper is gone. */
int wipe_run(int fd, const char *uuid, int64_t bytes, struct backend_detail *detail);

#define WIPE_NO_MEMORY 3 /* its exit status when the device has no room for its context */

/* The helper's main(): argv is program, option, uuid, bytes. Its exit status; what went wrong goes to standard output. */
int wipe_main(int argc, char *argv[]);

#endif
